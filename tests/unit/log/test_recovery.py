"""Adoption, rule by rule: what a newcomer makes of slots that no manifest names."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import ContendedError, NotFoundError, StoreError
from cordwood.log import fragment as fragments
from cordwood.log import paths, tree
from cordwood.log.batch import Batch
from cordwood.log.flight import build
from cordwood.log.format import ZERO, Position, WriterTag, encode
from cordwood.log.objects import LogObjects
from cordwood.log.recovery import (
    SWAPS_MAX,
    Tail,
    adopt,
    find_ground,
    next_tag,
    scan,
)
from cordwood.store.memory import MemoryStore

STAMP = 1_700_000_000_000_000
INCARNATION = "1" * 32


class Silent:
    """A waiter that nobody listens to."""

    def done(self):
        """It went away."""
        return True


class Recording(MemoryStore):
    """A store that remembers what was asked of it and can lose swaps."""

    def __init__(self):
        """Nothing asked yet."""
        super().__init__()
        self.calls = []
        self.swaps_to_lose = 0
        self.fail_get = ""

    async def get(self, key):
        """Noted; fails where it was told to."""
        self.calls.append(("get", key))
        if self.fail_get and self.fail_get in key:
            raise StoreError("no")
        return await super().get(key)

    async def put(self, key, data, mode="overwrite"):
        """Noted; the next swaps are lost to somebody else."""
        self.calls.append(("put", key))
        if self.swaps_to_lose and key.endswith(paths.MANIFEST) and mode != "create":
            self.swaps_to_lose -= 1
            raise ContendedError("somebody was faster")
        return await super().put(key, data, mode)

    async def sync(self, keys):
        """Noted, key by key."""
        keys = list(keys)
        self.calls += [("sync", key) for key in keys]
        await super().sync(keys)


class Ground:
    """A log under construction: a store, and hands to put things into slots."""

    def __init__(self):
        """An empty log."""
        self.store = Recording()
        self.objects = LogObjects(self.store, "log")
        self.tag = WriterTag(INCARNATION, "2" * 32, INCARNATION, 0)
        self.manifest = tree.empty(self.tag)
        self.tail = Tail.of(self.manifest)
        self._ids = 0

    async def write_manifest(self):
        """Make the manifest as it is now the one in the store."""
        await self.store.put("log/manifest/MANIFEST", encode(self.manifest))
        self.store.calls.clear()

    async def put_slot(self, seq_no, data):
        """Anything, in a slot."""
        await self.store.put(f"log/{paths.fragment(seq_no)}", data)
        self.store.calls.clear()

    def fragment_behind(self, tail, *bodies, key=None):
        """A fragment of ours that follows this tail, with an id of its own, and its bytes."""
        self._ids += 1
        batch = Batch()
        for body in bodies or (f"body {self._ids}".encode(),):
            if key is None:
                batch.add_row(body, len(body), Silent())
            else:
                batch.add_full_row((body, key, None, None), len(body), Silent())
        return build(batch, tail, STAMP + self._ids, f"{self._ids:032x}", "snappy")

    async def put_behind(self, tail, seq_no, *bodies, key=None):
        """Such a fragment in a slot; the tail after it."""
        flight, data = self.fragment_behind(tail._replace(next_seq_no=seq_no), *bodies, key=key)
        await self.put_slot(seq_no, data)
        return tail.after(flight.link, seq_no)

    async def append_named(self, count):
        """So many fragments that the manifest names."""
        for _ in range(count):
            flight, data = self.fragment_behind(self.tail)
            await self.put_slot(flight.seq_no, data)
            self.tail = self.tail.after(flight.link, flight.seq_no)
            tag = WriterTag(INCARNATION, "2" * 32, self.tail.id, self.tail.at_us)
            self.manifest = tree.append(self.manifest, [flight.fragment], tag)
        await self.write_manifest()

    async def scan(self, own=None):
        """What a newcomer finds."""
        return await scan(self.objects, self.manifest, own or {})


@pytest.fixture
async def ground():
    """A log of four fragments, as in the module's picture."""
    ground = Ground()
    await ground.append_named(4)
    return ground


def foreign(*offsets, bodies=None, stamps=None):
    """A fragment as another program writes it."""
    table = pa.table(
        {
            "offset": pa.array(offsets, pa.uint64()),
            "timestamp_us": pa.array(stamps or [STAMP + 99] * len(offsets), pa.uint64()),
            "body": pa.array(bodies or [b"foreign"] * len(offsets), pa.binary()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def slots(run):
    """The slots of what was adopted."""
    return [fragment.seq_no for fragment in run.adopted]


# The tail.


async def test_the_tail_of_an_empty_log_is_its_incarnation():
    """The first fragment follows the log itself."""
    tail = Tail.of(Ground().manifest)
    assert Tail(INCARNATION, ZERO, 1, 1, 0) == tail


async def test_the_tail_is_the_newest_fragment(ground):
    """Id and time come from the manifest's tag, sum and place from its newest pointer."""
    assert ground.tail == Tail.of(ground.manifest)


async def test_the_tail_of_a_log_that_wal3_wrote_last_has_no_id():
    """Without a tag nothing is known but sum and place."""
    manifest = msgspec.structs.replace(Ground().manifest, writer="wal3")
    assert Tail("", ZERO, 1, 1, 0) == Tail.of(manifest)


# Rule 1: where the scan starts and ends.


async def test_nothing_above_the_manifest_is_nothing_to_adopt(ground):
    """One GET of the empty slot, and the tail stays."""
    run = await ground.scan()
    assert ([], ground.tail) == (run.adopted, run.tail)
    assert [("get", f"log/{paths.fragment(5)}")] == ground.store.calls


async def test_the_scan_ends_at_the_first_empty_slot(ground):
    """What lies beyond a hole is not seen, even if it would fit."""
    after_five = await ground.put_behind(ground.tail, 5)
    await ground.put_behind(after_five, 7)
    run = await ground.scan()
    assert [5] == slots(run)
    assert after_five._replace(next_seq_no=6) == run.tail


async def test_slots_below_the_manifest_are_never_looked_at(ground):
    """The scan starts behind the newest fragment named."""
    await ground.put_behind(ground.tail, 2)
    await ground.scan()
    assert [("get", f"log/{paths.fragment(5)}")] == ground.store.calls


async def test_a_collected_log_is_scanned_from_its_first_slot():
    """With nothing named the scan starts at the initial slot."""
    ground = Ground()
    ground.manifest = msgspec.structs.replace(
        ground.manifest, initial_offset_position=Position(50), initial_seq_no=7
    )
    await ground.put_behind(Tail.of(ground.manifest), 7)
    run = await ground.scan()
    assert ([7], 50) == (slots(run), run.adopted[0].start)


# Rule 2: what is adopted.


async def test_a_run_that_links_is_adopted_whole(ground):
    """Each behind the one before it, in one go."""
    tail = ground.tail
    for seq_no in (5, 6, 7):
        tail = await ground.put_behind(tail, seq_no)
    run = await ground.scan()
    assert ([5, 6, 7], tail) == (slots(run), run.tail)
    assert [paths.fragment(n) for n in (5, 6, 7)] == run.found


@pytest.mark.parametrize(
    "changes",
    [{"id": "f" * 32}, {"setsum_hex": "0" * 63 + "1"}, {"next_offset": 4}, {"next_offset": 6}],
    ids=["another id", "another sum", "an earlier offset", "a later offset"],
)
async def test_a_fragment_behind_another_tail_is_void(ground, changes):
    """Id, sum and offset must all be those of the tail; its slot is skipped."""
    await ground.put_behind(ground.tail._replace(**changes), 5)
    run = await ground.scan()
    assert ([], ground.tail._replace(next_seq_no=6)) == (run.adopted, run.tail)


async def test_the_first_fragment_of_a_log_follows_its_incarnation():
    """A fragment of a log that had the name before is void in its successor."""
    ground = Ground()
    await ground.put_behind(ground.tail._replace(id="9" * 32), 1)
    await ground.put_behind(ground.tail, 2)
    run = await ground.scan()
    assert [2] == slots(run)


async def test_a_fragment_moved_to_another_slot_is_adopted_there_only_if_it_links(ground):
    """Its place is not written in it; the chain decides."""
    after_five = await ground.put_behind(ground.tail, 5)
    flight, data = ground.fragment_behind(after_five)
    await ground.put_slot(6, data)
    await ground.put_slot(7, data)
    run = await ground.scan()
    assert [5, 6] == slots(run)
    assert flight.link.id == run.tail.id


# Rule 3: what is void.


async def test_the_picture_of_the_header(ground):
    """Slots 5 and 6 adopted, 7 void, 8 adopted behind 6, 9 empty."""
    after_five = await ground.put_behind(ground.tail, 5)
    after_six = await ground.put_behind(after_five, 6)
    await ground.put_behind(ground.tail._replace(id="f" * 32), 7)
    after_eight = await ground.put_behind(after_six, 8)
    run = await ground.scan()
    assert [5, 6, 8] == slots(run)
    assert after_eight == run.tail
    assert 9 == run.tail.next_seq_no


async def test_what_follows_a_void_one_is_void(ground):
    """A chain whose first link broke is dead as a whole."""
    tail = ground.tail._replace(id="f" * 32)
    for seq_no in (5, 6, 7):
        tail = await ground.put_behind(tail, seq_no)
    run = await ground.scan()
    assert ([], 8) == (run.adopted, run.tail.next_seq_no)


async def test_a_void_one_stays_void_after_the_slot_was_passed(ground):
    """Two fragments behind one tail: the lower slot wins, the other can never come back."""
    after_five = await ground.put_behind(ground.tail, 5)
    await ground.put_behind(ground.tail, 6)
    run = await ground.scan()
    assert ([5], after_five.id, 7) == (slots(run), run.tail.id, run.tail.next_seq_no)
    adopted = adopt(ground.manifest, run, SeededEntropy(1))
    again = await scan(ground.objects, adopted, {})
    assert ([], 7) == (again.adopted, again.tail.next_seq_no)


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"PAR1PAR1", b"\x00" * 1000, b"PAR1" + b"\xff" * 100 + b"PAR1"],
    ids=["empty", "one byte", "magic only", "zeros", "noise"],
)
async def test_what_is_no_fragment_is_void(ground, data):
    """Never acknowledged and unreadable: passed by, and the log goes on behind it."""
    await ground.put_slot(5, data)
    await ground.put_behind(ground.tail, 6)
    assert [6] == slots(await ground.scan())


async def test_a_damaged_fragment_is_void(ground):
    """A fragment that would fit and has one flipped bit is not adopted."""
    flight, data = ground.fragment_behind(ground.tail)
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 4
    await ground.put_slot(5, bytes(damaged))
    run = await ground.scan()
    assert ([], 6) == (run.adopted, run.tail.next_seq_no)
    await ground.put_slot(5, data)
    assert flight.link.id == (await ground.scan()).tail.id


# Rule 4: fragments of other programs.


async def test_a_foreign_fragment_in_the_first_slot_is_adopted(ground):
    """Its offsets fit; it has no id, so the tail has none."""
    await ground.put_slot(5, foreign(5, 6))
    run = await ground.scan()
    assert ([5], (5, 7)) == (slots(run), (run.adopted[0].start, run.adopted[0].limit))
    assert ("", run.adopted[0].setsum_hex, 7, 6) == run.tail[:4]
    assert STAMP + 99 == run.tail.at_us


async def test_a_foreign_fragment_in_the_second_slot_is_void(ground):
    """Only the first slot after the manifest may be foreign, even if offsets fit."""
    await ground.put_behind(ground.tail, 5)
    await ground.put_slot(6, foreign(6))
    run = await ground.scan()
    assert ([5], 7) == (slots(run), run.tail.next_seq_no)


async def test_a_foreign_fragment_behind_a_foreign_one_is_void(ground):
    """wal3 has one in flight: a second one cannot belong to it."""
    await ground.put_slot(5, foreign(5))
    await ground.put_slot(6, foreign(6))
    assert [5] == slots(await ground.scan())


@pytest.mark.parametrize("offsets", [(4,), (6,), (1, 2), (5, 7), (6, 5), (), (2**63,)], ids=repr)
async def test_a_foreign_fragment_that_does_not_fit_is_void(ground, offsets):
    """Its records must be exactly those that come next."""
    await ground.put_slot(5, foreign(*offsets))
    run = await ground.scan()
    assert ([], 6) == (run.adopted, run.tail.next_seq_no)


@pytest.mark.parametrize(
    "data",
    [
        foreign(5, bodies=[None]),
        foreign(None),
        foreign(5, stamps=[None]),
        foreign(5, 6, stamps=[STAMP, STAMP + 1]),
    ],
    ids=["null body", "null offset", "null time", "two times"],
)
async def test_a_foreign_fragment_that_is_no_fragment_does_not_wedge_the_log(ground, data):
    """A readable file with nulls or two times is void like any other damage."""
    await ground.put_slot(5, data)
    await ground.put_behind(ground.tail, 6)
    assert [6] == slots(await ground.scan())


async def test_a_foreign_file_with_two_bodies_does_not_wedge_the_log(ground):
    """The same for a file that has a column twice."""
    arrays = [pa.array([5], pa.uint64()), pa.array([STAMP], pa.uint64())]
    table = pa.Table.from_arrays(
        [*arrays, pa.array([b"a"]), pa.array([b"b"])],
        names=["offset", "timestamp_us", "body", "body"],
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    await ground.put_slot(5, sink.getvalue().to_pybytes())
    assert [] == (await ground.scan()).adopted


async def test_our_fragment_follows_an_adopted_foreign_one(ground):
    """A writer of ours that stood on wal3's tail links to its sum, without an id."""
    await ground.put_slot(5, foreign(5))
    foreign_tail = (await ground.scan()).tail
    await ground.put_behind(foreign_tail, 6)
    run = await ground.scan()
    assert [5, 6] == slots(run)


# Our own fragments need not be read.


async def test_own_fragments_are_not_read(ground):
    """A writer knows what it put; only the slots of others cost a GET."""
    flight, data = ground.fragment_behind(ground.tail)
    await ground.put_slot(5, data)
    run = await ground.scan({5: flight.landed()})
    assert ([5], []) == (slots(run), run.found)
    assert ("get", f"log/{paths.fragment(5)}") not in ground.store.calls


async def test_own_fragments_that_do_not_link_are_void_too(ground):
    """The rule is the same for everybody."""
    mine, _ = ground.fragment_behind(ground.tail._replace(id="f" * 32, next_seq_no=6))
    await ground.put_behind(ground.tail, 5)
    run = await ground.scan({6: mine.landed()})
    assert ([5], 7) == (slots(run), run.tail.next_seq_no)


async def test_columns_are_noticed(ground):
    """A run with keys makes the manifest declare them."""
    await ground.put_behind(ground.tail, 5, b"a", key=b"k")
    run = await ground.scan()
    assert run.has_columns
    assert {"columns"} == adopt(ground.manifest, run, SeededEntropy(1)).features


# The manifest that adopts.


async def test_adoption_skips_void_slots_with_the_feature(ground):
    """A void slot below an adopted one is a gap."""
    await ground.put_slot(5, b"")
    await ground.put_behind(ground.tail, 6)
    run = await ground.scan()
    adopted = adopt(ground.manifest, run, SeededEntropy(1))
    assert {"gaps"} == adopted.features
    assert [1, 2, 3, 4, 6] == [f.seq_no for f in adopted.fragments]
    encode(adopted)


async def test_the_adopting_manifest_has_a_tag_of_its_own(ground):
    """The log's incarnation, a fresh write id, and the new tail."""
    tail = await ground.put_behind(ground.tail, 5)
    entropy = SeededEntropy(1)
    tag = next_tag(ground.manifest, tail, entropy)
    assert (INCARNATION, tail.id, tail.at_us) == (tag.incarnation, tag.tail_id, tag.tail_us)
    assert tag.write_id != next_tag(ground.manifest, tail, entropy).write_id


async def test_a_log_that_wal3_wrote_last_gets_an_incarnation(ground):
    """It had none."""
    foreign_manifest = msgspec.structs.replace(ground.manifest, writer="wal3")
    tag = next_tag(foreign_manifest, ground.tail, SeededEntropy(1))
    assert 32 == len(tag.incarnation)
    assert tag == WriterTag.parse(str(tag))


# Finding ground.


async def test_a_log_at_rest_costs_two_gets(ground):
    """The manifest and the empty slot; nothing is written."""
    found = await find_ground(ground.objects, SeededEntropy(1), {})
    assert (ground.manifest, ground.tail, True) == (found.manifest, found.tail, found.named)
    assert ["get", "get"] == [call for call, _ in ground.store.calls]


async def test_a_missing_log_is_not_found():
    """There is nothing to recover."""
    with pytest.raises(NotFoundError):
        await find_ground(Ground().objects, SeededEntropy(1), {})


async def test_what_was_found_by_reading_is_synced_before_it_is_named(ground):
    """Rule 5: the object first, then the manifest that names it."""
    await ground.put_behind(ground.tail, 5)
    found = await find_ground(ground.objects, SeededEntropy(1), {})
    writes = [call for call in ground.store.calls if call[0] in {"sync", "put"}]
    assert [("sync", f"log/{paths.fragment(5)}"), ("put", "log/manifest/MANIFEST")] == writes
    assert ([1, 2, 3, 4, 5], True) == ([f.seq_no for f in found.manifest.fragments], found.named)


async def test_adoption_happens_once(ground):
    """The second newcomer finds it named."""
    await ground.put_behind(ground.tail, 5)
    first = await find_ground(ground.objects, SeededEntropy(1), {})
    second = await find_ground(ground.objects, SeededEntropy(2), {})
    assert (first.manifest, first.etag, first.tail) == (second.manifest, second.etag, second.tail)


async def test_a_lost_swap_is_tried_again(ground):
    """Up to the limit of lost swaps a newcomer reloads and adopts again."""
    await ground.put_behind(ground.tail, 5)
    ground.store.swaps_to_lose = SWAPS_MAX - 1
    found = await find_ground(ground.objects, SeededEntropy(1), {})
    assert found.named


async def test_after_too_many_lost_swaps_the_ground_is_not_named(ground):
    """A busy writer is at work: the caller must ask for its turn."""
    await ground.put_behind(ground.tail, 5)
    ground.store.swaps_to_lose = 1000
    found = await find_ground(ground.objects, SeededEntropy(1), {})
    assert (False, ground.manifest) == (found.named, found.manifest)
    assert 6 == found.tail.next_seq_no
    assert SWAPS_MAX == sum(call[0] == "put" for call in ground.store.calls)


async def test_a_void_slot_alone_costs_no_manifest(ground):
    """Nothing is adopted, so nothing is written; the next fragment just goes behind it."""
    await ground.put_slot(5, b"")
    found = await find_ground(ground.objects, SeededEntropy(1), {})
    assert (6, True, ground.manifest) == (found.tail.next_seq_no, found.named, found.manifest)
    assert "put" not in {call for call, _ in ground.store.calls}


async def test_a_slot_that_cannot_be_read_stops_everything(ground):
    """Unknown is not empty: adopting past it could lose what lies there."""
    await ground.put_behind(ground.tail, 5)
    ground.store.fail_get = "FragmentSeqNo=0000000000000005"
    with pytest.raises(StoreError):
        await find_ground(ground.objects, SeededEntropy(1), {})


async def test_a_link_is_read_back_as_it_was_written(ground):
    """What recovery decides by is what the writer put."""
    # EVIDENCE-OF: G-13, G-17
    flight, data = ground.fragment_behind(ground.tail)
    _, link = fragments.inspect(data, "slot")
    assert (flight.link.prev_id, flight.link.start) == (link.prev_id, link.start)
