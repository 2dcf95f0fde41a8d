"""An index and the power switch: what was committed is there afterwards, whenever it was cut.

A workload runs on the crash model's disk: commits with adds, deletes and updates, a delete that
commits while a merge runs, compactions, numbers. It is run once to count its steps, then once per
step, with the power cut right there, or with that step failing. What is found must be what was
acknowledged; of the one call on its way, all or nothing. And the index goes on working.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CordwoodError,
    StoreError,
    UncertainError,
)
from cordwood.index.draft import Draft
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder
from cordwood.index.home import Files
from cordwood.testing.crashdisk import CrashDisk, PowerCut

MODELS = ["posix", "ext4"]
MANY = int(os.environ.get("CORDWOOD_STRIDE", "3"))
STRIDES = [pytest.param(7, id="some"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
"""Every seventh step, or every third; `make crash` takes every one."""
ROOT = "/data/wood/index"
WORDS = [f"w{number}" for number in range(12)]


def open_index(disk, seed="ids", **options):
    """As a new process does."""
    return Engine(Folder(ROOT, disk=disk, entropy=SeededEntropy(seed), **options))


def content(engine):
    """Ids by the words of their documents, and how many documents there are."""
    with engine.visiting() as (_, snapshot):
        return {word: set(snapshot.match(word)) for word in WORDS}, snapshot.documents


class Client:
    """Uses an index, and remembers what it was told, and what it had asked for when it ended."""

    def __init__(self, disk, seed="ids", **options):
        self.disk = disk
        self.engine = open_index(disk, seed, **options)
        self.documents = []
        """Acknowledged, as (id, word)."""
        self.states = [[]]
        """What was acknowledged, commit by commit."""
        self.asked = None
        self.is_made = False
        self.numbers = []

    def create(self):
        self.engine.create("words", frequencies=True, exist_ok=False)
        self.is_made = True

    def commit(self, added, deleted=()):
        """Delete ids, then add documents."""
        kept = [one for one in self.documents if one[0] not in deleted]
        self.asked = kept + added
        writing = Writing(self.engine)
        try:
            if deleted:
                writing.delete(list(deleted))
            if added:
                writing.add([one for one, _ in added], [word for _, word in added])
            writing.commit()
        finally:
            writing.roll_back()
        self._acknowledge()

    def _acknowledge(self):
        self.documents, self.asked = self.asked, None
        self.states.append(self.documents)

    def merge(self, deleting=()):
        """Merge everything; a delete commits in between."""
        engine = self.engine
        engine.home.cancel_dead_merges()
        with engine.visiting() as (visit, snapshot):
            numbers = tuple(view.segment.number for view in snapshot.views)
            started = engine.home.commit(visit, Draft(start=numbers), Files({}, {}))
            try:
                if deleting:
                    self.commit([], deleting)
            finally:
                engine._merge(visit, snapshot.views, started)

    def number(self):
        self.numbers.append(self.engine.new_id("mine"))

    def check(self, disk, case, **options):
        """What is found is what this client may rely on; and it can be used again."""
        after = Client(disk, seed="after", **options)
        if not self.is_made:
            with suppress(AlreadyExistsError):
                after.create()
        found = content(after.engine)
        allowed = [self.documents] if self.asked is None else [self.documents, self.asked]
        assert found in [as_found(documents) for documents in allowed], case
        after.documents = next(one for one in allowed if as_found(one) == found)
        report = after.engine.check()
        assert report.ok, (case, report.errors)
        after.commit([(b"late", "w11")], [b"b"])
        after.merge([b"late"])
        after.engine.compact()
        after.number()
        assert as_found(after.documents) == content(after.engine), case
        assert after.engine.check().ok, case
        assert after.numbers[0] not in self.numbers, case


def as_found(documents):
    """What `content` says of documents."""
    return {word: {one for one, has in documents if has == word} for word in WORDS}, len(documents)


def steps(client):
    """The workload, call by call."""
    yield client.create
    yield lambda: client.commit([(b"a", "w0"), (b"b", "w1"), (b"b", "w2"), (b"c", "w3")])
    yield client.number
    yield lambda: client.commit([(b"d", "w4")], [b"a"])
    yield client.engine.newest
    yield lambda: client.merge([b"c"])
    yield lambda: client.commit([(b"b", "w5"), (b"e", "w6")], [b"b"])
    yield client.engine.compact
    yield lambda: client.commit([(b"f", "w7")], [b"d", b"e"])
    yield client.engine.newest
    yield client.merge
    yield client.engine.compact
    yield client.number
    yield lambda: client.commit([(b"g", "w8")])


def run(client):
    """All of it."""
    for step in steps(client):
        step()


def steps_of(model, **options):
    """How many steps of the disk that is."""
    disk = CrashDisk(model)
    run(Client(disk, **options))
    return disk.steps


def test_the_workload():
    """Without a fault it does what the model says."""
    client = Client(CrashDisk())
    run(client)
    assert [(b"b", "w5"), (b"f", "w7"), (b"g", "w8")] == sorted(client.documents)
    client.check(client.disk, "whole")


def cut(model, step, seed, **options):
    """A client that ran until the power was cut after a step, and the disk that is found."""
    client = Client(CrashDisk(model), **options)
    client.disk.cut_after(step)
    with suppress(PowerCut):
        run(client)
    return client, client.disk.power_cut(SeededEntropy(f"{step} {seed}"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stride", STRIDES)
def test_power_cut_at_every_step(model, stride):
    """Acknowledged transactions are there, the one on its way is whole or not at all."""
    # EVIDENCE-OF: G-83, G-85, G-86
    for step in range(0, steps_of(model) + 1, stride):
        client, found = cut(model, step, "once")
        client.check(found, (model, step))


@pytest.mark.parametrize("model", MODELS)
def test_a_power_cut_keeps_tombstones_that_the_ledger_relies_on(model):
    """However names reach the disk: a ledger without the deletes is not there before them."""

    def deleted():
        client = Client(CrashDisk(model))
        client.create()
        client.commit([(b"a", "w0"), (b"b", "w1"), (b"c", "w2")])
        client.commit([], [b"b"])
        return client

    client = deleted()
    begin = client.disk.steps
    client.engine.compact()
    for step in range(client.disk.steps - begin):
        for seed in range(6):
            client = deleted()
            client.disk.cut_after(step)
            with pytest.raises(PowerCut):
                client.engine.compact()
            client.check(client.disk.power_cut(SeededEntropy(f"{step} {seed}")), (step, seed))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stride", STRIDES)
def test_a_process_that_dies_at_every_step(model, stride):
    """The disk stays: another process finds all that was acknowledged, and no lock in its way."""
    # EVIDENCE-OF: G-83, G-85, G-86
    for step in range(0, steps_of(model) + 1, stride):
        disk = CrashDisk(model)
        client = Client(disk)
        disk.cut_after(step)
        with suppress(PowerCut):
            run(client)
        disk.revive()
        client.check(disk, (model, step))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("stride", STRIDES)
def test_failure_at_every_step(number, stride):
    """A step that fails is reported truthfully; the work goes on, and nothing is lost by it."""
    # EVIDENCE-OF: G-85
    for step in range(1, steps_of("posix") + 1, stride):
        disk = CrashDisk()
        client = Client(disk)
        disk.fail(step, number)
        for call in steps(client):
            attempt(client, call, number)
        client.check(disk, (number, step))


def attempt(client, call, number):
    """Do it; if it fails, do it once more, knowing what became of the first time."""
    raised = None
    try:
        call()
    except (StoreError, UncertainError) as error:
        raised = error
    if raised is None:
        return
    if isinstance(raised, UncertainError):
        if as_found(client.asked) == content(client.engine):
            client._acknowledge()
            return
    else:
        full = Code.STORE_FULL if number == errno.ENOSPC else Code.STORE_FAILED
        assert full == raised.code
    # Nothing had happened.
    client.asked = None
    if client.is_made:
        assert as_found(client.documents) == content(client.engine)
    try:
        call()
    except AlreadyExistsError:
        client.is_made = True


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stride", STRIDES)
def test_failure_then_power_cut(model, stride):
    """After a failed step, a power cut loses nothing that had returned."""
    # EVIDENCE-OF: G-85
    for step in range(1, steps_of(model) + 1, stride):
        disk = CrashDisk(model)
        client = Client(disk)
        disk.fail(step, errno.EIO)
        with suppress(StoreError, UncertainError):
            run(client)
        client.check(disk.power_cut(SeededEntropy(step)), (model, step))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stride", STRIDES)
def test_without_waiting_for_the_disk(model, stride):
    """A power cut costs the last commits at most: what is left is what was so at some time."""
    lost = 0
    for step in range(0, steps_of(model, durable=False) + 1, stride):
        client, disk = cut(model, step, "relaxed", durable=False)
        found = open_index(disk, "after", durable=False)
        if not client.is_made:
            continue
        states = [*client.states, *([] if client.asked is None else [client.asked])]
        assert content(found) in [as_found(documents) for documents in states], (model, step)
        assert found.check().ok
        lost += content(found) != as_found(client.documents)
    assert lost > 0


class FolderSyncForgotten(CrashDisk):
    """A disk for an index that does not sync its folders."""

    def fsync_dir(self, path):
        """Nothing."""


class FileSyncForgotten(CrashDisk):
    """A disk for an index that does not sync its files."""

    def sync_file(self, inode, path):
        """Nothing."""


@pytest.mark.parametrize("kind", [FolderSyncForgotten, FileSyncForgotten])
def test_the_model_finds_what_is_forgotten(kind):
    """An index that leaves out one kind of sync is found out: the model is worth something."""
    failed = 0
    for seed in range(8):
        disk = kind()
        client = Client(disk)
        run(client)
        try:
            client.check(disk.power_cut(SeededEntropy(seed)), seed)
        except (AssertionError, CordwoodError):
            failed += 1
    assert failed > 0
