"""Several processes on one index, some of them killed, against a model: a list of documents."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
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

from cordwood.index.query import And, Not, Or, Term
from cordwood.testing import indexmodel
from cordwood.testing.indexdesk import Worker

IDS = st.sampled_from([b"", b"a", b"b", b"c", b"\xff\x00"])
TEXTS = st.lists(st.sampled_from(["x", "y", "z"]), max_size=4).map(" ".join)
PROCESSES = st.integers(0, 2)
MOMENTS = st.sampled_from([0.0, 0.001, 0.003, 0.01])

QUERIES = (
    Term(b"x"),
    And((Term(b"x"), Term(b"y"))),
    Or((Term(b"y"), Term(b"z"))),
    And((Term(b"z"), Not(Term(b"x")))),
)
RANKED = 3


def expected(documents):
    """What the model says."""
    split = [(user_id, text.encode().split()) for user_id, text in documents]
    hits = [indexmodel.search(split, query, 3) for query in QUERIES[:RANKED]]
    return (
        [indexmodel.match(split, query) for query in QUERIES],
        [[(one, round(score, 4)) for one, score in found] for found in hits],
        len(split),
    )


class Kept:
    """Something that is open in a process, as long as that lives."""

    def __init__(self, worker, number):
        self.worker = worker
        self.number = number

    def call(self, name, *args):
        return self.worker.call(name, self.number, *args)


class Work(Kept):
    """A transaction under way, and what it will do to the model."""

    def __init__(self, worker, documents):
        super().__init__(worker, worker.call("begin"))
        self.seen = Counter(documents)
        self.gone = Counter()
        self.added = []

    def add(self, user_id, text):
        self.call("add", user_id, text)
        self.added.append((user_id, text))

    def delete(self, user_id):
        self.call("delete", user_id)
        left = self.seen - self.gone
        self.gone.update({one: n for one, n in left.items() if one[0] == user_id})
        self.added = [one for one in self.added if one[0] != user_id]

    def after(self, documents):
        """The model's documents once it counts."""
        return list((Counter(documents) - self.gone).elements()) + self.added


class Machine(RuleBasedStateMachine):
    """An index in a folder, and three processes that use it."""

    works = Bundle("works")
    snapshots = Bundle("snapshots")
    merges = Bundle("merges")

    @initialize()
    def create(self):
        """An empty index."""
        self.base = tempfile.mkdtemp(prefix="cordwood-processes-")
        self.workers = [self.started() for _ in range(3)]
        self.workers[0].call("create")
        self.documents = []
        self.names = 0

    def started(self):
        """A process more."""
        worker = Worker()
        worker.call("open", f"{self.base}/index")
        return worker

    def teardown(self):
        """The index is whole, whatever became of its processes."""
        if hasattr(self, "workers"):
            try:
                assert () == self.workers[1].call("check")
            finally:
                for worker in self.workers:
                    worker.kill()
                shutil.rmtree(self.base)

    def lives(self, kept):
        """Whether the process has not been killed since."""
        return kept.worker in self.workers

    def killed(self, worker):
        """Another one takes its place."""
        worker.kill()
        self.workers[self.workers.index(worker)] = self.started()

    @rule(target=works, process=PROCESSES)
    def begin(self, process):
        """A transaction."""
        return Work(self.workers[process], self.documents)

    @rule(work=works, user_id=IDS, text=TEXTS)
    def add(self, work, user_id, text):
        """A document; an id may have several."""
        if self.lives(work):
            self.names += 1
            work.add(user_id, f"{text} n{self.names}")  # So that each is another, to the model.

    @rule(work=works, user_id=IDS)
    def delete(self, work, user_id):
        """Whatever is there, and whatever was added before."""
        if self.lives(work):
            work.delete(user_id)

    @rule(work=consumes(works))
    def commit(self, work):
        """All of it counts."""
        if self.lives(work):
            work.call("commit")
            self.documents = work.after(self.documents)

    @rule(work=consumes(works))
    def roll_back(self, work):
        """Nothing of it counts."""
        if self.lives(work):
            work.call("roll_back")

    @rule(process=PROCESSES, user_id=IDS, text=TEXTS)
    def write(self, process, user_id, text):
        """A transaction from beginning to end, so that there is something."""
        work = self.begin(process)
        self.delete(work, user_id)
        self.add(work, user_id, text)
        self.commit(work)

    @rule(work=consumes(works), moment=MOMENTS)
    def commit_and_die(self, work, moment):
        """All of it counts, or nothing."""
        if not self.lives(work):
            return
        work.worker.send("commit", work.number)
        threading.Event().wait(moment)
        self.killed(work.worker)
        either = [self.documents, work.after(self.documents)]
        answers = self.workers[0].call("newest", QUERIES, RANKED)
        right = [documents for documents in either if expected(documents) == answers]
        assert right, (answers, either)
        self.documents = right[-1]

    @rule(process=PROCESSES, moment=MOMENTS, what=st.sampled_from(["merge", "compact"]))
    def tidy_and_die(self, process, moment, what):
        """It changes nothing that is seen, done or half done."""
        worker = self.workers[process]
        worker.send(what)
        threading.Event().wait(moment)
        self.killed(worker)

    @rule(process=PROCESSES)
    def die(self, process):
        """With all that it had open."""
        self.killed(self.workers[process])

    @rule(target=snapshots, process=PROCESSES)
    def take(self, process):
        """A snapshot that stays open."""
        worker = self.workers[process]
        return Kept(worker, worker.call("take")), expected(self.documents)

    @rule(taken=snapshots)
    def ask_again(self, taken):
        """The same answers, whatever happened since."""
        snapshot, right = taken
        if self.lives(snapshot):
            assert right == snapshot.call("ask", QUERIES, RANKED)

    @rule(taken=consumes(snapshots))
    def ask_at_last(self, taken):
        """Once more; then it is closed."""
        self.ask_again(taken)
        if self.lives(taken[0]):
            taken[0].call("drop")

    @rule(target=merges, process=PROCESSES)
    def start_merge(self, process):
        """A merge begins; others go on."""
        worker = self.workers[process]
        number = worker.call("start_merge")
        return multiple() if number is None else Kept(worker, number)

    @rule(merge=consumes(merges))
    def end_merge(self, merge):
        """It ends, with what was deleted meanwhile carried over."""
        if self.lives(merge):
            merge.call("end_merge")

    @rule(process=PROCESSES, others=st.lists(PROCESSES, min_size=1, max_size=2), user_id=IDS)
    def delete_through_merges(self, process, others, user_id):
        """What it deletes has moved, perhaps twice, when it commits."""
        self.write(process, user_id, "x")
        work = self.begin(process)
        self.delete(work, user_id)
        for other in others:
            self.write(other, b"a", "x")
            self.workers[other].call("merge")
        self.commit(work)

    @rule(process=PROCESSES, other=PROCESSES, user_id=IDS)
    def delete_during_a_merge(self, process, other, user_id):
        """The merge carries it over."""
        self.write(other, user_id, "x")
        merge = self.workers[process].call("start_merge")
        work = self.begin(other)
        self.delete(work, user_id)
        self.commit(work)
        if merge is not None:
            self.workers[process].call("end_merge", merge)

    @rule(process=PROCESSES, what=st.sampled_from(["merge", "compact"]))
    def tidy(self, process, what):
        """All that nobody is merging becomes one; or what no handle needs goes."""
        self.workers[process].call(what)

    @precondition(lambda self: hasattr(self, "workers"))
    @invariant()
    def agree(self):
        """Each process sees what the model says."""
        right = expected(self.documents)
        for worker in self.workers[:2]:
            assert right == worker.call("newest", QUERIES, RANKED)


QUICK = settings(
    max_examples=5,
    stateful_step_count=20,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],  # A moment does not come again: nothing to shrink.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class TestProcesses(Machine.TestCase):
    """A few steps."""

    # EVIDENCE-OF: G-82, G-85, G-86, G-87
    settings = QUICK


@pytest.mark.slow
class TestProcessesForLong(Machine.TestCase):
    """Many."""

    settings = settings(QUICK, max_examples=6, stateful_step_count=50)
