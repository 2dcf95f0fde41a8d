"""A folder's lock: held for moments, waited for within limits, and given up when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.base.errors import ContendedError, Retry, StoreError
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore
from cordwood.store.disk import Disk
from cordwood.store.files import LOCK_NAME, TEMP_PREFIX


class SlowSync(Disk):
    """A disk whose folder syncs do not end before they are allowed to."""

    def __init__(self):
        self.begun = threading.Event()
        self.allowed = threading.Event()

    def fsync_dir(self, path):
        self.begun.set()
        assert self.allowed.wait(60)
        super().fsync_dir(path)


@pytest.fixture
def ground(tmp_path):
    """A store without tricks that has written into the folder already."""
    store = DirectoryStore(str(tmp_path), lock_wait_s=2.0)
    asyncio.run(store.put("object", b"before"))
    asyncio.run(store.put("other", b"before"))
    return store


@asynccontextmanager
async def while_syncing(ground, call):
    """A call that hangs in its folder sync until the block ends."""
    disk = SlowSync()
    store = DirectoryStore(str(ground._root), disk=disk)
    store._files._settled.update(ground._files._settled)
    task = asyncio.ensure_future(call(store))
    try:
        await asyncio.to_thread(disk.begun.wait, 60)
        yield task
    finally:
        disk.allowed.set()


async def test_a_put_in_its_sync_holds_no_lock(ground):
    """While one put hangs in the sync of the folder, others replace and delete what they like."""
    etag = (await ground.get("object")).etag
    async with while_syncing(ground, lambda s: s.put("object", b"1", Match(etag))) as task:
        seen = await ground.get("object")
        assert b"1" == seen.data
        await ground.put("object", b"2", Match(seen.etag))
        await ground.put("other", b"2")
        await ground.delete(["other"])
        assert not task.done()
    assert seen.etag == await task
    assert b"2" == (await ground.get("object")).data


async def test_a_delete_in_its_sync_holds_no_lock(ground):
    """While a delete hangs in the sync of the folder, others go on, also with the same name."""
    async with while_syncing(ground, lambda s: s.delete(["object"])) as task:
        await ground.put("other", b"2")
        await ground.put("object", b"again")
        assert not task.done()
    await task
    assert b"again" == (await ground.get("object")).data


async def test_no_file_is_synced_inside_the_lock(tmp_path):
    """An overwrite that needs a later time gets it outside the lock."""
    inside, synced = [], []

    class Watched(Disk):
        def lock(self, path):
            if not inside:  # somebody with a later time comes first
                inside.append(True)
                later = DirectoryStore(str(tmp_path), clock=Later())
                asyncio.run(later.put("object", b"later"))
            return super().lock(path)

        def touch(self, path, mtime_ns):
            with Disk().lock(str(tmp_path / LOCK_NAME)):  # it is free
                synced.append(path)
            return super().touch(path, mtime_ns)

    class Later:
        def now_us(self):
            return SYSTEM_CLOCK.now_us() + 60_000_000

        monotonic_s = SYSTEM_CLOCK.monotonic_s

    store = DirectoryStore(str(tmp_path), disk=Watched())
    etag = await store.put("object", b"ours")
    assert 1 == len(synced)
    assert (b"ours", etag) == await store.get("object")


@pytest.mark.parametrize("operation", ["match", "overwrite", "delete"])
async def test_a_lock_that_stays_held(ground, tmp_path, operation):
    """After a while one gives up: nothing has changed, and the error says who to look for."""
    store = DirectoryStore(str(tmp_path), lock_wait_s=0.1)
    found = await ground.get("object")
    calls = {
        "match": lambda: store.put("object", b"after", Match(found.etag)),
        "overwrite": lambda: store.put("object", b"after"),
        "delete": lambda: store.delete(["object"]),
    }
    with Disk().lock(str(tmp_path / LOCK_NAME)):
        with pytest.raises(StoreError, match="lock") as caught:
            await calls[operation]()
        # What needs no lock goes on.
        assert found == await store.get("object")
        await store.put("new", b"", "create")
        with pytest.raises(ContendedError):
            await store.put("object", b"", Match("0-0-0"))
    error = caught.value
    assert (False, True, Retry.NOW) == (error.applied, error.transient, error.retry)
    assert str(tmp_path) in error.message
    assert "0.1 s" in error.message
    assert LOCK_NAME in error.hint
    assert ("delete" if operation == "delete" else "put", "object") == (error.operation, error.key)
    assert [] == list(tmp_path.glob(f"{TEMP_PREFIX}*"))
    assert found == await store.get("object")
    await calls[operation]()


async def test_a_lock_that_becomes_free(ground, tmp_path):
    """Whoever waits gets the lock soon after it is free."""
    held = Disk().lock(str(tmp_path / LOCK_NAME))
    held.__enter__()
    task = asyncio.ensure_future(ground.put("object", b"after"))
    await asyncio.sleep(0.1)
    assert not task.done()
    held.__exit__(None, None, None)
    await task
    assert b"after" == (await ground.get("object")).data


@pytest.mark.parametrize("operation", ["put", "delete"])
async def test_a_cancelled_call_stops_waiting(tmp_path, operation):
    """A call that is cancelled while it waits ends its thread soon, and never takes effect."""
    store = DirectoryStore(str(tmp_path), lock_wait_s=3_600.0)
    before = await store.put("object", b"before")
    call = store.put("object", b"after") if operation == "put" else store.delete(["object"])
    with Disk().lock(str(tmp_path / LOCK_NAME)):
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().shutdown_default_executor()
        assert [] == list(tmp_path.glob(f"{TEMP_PREFIX}*"))
    assert before == DirectoryStore(str(tmp_path))._files.head("object").etag


def test_two_threads_exclude_each_other(tmp_path):
    """A lock belongs to one open file: a second try in the same process is refused at once."""
    path = str(tmp_path / LOCK_NAME)
    with Disk().lock(path), pytest.raises(BlockingIOError), Disk().lock(path):
        pass
    with Disk().lock(path):
        pass
