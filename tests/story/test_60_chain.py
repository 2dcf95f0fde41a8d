"""Story 60: a log whose objects are only ever created.

Manifests follow each other under names of their own, several in the air at once. What a crash
leaves behind a gap is void for ever, whoever fills the gap; and the store is asked for nothing but
to create what is not there.
"""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import AlreadyExistsError, InvalidInputError, NotFoundError, Options, StateError
from cordwood.log.catalogue import logs_in
from cordwood.log.chain import names
from cordwood.log.chain.document import check_step
from cordwood.log.garbage import load_garbage
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore
from cordwood.testing.filling import fill
from cordwood.testing.handclock import HandClock
from cordwood.testing.hooked import Hooked

EACH = Options(batch_bytes=1, alpha=4)


@pytest.fixture
def protocol():
    """These stories are about chains."""
    return "chain"


class Lost(BaseException):
    """The process is gone."""


def refuses_match(store):
    """A store that cannot compare and swap."""

    async def put(call, key, data, mode):
        if isinstance(mode, Match):
            raise InvalidInputError(f"put {key!r}: this store has no If-Match")
        return await call()

    return Hooked(store, put=put)


class Gate:
    """Holds back the puts of some manifests until it is told which may go."""

    def __init__(self, *indices):
        """Hold these."""
        self.held = {i: asyncio.Event() for i in indices}
        self.seen = []
        self.landed = []

    async def __call__(self, call, key, data, mode):
        """The hook of a put."""
        index = names.manifest_index(key.removeprefix("orders/"))
        if index is not None:
            self.seen.append(index)
        if index in self.held:
            await self.held[index].wait()
        answer = await call()
        if index is not None:
            self.landed.append(index)
        return answer


async def until(condition):
    """Wait until it holds."""
    while not condition():
        await asyncio.sleep(0.001)


async def cut_off(memory, over, *indices):
    """A writer whose manifests of these numbers are still under way; and what it waits for."""
    gate = Gate(*indices)
    log = cordwood.Log(over(Hooked(memory, put=gate)), "orders")
    writer = await log.writer(options=EACH).open()
    futures = []
    for number in range(4):
        futures.append(writer.append(b"old%d" % number))
        await until(lambda: len(gate.seen) == len(futures))
    expected = [i for i in range(1, 5) if i not in indices]
    await until(lambda: sorted(gate.landed) == expected)
    return gate, futures


async def test_what_lies_in_the_bucket(log, bucket):
    """The signpost, the anchor, a manifest for each append, and names that say what they hold."""
    # EVIDENCE-OF: G-126
    await log.create()
    assert ["manifest/MANIFEST", "manifest/MANIFEST.ffffffffffffffff"] == await bucket.keys()
    await fill(log, 1)
    keys = await bucket.keys()
    assert names.manifest(1) in keys
    (path,) = [key for key in keys if key.startswith("shard")]
    setsum = (await log.state()).setsum.hexdigest()
    assert names.ShardName(1, 1, 1, 2, setsum) == names.parse_fragment(path)
    assert "chain" == (await log.state()).protocol
    assert [] == [key for key in keys if key.startswith("log/")]


async def test_a_store_without_compare_and_swap(memory, over, bodies):
    """Append, cursors back and forth, pins, bulk commits, seals, forks, copies, collection."""
    # EVIDENCE-OF: G-120
    time = HandClock()
    memory = MemoryStore(clock=time)
    store = over(refuses_match(memory))
    log, child, copy = (cordwood.Log(store, n, clock=time) for n in ("orders", "trial", "copy"))
    await log.create(grace_s=10)
    await fill(log, 20)
    witness = await log.cursors.init("app", 10)
    witness = await log.cursors.save("app", 15, witness)
    witness = await log.cursors.save("app", 12, witness)
    assert 12 == (await log.cursors.load("app")).offset
    pin = await log.pin("backup", 1, 5)
    await log.fork(child)
    await log.copy(copy)
    await log.collect(wait_s=0)
    time.pass_s(11)
    report = await log.collect(wait_s=0)
    assert (12, ["pin 'backup'", "fork 'trial'"]) == (report.oldest_offset, report.held)
    await pin.release()
    await child.destroy()
    token = cordwood.Token("job")
    staged = await log.stage(cordwood.log.bulk.pa.table({"body": [b"bulk"]}), token)
    assert 21 == (await log.commit([staged], token)).offset
    await log.seal("enough")
    assert [b"bulk"] == (await bodies(log))[-1:]
    assert (await log.scrub(deep=True)).ok
    await log.destroy()


async def test_a_cas_log_needs_it(memory):
    """The store above does refuse."""
    log = cordwood.Log(cordwood.Store.over(refuses_match(memory)), "orders")
    await log.create()
    with pytest.raises(cordwood.CordwoodError):
        await fill(log, 1)


async def test_strays_are_void_once_the_gap_is_filled(log, memory, over, bodies, bucket):
    """The opener fills the gap, points beyond the strays, and the late manifest is refused."""
    # EVIDENCE-OF: G-117, G-118
    await log.create()
    gate, futures = await cut_off(memory, over, 1)
    assert not any(future.done() for future in futures)
    assert [] == await bodies(log)
    await fill(log, 1, "new")
    assert 5 == (await log.objects.chain.get(1)).chain.next_index
    await fill(log, 1, "newer")
    gate.held[1].set()
    offsets = await asyncio.gather(*futures)
    # The writer was refused, and wrote its records again behind the others.
    assert [3, 4, 5, 6] == offsets
    assert [b"new0", b"newer0", b"old0", b"old1", b"old2", b"old3"] == await bodies(log)
    assert (await log.scrub(deep=True)).ok


async def test_what_fills_the_gap_first_decides(log, memory, over, bodies):
    """If the late manifest comes before anybody decides otherwise, what follows it counts."""
    # EVIDENCE-OF: G-118
    await log.create()
    gate, futures = await cut_off(memory, over, 1)
    gate.held[1].set()
    assert [1, 2, 3, 4] == await asyncio.gather(*futures)
    await fill(log, 1, "new")
    assert [b"old0", b"old1", b"old2", b"old3", b"new0"] == await bodies(log)


async def test_an_answer_waits_for_all_manifests_before(log, memory, over):
    """Manifests 3 and 4 are durable, 2 is not: only the first append is acknowledged."""
    # EVIDENCE-OF: G-117
    await log.create()
    gate, futures = await cut_off(memory, over, 2)
    await until(futures[0].done)
    assert [True, False, False, False] == [future.done() for future in futures]
    gate.held[2].set()
    assert [1, 2, 3, 4] == await asyncio.gather(*futures)


async def test_a_fence_ends_what_is_under_way(log, memory, over, bodies):
    """Whoever asks what became of an append decides it: the place is closed, and stays so."""
    # EVIDENCE-OF: G-118
    await log.create()
    gate, futures = await cut_off(memory, over, 1, 2, 3, 4)
    error = cordwood.UncertainError("?", write_id="x", chain=((1, "somebody"),))
    assert await log.find_write(error) is None
    gate.held[1].set()
    for index in (2, 3, 4):
        gate.held[index].set()
    assert [1, 2, 3, 4] == await asyncio.gather(*futures)
    assert [b"old0", b"old1", b"old2", b"old3"] == await bodies(log)


@pytest.mark.parametrize("length", [10, 120])
async def test_recovery_reads_as_many_as_are_in_the_air(log, memory, over, length):
    """One LIST and no more manifests than alpha, however long the chain is."""
    # EVIDENCE-OF: G-119
    await log.create()
    async with log.writer(options=EACH) as writer:
        for number in range(length):
            await writer.append(b"%d" % number)
        await asyncio.gather(*(writer.append(b"x%d" % n) for n in range(8)))
    hooked = Hooked(memory)
    await cordwood.Log(over(hooked), "orders").manifest()
    read = [key for operation, key in hooked.calls if operation == "get"]
    # The signpost, and the manifests.
    assert len(read) <= 1 + 1 + EACH.alpha
    assert 1 == len([operation for operation, _ in hooked.calls if operation == "list"])


async def test_alpha_may_change(log, bodies):
    """Writers with many, one and some manifests in the air go on from each other."""
    # EVIDENCE-OF: G-119
    await log.create()
    for alpha in (16, 1, 4, 256):
        async with log.writer(options=Options(batch_bytes=1, alpha=alpha)) as writer:
            await asyncio.gather(*(writer.append(b"%d" % n) for n in range(20)))
    assert 80 == len(await bodies(log))
    assert (await log.scrub(deep=True)).ok
    with pytest.raises(InvalidInputError, match="alpha"):
        Options(alpha=257)


async def test_every_step_is_a_valid_one(log):
    """The setsum of each manifest is its predecessor's and that of what was added."""
    # EVIDENCE-OF: G-121
    await log.create()
    await fill(log, 30)
    chain = log.objects.chain
    index = (await chain.head()).index
    while index:
        after = await chain.get(index)
        index = names.manifest_index(after.chain.prev.path)
        before = await chain.get(index)
        check_step(before, after, "here")
        assert before.setsum_hex == after.chain.prev.setsum
    assert (await chain.get(0)).chain.prev is None


async def test_manifests_stay_small(log, memory):
    """What is written for an append grows with the logarithm of the log."""
    # EVIDENCE-OF: G-121
    await log.create()
    async with log.writer(options=EACH) as writer:
        for number in range(300):
            await writer.append(b"%d" % number)
    sizes = [m.size_bytes async for m in memory.list(f"orders/{names.MANIFEST_PREFIX}")]
    assert max(sizes) < 9_000


async def test_shards_take_turns_and_may_change(log, bucket, read):
    """Reopened with other options, nothing is moved; numbers in a shard are consecutive."""
    # EVIDENCE-OF: G-124
    await log.create(shards=3)
    for shards in (None, 5, 2):
        async with log.writer(options=Options(batch_bytes=1, shards=shards)) as writer:
            await asyncio.gather(*(writer.append(b"%d" % n) for n in range(12)))
    found = [n for key in await bucket.keys() if (n := names.parse_fragment(key))]
    assert {1, 2, 3, 4, 5} == {name.shard for name in found}
    for shard in range(1, 6):
        numbers = [name.seq_no for name in found if name.shard == shard]
        assert numbers == list(range(1, len(numbers) + 1))
    assert list(range(1, 37)) == [record.offset for record in await read(log)]
    assert (await log.scrub(deep=True)).ok
    with pytest.raises(InvalidInputError, match="shards"):
        await cordwood.Log(log.store, "many").create(shards=13)
    with pytest.raises(InvalidInputError, match="no shards"):
        await cordwood.Log(log.store, "many").create(protocol="cas", shards=2)


async def test_four_steps_of_a_collection(over):
    """List, verify, unlink, sweep: each leaves what the next one needs, and the alarm rings."""
    # EVIDENCE-OF: G-122
    time = HandClock()
    memory = MemoryStore(clock=time)
    log = cordwood.Log(over(memory), "orders", clock=time)
    await log.create(grace_s=10)
    await fill(log, 20)
    await log.cursors.init("app", 17)
    with pytest.raises(StateError, match=r"80% .* limit is 50%"):
        await log.mark(max_share=0.5)
    assert not (await load_garbage(log.objects)).garbage.is_pending
    report = await log.mark()
    assert ("marked", 1) == (report.phase, report.oldest_offset)
    garbage = (await load_garbage(log.objects)).garbage
    offered = f"orders/{names.prefix(garbage.prefix)}"
    assert garbage.prefix == report.setsum.hexdigest()
    await memory.head(offered)
    assert 17 == (await log.unlink()).oldest_offset
    time.pass_s(11)
    assert 16 < (await log.sweep()).deleted
    with pytest.raises(NotFoundError):
        await memory.head(offered)
    assert (await log.scrub(deep=True)).ok


async def test_the_live_writer_picks_up_the_new_beginning(log, memory):
    """Beside a busy writer nobody else puts a manifest: it leaves out what goes."""
    # EVIDENCE-OF: G-122
    await log.create(grace_s=1)
    await fill(log, 20)
    await log.cursors.init("app", 17)
    options = Options(batch_bytes=1, intent_interval_s=0.01)
    async with log.writer(options=options) as writer:
        collecting = asyncio.ensure_future(cordwood.Log(log.store, "orders").unlink())
        await log.mark()
        while not collecting.done():
            await writer.append(b"busy")
        collecting.cancel()
        report = asyncio.ensure_future(log.unlink())
        while not report.done():
            await writer.append(b"busy")
    assert 17 == (await report).oldest_offset
    assert (await log.scrub(deep=True)).ok


async def test_old_manifests_and_versions_go_after_the_grace(over):
    """Nothing younger than the grace interval, not the anchor, not what recovery needs."""
    # EVIDENCE-OF: G-123
    time = HandClock()
    memory = MemoryStore(clock=time)
    log = cordwood.Log(over(memory), "orders", clock=time)
    await log.create(grace_s=10)
    await fill(log, 30)
    witness = await log.cursors.init("app", 1)
    for offset in range(2, 9):
        witness = await log.cursors.save("app", offset, witness)

    async def count(prefix):
        return len([m async for m in memory.list(f"orders/{prefix}")])

    before = await count(names.MANIFEST_PREFIX), await count("cursor/app/")
    assert (31, 9) == before
    await log.collect(wait_s=0)
    assert (32, 9) == (await count(names.MANIFEST_PREFIX), await count("cursor/app/"))
    time.pass_s(11)
    await log.collect(wait_s=0)
    assert (3, 1) == (await count(names.MANIFEST_PREFIX), await count("cursor/app/"))
    await memory.head(f"orders/{names.manifest(0)}")
    assert 8 == (await cordwood.Log(log.store, "orders").cursors.load("app")).offset
    # Who saw an earlier version is told, although the name behind it is free again.
    with pytest.raises(cordwood.ContendedError):
        await log.cursors.save("app", 3, witness.__class__("app", 2, "version-2", 0, "w"))
    await fill(log, 1)
    assert (await log.scrub(deep=True)).ok


async def test_a_writer_that_slept_believes_no_name(over, bodies):
    """It wakes when its next name has been used, superseded and freed: it looks before it puts."""
    # EVIDENCE-OF: G-123
    time = HandClock()
    memory = MemoryStore(clock=time)
    log = cordwood.Log(over(memory), "orders", clock=time)
    await log.create(grace_s=10)
    sleeper = await log.writer(options=EACH).open()
    other = cordwood.Log(log.store, "orders", clock=time)
    await fill(other, 20)
    await other.cursors.init("app", 1)
    time.pass_s(11)
    await other.collect(wait_s=0)
    with pytest.raises(NotFoundError):
        await memory.head(f"orders/{names.manifest(1)}")
    assert 21 == await sleeper.append(b"awake")
    await sleeper.close()
    assert 21 == len(await bodies(log))


async def test_an_answer_that_took_too_long_is_not_believed(over, bodies):
    """The name was freed while the put was under way: it lands, and counts for nothing."""
    # EVIDENCE-OF: G-123
    time = HandClock()
    memory = MemoryStore(clock=time)
    log = cordwood.Log(over(memory), "orders", clock=time)
    await log.create(grace_s=10)
    gate = Gate(1)
    slow = cordwood.Log(over(Hooked(memory, put=gate)), "orders", clock=time)
    writer = await slow.writer(options=EACH).open()
    future = writer.append(b"late")
    await until(lambda: bool(writer._pipeline._sent))
    await fill(log, 20)
    await log.cursors.init("app", 1)
    time.pass_s(11)
    await log.collect(wait_s=0)
    gate.held[1].set()
    assert 21 == await future
    await writer.close()
    # The stray lies below everything that anybody reads.
    await memory.head(f"orders/{names.manifest(1)}")
    assert [b"late"] == (await bodies(log))[20:]
    assert (await log.scrub(deep=True)).ok


async def test_two_protocols_one_log(memory):
    """Of two who create a log of one name with different protocols, one does."""
    # EVIDENCE-OF: G-126
    store = cordwood.Store.over(memory)
    first, second = cordwood.Log(store, "orders"), cordwood.Log(store, "orders")
    answers = await asyncio.gather(
        first.create(protocol="cas"), second.create(protocol="chain"), return_exceptions=True
    )
    assert 1 == sum(isinstance(answer, AlreadyExistsError) for answer in answers)
    await fill(first, 1)
    assert 2 == (await second.state()).next_offset


async def test_the_default_depends_on_the_store(memory):
    """On gs:// a manifest cannot be replaced often; elsewhere the cheaper protocol is used."""
    # EVIDENCE-OF: G-126
    for url, expected in (("gs://bucket", "chain"), ("s3://bucket", "cas"), ("custom:", "cas")):
        log = cordwood.Log(cordwood.Store.over(MemoryStore(), url), "orders")
        await log.create()
        assert expected == (await log.state()).protocol
    with pytest.raises(InvalidInputError, match="protocol"):
        await cordwood.Log(cordwood.Store.over(memory), "orders").create(protocol="paxos")


async def test_creation_cut_off_is_completed(log, memory, over):
    """Manifest 0 without the signpost: the next who creates the log completes it, and is told."""
    # EVIDENCE-OF: G-126

    async def die(call, key, data, mode):
        if key == "orders/manifest/MANIFEST":
            raise Lost
        return await call()

    with pytest.raises(Lost):
        await cordwood.Log(over(Hooked(memory, put=die)), "orders").create()
    with pytest.raises(NotFoundError):
        await log.state()
    with pytest.raises(AlreadyExistsError):
        await log.create()
    assert 1 == (await log.state()).next_offset


async def test_a_destroyed_log_refuses_who_has_not_looked(log, memory, over, bodies):
    """Its last manifest stays for a while, so an idle writer finds its name taken."""
    # EVIDENCE-OF: G-127
    await log.create()
    idle = await cordwood.Log(over(memory), "orders").writer().open()
    await fill(log, 3)
    await log.destroy()
    with pytest.raises(NotFoundError, match="destroyed"):
        await log.state()
    assert [] == await logs_in(log.store)
    with pytest.raises(StateError, match="destroyed"):
        await idle.append(b"late")
    # A new log of the name goes on behind it: no name is used twice.
    await log.create(shards=2)
    await fill(log, 1, "new")
    assert [b"new0"] == await bodies(log)
    assert ["orders"] == await logs_in(log.store)
    assert (await log.scrub(deep=True)).ok


async def test_the_remains_go_after_the_grace(over, bucket_of):
    """Destroyed again later, nothing at all is left."""
    # EVIDENCE-OF: G-127
    time = HandClock()
    memory = MemoryStore(clock=time)
    log = cordwood.Log(over(memory), "orders", clock=time)
    await log.create(grace_s=10)
    await fill(log, 3)
    await log.destroy()
    left = await bucket_of(memory).keys()
    assert [names.manifest(4), names.manifest(0)] == [left[1], left[-1]]
    assert all(key.startswith("manifest/") for key in left)
    time.pass_s(11)
    await log.destroy()
    assert [] == await bucket_of(memory).keys()
    await log.create(protocol="cas")
    await fill(log, 1)
    assert "cas" == (await log.state()).protocol


async def test_a_lost_chain_is_rebuilt(log, memory, bucket, read):
    """From the fragments alone: the same records at the same offsets, and the log goes on."""
    # EVIDENCE-OF: G-125
    await log.create(shards=3)
    await fill(log, 40)
    before = await read(log)
    setsum = (await log.state()).setsum
    with pytest.raises(StateError, match="can be opened"):
        await log.rebuild()
    for key in await bucket.keys():
        if not key.startswith("shard"):
            await bucket.delete(key)
    seen = []
    fresh = cordwood.Log(log.store, "orders")
    report = await fresh.rebuild(progress=lambda done, total: seen.append((done, total)))
    assert (1, 41, 40, [], setsum) == (
        report.oldest_offset,
        report.next_offset,
        report.records,
        report.left_out,
        report.setsum,
    )
    assert (40, 40) == seen[-1]
    assert before == await read(fresh)
    await fill(fresh, 2, "more")
    assert (await fresh.scrub(deep=True)).ok
    assert 43 == (await fresh.state()).next_offset


async def test_a_rebuild_goes_beyond_what_is_left(log, bucket, read):
    """Manifests that lead nowhere stay where they are; damage and holes are told."""
    # EVIDENCE-OF: G-125
    await log.create()
    await fill(log, 20)
    paths = [key for key in await bucket.keys() if key.startswith("shard")]
    top = min(key for key in await bucket.keys() if key.startswith(names.MANIFEST_PREFIX))
    await bucket.put(top, b"damaged")
    await bucket.put(paths[9], b"damaged as well")
    fresh = cordwood.Log(log.store, "orders")
    with pytest.raises(StateError, match="after offset 10 nothing follows") as caught:
        await fresh.rebuild()
    assert "start=11" in caught.value.hint
    report = await fresh.rebuild(start=11)
    assert (11, 21, paths[:10]) == (report.oldest_offset, report.next_offset, report.left_out)
    assert list(range(11, 21)) == [record.offset for record in await read(fresh)]
    await fill(fresh, 3)
    assert (await fresh.scrub(deep=True)).ok


async def test_a_rebuild_leaves_out_what_lost(log, memory, over, bodies, bucket):
    """Of two fragments that begin at one offset, the one that was named is taken."""
    # EVIDENCE-OF: G-125
    await log.create()
    _, futures = await cut_off(memory, over, 1, 2, 3, 4)
    await fill(log, 6, "new")
    expected = await bodies(log)
    for key in await bucket.keys():
        if key.startswith("manifest"):
            await bucket.delete(key)
    report = await cordwood.Log(log.store, "orders").rebuild()
    assert 4 == len(report.left_out)
    assert expected == await bodies(cordwood.Log(log.store, "orders"))
    for future in futures:
        future.cancel()
