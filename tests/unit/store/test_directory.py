"""What a directory store does at the edges: links, rights, full disks, odd neighbours, clocks."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading

import pytest

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    InvalidInputError,
    NotFoundError,
    StoreError,
)
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore
from cordwood.store.disk import Disk
from cordwood.store.files import LOCK_NAME, TEMP_PREFIX
from cordwood.store.url import Store
from cordwood.testing.stores import keys_of


class SetClock:
    """A wall clock that stands where it was put."""

    def __init__(self, now_us):
        self.now = now_us

    def now_us(self):
        return self.now

    def monotonic_s(self):
        return 0.0


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(str(tmp_path / "root"))


async def test_layout(store, tmp_path):
    """An object is a file under its key, and nothing temporary is left beside it."""
    await store.put("a/b", b"bytes", "create")
    await store.put("a/b", b"other")
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert ["root", "root/a", "root/a/.cordwood-lock", "root/a/b"] == names
    assert b"other" == (tmp_path / "root/a/b").read_bytes()


async def test_refused_puts_leave_nothing(store, tmp_path):
    """A refused put leaves no temporary file, whether refused early or late."""
    etag = await store.put("a", b"1", "create")
    await store.put("a", b"2")
    for mode in ("create", Match(etag)):
        with pytest.raises((AlreadyExistsError, ContendedError)):
            await store.put("a", b"3", mode)
    assert {"a", LOCK_NAME} == {path.name for path in (tmp_path / "root").iterdir()}


async def test_foreign_files(store, tmp_path):
    """Files that no key can name are not listed; those that one can are objects."""
    await store.put("a/object", b"")
    (tmp_path / "root/a/.cordwood-tmp-left").write_bytes(b"torn")
    (tmp_path / "root/a/line\nbreak").write_bytes(b"")
    (tmp_path / "root/a/copied").write_bytes(b"by hand")
    os.mkfifo(tmp_path / "root/a/pipe")
    assert ["a/copied", "a/object"] == await keys_of(store)
    assert b"by hand" == (await store.get("a/copied")).data
    with pytest.raises(NotFoundError):
        await store.get("a/pipe")
    with pytest.raises(NotFoundError):
        await store.head("a/pipe")
    with pytest.raises(StoreError):
        await store.put("a/pipe", b"")


async def test_links_are_not_followed(store, tmp_path):
    """Nothing below the root is read, written, listed or deleted through a symbolic link."""
    await store.put("real/object", b"inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/object").write_bytes(b"outside")
    root = tmp_path / "root"
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside/object")
    (root / "inner").symlink_to(root / "real")
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(tmp_path / "outside/made")
    assert ["real/object"] == await keys_of(store)
    assert [] == await keys_of(store, "folder/")
    for key in ("folder/object", "file", "inner/object", "loop/real/object", "dangling"):
        with pytest.raises(NotFoundError):
            await store.get(key)
        with pytest.raises(NotFoundError):
            await store.head(key)
        for mode in ("create", "overwrite"):
            with pytest.raises(StoreError) as caught:
                await store.put(key, b"", mode)
            assert (Code.STORE_DENIED, False) == (caught.value.code, caught.value.applied)
        with pytest.raises(StoreError):
            await store.delete([key])
    assert ["object"] == [path.name for path in (tmp_path / "outside").iterdir()]
    assert b"outside" == (tmp_path / "outside/object").read_bytes()


async def test_key_under_an_object(store):
    """A key cannot be the folder of another: refused to put, absent to read and to delete."""
    await store.put("a/b", b"1")
    with pytest.raises(InvalidInputError):
        await store.put("a/b/c", b"2")
    with pytest.raises(InvalidInputError):
        await store.put("a", b"2", "create")
    with pytest.raises(InvalidInputError):
        await store.put("a", b"2")
    for key in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(NotFoundError):
            await store.get(key)
        with pytest.raises(NotFoundError):
            await store.head(key)
        await store.delete([key])
        await store.sync([key])
    assert ["a/b"] == await keys_of(store)
    assert [] == await keys_of(store, "a/b/")


async def test_root_that_is_a_file(tmp_path):
    """A root that is a file is refused, not replaced."""
    (tmp_path / "root").write_bytes(b"precious")
    store = DirectoryStore(str(tmp_path / "root"))
    with pytest.raises(StoreError):
        await store.put("a", b"")
    assert [] == await keys_of(store)
    assert b"precious" == (tmp_path / "root").read_bytes()


async def test_times_rise_whatever_the_clock_says(tmp_path):
    """Etags stay new and times rise along the life of a name when the clock goes back."""
    clock = SetClock(2_000_000_000_000_000)
    store = DirectoryStore(str(tmp_path), clock=clock)
    etags = [await store.put("object", b"same", "create")]
    first = (await store.head("object")).modified_us
    clock.now -= 3_600_000_000
    for _ in range(10):
        etags.append(await store.put("object", b"same"))
        etags.append(await store.put("object", b"same", Match(etags[-1])))
    assert len(etags) == len(set(etags))
    assert first <= (await store.head("object")).modified_us


class RacingDisk(Disk):
    """A disk on which something happens just before a lock is granted."""

    def __init__(self, happening):
        self.happening = happening

    def lock(self, path):
        happening, self.happening = self.happening, None
        if happening is not None:
            happening()
        return super().lock(path)


async def test_overwrite_after_a_later_one(tmp_path):
    """An overwrite that waited for the lock gets a time above the one that came before it."""
    clock = SetClock(1_700_000_000_000_000)
    later = DirectoryStore(str(tmp_path), clock=SetClock(clock.now + 60_000_000))
    happening = lambda: asyncio.run(later.put("object", b"later"))  # noqa: E731
    store = DirectoryStore(str(tmp_path), disk=RacingDisk(happening), clock=clock)
    etag = await store.put("object", b"first")
    assert (b"first", etag) == await store.get("object")
    assert clock.now + 60_000_000 <= (await store.head("object")).modified_us


async def test_overwrite_meets_a_create(tmp_path):
    """An overwrite of nothing that meets a create at the last moment replaces it, later in time."""
    clock = SetClock(1_700_000_000_000_000)
    other = DirectoryStore(str(tmp_path), clock=SetClock(clock.now + 60_000_000))
    created = []

    class Meeting(Disk):
        def link(self, source, target):
            if not created:
                created.append(asyncio.run(other.put("object", b"created", "create")))
            super().link(source, target)

    store = DirectoryStore(str(tmp_path), disk=Meeting(), clock=clock)
    etag = await store.put("object", b"ours")
    assert (b"ours", etag) == await store.get("object")
    assert int(created[0].split("-")[1], 16) < int(etag.split("-")[1], 16)


async def test_match_after_a_later_one(tmp_path):
    """A swap that finds another object once it has the lock is refused."""
    other = DirectoryStore(str(tmp_path))
    etag = await other.put("object", b"0")
    happening = lambda: asyncio.run(other.put("object", b"1"))  # noqa: E731
    store = DirectoryStore(str(tmp_path), disk=RacingDisk(happening))
    with pytest.raises(ContendedError):
        await store.put("object", b"2", Match(etag))
    assert b"1" == (await store.get("object")).data


class FailingDisk(Disk):
    """A disk whose named operation fails."""

    def __init__(self, operation, number):
        def fail(*_):
            raise OSError(number, os.strerror(number))

        setattr(self, operation, fail)


@pytest.mark.parametrize(
    ("operation", "number", "code", "applied"),
    [
        ("write", errno.ENOSPC, Code.STORE_FULL, False),
        ("write", errno.EDQUOT, Code.STORE_FULL, False),
        ("write", errno.EACCES, Code.STORE_DENIED, False),
        ("write", errno.EROFS, Code.STORE_DENIED, False),
        ("write", errno.EIO, Code.STORE_FAILED, False),
        ("link", errno.EPERM, Code.STORE_DENIED, False),
        ("link", errno.EMLINK, Code.STORE_FAILED, False),
        ("rename", errno.ENOSPC, Code.STORE_FULL, False),
        ("lock", errno.EACCES, Code.STORE_DENIED, False),
    ],
)
async def test_failures(tmp_path, operation, number, code, applied):
    """Each failure of the system becomes an error that says what to do, and nothing has changed."""
    ground = DirectoryStore(str(tmp_path))
    etag = await ground.put("object", b"before")
    store = DirectoryStore(str(tmp_path), disk=FailingDisk(operation, number))
    key, mode = ("new", "create") if operation == "link" else ("object", Match(etag))
    with pytest.raises(StoreError) as caught:
        await store.put(key, b"after", mode)
    assert (code, applied, "put", key) == (
        caught.value.code,
        caught.value.applied,
        caught.value.operation,
        caught.value.key,
    )
    if code != Code.STORE_FAILED:
        assert caught.value.hint
    assert (b"before", etag) == await ground.get("object")
    assert ["object"] == await keys_of(ground)
    assert [] == list(tmp_path.glob(f"{TEMP_PREFIX}*"))


async def test_folder_sync_that_fails(tmp_path):
    """When the folder cannot be synced after the fact, the error says that it may have happened."""
    ground = DirectoryStore(str(tmp_path))
    etag = await ground.put("object", b"before")
    store = DirectoryStore(str(tmp_path), disk=FailingDisk("fsync_dir", errno.EIO))
    store._files._settled.update(ground._files._settled)
    for key, mode in [("object", Match(etag)), ("new", "create"), ("other", "overwrite")]:
        with pytest.raises(StoreError) as caught:
            await store.put(key, b"after", mode)
        assert (True, False) == (caught.value.applied, caught.value.transient)
        assert b"after" == (await ground.get(key)).data
    with pytest.raises(StoreError) as caught:
        await store.delete(["object"])
    assert caught.value.applied
    with pytest.raises(StoreError) as caught:
        await store.put("new", b"again", "create")
    assert not caught.value.applied
    with pytest.raises(StoreError):
        await store.sync(["new"])


async def test_coarse_times_are_refused(tmp_path):
    """A file system that cannot tell two puts apart by time is refused, not trusted."""

    class Coarse(Disk):
        def write(self, path, data, mtime_ns):
            return super().write(path, data, mtime_ns // 10**9 * 10**9)

    store = DirectoryStore(str(tmp_path), disk=Coarse(), clock=SetClock(1_700_000_000_500_000))
    etag = await store.put("object", b"1", "create")
    with pytest.raises(StoreError) as caught:
        await store.put("object", b"2", Match(etag))
    assert (Code.STORE_UNSAFE, False) == (caught.value.code, caught.value.applied)
    assert b"1" == (await store.get("object")).data


async def test_folder_removed_meanwhile(store, tmp_path):
    """A folder that someone removed is made again by the next put."""
    await store.put("a/b/c", b"1")
    for path in sorted((tmp_path / "root").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    await store.put("a/b/c", b"2", "create")
    assert b"2" == (await store.get("a/b/c")).data


async def test_the_root_removed_meanwhile(store):
    """All that was known to be there is gone: puts into new folders, and copies, make it again."""
    await store.put("a/b", b"1")
    shutil.rmtree(store._root)
    await store.put("c/d/e", b"2", "create")
    await store.copy("c/d/e", "f/g")
    shutil.rmtree(f"{store._root}/f")
    await store.copy("c/d/e", "f/g")
    assert b"2" == (await store.get("f/g")).data
    with pytest.raises(NotFoundError):
        await store.copy("a/b", "f/h")


async def test_list_while_folders_vanish(tmp_path):
    """A folder or file that vanishes during a list is left out, and the rest is there."""
    # EVIDENCE-OF: G-30
    store = DirectoryStore(str(tmp_path))
    for key in ("a/1", "b/1", "b/2", "c/1"):
        await store.put(key, b"")
    metas = store.list()
    assert "a/1" == (await anext(metas)).key
    for name in ("1", "2", LOCK_NAME):
        (tmp_path / "b" / name).unlink()
    (tmp_path / "b").rmdir()
    assert ["c/1"] == [meta.key async for meta in metas]


class CountingDisk(Disk):
    """A disk that remembers the folders it was asked to read."""

    def __init__(self):
        self.scanned = []

    def scan(self, path):
        self.scanned.append(path)
        return super().scan(path)


async def test_list_reads_only_what_it_must(tmp_path):
    """A list does not read folders that can hold nothing it wants, nor ahead of its consumer."""
    ground = DirectoryStore(str(tmp_path))
    for folder in ("a", "b", "c", "c/x", "d"):
        await ground.put(f"{folder}/object", b"")

    async def scanned(prefix="", start_after="", stop=100):
        disk = CountingDisk()
        metas = DirectoryStore(str(tmp_path), disk=disk).list(prefix, start_after)
        async for _ in metas:
            stop -= 1
            if not stop:
                break
        await metas.aclose()
        return [path.removeprefix(f"{tmp_path}/").rstrip("/") or "." for path in disk.scanned]

    assert [".", "a", "b", "c", "c/x", "d"] == await scanned()
    assert ["c", "c/x"] == await scanned("c/")
    assert [".", "c", "c/x"] == await scanned("c")
    assert [".", "c", "c/x", "d"] == await scanned("", "c/object")
    assert [".", "c", "d"] == await scanned("", "c/y")
    assert [".", "d"] == await scanned("", "c0")
    assert [".", "a"] == await scanned(stop=1)


async def test_cancelled_put_goes_on(tmp_path):
    """A put that is cancelled once it has begun may still take effect, whole."""
    loop = asyncio.get_running_loop()
    begun, cancelled = asyncio.Event(), threading.Event()

    class Waiting(Disk):
        def link(self, source, target):
            loop.call_soon_threadsafe(begun.set)
            cancelled.wait()
            super().link(source, target)

    store = DirectoryStore(str(tmp_path), disk=Waiting())
    task = asyncio.ensure_future(store.put("object", b"whole", "create"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    await loop.shutdown_default_executor()
    assert b"whole" == (tmp_path / "object").read_bytes()


async def test_temporary_names_are_unique(tmp_path):
    """Temporary files of concurrent puts of one key do not meet."""
    store = DirectoryStore(str(tmp_path), entropy=SYSTEM_ENTROPY)
    await asyncio.gather(*(store.put("object", str(num).encode()) for num in range(20)))
    assert {"object", LOCK_NAME} == {path.name for path in tmp_path.iterdir()}


async def test_a_path_with_two_slashes_in_front(tmp_path):
    """It is the directory it names, and not one without a root above it."""
    for url in (f"/{tmp_path}/wood", f"file:///{tmp_path}/wood"):
        await Store(url).put("a/b", b"x")
        assert b"x" == bytes((await Store(str(tmp_path / "wood")).get("a/b")).data)


async def test_a_directory_whose_name_is_no_text(tmp_path):
    """Names on Linux are bytes: its URL, too, names the same place."""
    store = Store(os.path.join(os.fsencode(tmp_path), b"\xff").decode(errors="surrogateescape"))
    await store.put("a", b"x")
    assert b"x" == bytes((await Store(store.url).get("a")).data)
    assert [b"\xff"] == os.listdir(os.fsencode(tmp_path))
