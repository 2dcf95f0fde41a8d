"""The page cache: few requests, few bytes, and never a damaged page."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from volume_desk import PAGE, Desk, bytes_of

from cordwood.base.errors import Code, CorruptionError, StoreError
from cordwood.store.disk import Disk
from cordwood.testing.hooked import Hooked
from cordwood.volume import paths
from cordwood.volume.cache import PackCache
from cordwood.volume.checkpoints import make_checkpoint
from cordwood.volume.reader import PageReader

PAGES = 3_000
EACH = 128
"""Pages of 512 bytes in a frame."""


@pytest.fixture
async def stored(desk):
    """A volume of one pack with 24 frames; the log, and a fresh client whose requests are seen."""
    log = await desk.volume()
    await desk.push(log, {n: bytes_of(1, n) for n in range(1, PAGES + 1)})
    hooked = Hooked(desk.store)
    return log, Desk(os.path.join(desk.directory, "client"), hooked, seed=5), hooked


def ranges(hooked):
    """How many ranges of packs were asked for."""
    return sum(operation == "get_range" for operation, _ in hooked.calls)


async def test_one_page_costs_one_request_of_one_frame(stored):
    """And then its neighbours are at hand, without waiting."""
    log, client, hooked = stored
    reader = await client.reader(log)
    assert reader.peek(1_000) is None
    assert bytes_of(1, 1_000) == await reader.read(1_000)
    assert 1 == ranges(hooked)
    frame = 999 // EACH
    first = frame * EACH + 1
    assert [bytes_of(1, n) for n in range(first, first + EACH)] == [
        reader.peek(n) for n in range(first, first + EACH)
    ]
    assert reader.peek(first - 1) is None
    pack = reader.snapshot.find(1_000).pack
    assert int(pack.frames.stored[frame]) == client.cache.fetched_bytes


async def test_a_scan_reads_ahead(stored):
    """Neighbours come in one request, twice as many each time."""
    log, client, hooked = stored
    reader = await client.reader(log)
    for n in range(1, PAGES + 1):
        assert bytes_of(1, n) == await reader.read(n)
    assert 5 == ranges(hooked)  # 1, 2, 4, 8 and the other 9 frames
    assert 1.0 == await reader.cached_share()


async def test_what_was_fetched_stays(stored):
    """Another process finds it on the disk, and asks nobody."""
    log, client, hooked = stored
    await (await client.reader(log)).hydrate()
    again = Desk(client.directory, hooked)
    reader = await again.reader(log)
    hooked.calls.clear()
    assert [bytes_of(1, n) for n in range(1, PAGES + 1)] == [
        reader.peek(n) for n in range(1, PAGES + 1)
    ]
    assert [] == hooked.calls
    assert 0 == again.cache.fetched_bytes


async def test_hydrate_takes_runs(stored):
    """What is here already is not fetched again; what is told adds up."""
    log, client, hooked = stored
    reader = await client.reader(log)
    await reader.read(1_000)
    told = []
    hooked.calls.clear()
    got = await reader.hydrate(told.append)
    assert 2 == ranges(hooked)
    assert got == sum(told)
    total = int(reader.snapshot.find(1).pack.frames.stored.sum())
    assert total == client.cache.fetched_bytes
    assert 0 == await reader.hydrate()


async def test_a_frame_damaged_here_is_fetched_again(stored):
    """Each frame in turn, any of its bytes; nobody sees the damage."""
    log, client, _ = stored
    reader = await client.reader(log)
    await reader.hydrate()
    pack = reader.snapshot.find(1).pack
    file = os.path.join(client.directory, log, "segments", pack.id)
    data_at = os.stat(file).st_size - int(pack.starts[-1])
    rng = np.random.default_rng(2)
    for frame in range(pack.num_frames):
        place = data_at + int(rng.integers(pack.starts[frame], pack.starts[frame + 1]))
        Disk().overwrite(file, bytes([Disk().read(file, place, 1)[1][0] ^ 0x10]), place)
    reader = PageReader(
        reader.snapshot, client.history, PackCache(client.remote, client.directory), PAGE
    )
    for n in range(1, PAGES + 1, EACH):
        assert reader.peek(n) is None
        assert bytes_of(1, n) == await reader.read(n)
        assert bytes_of(1, n) == reader.peek(n)


@pytest.mark.parametrize("place", [0, 9, 20, 30])
async def test_a_damaged_cache_file_counts_as_empty(stored, place):
    """Its head says of which pack it is; with another head nothing in it counts."""
    log, client, _ = stored
    reader = await client.reader(log)
    await reader.hydrate()
    pack = reader.snapshot.find(1).pack
    file = os.path.join(client.directory, log, "segments", pack.id)
    Disk().overwrite(file, b"\xee", place)
    cache = PackCache(client.remote, client.directory)
    reader = PageReader(reader.snapshot, client.history, cache, PAGE)
    assert reader.peek(1) is None
    assert bytes_of(1, 1) == await reader.read(1)
    assert bytes_of(1, 1) == PackCache(client.remote, client.directory).peek(pack, 0)[:PAGE]


async def test_a_torn_cache_file_counts_as_empty(stored):
    """A power cut may leave less of a file than there was."""
    log, client, _ = stored
    reader = await client.reader(log)
    await reader.hydrate()
    pack = reader.snapshot.find(1).pack
    Disk().truncate(os.path.join(client.directory, log, "segments", pack.id), 5_000)
    cache = PackCache(client.remote, client.directory)
    assert cache.peek(pack, 0) is None
    assert bytes_of(1, 1) == (await cache.fetch(pack, 0))[:PAGE]


async def test_a_frame_damaged_in_the_store_is_named(stored):
    """Pack and frame; the others can be read; nothing damaged is kept."""
    log, client, hooked = stored
    reader = await client.reader(log)
    pack = reader.snapshot.find(1).pack
    key = paths.pack(pack.id)
    data = bytearray((await hooked.inner.get(key)).data)
    data[int(pack.starts[3]) + 5] ^= 1
    await hooked.inner.put(key, bytes(data))
    with pytest.raises(CorruptionError, match=f"pack {pack.id}, frame 3") as caught:
        await reader.read(3 * EACH + 1)
    assert f"{pack.id}#3" == caught.value.where
    assert reader.peek(3 * EACH + 1) is None
    assert bytes_of(1, 1) == await reader.read(1)
    with pytest.raises(CorruptionError, match="frame 3"):
        await reader.hydrate()


async def test_a_frame_damaged_on_the_way_is_asked_for_again(stored):
    """Once, and alone."""
    log, client, hooked = stored
    reader = await client.reader(log)
    broken = []

    async def damage(call, key, start, length):
        found = bytes(await call())
        if not broken:
            broken.append(key)
            return b"\0" * len(found)
        return found

    hooked.hooks["get_range"] = damage
    assert bytes_of(1, 1) == await reader.read(1)
    assert (
        bytes_of(1, 1)
        == PackCache(client.remote, client.directory).peek(reader.snapshot.find(1).pack, 0)[:PAGE]
    )


async def test_a_pack_that_is_gone_or_short_is_said_to_be(stored):
    """With its name, and what to do."""
    log, client, hooked = stored
    reader = await client.reader(log)
    pack = reader.snapshot.find(1).pack
    key = paths.pack(pack.id)
    data = (await hooked.inner.get(key)).data
    await hooked.inner.put(key, data[: int(pack.starts[2]) - 1])
    with pytest.raises(CorruptionError, match="ends before"):
        await reader.read(EACH + 1)
    await hooked.inner.delete([key])
    with pytest.raises(CorruptionError, match=f"pack {pack.id} is missing") as caught:
        await reader.read(EACH + 1)
    assert Code.MISSING_OBJECT == caught.value.code


class FullDisk(Disk):
    """No room for anything."""

    def open(self, path, *, create=False, write=True):
        if create:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().open(path, create=create, write=write)


async def test_a_full_disk_keeps_nobody_from_reading(stored):
    """Pages come from the store; only who wants all of them here is told."""
    log, client, _ = stored
    snapshot = await client.history.fetch(log)
    cache = PackCache(client.remote, client.directory, FullDisk())
    reader = PageReader(snapshot, client.history, cache, PAGE)
    assert bytes_of(1, 1) == await reader.read(1) == reader.peek(1)
    assert 1 == cache.unwritten
    with pytest.raises(StoreError, match="No space left") as caught:
        await reader.hydrate()
    assert Code.STORE_FULL == caught.value.code


async def test_memory_is_bounded(stored):
    """The longest unused frame goes; a memory for less than one frame still reads."""
    log, client, _ = stored
    snapshot = await client.history.fetch(log)
    for room in (1, 2 * EACH * PAGE, 5 * EACH * PAGE):
        cache = PackCache(client.remote, client.directory, memory_bytes=room)
        reader = PageReader(snapshot, client.history, cache, PAGE)
        for n in range(1, PAGES + 1):
            assert bytes_of(1, n) == await reader.read(n)
        held = sum(map(len, cache._frames.values()))
        assert held == cache._used_bytes
        assert held <= max(room, EACH * PAGE)


async def test_packs_of_a_parent_are_kept_with_the_parent(desk):
    """A branch, and a checkpoint of the branch, find them there: nothing is fetched twice."""
    log = await desk.volume()
    await desk.push(log, {n: bytes_of(1, n) for n in range(1, 300)})
    await (await desk.reader(log)).hydrate()
    child = await desk.branch(log, 1, "b")
    await desk.push(child, {1: bytes_of(2, 1)})
    fetched = desk.cache.fetched_bytes
    await make_checkpoint(desk.history, await desk.reader(child), child)
    reader = await desk.reader(child)
    assert bytes_of(1, 200) == reader.peek(200)
    assert fetched == desk.cache.fetched_bytes
    assert reader.peek(1) is None
    assert bytes_of(2, 1) == await reader.read(1)


async def test_a_pushed_pack_need_not_be_fetched(desk):
    """Its own bytes are written down."""
    log = await desk.volume()
    before = await desk.history.fetch(log)
    sealed, packs = desk.sealed(log, before, {n: bytes_of(1, n) for n in range(1, 300)})
    await desk.remote.put_pack(packs[0])
    await desk.remote.put_commit(sealed)
    desk.cache.add(packs[0].pack, packs[0].data)
    reader = await desk.reader(log)
    assert [bytes_of(1, n) for n in range(1, 300)] == [reader.peek(n) for n in range(1, 300)]
    assert 0 == desk.cache.fetched_bytes
