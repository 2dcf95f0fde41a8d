"""Several handles on one index, in any order, against a model that is a list of documents."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.index.draft import Draft
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder
from cordwood.index.home import Files
from cordwood.index.query import And, Not, Or, Term
from cordwood.index.shelf import Shelf
from cordwood.store.url import Store
from cordwood.testing import indexmodel

IDS = st.sampled_from([b"", b"a", b"b", b"c", b"\xff\x00"])
TEXTS = st.lists(st.sampled_from(["x", "y", "z"]), max_size=4).map(" ".join)
HANDLES = st.integers(0, 2)

QUERIES = [
    Term(b"x"),
    And((Term(b"x"), Term(b"y"))),
    Or((Term(b"y"), Term(b"z"))),
    And((Term(b"z"), Not(Term(b"x")))),
]


def asked(snapshot):
    """All that the model can be asked as well; scores to the last digit but one."""
    hits = [snapshot.search(query, 3) for query in QUERIES[:3]]
    return (
        [set(snapshot.match(query)) for query in QUERIES],
        [[(one, round(score, 4)) for one, score in found] for found in hits],
        snapshot.documents,
    )


def expected(documents):
    """What the model says."""
    split = [(user_id, text.encode().split()) for user_id, text in documents]
    hits = [indexmodel.search(split, query, 3) for query in QUERIES[:3]]
    return (
        [indexmodel.match(split, query) for query in QUERIES],
        [[(one, round(score, 4)) for one, score in found] for found in hits],
        len(split),
    )


class Work:
    """A transaction under way, and what it will do to the model."""

    def __init__(self, engine, documents):
        self.writing = Writing(engine)
        self.seen = Counter(documents)
        """The documents of its snapshot: it deletes among these, and among its own."""
        self.gone = Counter()
        self.added = []

    def add(self, user_id, text):
        self.writing.add([user_id], [text])
        self.added.append((user_id, text))

    def delete(self, user_id):
        self.writing.delete([user_id])
        self.gone.update(
            {one: n for one, n in (self.seen - self.gone).items() if one[0] == user_id}
        )
        self.added = [one for one in self.added if one[0] != user_id]

    def flush(self):
        """As if the memory for it were full: a segment of its own, deletes in it by number."""
        self.writing._flush()


class Machine(RuleBasedStateMachine):
    """An index in a folder, three engines on it."""

    works = Bundle("works")
    snapshots = Bundle("snapshots")
    merges = Bundle("merges")

    def home(self, place):
        """One engine's way to it."""
        return Folder(f"{self.base}/index")

    @initialize()
    def create(self):
        """An empty index."""
        self.base = tempfile.mkdtemp(prefix="cordwood-machine-")
        self.engines = [Engine(self.home(place)) for place in range(3)]
        self.engines[0].create("whitespace", frequencies=True, exist_ok=False)
        self.documents = []
        self.open = []
        self.names = 0

    def teardown(self):
        """Close what is open; the index is whole."""
        if hasattr(self, "base"):
            for close in self.open:
                close()
            report = self.engines[1].check()
            assert report.ok, report.errors
            for engine in self.engines:
                engine.close()
            shutil.rmtree(self.base)

    @rule(target=works, handle=HANDLES)
    def begin(self, handle):
        """A transaction."""
        work = Work(self.engines[handle], self.documents)
        self.open.append(work.writing.roll_back)
        return work

    @rule(work=works, user_id=IDS, text=TEXTS)
    def add(self, work, user_id, text):
        """A document; an id may have several."""
        self.names += 1
        work.add(user_id, f"{text} n{self.names}")  # So that each is another, to the model.

    @rule(work=works, user_id=IDS)
    def delete(self, work, user_id):
        """Whatever is there, and whatever was added before."""
        work.delete(user_id)

    @rule(work=works, user_id=IDS, text=TEXTS)
    def update(self, work, user_id, text):
        """A delete and an add."""
        work.delete(user_id)
        self.add(work, user_id, text)

    @rule(work=works)
    def flush(self, work):
        """What was added so far becomes a segment."""
        work.flush()

    @rule(work=consumes(works))
    def commit(self, work):
        """All of it counts."""
        work.writing.commit()
        self.documents = list((Counter(self.documents) - work.gone).elements()) + work.added

    @rule(work=consumes(works))
    def roll_back(self, work):
        """Nothing of it counts."""
        work.writing.roll_back()

    @rule(handle=HANDLES, user_id=IDS, text=TEXTS)
    def write(self, handle, user_id, text):
        """A transaction from beginning to end, so that there is something."""
        work = Work(self.engines[handle], self.documents)
        self.update(work, user_id, text)
        self.commit(work)

    @rule(target=snapshots, handle=HANDLES)
    def take(self, handle):
        """A snapshot that stays open."""
        opened = self.engines[handle].visiting()
        _, snapshot = opened.__enter__()
        self.open.append(lambda: opened.__exit__(None, None, None))
        return snapshot, expected(self.documents)

    @rule(taken=snapshots)
    def ask_again(self, taken):
        """The same answers, whatever happened since."""
        snapshot, right = taken
        assert right == asked(snapshot)

    @rule(taken=consumes(snapshots))
    def ask_at_last(self, taken):
        """Once more; then it is forgotten, and stays open for compactions to respect."""
        self.ask_again(taken)

    @rule(target=merges, handle=HANDLES)
    def start_merge(self, handle):
        """A merge begins; others go on."""
        engine = self.engines[handle]
        opened = engine.visiting()
        visit, snapshot = opened.__enter__()
        busy = visit.state.merging()
        views = [view for view in snapshot.views if view.segment.number not in busy][:3]
        if not views:
            opened.__exit__(None, None, None)
            return multiple()
        numbers = tuple(view.segment.number for view in views)
        started = engine.home.commit(visit, Draft(start=numbers), Files({}, {}))
        self.open.append(lambda: opened.__exit__(None, None, None))
        return engine, visit, views, started, opened

    @rule(merge=consumes(merges))
    def end_merge(self, merge):
        """It ends, with what was deleted meanwhile carried over."""
        engine, visit, views, started, opened = merge
        assert len(views) - 1 == engine._merge(visit, views, started)
        opened.__exit__(None, None, None)

    @rule(merge=consumes(merges))
    def cancel_merge(self, merge):
        """Or it is given up."""
        engine, visit, _, started, opened = merge
        engine.home.commit(visit, Draft(cancel=(started,)), Files({}, {}))
        engine.home.release_merge(started)
        opened.__exit__(None, None, None)

    @rule(handle=HANDLES)
    def merge(self, handle):
        """All that nobody is merging."""
        self.engines[handle].merge(tiered=False)

    @rule(handle=HANDLES)
    def compact(self, handle):
        """What no handle needs goes."""
        self.engines[handle].compact()

    @rule(handle=HANDLES)
    def reopen(self, handle):
        """Another process in its place."""
        self.engines[handle].close()
        self.engines[handle] = Engine(self.home(handle))

    @precondition(lambda self: hasattr(self, "engines"))
    @invariant()
    def agree(self):
        """Each engine sees what the model says."""
        right = expected(self.documents)
        for engine in self.engines[:2]:
            assert right == asked(engine.newest())


class ShelfMachine(Machine):
    """The same on a store."""

    def home(self, place):
        """One machine's way to it, with a folder of its own for segments."""
        if not hasattr(self, "store"):
            self.store = Store(f"memory:~{SYSTEM_ENTROPY.token()}")
        return Shelf(self.store, "index", cache=f"{self.base}/{place}")


QUICK = settings(
    max_examples=12,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class TestFolder(Machine.TestCase):
    """In a folder."""

    # EVIDENCE-OF: G-82, G-86, G-87
    settings = QUICK


class TestShelf(ShelfMachine.TestCase):
    """On a store."""

    # EVIDENCE-OF: G-82, G-86, G-87
    settings = settings(QUICK, max_examples=6, stateful_step_count=20)


@pytest.mark.slow
class TestFolderForLong(Machine.TestCase):
    """In a folder, at length."""

    settings = settings(QUICK, max_examples=50, stateful_step_count=60)


@pytest.mark.slow
class TestShelfForLong(ShelfMachine.TestCase):
    """On a store, at length."""

    settings = settings(QUICK, max_examples=40, stateful_step_count=40)
