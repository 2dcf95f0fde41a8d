"""Cursors: wal3's bytes, witnesses, positions that count, and what each call costs."""

from __future__ import annotations

import json

import pytest

import cordwood
from cordwood import (
    AlreadyExistsError,
    CollectedError,
    ContendedError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
)
from cordwood.log.cursors import DELETED, CursorRecord
from cordwood.log.format import Position, decode, encode
from cordwood.log.garbage import Garbage, GarbageExtension, Phase
from cordwood.store.memory import MemoryStore

WAL3 = b'{"position":{"offset":42},"epoch_us":12345,"writer":"test-writer"}'


class Counting(MemoryStore):
    """A memory that remembers requests."""

    def __init__(self):
        """None yet."""
        super().__init__()
        self.calls = []

    async def get(self, key):
        """Note it."""
        self.calls.append(("get", key))
        return await super().get(key)

    async def put(self, key, data, mode="overwrite"):
        """Note it."""
        self.calls.append(("put", key))
        return await super().put(key, data, mode)


@pytest.fixture
def store():
    """A store of the test's own."""
    return Counting()


@pytest.fixture
async def log(store):
    """A log of ten records."""
    log = cordwood.Log(cordwood.Store.over(store), "log")
    async with log.writer(create=True) as writer:
        await writer.append_many([b"%d" % n for n in range(10)])
    store.calls.clear()
    return log


async def mark(store, first_to_keep, phase=Phase.MARKED):
    """Pretend that a collection is under way."""
    garbage = Garbage(
        first_to_keep=Position(first_to_keep), cordwood=GarbageExtension("n", phase, "e")
    )
    await store.put("log/gc/GARBAGE", encode(garbage, "x"))
    store.calls.clear()


async def unproved(store, offset):
    """What a maker leaves behind that died before it had proved its cursor."""
    record = CursorRecord(Position(offset), 1, "cordwood/1 write=1 unproved")
    await store.put("log/cursor/jobs.json", encode(record, "x"))
    store.calls.clear()


# Bytes.


def test_a_cursor_of_wal3_is_read_and_given_back_byte_for_byte():
    """The example of its own tests."""
    record = decode(CursorRecord, WAL3, "x")
    assert (42, 12345, "test-writer") == (record.position.offset, record.epoch_us, record.writer)
    assert encode(record, "x") == WAL3


async def test_a_cursor_has_wal3s_fields_in_wal3s_order(log, store):
    """Nothing more: what is ours is in the free text."""
    await log.cursors.init("jobs", 3)
    document = json.loads((await store.get("log/cursor/jobs.json")).data)
    assert ["position", "epoch_us", "writer"] == list(document)
    assert {"offset": 3} == document["position"]


@pytest.mark.parametrize("data", [b"", WAL3[:-1], b"[]", b'{"position":{"offset":-1}}'])
async def test_a_damaged_cursor_is_said_to_be(log, store, data):
    """Also to a collection: nobody knows what it holds back."""
    await store.put("log/cursor/jobs.json", data)
    with pytest.raises(CorruptionError):
        await log.cursors.load("jobs")
    with pytest.raises(CorruptionError):
        await log.collect()


# What each call does.


async def test_init_load_save_list_delete(log):
    """The life of a cursor."""
    made = await log.cursors.init("jobs", 1)
    assert ("jobs", 1) == (made.name, made.offset)
    saved = await log.cursors.save("jobs", 5, made)
    assert 5 == (await log.cursors.load("jobs")).offset
    assert {"jobs": 5} == {name: w.offset for name, w in (await log.cursors.list()).items()}
    assert {"jobs": 5} == (await log.state()).cursors
    await log.cursors.delete("jobs", saved)
    assert {} == await log.cursors.list()
    with pytest.raises(NotFoundError):
        await log.cursors.load("jobs")
    assert 2 == (await log.cursors.init("jobs", 2)).offset


async def test_what_each_call_costs(log, store):
    """A new cursor proves itself once; afterwards a save is one request."""
    # EVIDENCE-OF: G-60
    made = await log.cursors.init("jobs", 2)
    assert ["get", "put", "get", "get", "put"] == [operation for operation, _ in store.calls]
    store.calls.clear()
    saved = await log.cursors.save("jobs", 4, made)
    assert [("put", "log/cursor/jobs.json")] == store.calls
    assert saved.is_proved
    store.calls.clear()
    loaded = await log.cursors.load("jobs")
    assert loaded.is_proved
    await log.cursors.save("jobs", 5, loaded)
    assert ["get", "put"] == [operation for operation, _ in store.calls]


async def test_whoever_loads_a_cursor_that_nobody_proved_proves_it_once(log, store):
    """Two GETs more, the first time only."""
    await unproved(store, 2)
    loaded = await log.cursors.load("jobs")
    assert not loaded.is_proved
    store.calls.clear()
    saved = await log.cursors.save("jobs", 3, loaded)
    assert ["get", "get", "put"] == [operation for operation, _ in store.calls]
    assert (await log.cursors.load("jobs")).is_proved
    assert saved.is_proved


async def test_a_cursor_exists_once(log):
    """Of two that make it one is told."""
    await log.cursors.init("jobs", 1)
    with pytest.raises(AlreadyExistsError):
        await log.cursors.init("jobs", 1)


async def test_a_stale_witness_is_refused(log):
    """Of two that move a cursor one is told, and nothing is changed."""
    # EVIDENCE-OF: G-36
    first = await log.cursors.init("jobs", 1)
    await log.cursors.save("jobs", 5, first)
    for attempt in (
        log.cursors.save("jobs", 7, first),
        log.cursors.save("jobs", 1, first),
        log.cursors.delete("jobs", first),
    ):
        with pytest.raises(ContendedError):
            await attempt
    assert 5 == (await log.cursors.load("jobs")).offset


async def test_a_witness_of_another_cursor_is_refused(log):
    """It proves nothing here."""
    witness = await log.cursors.init("a", 1)
    await log.cursors.init("b", 1)
    with pytest.raises(InvalidInputError):
        await log.cursors.save("b", 2, witness)
    with pytest.raises(InvalidInputError):
        await log.cursors.delete("b", witness)


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", "a.json", "a b", "ä", "a\n", ".", "x" * 129, 5, None, b"a"]
)
async def test_a_name_that_cannot_be_one_is_refused(log, store, name):
    """Before anything is asked or written."""
    with pytest.raises(InvalidInputError):
        await log.cursors.load(name)
    store.calls.clear()
    with pytest.raises(InvalidInputError):
        await log.cursors.init(name, 1)
    assert [] == [key for operation, key in store.calls if operation == "put"]


@pytest.mark.parametrize("offset", [-1, 12, 2**63, DELETED, 1.5, "1", None, True])
async def test_an_offset_that_cannot_be_one_is_refused(log, store, offset):
    """Neither a number out of range nor one behind the end of the log begins a cursor."""
    with pytest.raises(InvalidInputError):
        await log.cursors.init("jobs", offset)
    assert [] == [key for operation, key in store.calls if operation == "put"]


@pytest.mark.parametrize("offset", [-1, 2**63, DELETED, 1.5, "1", None, True])
async def test_a_save_of_no_offset_is_refused(log, offset):
    """Also where nothing else is checked."""
    made = await log.cursors.init("jobs", 1)
    saved = await log.cursors.save("jobs", 2, made)
    with pytest.raises(InvalidInputError):
        await log.cursors.save("jobs", offset, saved)
    assert 2 == (await log.cursors.load("jobs")).offset


async def test_offset_zero_and_the_end_are_positions(log):
    """Everything, and nothing yet. Zero is the first record, as for a reader."""
    assert 1 == (await log.cursors.init("all", 0)).offset
    assert 11 == (await log.cursors.init("none", 11)).offset


async def test_a_strange_file_among_the_cursors_stops_a_collection(log, store):
    """Nobody can tell what it holds back; `state` passes it over."""
    await log.cursors.init("jobs", 5)
    await store.put("log/cursor/jobs.bak", b"{}")
    with pytest.raises(CorruptionError):
        await log.cursors.list()
    with pytest.raises(CorruptionError):
        await log.collect()
    assert {"jobs": 5} == (await log.state()).cursors


async def test_a_cursor_with_a_long_name_of_another_program_counts(log, store):
    """What we would not make, we still respect."""
    await store.put(f"log/cursor/{'x' * 150}.json", WAL3.replace(b"42", b"4"))
    assert [4] == [witness.offset for witness in (await log.cursors.list()).values()]
    assert 1 == (await log.state()).oldest_offset


# Positions that count.


@pytest.mark.parametrize("phase", [Phase.MARKED, Phase.CANCELLED, Phase.UNLINKED])
async def test_a_new_cursor_behind_a_collection_withdraws(log, store, phase):
    """Whatever becomes of that collection, nothing new may rely on what it takes."""
    # EVIDENCE-OF: G-36
    await mark(store, 6, phase)
    with pytest.raises(CollectedError):
        await log.cursors.init("jobs", 5)
    assert {} == await log.cursors.list()
    assert 6 == (await log.cursors.init("jobs", 6)).offset


async def test_a_cursor_that_moves_back_too_far_stays_where_it_was(log, store):
    """And still holds there."""
    made = await log.cursors.init("jobs", 8)
    await mark(store, 6)
    with pytest.raises(CollectedError):
        await log.cursors.save("jobs", 5, made)
    now = await log.cursors.load("jobs")
    assert 8 == now.offset
    assert now.is_proved
    assert 6 == (await log.cursors.save("jobs", 6, now)).offset


async def test_a_cursor_left_unproved_and_passed_is_not_taken_for_one_that_holds(log, store):
    """Its maker died; a collection went past it; whoever moves it on is told, or gets through."""
    await unproved(store, 2)
    found = await log.cursors.load("jobs")
    await mark(store, 6)
    with pytest.raises(CollectedError):
        await log.cursors.save("jobs", 3, found)
    with pytest.raises(NotFoundError):
        await log.cursors.load("jobs")


async def test_a_cursor_left_unproved_may_be_moved_to_what_is_kept(log, store):
    """The new place proves itself."""
    await unproved(store, 2)
    found = await log.cursors.load("jobs")
    await mark(store, 6)
    saved = await log.cursors.save("jobs", 7, found)
    assert saved.is_proved
    assert 7 == (await log.cursors.load("jobs")).offset


async def test_a_cursor_that_holds_is_not_given_up_for_a_garbage_that_will_be_cancelled(log, store):
    """It was there before GARBAGE, which is cancelled because of it: nobody need ask again."""
    # EVIDENCE-OF: G-36
    await log.cursors.init("jobs", 2)
    await mark(store, 6)
    found = await log.cursors.load("jobs")
    assert found.is_proved
    assert 3 == (await log.cursors.save("jobs", 3, found)).offset


async def test_a_maker_whose_cursor_was_moved_before_it_was_proved_is_told(log, store):
    """Nothing was promised to it; whoever moved it has proved its own position."""
    honest = store.get

    async def meddle(key):
        if key == "log/gc/GARBAGE":
            store.get = honest
            found = await log.cursors.load("jobs")
            await log.cursors.save("jobs", 4, found)
        return await honest(key)

    store.get = meddle
    with pytest.raises(ContendedError):
        await log.cursors.init("jobs", 2)
    now = await log.cursors.load("jobs")
    assert (4, True) == (now.offset, now.is_proved)


async def test_a_garbage_that_cannot_be_read_stops_new_cursors(log, store):
    """What is being collected is unknown then."""
    await store.put("log/gc/GARBAGE", b'{"snapshots')
    with pytest.raises(CorruptionError):
        await log.cursors.init("jobs", 5)


async def test_a_cursor_says_whose_it_is(log):
    """Until somebody moves it without a word; the file stays one that wal3 reads."""
    made = await log.cursors.init("jobs", 1, owner="query_1")
    assert ("query_1", True) == (made.owner, made.is_proved)
    moved = await log.cursors.save("jobs", 2, made, owner="query_1")
    assert "query_1" == (await log.cursors.load("jobs")).owner
    back = await log.cursors.save("jobs", 1, moved, owner="query_2")
    assert ("query_2", True) == (back.owner, back.is_proved)
    assert "" == (await log.cursors.save("jobs", 2, back)).owner
    with pytest.raises(InvalidInputError, match="cannot own a cursor"):
        await log.cursors.save("jobs", 2, await log.cursors.load("jobs"), owner="two words")
