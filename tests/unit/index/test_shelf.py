"""An index on a store: lost answers, leases that lapse, compactions and writers at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import msgspec
import pytest

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ConflictError,
    CordwoodError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.index.draft import Draft, Ended, entries, idmaps_for
from cordwood.index.engine import Engine, Writing
from cordwood.index.home import Config, Files
from cordwood.index.ledger import EndMerge, Transaction
from cordwood.index.ledgerlog import LogReader, Record
from cordwood.index.shelf import Shelf
from cordwood.store.leases import TTL_S
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore
from cordwood.testing.handclock import HandClock


class Fleet:
    """Machines that share an index, and a clock in the test's hand."""

    def __init__(self, tmp_path, backend=None):
        self.clock = HandClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = Store.over(backend or self.memory)
        self.tmp_path = tmp_path
        self.machines = 0

    def machine(self, store=None):
        """Another one, with nothing in its folder yet."""
        self.machines += 1
        cache = str(self.tmp_path / f"{self.machines}")
        shelf = Shelf(store or self.store, "index", clock=self.clock, cache=cache)
        return Engine(shelf)

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


def written(engine, added, deleted=()):
    """A transaction; what it deletes comes first."""
    writing = Writing(engine)
    if deleted:
        writing.delete(list(deleted))
    writing.add(list(added), list(added.values()))
    return writing.commit()


def found(engine, word="all"):
    """Ids, sorted."""
    return sorted(engine.newest().match(word))


def run(work):
    """A coroutine, where the shelf's own run."""
    return portal.current().run(work)


def test_creators_at_once(fleet):
    """One wins, the others are told, and the index is the winner's."""
    shelves = [Shelf(fleet.store, "index", clock=fleet.clock) for _ in range(4)]

    async def all_at_once():
        creations = (one._create(Config(f"ngrams:{n}", True)) for n, one in enumerate(shelves, 1))
        return await asyncio.gather(*creations, return_exceptions=True)

    results = run(all_at_once())
    assert 1 == sum(one is None for one in results)
    assert 3 == sum(isinstance(one, AlreadyExistsError) for one in results)
    engine = fleet.machine()
    assert f"ngrams:{results.index(None) + 1}" == engine.config.tokenizer
    written(engine, {b"a": "all"})
    assert engine.check().ok
    engine.close()


def test_where_there_is_no_index(fleet):
    """It is said, and nothing is left there."""
    for call in (fleet.machine().newest, fleet.machine().compact, fleet.machine().home.config):
        with pytest.raises(NotFoundError):
            call()
    assert [] == fleet.keys("")


def test_a_lease_that_lapsed_holds_up_nothing(fleet):
    """A machine that is gone: after a minute compactions go past its handle, and not before."""
    # EVIDENCE-OF: G-87
    engine, gone = fleet.created(), fleet.machine()
    written(engine, {b"a": "all", b"b": "all"})
    visit = gone.home.enter()
    written(engine, {b"c": "all"}, [b"a"])
    engine.merge(tiered=False)
    engine.close()
    assert 0 == engine.compact().segments_removed
    visit.lease._work.cancel()
    fleet.clock.pass_s(TTL_S + 5)
    assert 2 == engine.compact().segments_removed
    assert [] == fleet.keys("handles/")
    assert [b"b", b"c"] == found(engine)
    engine.close()


def test_a_machine_that_slept_goes_on_with_a_new_handle(fleet):
    """Searching does; a transaction that it had begun is refused."""
    engine, slept = fleet.created(), fleet.machine()
    written(engine, {b"a": "all"})
    assert [b"a"] == found(slept)
    writing = Writing(slept)
    writing.delete([b"a"])
    with slept.visiting() as (visit, snapshot):
        fleet.clock.pass_s(TTL_S + 5)
        written(engine, {b"b": "all"}, [b"a"])
        engine.merge(tiered=False)
        engine.close()
        engine.compact()
        with pytest.raises(StateError, match="lapsed"):
            slept.home.advance(visit)
        # What was open is on this machine, and still says the same.
        assert [b"a"] == sorted(snapshot.match("all"))
    with pytest.raises(StateError, match="lapsed"):
        writing.commit()
    assert [b"b"] == found(slept)
    assert engine.check().ok
    slept.close()
    engine.close()


def test_a_renewed_lease_counts(fleet):
    """As long as its holder says so, again and again."""
    engine, other = fleet.created(), fleet.machine()
    written(engine, {b"a": "all"})
    visit = other.home.enter()
    engine.close()
    for _ in range(5):
        fleet.clock.pass_s(TTL_S / 2)
        run(visit.lease._renew())
        written(engine, {b"b": "all"}, [b"b"])
        engine.merge(tiered=False)
        engine.close()
        engine.compact()
        visit.lease.check()
    assert 1 == len(fleet.keys("handles/"))
    assert [visit.state.id] == list(run(engine.home._leases.live()).values())
    other.home.leave(visit)
    engine.compact()
    assert [] == fleet.keys("handles/")


def test_a_lease_that_was_taken_away_does_not_come_back(fleet):
    """A renewal on its way fails, and the handle knows."""
    engine = fleet.created()
    visit = engine.home.enter()
    fleet.clock.pass_s(TTL_S + 5)
    assert {} == run(engine.home._leases.live())
    run(visit.lease._renew())
    with pytest.raises(StateError):
        visit.lease.check()
    assert [] == fleet.keys("handles/")


def test_a_lease_that_is_renewed_while_it_is_taken_away_counts(fleet, monkeypatch):
    """Who finds it over marks it first, which fails: what was renewed is not removed."""
    engine, other = fleet.created(), fleet.machine()
    visit = other.home.enter()
    fleet.clock.pass_s(TTL_S + 5)
    leases = engine.home._leases
    get = leases.store.get

    async def late(key):
        there = await get(key)
        await visit.lease._renew()
        return there

    with monkeypatch.context() as patch:
        patch.setattr(leases.store, "get", late)
        assert [visit.state.id] == list(run(leases.live()).values())
    assert 1 == len(fleet.keys("handles/"))
    visit.check()
    other.home.leave(visit)


def test_a_handle_that_is_opened_while_others_compact(fleet, monkeypatch):
    """What it had read before it had its lease may be gone: it looks again."""
    engine, other = fleet.created(), fleet.machine()
    written(engine, {b"a": "all"})
    written(engine, {b"b": "all"})
    engine.close()
    take = other.home._leases.take

    async def late(number):
        await asyncio.to_thread(engine.merge, tiered=False)
        await asyncio.to_thread(engine.compact)
        return await take(number)

    monkeypatch.setattr(other.home._leases, "take", late)
    assert [b"a", b"b"] == found(other)
    assert 1 == len(other.newest().views)
    engine.close()


def test_a_lease_that_cannot_be_read_counts_for_the_usual_time(fleet):
    """Damage there neither raises nor holds up compactions for good."""
    engine = fleet.created()
    visit = engine.home.enter()
    (key,) = fleet.keys("handles/")
    for data in (b"", b"\xff\xfe", b"rubbish"):
        fleet.memory._objects[key] = fleet.memory._objects[key]._replace(data=data)
        assert [key] == list(run(engine.home._leases.live()))
    fleet.clock.pass_s(TTL_S + 5)
    assert {} == run(engine.home._leases.live())
    engine.home.leave(visit)


def begun_merge(engine):
    """A merge that begins."""
    opened = engine.visiting()
    visit, snapshot = opened.__enter__()
    numbers = tuple(view.segment.number for view in snapshot.views)
    started = engine.home.commit(visit, Draft(start=numbers), Files({}, {}))
    return opened, visit, snapshot, started


def test_a_stopped_writer_whose_merge_was_cancelled(fleet):
    """Its end is void for everybody, though it was on its way when it was stopped."""
    # EVIDENCE-OF: G-82
    engine, stopped = fleet.created(), fleet.machine()
    written(engine, {b"a": "all"})
    written(engine, {b"b": "all"})
    kept, visit, snapshot, started = begun_merge(stopped)
    with stopped.home.spool() as folder:
        made = stopped._write_merged(snapshot.views, folder)
        number = stopped.home.new_segment()
        numbers = tuple(view.segment.number for view in snapshot.views)
        entry = EndMerge(started, number, made.documents, made.size_bytes, numbers)
        files = Files({number: made.segment}, {number: made.idmap})
        run(stopped.home._upload(files))
    # It has checked its lease, and made its transaction. Then it is stopped, for two minutes.
    follower = LogReader()
    run(stopped.home._catch_up(follower))
    draft = Draft(ended=Ended(entry, {}))
    assert set() == idmaps_for(draft, follower.state)
    late = Transaction(0, 0, tuple(entries(draft, follower.state, {})))
    written(engine, {b"c": "all"}, [b"a"])
    fleet.clock.pass_s(TTL_S + 5)
    engine.close()
    assert 1 == engine.compact().merges_cancelled
    offset = run(stopped.home._append(Record(transaction=late)))
    assert not run(stopped.home._counts(follower, offset))
    fresh = LogReader()
    run(engine.home._catch_up(fresh))
    assert follower.state.live.keys() == fresh.state.live.keys()
    assert [b"b", b"c"] == found(engine) == found(fleet.machine())
    with pytest.raises(StateError, match="lapsed"):
        stopped._merge(visit, snapshot.views, started)
    engine.merge(tiered=False)
    assert [b"b", b"c"] == found(engine)
    kept.__exit__(None, None, None)
    engine.close()


def test_a_lease_that_lapses_while_a_compaction_looks(fleet):
    """Its merge is cancelled before anything is dropped that its end is judged by."""
    engine, stopped = fleet.created(), fleet.machine()
    written(engine, {b"a": "all"})
    kept = begun_merge(stopped)
    engine.close()
    leases, looks = engine.home._leases, []
    live = leases.live

    async def lapsing():
        looks.append(await live())
        if len(looks) == 1:
            fleet.clock.pass_s(TTL_S + 5)  # After the first look, before the second.
        return looks[-1]

    leases.live = lapsing
    written(engine, {b"b": "all"}, [b"a"])
    assert 0 == engine.compact().merges_cancelled
    assert 1 == engine.compact().merges_cancelled
    assert [1, 0] == [len(one) for one in looks[:2]]
    assert [b"b"] == found(engine)
    kept[0].__exit__(None, None, None)
    engine.close()


def test_compactions_at_once(fleet):
    """All come to an end, and the index is the same."""
    engine = fleet.created()
    for number in range(6):
        written(engine, {b"%d" % number: "all"}, [b"%d" % (number - 1)] if number % 2 else [])
    engine.merge(tiered=False)
    engine.close()

    async def all_at_once():
        return await asyncio.gather(*(fleet.machine().home._compact() for _ in range(4)))

    reports = run(all_at_once())
    assert 6 <= sum(report.segments_removed for report in reports)
    assert 1 == len(fleet.keys("segment."))
    assert [b"1", b"3", b"5"] == found(engine) == found(fleet.machine())
    assert engine.check().ok
    engine.close()


def test_writers_mergers_and_compactions_at_once(fleet):
    """On four machines: everything acknowledged is there, what was deleted is not."""
    # EVIDENCE-OF: G-82, G-86
    engine, errors = fleet.created(), []

    def work(name):
        mine = fleet.machine()
        try:
            for number in range(5):
                written(mine, {b"%d-%d" % (name, number): "all", b"%d-x" % name: "all"})
                written(mine, {}, [b"%d-x" % name])
                if number % 2:
                    mine.merge(tiered=False)
                else:
                    mine.compact()
        except Exception as error:
            errors.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            # Who loses often asks for a turn, and waits for it by the clock.
            thread.join(0.05)
            fleet.clock.pass_s(0.05)
    assert [] == errors
    right = sorted(b"%d-%d" % (name, number) for name in range(4) for number in range(5))
    assert right == found(engine)
    assert engine.check().ok
    engine.close()


def faulty(fleet, seed, **faults):
    """A store whose answers are lost, behind retries that end soon."""
    broken = FaultyStore(fleet.memory, SeededEntropy(seed), SYSTEM_CLOCK, **faults)
    options = {"deadline_s": 0.3, "backoff_first_s": 0.001, "backoff_max_s": 0.004}
    return broken, Store.over(RetryingStore(broken, SYSTEM_CLOCK, SeededEntropy(seed), **options))


def test_commits_whose_answers_are_lost(fleet):
    """One that returned is there once; one that raised is there whole or not at all."""
    # EVIDENCE-OF: G-86
    fleet.created()
    chances = {Fault.ERROR_AFTER: 0.25, Fault.ERROR_BEFORE: 0.15, Fault.THROTTLED: 0.05}
    broken, store = faulty(fleet, "lost", write_faults=chances)
    told, doubtful, refused = [], [], set()
    engine = fleet.machine(store)
    for number in range(25):
        ids = {b"%02d a" % number: "all", b"%02d b" % number: "all"}
        try:
            written(engine, ids)
            told += list(ids)
        except UncertainError:
            doubtful.append(set(ids))
        except CordwoodError:
            refused |= set(ids)
        if number % 8 == 7:
            engine = fleet.machine(store)
    broken.heal()
    after = fleet.machine()
    there = set(found(after))
    assert set(told) <= there
    assert len(told) >= 30
    assert not refused & there
    assert all(pair <= there or not pair & there for pair in doubtful)
    assert len(there) == after.newest().documents
    assert broken.counts["put:error_after"] > 20
    assert after.check().ok


def test_a_commit_whose_answer_is_lost_for_good(fleet):
    """The append arrived, and nothing can be read for a while: it is found afterwards."""
    engine = fleet.created()
    written(engine, {b"a": "all"})
    lost = []
    write = engine.home._write

    async def losing(record):
        offset = await write(record)
        if not lost:
            lost.append(offset)
            raise UncertainError("the answer was lost", write_id="x")
        return offset

    engine.home._write = losing
    finds = []

    async def finding(error):
        finds.append(error)
        return lost[0]

    engine.home._log.find_write = finding
    assert lost == [written(engine, {b"b": "all"})]
    assert 1 == len(finds)
    assert [b"a", b"b"] == found(engine)
    assert 2 == engine.newest().documents
    engine.close()


def test_a_commit_that_cannot_be_read_back_is_uncertain(fleet):
    """It was written, and may count: that is not the error of one that did nothing."""
    # EVIDENCE-OF: G-86
    engine = fleet.created()
    records, append = engine.home._records, engine.home._append

    async def broken(start, limit):
        raise StoreError("the store does not answer", operation="get", key="x")
        yield

    async def appending(record):
        offset = await append(record)
        engine.home._records = broken
        return offset

    engine.home._append = appending
    with pytest.raises(UncertainError, match="could not be read"):
        written(engine, {b"a": "all"})
    engine.home._records = records
    assert [b"a"] == found(engine)
    engine.close()


def test_a_mark_makes_work_count_once(fleet):
    """Two who do the same work: the second is refused, on a store as in a folder."""
    engine, other = fleet.created(), fleet.machine()
    first = Writing(engine, {"done": b"1"}, {"done": None})
    second = Writing(other, {"done": b"1"}, {"done": None})
    for writing in (first, second):
        writing.add([b"a"], ["all"])
    first.commit()
    with pytest.raises(ConflictError, match="done"):
        second.commit()
    assert 1 == other.newest().documents
    engine.close()
    other.close()


def test_uploads_nobody_committed_go_after_a_week(fleet):
    """And not before: a writer may be slow."""
    engine = fleet.created()
    written(engine, {b"a": "all"})
    engine.close()
    run(fleet.memory.put("index/segment.12345.idx", b"left", "create"))
    run(fleet.memory.put("index/segment.notes", b"mine", "create"))
    assert 0 == engine.compact().orphans_removed
    fleet.clock.pass_s(8 * 86_400)
    assert 1 == engine.compact().orphans_removed
    assert ["index/segment.notes"] == [k for k in fleet.keys("segment.") if not k.endswith("idx")]
    assert [b"a"] == found(fleet.machine())


def test_a_record_that_says_nothing_is_void(fleet):
    """As is one that this version cannot place; the ones behind it count."""
    engine = fleet.created()
    run(engine.home._append(Record()))
    written(engine, {b"a": "all"})
    assert [b"a"] == found(fleet.machine())
    assert Record() == msgspec.msgpack.decode(msgspec.msgpack.encode(Record()), type=Record)
    engine.close()


FORKING = """
import os, sys
from cordwood.index.engine import Engine, Writing
from cordwood.index.shelf import Shelf
from cordwood.store.url import Store

engine = Engine(Shelf(Store("file://" + sys.argv[1]), "index", cache=sys.argv[1] + "-cache"))
engine.create("words", frequencies=True, exist_ok=False)
engine.newest()
pending = Writing(engine)
pending.add([b"parent"], ["all"])
pid = os.fork()
if pid == 0:
    try:
        pending.commit()
    except Exception as error:
        print(error.code)
    mine = Writing(engine)
    mine.add([b"child"], ["all"])
    mine.commit()
    print(sorted(engine.newest().match("all")))
    engine.close()
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
print(len(os.listdir(sys.argv[1] + "/index/handles")))
pending.commit()
print(sorted(engine.newest().match("all")), flush=True)
engine.close()
"""


def test_a_forked_child_has_leases_of_its_own(tmp_path):
    """It goes on with the index, and leaves its parent's transaction and lease alone."""
    command = [sys.executable, "-c", FORKING, str(tmp_path / "wood")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "" == done.stderr
    lines = done.stdout.splitlines()
    assert ["forked", "[b'child']"] == lines[:2]
    assert int(lines[2]) >= 2
    assert "[b'child', b'parent']" == lines[3]
    assert Code.FORKED == lines[0]


def test_a_cache_that_was_damaged_is_filled_again(fleet):
    """What lies on this machine is checked before it is used."""
    engine = fleet.created()
    written(engine, {b"a": "all"})
    machine = fleet.machine()
    assert [b"a"] == found(machine)
    machine.close()
    folder = fleet.tmp_path / "2"
    (path,) = folder.rglob("*.idx")
    whole = path.read_bytes()
    for data in (b"", whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]):
        path.with_suffix(".other").write_bytes(data)
        os.replace(path.with_suffix(".other"), path)
        again = Engine(Shelf(fleet.store, "index", clock=fleet.clock, cache=str(folder)))
        assert [b"a"] == found(again)
        assert whole == path.read_bytes()
        again.close()
    engine.close()


@pytest.mark.parametrize("how", ["open to all", "a link", "a file"])
def test_a_cache_that_another_user_could_have_filled_is_not_used(fleet, tmp_path, how):
    """A segment of somebody else's that is whole would be believed."""
    written(fleet.created(), {b"a": "all"})
    reader = fleet.machine()
    folder = tmp_path / "2" / f"cordwood-cache-{os.getuid()}"
    folder.parent.mkdir()
    if how == "open to all":
        folder.mkdir()
        folder.chmod(0o777)
    elif how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.write_bytes(b"")
    assert [b"a"] == found(reader)
    assert [] == [*folder.rglob("*.idx"), *tmp_path.glob("elsewhere/*")]
    assert [b"a"] == found(fleet.machine())
    assert list((tmp_path / "3").rglob("*.idx"))
