"""What others left on a store, or are just removing: no damage, and gone in time."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.errors import CorruptionError, StateError
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder
from cordwood.index.parts import commit_parts
from cordwood.index.shelf import Shelf
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.handclock import HandClock


class KilledError(Exception):
    """Nothing comes after it."""


class Fleet:
    """Machines that share an index, and a clock in the test's hand."""

    def __init__(self, tmp_path):
        self.clock = HandClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = Store.over(self.memory)
        self.cache = str(tmp_path)

    def machine(self):
        """Another one."""
        return Engine(Shelf(self.store, "index", clock=self.clock, cache=self.cache))

    def created(self):
        """A machine, and the index."""
        engine = self.machine()
        engine.create("words", frequencies=True, exist_ok=False)
        return engine

    def keys(self, part):
        """Objects whose keys have this in them."""
        return sorted(key for key in self.memory._objects if part in key)


@pytest.fixture
def fleet(tmp_path):
    """On a store in memory."""
    return Fleet(tmp_path)


def written(engine, added):
    """A transaction."""
    writing = Writing(engine)
    writing.add(list(added), list(added.values()))
    return writing.commit()


def found(engine, word="all"):
    """Ids, sorted."""
    return sorted(engine.newest().match(word))


def test_uploads_of_others_are_committed_within_a_day_or_not_at_all(fleet):
    """A build may take longer than uploads stay: its segments were joined, and then swept."""
    engine = fleet.created()
    written(engine, {b"a": "all"})
    began_s = fleet.clock.monotonic_s()
    fleet.clock.pass_s(86_399)
    assert commit_parts(engine, [], marks={"a": b"1"}, since_s=began_s)
    fleet.clock.pass_s(2)
    with pytest.raises(StateError, match="uploaded more than a day ago"):
        commit_parts(engine, [], marks={"a": b"2"}, since_s=began_s)
    assert {"a": b"1"} == engine.newest().marks
    engine.close()


@pytest.mark.parametrize("killed", ["before", "behind"])
def test_a_compaction_that_is_killed_leaves_a_whole_index(fleet, monkeypatch, killed):
    """A check said that an idmap was missing; what is left over goes with the next, or in time."""
    engine = fleet.created()
    for name in (b"a", b"b"):
        written(engine, {name: "all"})
    engine.merge(tiered=False)

    async def no_more(*_):
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(engine.home, "_append" if killed == "before" else "_remove", no_more)
        with pytest.raises(KilledError):
            engine.compact()
    for one in (engine, fleet.machine()):
        assert one.check().ok
        one.close()
    fleet.clock.pass_s(8 * 86_400)
    engine.compact()
    assert 1 == len(fleet.keys("segment."))
    assert engine.check().ok
    assert [b"a", b"b"] == found(engine)
    engine.close()


@pytest.mark.parametrize("place", ["folder", "store"])
def test_a_check_while_others_compact(fleet, monkeypatch, tmp_path, place):
    """It has read of an idmap that is removed before it is looked at: that is no damage."""
    if place == "store":
        engine, other = fleet.created(), fleet.machine()
    else:
        engine, other = (Engine(Folder(str(tmp_path / "ix"))) for _ in range(2))
        engine.create("words", frequencies=True, exist_ok=False)
    for name in (b"a", b"b"):
        written(engine, {name: "all"})
    engine.merge(tiered=False)
    look = other.home._check_idmap

    def late(number):
        engine.compact()
        return look(number)

    async def later(number):
        await asyncio.to_thread(engine.compact)
        return await look(number)

    monkeypatch.setattr(other.home, "_check_idmap", late if place == "folder" else later)
    assert other.check().ok
    for one in (engine, other):
        one.close()


@pytest.mark.parametrize("lost", ["ledger/cursor", "ledger/"])
def test_an_index_without_its_ledger_is_damaged(fleet, lost):
    """It was said not to be there, and to be created, which it could not be."""
    engine = fleet.created()
    written(engine, {b"a": "all"})
    engine.close()
    for key in fleet.keys(lost):
        del fleet.memory._objects[key]
    with pytest.raises(CorruptionError, match="cursor of index/ledger is missing"):
        found(fleet.machine())
