"""A copy is the same log elsewhere: all of it or none, and proved."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

import cordwood
from cordwood.base.setsum import Setsum
from cordwood.log import copy as copying
from cordwood.log import paths
from cordwood.store.memory import MemoryStore
from cordwood.testing.filling import fill, names
from cordwood.testing.hooked import OPERATIONS

DATA = ("log/", "snapshot/")


class Bare:
    """A store without the ability to copy by itself."""

    def __init__(self, inner):
        """Over another one."""
        for name in OPERATIONS:
            setattr(self, name, getattr(inner, name))


@pytest.fixture
def log(place, over):
    """The source."""
    return cordwood.Log(over(place), "orders")


@pytest.fixture(params=["same", "same, by hand", "other"])
def route(request, place, log):
    """The source, where its copy goes, and what is below: with and without the store's help."""
    if request.param == "same":
        return log, log.store, place
    if request.param == "same, by hand":
        store = cordwood.Store.over(Bare(place))
        return cordwood.Log(store, "orders"), store, place
    other = MemoryStore()
    return log, cordwood.Store.over(other), other


async def data_of(bucket):
    """The fragments and nodes of a log, by path."""
    return {key: await bucket.get(key) for key in await bucket.keys() if key.startswith(DATA)}


@pytest.mark.cas
async def test_a_copy_is_the_same_log(route, place, bucket_of, read, bodies):
    """Every object, byte for byte; the same records; and a future of its own."""
    # EVIDENCE-OF: G-49
    log, store, target = route
    await fill(log, 80)
    copy = cordwood.Log(store, "backup")
    seen = []
    report = await log.copy(copy, progress=lambda report, manifest: seen.append(report.bytes))
    original = await data_of(bucket_of(place, "orders"))
    assert original == await data_of(bucket_of(target, "backup"))
    assert await read(log) == await read(copy)
    was, now = await log.manifest(), await copy.manifest()
    assert (was.setsum_hex, was.nodes, was.fragments) == (now.setsum_hex, now.nodes, now.fragments)
    assert (80, 80, 81) == (report.records, report.fragments, report.next_offset)
    assert was.setsum_hex == report.setsum.hexdigest()
    assert was.acc_bytes == report.bytes == seen[-1]
    assert len(original) == report.fragments + report.nodes
    assert all(before < after for before, after in pairwise(seen))
    assert (80 if store is log.store and target is place and store.copies else 0) == report.by_store
    await fill(copy, 10, "copy")
    await fill(log, 10, "log")
    assert names(80) + names(10, "copy") == await bodies(copy)
    assert names(80) + names(10, "log") == await bodies(log)
    assert (await copy.scrub(deep=True)).ok


async def test_a_copy_from_an_offset_on(route, bodies):
    """It begins at the fragment with the offset, or one earlier; every offset will do."""
    log, store, _ = route
    await fill(log, 30)
    for start in range(1, 32):
        copy = cordwood.Log(store, f"from-{start}")
        report = await log.copy(copy, start)
        assert start - 1 <= report.oldest_offset <= start
        assert names(30)[report.oldest_offset - 1 :] == await bodies(copy)
        assert (await copy.scrub(deep=True)).ok
        assert 31 == (await copy.state()).next_offset
    await fill(copy, 1)
    assert [b"r0"] == await bodies(copy)


@pytest.mark.cas
async def test_a_copy_of_a_fork_is_a_log_of_its_own(log, route, bodies):
    """It has no ancestors, and reads without them."""
    # EVIDENCE-OF: G-49
    source, store, _ = route
    await fill(log, 20)
    trial = cordwood.Log(source.store, "trial")
    await source.fork(trial, 4)
    await fill(trial, 10, "trial")
    copy = cordwood.Log(store, "backup")
    await trial.copy(copy)
    assert frozenset() == (await copy.manifest()).features
    expected = await bodies(trial)
    for name in ("orders", "trial"):
        keys = [meta.key async for meta in source.store.list(f"{name}/")]
        await source.store.delete(keys)
    assert expected == await bodies(copy)
    assert (await copy.scrub(deep=True)).ok


@pytest.mark.cas
async def test_a_copy_keeps_grace_and_columns(log):
    """Features that the records need go along."""
    await log.create(grace_s=77)
    async with log.writer() as writer:
        await writer.append(b"oak", key=b"k")
    copy = cordwood.Log(log.store, "backup")
    await log.copy(copy)
    assert (77, {"columns", "grace"}) == (
        (await copy.manifest()).grace_s,
        (await copy.state()).features,
    )


async def test_a_copy_of_nothing(route, collected, bodies):
    """An empty log's copy is empty, at the same offset."""
    log, store, _ = route
    await log.create()
    first = cordwood.Log(store, "first")
    assert 0 == (await log.copy(first)).records
    await fill(log, 3)
    await log.cursors.init("done", 4)
    await collected(log)
    second = cordwood.Log(store, "second")
    assert 4 == (await log.copy(second)).oldest_offset
    await fill(second, 1)
    assert [b"r0"] == await bodies(second)


async def test_what_cannot_be_copied(log, route, collected):
    """Each refusal says why, and makes nothing."""
    source, store, _ = route
    copy = cordwood.Log(store, "backup")
    with pytest.raises(cordwood.NotFoundError):
        await source.copy(copy)
    await fill(log, 6)
    with pytest.raises(cordwood.InvalidInputError):
        await source.copy(copy, 8)
    await log.cursors.init("done", 4)
    await collected(log)
    with pytest.raises(cordwood.CollectedError):
        await source.copy(copy, 2)
    await copy.create()
    with pytest.raises(cordwood.AlreadyExistsError):
        await source.copy(copy)


class CrashError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("is_helped", [False, True])
async def test_a_copy_that_is_cut_off_goes_on(memory, hooked, read, is_helped):
    """Cut off before any write there is no log; the next copy finishes, and uses what is there."""
    # EVIDENCE-OF: G-50
    log = cordwood.Log(cordwood.Store.over(memory), "orders")
    await fill(log, 20)
    expected = await read(log)
    reused = []
    for number in range(1, 40):
        writes = 0

        async def write(call, *args, number=number):
            nonlocal writes
            writes += 1
            if writes >= number:
                raise CrashError
            return await call()

        store = hooked(memory, put=write, copy=write)
        if is_helped:
            store.copy = lambda *keys, store=store: store._through("copy", *keys)
        dying = cordwood.Store.over(store)
        try:
            await cordwood.Log(dying, "orders").copy(cordwood.Log(dying, "backup"))
        except CrashError:
            assert not [m async for m in memory.list("backup/" + paths.MANIFEST)]
            copy = cordwood.Log(log.store, "backup")
            reused.append((await log.copy(copy)).reused)
            assert expected == await read(copy)
            assert (await copy.scrub(deep=True)).ok
            await memory.delete([m.key async for m in memory.list("backup/")])
        else:
            break
    assert 20 < number < 39
    assert 0 == reused[0]
    assert max(reused) >= 19


@pytest.mark.cas
async def test_what_lies_in_the_way_is_not_taken_for_a_part(route, place, bucket_of):
    """An object that is another's, or damaged, stops the copy and is left as it is."""
    # EVIDENCE-OF: G-50
    log, store, target = route
    await fill(log, 3)
    stranger = cordwood.Log(store, "stranger")
    await fill(stranger, 3)
    good = await bucket_of(place, "orders").get(paths.fragment(2))
    others = [
        b"",
        good[:-1],
        b"x" * len(good),
        await bucket_of(target, "stranger").get(paths.fragment(2)),
    ]
    assert len(others[-1]) == len(good)
    for number, data in enumerate(others):
        copy = cordwood.Log(store, f"copy-{number}")
        bucket = bucket_of(target, f"copy-{number}")
        await bucket.put(paths.fragment(2), data)
        with pytest.raises(cordwood.AlreadyExistsError, match="is not what log 'orders' has there"):
            await log.copy(copy)
        assert data == await bucket.get(paths.fragment(2))
        with pytest.raises(cordwood.NotFoundError):
            await copy.state()


@pytest.mark.cas
async def test_what_an_earlier_log_left_behind_is_not_adopted(route, bodies):
    """A slot behind the copied range that follows its newest fragment is void in the copy."""
    # EVIDENCE-OF: G-50
    log, store, target = route
    await fill(log, 4)
    longer = cordwood.Log(store, "longer")
    await log.copy(longer)
    await fill(log, 1, "later")
    later = (await log.store.get("orders/" + paths.fragment(5))).data
    await target.put("backup/" + paths.fragment(5), later, "create")
    copy = cordwood.Log(store, "backup")
    await longer.copy(copy)
    async with copy.writer() as writer:
        await writer.append(b"own")
    assert [*names(4), b"own"] == await bodies(copy)


@pytest.mark.cas
async def test_damage_is_not_copied(log, place, bucket_of):
    """A fragment that is not what its pointer says ends a copy whose bytes pass through us."""
    # EVIDENCE-OF: G-49
    await fill(log, 5)
    bucket = bucket_of(place, "orders")
    good = await bucket.get(paths.fragment(3))
    await bucket.put(paths.fragment(3), good[:30] + bytes([good[30] ^ 1]) + good[31:])
    copy = cordwood.Log(cordwood.Store.over(MemoryStore()), "backup")
    with pytest.raises(cordwood.CorruptionError):
        await log.copy(copy)
    await bucket.put(paths.fragment(3), good[:-1])
    with pytest.raises(cordwood.CorruptionError):
        await log.copy(cordwood.Log(log.store, "beside"))
    await bucket.delete(paths.fragment(3))
    for target in (copy, cordwood.Log(log.store, "beside-too")):
        with pytest.raises(cordwood.CorruptionError, match="does not exist"):
            await log.copy(target)
        with pytest.raises(cordwood.NotFoundError):
            await target.state()


async def test_a_copy_beside_a_collection(time, hooked, collected, bodies):
    """Whenever a collection comes, the copy is whole or is refused; with a pin it is whole."""
    # EVIDENCE-OF: G-50
    for pinned in (False, True):
        outcomes = set()
        for number in range(1, 30):
            memory = MemoryStore(clock=time)
            log = cordwood.Log(cordwood.Store.over(memory), "orders")
            await fill(log, 20)
            await log.cursors.init("done", 15)
            if pinned:
                await log.pin("copy", 1, 21, ttl_s=10**8)
            reads = 0

            async def read_range(call, *args, number=number, log=log):
                nonlocal reads
                reads += 1
                if reads == number:
                    await collected(log)
                return await call()

            source = cordwood.Log(
                cordwood.Store.over(hooked(memory, get_range=read_range, get=read_range)), "orders"
            )
            copy = cordwood.Log(cordwood.Store.over(MemoryStore()), "backup")
            try:
                report = await source.copy(copy)
            except cordwood.CollectedError as error:
                outcomes.add("refused" if "with a pin" in error.hint else error.hint)
                with pytest.raises(cordwood.NotFoundError):
                    await copy.state()
            else:
                outcomes.add(report.oldest_offset)
                assert names(20)[report.oldest_offset - 1 :] == await bodies(copy)
        assert ({1} if pinned else {1, "refused"}) <= outcomes
        assert pinned <= ("refused" not in outcomes)


async def test_a_copy_beside_a_writer(route, bodies):
    """A log that grows is copied as one of its manifests was."""
    # EVIDENCE-OF: G-49
    log, store, _ = route
    await fill(log, 10)
    copy = cordwood.Log(store, "backup")
    _, report = await asyncio.gather(fill(log, 30, "w"), log.copy(copy))
    assert 10 <= report.records <= 40
    assert (await bodies(log))[: report.records] == await bodies(copy)


async def test_two_copies_onto_one_name(route, bodies):
    """Of two copies of one log one creates the log, and it is whole."""
    log, store, _ = route
    await fill(log, 10)
    copy = cordwood.Log(store, "backup")
    outcomes = await asyncio.gather(log.copy(copy), log.copy(copy), return_exceptions=True)
    made = [o for o in outcomes if isinstance(o, cordwood.CopyReport)]
    assert 1 == len(made)
    assert 1 == sum(isinstance(o, cordwood.AlreadyExistsError) for o in outcomes)
    assert names(10) == await bodies(copy)


async def test_memory_stays_bounded(memory, hooked, monkeypatch):
    """Neither too many objects are under way at once, nor too many bytes."""
    log = cordwood.Log(cordwood.Store.over(memory), "orders")
    async with log.writer(create=True) as writer:
        for _ in range(40):
            await writer.append(b"x" * 1000)
    size = (await log.manifest()).fragments[-1].num_bytes
    flying = most = 0

    async def put(call, key, *_):
        nonlocal flying, most
        flying += "/log/" in key
        most = max(most, flying)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answer = await call()
        flying -= "/log/" in key
        return answer

    for number, (at_once, at_once_bytes, expected) in enumerate(
        [(4, 2**30, 4), (16, 3 * size, 3), (16, 1, 1)]
    ):
        monkeypatch.setattr(copying, "AT_ONCE", at_once)
        monkeypatch.setattr(copying, "AT_ONCE_BYTES", at_once_bytes)
        most = 0
        store = cordwood.Store.over(hooked(MemoryStore(), put=put))
        await log.copy(cordwood.Log(store, f"copy-{number}"))
        assert 1 <= most <= expected
        assert most == expected


async def test_a_sum_that_does_not_add_up_makes_no_log(memory, monkeypatch):
    """Should the records copied not be those of the manifest, there is no log."""
    log = cordwood.Log(cordwood.Store.over(memory), "orders")
    await fill(log, 3)
    copy = cordwood.Log(log.store, "backup")
    run = copying._Copier.run

    async def lossy(self):
        report = await run(self)
        report.setsum = report.setsum - Setsum.from_hex(self._copied.fragments[0].setsum_hex)
        return report

    monkeypatch.setattr(copying._Copier, "run", lossy)
    with pytest.raises(cordwood.CorruptionError, match="add up"):
        await log.copy(copy)
    with pytest.raises(cordwood.NotFoundError):
        await copy.state()
