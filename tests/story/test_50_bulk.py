"""Story 50: many stage, one commit makes it visible, once."""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa
import pytest

import cordwood
from cordwood import InvalidInputError, LimitError, StateError, StoreError, Token, sync
from cordwood.log import bulk, paths
from cordwood.log.format import STAGED_GRACES, Producer
from cordwood.log.garbage import Phase
from cordwood.log.producers import PRODUCERS_MAX, find_producer, remember
from cordwood.store.memory import MemoryStore

JOB = Token("job")


def table(*bodies, **columns):
    """Records as Arrow data."""
    return pa.table({"body": list(bodies), **columns})


async def stage(log, token, *groups):
    """One upload for each group of bodies."""
    return [await log.stage(table(*bodies), token) for bodies in groups]


async def uploads(bucket):
    """Paths of the uploads that lie in the store."""
    return [key for key in await bucket.keys() if paths.is_bulk(key)]


@pytest.mark.cas
async def test_nothing_is_seen_before_the_commit_and_everything_after(place, numbers, bodies):
    """In the order of the commit, whoever staged first, between what others append."""
    # EVIDENCE-OF: G-61
    log = await numbers(place, 2)
    staged = await stage(log, JOB, [b"a", b"b"], [b"c"], [b"d", b"e"])
    assert [b"1", b"2"] == await bodies(log)
    done = await log.commit([staged[1], staged[0], staged[2]], JOB)
    assert (3, 5, True) == (done.offset, done.records, done.is_new)
    await numbers(place, 1)
    assert [b"1", b"2", b"c", b"a", b"b", b"d", b"e", b"8"] == await bodies(log)
    assert (await log.scrub(deep=True)).ok
    assert {"bulk", "grace", "producers"} == (await log.state()).features


async def test_a_commit_made_again_changes_nothing(place, numbers, bodies):
    """Not by whom had no answer, nor by whom staged everything anew."""
    # EVIDENCE-OF: G-62
    log = await numbers(place, 1)
    first = await log.commit(await stage(log, JOB, [b"a"], [b"b"]), JOB)
    again = await log.commit(await stage(log, JOB, [b"a", b"b"]), JOB)
    assert (first.offset, 2, False) == (again.offset, again.records, again.is_new)
    assert [b"1", b"a", b"b"] == await bodies(log)


@pytest.mark.cas
async def test_the_answer_of_a_commit_is_lost(memory, log, hooked, bodies):
    """The swap took effect, nobody heard: the commit finds its token and says where it is."""
    # EVIDENCE-OF: G-62
    await log.create()
    lost = []

    async def lose(call, key, data, mode):
        etag = await call()
        if key.endswith(paths.MANIFEST) and not lost:
            lost.append(key)
            raise cordwood.UncertainError("the answer was lost", write_id="x")
        return etag

    seen = cordwood.Log(cordwood.Store.over(hooked(memory, put=lose)), "orders")
    done = await seen.commit(await stage(seen, JOB, [b"a"]), JOB)
    assert lost
    assert (1, False) == (done.offset, done.is_new)
    assert [b"a"] == await bodies(log)


async def test_batches_of_a_producer_rise(log, bodies):
    """The last one again is known; with another count, or an older one, it is refused."""
    # EVIDENCE-OF: G-62
    await log.create()
    for batch in (0, 3, 4):
        token = Token("query", batch, nonce="run 1")
        await log.commit(await stage(log, token, [b"%d" % batch]), token)
    token = Token("query", 4, nonce="run 2")
    assert not (await log.commit(await stage(log, token, [b"4"]), token)).is_new
    with pytest.raises(StateError, match="committed with 1 records, not 2"):
        await log.commit(await stage(log, token, [b"4", b"5"]), token)
    token = Token("query", 3)
    with pytest.raises(StateError, match="comes after its batch 4"):
        await log.commit(await stage(log, token, [b"3"]), token)
    assert [b"0", b"3", b"4"] == await bodies(log)


async def test_many_producers_are_remembered(log, bucket, bodies):
    """The manifest keeps the latest, the store the others."""
    # EVIDENCE-OF: G-62
    await log.create()
    for number in range(20):
        token = Token(f"job {number}")
        await log.commit(await stage(log, token, [b"%d" % number]), token)
    assert PRODUCERS_MAX == len((await bucket.manifest())["cordwood"]["producers"])
    for number in range(20):
        token = Token(f"job {number}")
        again = await log.commit(await stage(log, token, [b"%d" % number]), token)
        assert (number + 1, False) == (again.offset, again.is_new)
    assert 20 == len(await bodies(log))


async def test_a_producer_that_comes_back_after_others(log, bodies):
    """What was written down of it counts until it commits again."""
    await log.create()
    for batch in range(3):
        for producer in range(20):
            token = Token(f"query {producer}", batch)
            await log.commit(await stage(log, token, [b"x"]), token)
    for producer in range(20):
        token = Token(f"query {producer}", 2)
        assert not (await log.commit(await stage(log, token, [b"x"]), token)).is_new
        with pytest.raises(StateError, match="comes after its batch 2"):
            await log.commit(
                await stage(log, Token(f"query {producer}", 1), [b"x"]),
                Token(f"query {producer}", 1),
            )
    assert 60 == len(await bodies(log))


async def test_a_chain_of_batches_stays_in_one_log(log, bodies):
    """A log that was made anew, or another one, lacks what came before: it takes no later batch."""
    # EVIDENCE-OF: G-62
    await log.create()
    for batch in range(2):
        token = Token("query", batch, chained=True)
        await log.commit(await stage(log, token, [b"%d" % batch]), token)
    copy = cordwood.Log(log.store, "copy")
    await log.copy(copy)
    await log.destroy()
    await log.create()
    token = Token("query", 2, chained=True)
    with pytest.raises(StateError, match="knows nothing of producer 'query', whose batch 2"):
        await log.commit(await stage(log, token, [b"2"]), token)
    assert [] == await bodies(log)
    await copy.commit(await stage(copy, token, [b"2"]), token)
    assert [b"0", b"1", b"2"] == await bodies(copy)


async def test_a_chain_may_begin_with_an_empty_batch(log, bodies):
    """The log remembers that it began here, and no manifest is written for it."""
    await log.create()
    before = await log.manifest()
    for _ in range(2):
        assert 0 == (await log.commit([], Token("query", 0, chained=True))).records
    assert before == await log.manifest()
    token = Token("query", 3, chained=True)
    await log.commit(await stage(log, token, [b"3"]), token)
    assert [b"3"] == await bodies(log)


async def test_an_empty_commit(log, bodies):
    """Writes nothing, not even the token."""
    await log.create()
    before = await log.manifest()
    done = await log.commit([], JOB)
    assert (1, 0) == (done.offset, done.records)
    assert before == await log.manifest()


async def test_uploads_belong_to_their_token(log):
    """So no file is ever named twice."""
    await log.create()
    staged = await stage(log, JOB, [b"a"])
    with pytest.raises(InvalidInputError, match="each upload of its own token once"):
        await log.commit(staged, Token("other"))
    with pytest.raises(InvalidInputError, match="one is twice"):
        await log.commit([*staged, *staged], JOB)
    assert 1 == (await log.state()).next_offset


@pytest.mark.parametrize(
    "bad",
    [
        {"id": ""},
        {"id": "a\nb"},
        {"id": "x" * 300},
        {"id": 7},
        {"id": "a", "batch": -1},
        {"id": "a", "batch": True},
    ],
)
def test_bad_tokens(bad):
    """Are refused when they are made."""
    with pytest.raises(InvalidInputError):
        Token(**bad)


async def test_bad_records(log):
    """As for an append; and too many uploads."""
    await log.create()
    with pytest.raises(InvalidInputError, match="expected body"):
        await log.stage(pa.table({"offset": [1]}), JOB)
    with pytest.raises(InvalidInputError, match="1 nulls"):
        await log.stage(pa.table({"body": [b"a", None]}), JOB)
    one = (await stage(log, JOB, [b"a"]))[0]
    many = [msgspec.structs.replace(one, id=f"{n:032x}") for n in range(bulk.UPLOADS_MAX + 1)]
    with pytest.raises(LimitError, match="uploads"):
        await log.commit(many, JOB)


async def test_all_columns(log, read):
    """Keys, headers and streams come along."""
    await log.create()
    await log.streams.open("s")
    headers = pa.array([[{"name": "h", "value": b"v"}], None], format_headers())
    data = table(b"a", b"b", key=[b"k", None], headers=headers, stream=[None, "s"])
    await log.commit([await log.stage(data, JOB)], JOB)
    first, second = await read(log)
    assert (b"k", {"h": b"v"}, None) == (first.key, first.headers, first.stream)
    assert (None, None, "s") == (second.key, second.headers, second.stream)
    assert "columns" in (await log.state()).features
    assert (await log.scrub(deep=True)).ok


def format_headers():
    """The Arrow type of headers."""
    from cordwood.log.records import HEADERS_TYPE

    return HEADERS_TYPE


async def test_a_busy_writer_and_commits(log, bodies):
    """Both get through; what flew when a commit came is written again behind it."""
    # EVIDENCE-OF: G-61
    await log.create()
    options = cordwood.Options(batch_bytes=1, intent_interval_s=0.05)
    is_over = False
    acknowledged = {}

    async def write():
        number = 0
        async with log.writer(options=options) as writer:
            while not is_over:
                number += 1
                body = b"w%d" % number
                acknowledged[await writer.append(body)] = body

    work = asyncio.ensure_future(write())
    for batch in range(5):
        token = Token("query", batch)
        groups = [[b"q%d.%d" % (batch, n)] for n in range(10)]
        done = await log.commit(await stage(log, token, *groups), token)
        for offset, (body,) in enumerate(groups, done.offset):
            acknowledged[offset] = body
        await asyncio.sleep(0.05)
    is_over = True
    await work
    assert [acknowledged[n] for n in sorted(acknowledged)] == await bodies(log)
    assert (await log.scrub(deep=True)).ok


@pytest.mark.cas
async def test_what_waits_is_adopted_first(memory, log, hooked, bodies):
    """A fragment that its writer could not name comes before the commit, once."""
    await log.create()

    async def refuse(call, key, data, mode):
        if key.endswith(paths.MANIFEST):
            raise StoreError("no", applied=False)
        return await call()

    cut_off = cordwood.Log(cordwood.Store.over(hooked(memory, put=refuse)), "orders")
    async with cut_off.writer() as writer:
        with pytest.raises(cordwood.CordwoodError):
            await writer.append(b"orphan")
    await log.commit(await stage(log, JOB, [b"a"]), JOB)
    assert [b"orphan", b"a"] == await bodies(log)


async def test_a_sealed_log(log):
    """Takes no commit; one that was made before the seal is still known."""
    await log.create()
    staged = await stage(log, JOB, [b"a"])
    late = await stage(log, Token("late"), [b"b"])
    await log.commit(staged, JOB)
    await log.seal("over")
    assert not (await log.commit(staged, JOB)).is_new
    with pytest.raises(StateError, match="sealed"):
        await log.commit(late, Token("late"))


async def test_the_root_is_small_again_after_a_large_commit(log, bucket):
    """A thousand uploads, then a root of a few pointers; the tail is still in it."""
    await log.create()
    staged = await stage(log, JOB, *([b"%d" % n] for n in range(1000)))
    await log.commit(staged, JOB)
    assert 16_000 > len(await bucket.get(paths.MANIFEST))
    report = await log.scrub(deep=True)
    assert (True, 1000, 1000) == (report.ok, report.records, report.fragments)


async def test_a_commit_of_very_many_uploads(log, bucket, monkeypatch):
    """As of a job of terabytes: one swap, then the root becomes small in a few."""

    async def believe(_, one):
        return one.at_us

    await log.create()
    (one,) = await stage(log, JOB, [b"x"])
    count = 12_000
    many = [msgspec.structs.replace(one, id=f"{n:032x}") for n in range(count)]
    monkeypatch.setattr(bulk.Committer, "_look", believe)
    done = await log.commit(many, JOB)
    assert (1, count) == (done.offset, done.records)
    assert 16_000 > len(await bucket.get(paths.MANIFEST))
    async with log.reader() as reader:
        found = await reader.scan()
    assert [one.path for one in many] == [fragment.path for fragment in found]


async def test_records_that_are_all_alike(log, bodies, monkeypatch):
    """Equal uploads add up to equal sums: nodes of another shape have the name, and are told."""

    class Standing:
        def now_us(self):
            return 1

        def monotonic_s(self):
            return asyncio.get_running_loop().time()

    log = cordwood.Log(log.store, log.name, clock=Standing())
    await log.create()
    for batch in range(4):
        token = Token("query", batch)
        await log.commit(await stage(log, token, *([b"x"] for _ in range(40))), token)
    assert [b"x"] * 160 == await bodies(log)
    assert (await log.scrub(deep=True)).ok


# Uploads that nobody commits, and those that are collected.


async def test_an_upload_that_is_too_old_is_refused(place, time, numbers, bodies):
    """At half the age at which it is swept."""
    # EVIDENCE-OF: G-63
    log = await numbers(place, 1)
    staged = await stage(log, JOB, [b"a"])
    time.pass_s(STAGED_GRACES * 60 / 2 + 2)
    with pytest.raises(StateError, match="cannot be committed any more"):
        await log.commit(staged, JOB)
    assert [b"1"] == await bodies(log)
    await log.commit(await stage(log, JOB, [b"a"]), JOB)


async def test_orphans_go_by_age_and_nothing_else(place, time, numbers, bucket_of, bodies):
    """What was committed stays, however old; what was not goes when it is old."""
    # EVIDENCE-OF: G-63
    log, bucket = await numbers(place, 1), bucket_of(place)
    await log.cursors.init("hold", 1)
    await log.commit(await stage(log, JOB, *([b"%d" % n] for n in range(20))), JOB)
    kept = set(await uploads(bucket))
    await stage(log, Token("dead"), [b"x"], [b"y"])
    age_s = STAGED_GRACES * 60
    time.pass_s(age_s - 5)
    await log.collect(wait_s=0)
    assert 22 == len(await uploads(bucket))
    time.pass_s(age_s / 4 + 10)
    young = await stage(log, Token("alive"), [b"z"])
    report = await log.collect(wait_s=0)
    assert 2 == report.deleted
    assert kept | {young[0].path} == set(await uploads(bucket))
    for _ in range(5):
        time.pass_s(age_s / 2)
        await log.commit(await stage(log, Token("later", _), [b"later"]), Token("later", _))
        await log.collect(wait_s=0)
    assert kept <= set(await uploads(bucket))
    assert 26 == len(await bodies(log))
    assert (await log.scrub(deep=True)).ok


@pytest.mark.cas
async def test_a_slow_commit_meets_a_sweep(place, time, numbers, hooked, bucket_of, bodies):
    """It looked at its uploads, then slept for days: its swap fails, and it is told."""
    # EVIDENCE-OF: G-63
    log, bucket = await numbers(place, 1), bucket_of(place)
    await log.cursors.init("hold", 1)
    slept = []

    async def sleep(call, key, data, mode):
        if key.endswith(paths.MANIFEST) and not slept:
            slept.append(key)
            time.pass_s(2 * STAGED_GRACES * 60)
            await log.collect(wait_s=0)
            assert [] == await uploads(bucket)
        return await call()

    slow = cordwood.Log(cordwood.Store.over(hooked(place, put=sleep)), "orders")
    with pytest.raises(StateError, match="cannot be committed any more"):
        await slow.commit(await stage(slow, JOB, [b"a"]), JOB)
    assert slept
    assert [b"1"] == await bodies(log)


async def test_a_slow_commit_to_a_log_that_stands_still(place, time, numbers, hooked, bodies):
    """Nobody swept meanwhile, so it takes effect; later sweeps find it named."""
    # EVIDENCE-OF: G-63
    log = await numbers(place, 1)
    await log.cursors.init("hold", 1)
    age_s = STAGED_GRACES * 60

    async def sleep(call, key, data, mode):
        if key.endswith(paths.MANIFEST) and b"slow" in data:
            time.pass_s(2 * age_s)
        return await call()

    slow = cordwood.Log(cordwood.Store.over(hooked(place, put=sleep)), "orders")
    token = Token("slow")
    await slow.commit(await stage(slow, token, [b"a"]), token)
    for batch in range(4):
        time.pass_s(age_s)
        token = Token("quick", batch)
        await log.commit(await stage(log, token, [b"b"]), token)
        await log.collect(wait_s=0)
    assert [b"1", b"a", b"b", b"b", b"b", b"b"] == await bodies(log)


YEAR_S = 365 * 86_400


@pytest.mark.cas
async def test_a_store_whose_clock_was_ahead_once(place, time, numbers, bucket_of, bodies):
    """What it left behind in the future holds up no commit, no sweep, and ends no pin."""
    # EVIDENCE-OF: G-38, G-63
    log, bucket = await numbers(place, 1), bucket_of(place)
    await log.cursors.init("hold", 1)
    time.pass_s(YEAR_S)
    await log.commit(await stage(log, JOB, [b"a"]), JOB)
    time.pass_s(2 * STAGED_GRACES * 60)
    await log.collect(wait_s=0)
    time.pass_s(-YEAR_S)
    token = Token("later")
    staged = await stage(log, token, [b"b"])
    await log.pin("backup", 1, 2, ttl_s=60)
    await log.collect(wait_s=0)
    assert ("backup",) == (await log.state()).pins
    with pytest.raises(cordwood.AlreadyExistsError):
        await log.pin("backup", 1, 2, ttl_s=60)
    await log.commit(staged, token)
    assert [b"1", b"a", b"b"] == await bodies(log)
    await stage(log, Token("dead"), [b"x"])
    time.pass_s(2 * STAGED_GRACES * 60)
    assert 1 == (await log.collect(wait_s=0)).deleted
    assert 2 == len(await uploads(bucket))


@pytest.mark.cas
async def test_a_clock_that_goes_back_during_a_sweep(place, time, numbers, hooked, bucket_of):
    """What seemed old may be committed yet: nothing is deleted."""
    # EVIDENCE-OF: G-63
    log, bucket = await numbers(place, 1), bucket_of(place)
    await log.cursors.init("hold", 1)
    staged = await stage(log, JOB, [b"a"])
    went_back = []

    async def go_back(call, key, data, mode):
        if key.endswith(paths.MANIFEST) and not went_back:
            went_back.append(key)
            time.pass_s(-YEAR_S)
        return await call()

    time.pass_s(YEAR_S)
    seen = cordwood.Log(cordwood.Store.over(hooked(place, put=go_back)), "orders")
    with pytest.raises(StateError, match="clock went back"):
        await seen.collect(wait_s=0)
    assert went_back
    assert [staged[0].path] == await uploads(bucket)
    assert (await log.commit(staged, JOB)).is_new


@pytest.mark.cas
async def test_uploads_are_collected_like_any_fragment(
    place, numbers, bucket_of, collected, leftovers, bodies
):
    """And what is left can be read and proved."""
    # EVIDENCE-OF: G-61
    log, bucket = await numbers(place, 3), bucket_of(place)
    await log.commit(await stage(log, JOB, *([b"%d" % n] for n in range(40))), JOB)
    await numbers(place, 3)
    await log.cursors.init("jobs", 30)
    report = await collected(log)
    assert Phase.EMPTY is report.phase
    assert [] == await leftovers(log, bucket)
    first = (await log.state()).oldest_offset
    assert 47 - first == len(await bodies(log))
    assert (await log.scrub(deep=True)).ok


async def test_a_pin_and_a_fork_keep_uploads(place, time, numbers, bucket_of, collected, bodies):
    """The manifest moves on, the files stay, also from the sweep by age; then they go."""
    # EVIDENCE-OF: G-63
    log, bucket = await numbers(place, 1), bucket_of(place)
    await log.commit(await stage(log, JOB, *([b"%d" % n] for n in range(10))), JOB)
    fork = cordwood.Log(log.store, "trial")
    await log.fork(fork)
    await log.pin("backup", 2, 6, ttl_s=10_000_000)
    await log.cursors.init("jobs", 12)
    await collected(log)
    assert [] == await bodies(log)
    for _ in range(3):
        time.pass_s(STAGED_GRACES * 60)
        await log.commit(await stage(log, Token("later", _), [b"x"]), Token("later", _))
        await log.collect(keep_from=1, wait_s=0)
    assert [b"1", *(b"%d" % n for n in range(10))] == await bodies(fork)
    async with log.reader(pin="backup") as reader:
        assert [b"0", b"1", b"2", b"3"] == [r.body async for r in reader.read(2)]
    assert (await fork.scrub(deep=True)).ok
    await fork.destroy()
    await collected(log)
    assert 4 <= len(await uploads(bucket)) <= 7
    await (await log.pinned("backup")).release()
    await collected(log)
    assert (await log.state()).records >= len(await uploads(bucket)) - 3


async def test_copies_and_forks_know_who_committed(place, numbers, bodies):
    """A commit that is in them already does not come in again."""
    # EVIDENCE-OF: G-62
    log = await numbers(place, 1)
    staged = await stage(log, JOB, [b"a"], [b"b"])
    await log.commit(staged, JOB)
    for name, make in (("fork", log.fork), ("copy", log.copy)):
        other = cordwood.Log(log.store, name)
        await make(other)
        again = await other.commit(await stage(other, JOB, [b"a", b"b"]), JOB)
        assert (2, False) == (again.offset, again.is_new)
        token = Token("next")
        await other.commit(await stage(other, token, [b"c"]), token)
        assert [b"1", b"a", b"b", b"c"] == await bodies(other)
        assert (await other.scrub(deep=True)).ok


@pytest.mark.cas
async def test_destroying_takes_uploads_and_producers_along(log, bucket):
    """Nothing is left."""
    await log.create()
    for number in range(20):
        token = Token(f"job {number}")
        await log.commit(await stage(log, token, [b"x"]), token)
    await stage(log, Token("dead"), [b"x"])
    await log.destroy()
    assert [] == await bucket.keys()


async def test_damage_to_an_upload_is_found(log, bucket, bodies):
    """Which one, by reading and by scrubbing."""
    await log.create()
    staged = await stage(log, JOB, [b"a"], [b"b"], [b"c"])
    await log.commit(staged, JOB)
    data = bytearray(await bucket.get(staged[1].path))
    data[20] ^= 1
    await bucket.put(staged[1].path, bytes(data))
    with pytest.raises(cordwood.CorruptionError, match=staged[1].id[:8]):
        await bodies(log)
    report = await log.scrub(deep=True)
    assert [staged[1].path in error.where for error in report.errors] == [True]


async def test_an_upload_cut_short_is_not_committed(log, bucket):
    """Its length is looked at before the swap."""
    await log.create()
    staged = await stage(log, JOB, [b"a"])
    await bucket.put(staged[0].path, (await bucket.get(staged[0].path))[:-1])
    with pytest.raises(cordwood.CorruptionError, match="is not the one that was staged"):
        await log.commit(staged, JOB)


def test_the_blocking_twin(tmp_path):
    """The same, for Spark tasks."""
    log = sync.Log(f"file://{tmp_path}", "orders")
    log.create()
    staged = [log.stage(table(b"a", b"b"), JOB), log.stage(table(b"c"), JOB)]
    assert sync.Committed(1, 3, is_new=True) == log.commit(staged, JOB)
    with log.reader() as reader:
        assert [b"a", b"b", b"c"] == [record.body for record in reader.read()]


async def test_staging_that_takes_too_long_does_not_count(place, time, numbers, hooked):
    """A sweep may have met an earlier attempt of the same put."""
    # EVIDENCE-OF: G-63
    await numbers(place, 1)

    async def slow(call, key, data, mode):
        time.pass_s(STAGED_GRACES * 60 / 4 + 1)
        return await call()

    log = cordwood.Log(cordwood.Store.over(hooked(place, put=slow)), "orders", clock=time)
    with pytest.raises(StoreError, match="took 2161 s"):
        await stage(log, JOB, [b"a"])


async def test_a_machine_that_is_suspended_while_it_stages(place, time, numbers, hooked):
    """Its monotonic clock stood still: wall time tells."""
    # EVIDENCE-OF: G-63

    class Suspended:
        """As the machine sees it when it wakes."""

        now_us = staticmethod(time.now_us)

        def monotonic_s(self):
            return 0.0

    await numbers(place, 1)

    async def sleep(call, key, data, mode):
        if paths.is_bulk(key.removeprefix("orders/")):
            time.pass_s(STAGED_GRACES * 60 / 4 + 1)
        return await call()

    store = cordwood.Store.over(hooked(place, put=sleep))
    log = cordwood.Log(store, "orders", clock=Suspended())
    with pytest.raises(StoreError, match="took 2161 s"):
        await stage(log, JOB, [b"a"])


async def test_staging_for_no_log_and_for_a_sealed_one(log):
    """Is refused before anything is uploaded."""
    with pytest.raises(cordwood.NotFoundError, match="no log named 'orders'"):
        await stage(log, JOB, [b"a"])
    await log.create()
    await log.seal("over")
    with pytest.raises(StateError, match="sealed"):
        await stage(log, JOB, [b"a"])


# What a review found.


async def copied(store, into):
    """The whole bucket, object by object: the same bytes, at another time."""
    async for meta in store.list(""):
        await into.put(meta.key, (await store.get(meta.key)).data)


async def test_a_bucket_that_was_copied_keeps_its_uploads(time, numbers, bucket_of, bodies):
    """All of them look young there, and are named all over the log."""
    # EVIDENCE-OF: G-63
    place, elsewhere = MemoryStore(clock=time), MemoryStore(clock=time)
    log = await numbers(place, 1)
    await log.cursors.init("hold", 1)
    age_s = STAGED_GRACES * 60
    for batch in range(6):
        token = Token("query", batch)
        await log.commit(await stage(log, token, [b"%d" % batch]), token)
        time.pass_s(age_s)
        await log.collect(wait_s=0)
    await copied(place, elsewhere)
    twin = cordwood.Log(cordwood.Store.over(elsewhere), "orders")
    for _ in range(4):
        time.pass_s(age_s)
        await twin.collect(wait_s=0)
    assert 6 == len(await uploads(bucket_of(elsewhere)))
    assert (await twin.scrub(deep=True)).ok


async def test_what_an_earlier_log_left_of_its_producers_means_nothing(log, bucket, bodies):
    """A put of the old log arrives in the new one."""
    # EVIDENCE-OF: G-62
    await log.create()
    for number in range(20):
        token = Token(f"job {number}")
        await log.commit(await stage(log, token, [b"old"]), token)
    left = {key: await bucket.get(key) for key in await bucket.keys() if "producer/" in key}
    assert left
    await log.destroy()
    await log.create()
    for key, data in left.items():
        await bucket.put(key, data)
    for number in range(20):
        token = Token(f"job {number}")
        assert (await log.commit(await stage(log, token, [b"new"]), token)).is_new
    assert [b"new"] * 20 == await bodies(log)


async def test_a_late_put_of_an_earlier_batch_is_not_believed(log, bucket):
    """What is written down of a producer only rises."""
    await log.create()
    manifest = await log.manifest()
    newer = Producer("query", 7, "", 1, 1, 0)
    older = Producer("query", 3, "", 1, 1, 0)
    await remember(log.objects, manifest.incarnation, newer)
    await remember(log.objects, manifest.incarnation, older)
    assert newer == await find_producer(log.objects, manifest, "query")


async def test_jobs_that_nobody_asks_for_are_forgotten(place, time, numbers, bucket_of):
    """When their uploads would have been swept; streams and named jobs are not."""
    log, bucket = await numbers(place, 1), bucket_of(place)
    await log.cursors.init("hold", 1)
    for number in range(40):
        token = Token(f"job {number}", once=number % 2 == 0)
        await log.commit(await stage(log, token, [b"x"]), token)
    time.pass_s(1.3 * STAGED_GRACES * 60)
    await log.collect(wait_s=0)
    kept = [key for key in await bucket.keys() if key.startswith("producer/")]
    assert 12 == len(kept)


@pytest.mark.parametrize(
    "forgery",
    [{"records": 3}, {"setsum": "0" * 64}, {"at_us": 10**30}, {"records": 0}, {"bytes": 1}],
    ids=str,
)
async def test_what_staged_says_is_checked(log, forgery):
    """Against the upload itself."""
    await log.create()
    staged = await stage(log, JOB, [b"a"])
    wrong = msgspec.structs.replace(staged[0], **forgery)
    with pytest.raises(cordwood.CorruptionError, match="is not the one that was staged"):
        await log.commit([wrong], JOB)
    assert 1 == (await log.state()).next_offset


async def test_an_upload_cannot_be_passed_to_another_token(log):
    """Nor by somebody who changes what is said of it."""
    await log.create()
    staged = await stage(log, JOB, [b"a"])
    await log.commit(staged, JOB)
    other = Token("other")
    moved = msgspec.structs.replace(staged[0], token=other.key)
    with pytest.raises(cordwood.CorruptionError, match="is not the one that was staged"):
        await log.commit([moved], other)


async def test_things_that_are_no_token_and_no_upload(log):
    """One clear line each."""
    await log.create()
    staged = await stage(log, JOB, [b"a"])
    with pytest.raises(InvalidInputError, match=r"cordwood\.Token"):
        await log.stage(table(b"a"), "job")
    with pytest.raises(InvalidInputError, match=r"cordwood\.Token"):
        await log.commit(staged, "job")
    with pytest.raises(InvalidInputError, match="a list of what `stage` gave"):
        await log.commit(staged[0], JOB)
    with pytest.raises(InvalidInputError, match="no compression 'gzip'"):
        await log.stage(table(b"a"), JOB, compression="gzip")


@pytest.mark.cas
async def test_a_swap_in_doubt_and_then_silence(memory, log, hooked, bodies):
    """Nobody may say that nothing was written."""
    # EVIDENCE-OF: G-62
    await log.create()
    swapped = []

    async def lose(call, key, data, mode):
        etag = await call()
        if key.endswith(paths.MANIFEST):
            swapped.append(key)
            raise cordwood.UncertainError("the answer was lost", write_id="x")
        return etag

    async def silent(call, key):
        if swapped:
            raise StoreError("the store is away", applied=False)
        return await call()

    seen = cordwood.Log(cordwood.Store.over(hooked(memory, put=lose, get=silent)), "orders")
    staged = await stage(seen, JOB, [b"a"])
    with pytest.raises(cordwood.UncertainError, match="may have taken effect"):
        await seen.commit(staged, JOB)
    assert not (await log.commit(staged, JOB)).is_new
    assert [b"a"] == await bodies(log)


async def test_many_uploads_beside_a_busy_writer_on_a_slow_store(memory, log, hooked):
    """Uploads are looked at before a turn is asked for, not in it."""
    await log.create()

    async def slow(call, *_):
        await asyncio.sleep(0.05)
        return await call()

    seen = cordwood.Log(cordwood.Store.over(hooked(memory, head=slow)), "orders")
    is_over = False

    async def write():
        async with log.writer(options=cordwood.Options(intent_interval_s=0.1)) as writer:
            while not is_over:
                await writer.append(b"x")

    work = asyncio.ensure_future(write())
    staged = await stage(log, JOB, *([b"%d" % n] for n in range(800)))
    try:
        await asyncio.wait_for(seen.commit(staged, JOB), 60)
    finally:
        is_over = True
        await work


async def test_a_moved_log_knows_what_was_committed(log, bodies):
    """Both are one order: a batch that is replayed into the second is in the first."""
    # EVIDENCE-OF: G-62
    await log.create()
    token = Token("query", 4)
    await log.commit(await stage(log, token, [b"a"]), token)
    onward = cordwood.Log(log.store, "onward")
    await log.migrate(onward)
    assert not (await onward.commit(await stage(onward, token, [b"a"]), token)).is_new
    assert [] == await bodies(onward)


async def test_uploads_swept_and_a_twin_that_was_faster(place, time, numbers):
    """Whoever comes too late and finds its token made is told that, not to write again."""
    log = await numbers(place, 1)
    await log.cursors.init("hold", 2)
    late = await stage(log, JOB, [b"a"])
    done = await log.commit(await stage(log, JOB, [b"a"]), JOB)
    time.pass_s(2 * STAGED_GRACES * 60)
    await log.collect(wait_s=0)
    assert msgspec.structs.replace(done, is_new=False) == await log.commit(late, JOB)


async def test_a_damaged_node_does_not_stop_a_collection(place, time, numbers, bucket_of):
    """Only uploads wait, and the report says so."""
    log, bucket = await numbers(place, 100), bucket_of(place)
    await log.cursors.init("jobs", 20)
    await stage(log, Token("dead"), [b"x"])
    newest = (await bucket.manifest())["snapshots"][-1]["path_to_snapshot"]
    good = await bucket.get(newest)
    await bucket.put(newest, b"{}")
    time.pass_s(2 * STAGED_GRACES * 60)
    report = await log.collect(wait_s=0)
    assert "uploads were not swept" in report.skipped
    assert (await log.state()).oldest_offset > 10
    await bucket.put(newest, good)
    time.pass_s(STAGED_GRACES * 60)
    await log.collect(wait_s=0)
    assert [] == await uploads(bucket)


async def test_equal_uploads_fold_and_are_collected(place, time, numbers, leftovers, bucket_of):
    """Nodes over them are named by their place: none has another one's name, now or later."""

    class Standing:
        def now_us(self):
            return 1

        def monotonic_s(self):
            return time.monotonic_s()

    await numbers(place, 1)
    bucket = bucket_of(place)
    log = cordwood.Log(cordwood.Store.over(place), "orders", clock=Standing())
    for batch in range(5):
        token = Token("query", batch)
        await log.commit(await stage(log, token, *([b"x"] for _ in range(64))), token)
    assert 30 > len((await bucket.manifest())["fragments"])
    fork = cordwood.Log(log.store, "trial", clock=Standing())
    await log.fork(fork)
    token = Token("other")
    await fork.commit(await stage(fork, token, *([b"x"] for _ in range(64))), token)
    async with fork.reader() as reader:
        offsets = [record.offset async for record in reader.read()]
    assert list(range(1, 386)) == offsets
    assert (await fork.scrub(deep=True)).ok
    await log.cursors.init("jobs", 200)
    await log.collect(wait_s=0)
    time.pass_s(61)
    await log.collect(wait_s=0)
    assert (await log.scrub(deep=True)).ok
    assert (await fork.scrub(deep=True)).ok
    copy = cordwood.Log(log.store, "copy")
    await fork.copy(copy)
    assert (await copy.scrub(deep=True)).ok
