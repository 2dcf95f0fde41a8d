"""An index in a folder, shared: forks, dead processes, read-only folders, creators at once."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import pytest

from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ConflictError,
    CorruptionError,
    NotFoundError,
    StateError,
    StoreError,
)
from cordwood.index.draft import Draft
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder
from cordwood.index.home import Config, Files
from cordwood.index.parts import staging
from cordwood.store.disk import Disk


def opened(path, **options):
    """As another process would."""
    return Engine(Folder(str(path), **options))


def created(path, **options):
    """A new index."""
    engine = opened(path, **options)
    engine.create("words", frequencies=True, exist_ok=False)
    return engine


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


def open_handles(path):
    """Their files."""
    return sorted(os.listdir(path / "handles"))


CHILD = """
import os, sys
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder

engine = Engine(Folder(sys.argv[1]))
snapshot = engine.newest()
writing = Writing(engine)
writing.add([b"pending"], ["all"])
pid = os.fork()
if pid == 0:
    {child}
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
{parent}
print("parent done", flush=True)
"""


def forked(path, child, parent):
    """Run a process that forks; what it printed."""
    script = CHILD.format(child=child.replace("\n", "\n    "), parent=parent)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert "" == done.stderr
    return done.stdout.splitlines()


def test_a_forked_child_searches_and_writes_with_a_handle_of_its_own(tmp_path):
    """The parent's handle stays the parent's, and so does its transaction."""
    created(tmp_path / "index")
    lines = forked(
        tmp_path / "index",
        "print(len(os.listdir(sys.argv[1] + '/handles')))\n"
        "other = Writing(engine); other.add([b'child'], ['all']); other.commit()\n"
        "print(sorted(engine.newest().match('all')))\n"
        "print(len(os.listdir(sys.argv[1] + '/handles')))\n"
        "engine.close()\n"
        "print(engine.compact().transactions_after)\n"
        "del writing, other",
        "print(len(os.listdir(sys.argv[1] + '/handles')))\n"
        "writing.commit(); print(sorted(engine.newest().match('all')))",
    )
    # Two of the parent's; the child's own beside them; afterwards still the parent's two.
    assert ["2", "[b'child']", "3", "1", "2"] == lines[:5]
    assert ["[b'child', b'pending']", "parent done"] == lines[5:]


def test_a_forked_child_cannot_commit_its_parents_transaction(tmp_path):
    """It is told so, and the parent can."""
    created(tmp_path / "index")
    lines = forked(
        tmp_path / "index",
        "try: writing.commit()\nexcept Exception as error: print(error.code)",
        "writing.commit(); print(sorted(engine.newest().match('all')))",
    )
    assert ["forked", "[b'pending']", "parent done"] == lines


def test_a_handle_that_was_inherited_is_refused(tmp_path):
    """Whatever it is used for; leaving it leaves it to the parent."""
    engine = created(tmp_path / "index")
    visit = engine.home.enter()
    visit.held.forget()  # What a fork does in the child.
    for call in (
        lambda: engine.home.advance(visit),
        lambda: engine.home.commit(visit, None, Files({}, {})),
    ):
        with pytest.raises(StateError, match="forked") as caught:
            call()
        assert Code.FORKED == caught.value.code
    engine.home.leave(visit)
    assert 1 == len(open_handles(tmp_path / "index"))


def test_locks_of_a_child_are_not_taken_for_inherited_ones(tmp_path):
    """A descriptor that is used again is another lock."""
    disk = Disk()
    inherited = disk.hold(str(tmp_path / "a"))
    inherited.forget()
    mine = disk.hold(str(tmp_path / "b"))
    inherited.release()
    with pytest.raises(BlockingIOError):
        disk.hold(str(tmp_path / "b"))
    assert (False, True) == (inherited.is_held, mine.is_held)
    mine.release()


def test_a_handle_of_a_dead_process_holds_up_nothing(tmp_path):
    """Its file is there, its lock is not: a compaction goes past it and takes the file away."""
    # EVIDENCE-OF: G-87
    engine = created(tmp_path / "index")
    written(engine, {b"a": "all", b"b": "all"})
    script = (
        "import os, signal, sys; from cordwood.index.folder import Folder\n"
        "Folder(sys.argv[1]).enter(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "index")]
    assert -9 == subprocess.run(command, check=False).returncode
    assert 1 == len(open_handles(tmp_path / "index"))
    written(engine, {b"c": "all"}, [b"a"])
    engine.merge(tiered=False)
    report = engine.compact()
    assert (2, 1) == (report.segments_removed, report.transactions_after)
    assert [] == open_handles(tmp_path / "index")
    assert [b"b", b"c"] == found(engine)


def test_an_open_handle_holds_up_a_compaction_and_keeps_its_answers(tmp_path):
    """Segments and idmaps stay as long as it may need them; then they go."""
    # EVIDENCE-OF: G-87
    engine, other = created(tmp_path / "index"), opened(tmp_path / "index")
    written(engine, {b"a": "all", b"b": "all"})
    with other.visiting() as (visit, snapshot):
        for number in range(3):
            written(engine, {b"%d" % number: "all"}, [b"a"])
            engine.merge(tiered=False)
            assert 0 == engine.compact().documents_tombstoned
        assert [b"a", b"b"] == sorted(snapshot.match("all"))
        assert visit.state.id == snapshot.number == 1
    report = engine.compact()
    assert report.segments_removed == 6
    assert [b"0", b"1", b"2", b"b"] == found(engine)
    names = [name for name in os.listdir(tmp_path / "index") if name.startswith("segment.")]
    assert 1 == len(names)


def test_a_copy_without_its_empty_folders_is_whole(tmp_path):
    """As version control and copies to stores make them."""
    engine = created(tmp_path / "index")
    written(engine, {b"a": "all"})
    engine.close()
    for folder in ("handles", "merges", "spool"):
        (tmp_path / "index" / folder).rmdir()
    with staging(opened(tmp_path / "index")) as stage:
        assert os.path.isdir(stage.spool)
    for folder in ("handles", "merges", "spool"):
        (tmp_path / "index" / folder).rmdir()
    assert [b"a"] == found(opened(tmp_path / "index"))
    written(engine, {b"b": "all"})
    assert 1 == engine.merge(tiered=False)
    assert [b"a", b"b"] == found(engine)


def test_many_creators_at_once(tmp_path):
    """One wins, the others are told; and nothing is left of what they had made."""
    results = []

    def create(number):
        try:
            Folder(str(tmp_path / "deep" / "er" / "index")).create(Config(f"ngrams:{number}", True))
            results.append(number)
        except AlreadyExistsError:
            results.append(None)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number in results if number is not None]
    assert (1, 8) == (len(winners), len(results))
    config = Folder(str(tmp_path / "deep" / "er" / "index")).config()
    assert f"ngrams:{winners[0]}" == config.tokenizer
    assert ["index"] == os.listdir(tmp_path / "deep" / "er")


class ReadOnly(Disk):
    """A disk that may not be written: a mounted image, or another user's folder."""

    def __init__(self, number):
        self.number = number

    def _refuse(self, path):
        raise OSError(self.number, os.strerror(self.number), path)

    def write(self, path, data, mtime_ns):
        self._refuse(path)

    def rename(self, source, target):
        self._refuse(source)

    def overwrite(self, path, data, offset, *, sync=True):
        self._refuse(path)

    def unlink(self, path):
        self._refuse(path)

    def mkdir(self, path):
        self._refuse(path)

    def hold(self, path, *, shared=False):
        if not os.path.exists(path):
            self._refuse(path)
        return super().hold(path, shared=shared)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_searched(tmp_path, number):
    """From its creation on; and who writes is told that it may not."""
    created(tmp_path / "index")
    reader = opened(tmp_path / "index", disk=ReadOnly(number))
    assert [] == found(reader)
    writer = opened(tmp_path / "index")
    written(writer, {b"a": "all"})
    assert [b"a"] == found(reader)
    assert reader.check().ok
    with pytest.raises(StoreError) as caught:
        reader.new_id("mine")
    assert Code.STORE_DENIED == caught.value.code
    # Who holds no handle keeps what it has open, whatever others remove.
    snapshot = reader.newest()
    written(writer, {b"b": "all"}, [b"a"])
    writer.merge(tiered=False)
    writer.compact()
    assert [b"a"] == sorted(snapshot.match("all"))
    assert [b"b"] == found(reader)


def test_who_may_only_read_is_overtaken_by_a_compaction(tmp_path, monkeypatch):
    """Between its look at the ledger and at the segments: it has them already."""
    writer = created(tmp_path / "index")
    written(writer, {b"a": "all"})
    reader = opened(tmp_path / "index", disk=ReadOnly(errno.EACCES))

    def overtaken(call):
        def late(*args):
            found = call(*args)
            written(writer, {b"b": "all"}, [b"a", b"b"])
            writer.merge(tiered=False)
            writer.compact()
            return found

        return late

    with monkeypatch.context() as patch:
        patch.setattr(reader.home, "enter", overtaken(reader.home.enter))
        assert [b"a"] == found(reader)
        patch.setattr(reader.home, "advance", overtaken(reader.home.advance))
        assert [b"b"] == found(reader)
    assert [b"b"] == found(reader)


def test_a_transaction_that_cannot_begin_leaves_nothing_open(tmp_path, monkeypatch):
    """No room for what it would make: its handle would have held up compactions."""
    engine = created(tmp_path / "index")

    def full():
        raise StoreError("there is no room", code=Code.STORE_FULL)

    monkeypatch.setattr(engine.home, "spool", full)
    with pytest.raises(StoreError, match="no room") as caught:
        Writing(engine)
    assert caught.tb  # As long as somebody looks at the error, nothing is let go of by itself.
    assert [] == open_handles(tmp_path / "index")


def test_where_there_is_no_index(tmp_path):
    """Nothing, an empty folder, a file: said, and what to do."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    for name in ("nothing", "empty", "file/below"):
        with pytest.raises((NotFoundError, StoreError)):
            opened(tmp_path / name).newest()
    assert [] == os.listdir(tmp_path / "empty")
    with pytest.raises(NotFoundError, match="create the index first"):
        opened(tmp_path / "nothing").merge(tiered=False)
    created(tmp_path / "empty")
    with pytest.raises(AlreadyExistsError):
        created(tmp_path / "empty")
    with pytest.raises(StoreError):
        created(tmp_path / "file" / "below")


class Failing(Disk):
    """A disk on which handles cannot be opened for a while."""

    is_full = False

    def hold(self, path, *, shared=False):
        if self.is_full and "/handles/" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return super().hold(path, shared=shared)


def test_a_handle_that_cannot_go_on_stays_and_goes_on_later(tmp_path):
    """A full disk is told, and does not leave a search behind for good."""
    # EVIDENCE-OF: G-87
    disk = Failing()
    created(tmp_path / "index")
    reader, writer = opened(tmp_path / "index", disk=disk), opened(tmp_path / "index")
    assert [] == found(reader)
    written(writer, {b"a": "all"})
    disk.is_full = True
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            reader.newest()
        assert Code.STORE_FULL == caught.value.code
    disk.is_full = False
    assert [b"a"] == found(reader)


def test_mergers_at_once(tmp_path):
    """Each segment is merged by one of them; nobody fails, nothing is lost."""
    engine = created(tmp_path / "index")
    for number in range(24):
        written(engine, {b"%d" % number: "all"})
    errors = []

    def merge():
        try:
            opened(tmp_path / "index").merge(tiered=True)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=merge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == errors
    assert 24 == len(found(engine))
    assert 8 > engine.state().segments


def test_a_merge_that_died_is_cancelled_and_its_end_refused(tmp_path):
    """Its lock is free: whoever comes next cancels it; should it end after all, that is void."""
    engine, other = created(tmp_path / "index"), opened(tmp_path / "index")
    written(engine, {b"a": "all"})
    written(engine, {b"b": "all"})
    with engine.visiting() as (visit, snapshot):
        numbers = tuple(view.segment.number for view in snapshot.views)
        started = engine.home.commit(visit, Draft(start=numbers), Files({}, {}))
        assert 0 == other.home.cancel_dead_merges()
        engine.home.release_merge(started)
        assert 1 == other.home.cancel_dead_merges()
        with pytest.raises(ConflictError, match="cancelled"):
            engine._merge(visit, snapshot.views, started)
    assert 1 == other.merge(tiered=False)
    assert [b"a", b"b"] == found(engine)
    assert 0 == other.compact().orphans_removed


def test_what_a_crash_left_is_swept(tmp_path):
    """Files of uncommitted segments, half-written replacements, spools of the dead; no others."""
    engine = created(tmp_path / "index")
    written(engine, {b"a": "all"})
    root = tmp_path / "index"
    left = ["segment.77.idx", "segment.77.idmap", "segment.1.tomb.new", "transaction.log.new"]
    for name in left:
        (root / name).write_bytes(b"left")
    (root / "spool" / "dead").mkdir()
    (root / "spool" / "dead" / "segment").write_bytes(b"left")
    (root / "handles" / "README").write_bytes(b"mine")
    (root / "notes.txt").write_bytes(b"mine")
    writing = Writing(engine)
    writing.add([b"b"], ["all"])
    assert 1 == engine.compact().orphans_removed
    assert not any((root / name).exists() for name in left)
    assert (root / "notes.txt").exists()
    assert (root / "handles" / "README").exists()
    assert 1 == len(os.listdir(root / "spool"))
    writing.commit()
    assert [b"a", b"b"] == found(engine)
    assert [] == os.listdir(root / "spool")


def test_a_number_that_is_used_again_is_refused(tmp_path):
    """Should the numbers of segments go back, no segment is overwritten."""
    engine = created(tmp_path / "index")
    written(engine, {b"a": "all"})
    (tmp_path / "index" / "ids" / "segments").unlink()
    with pytest.raises(CorruptionError, match="missing"):
        written(opened(tmp_path / "index"), {b"b": "all"})
    assert [b"a"] == found(engine)


def test_a_compaction_leaves_a_spool_alone_that_is_just_being_made(tmp_path, monkeypatch):
    """Between its folder and its lock nobody sweeps: the compaction waits."""
    engine = created(tmp_path / "index")
    other = opened(tmp_path / "index", lock_wait_s=0.05)
    waited = []
    holds = Disk.hold

    def hold(self, path, *, shared=False):
        if path.endswith("/active") and "/spool/" in path and not waited:
            waited.append(path)
            with pytest.raises(StoreError, match="has been held by another process"):
                other.compact()
        return holds(self, path, shared=shared)

    monkeypatch.setattr(Disk, "hold", hold)
    written(engine, {b"a": "all"})
    assert 1 == len(waited)
    assert [b"a"] == found(engine)


FORKING = """
import os, signal, sys
from cordwood.index.draft import Draft
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder
from cordwood.index.home import Files

engine = Engine(Folder(sys.argv[1]))
engine.create("words", frequencies=True, exist_ok=False)
writing = Writing(engine)
writing.add([b"a"], ["word"])
writing.commit()
asked, ask = os.pipe()
alive, held = os.pipe()
with engine.visiting() as (visit, _):
    engine.home.commit(visit, Draft(start=tuple(visit.state.live)), Files({}, {}))
    if os.fork():
        os.read(asked, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(held)
    print(engine.home.cancel_dead_merges(), flush=True)
    os.write(ask, b"!")
    os.read(alive, 1)
    print(engine.home.cancel_dead_merges(), flush=True)
"""


def test_a_forked_child_cancels_the_merge_that_its_dead_parent_began(tmp_path):
    """It took it for its own, which goes on, for as long as it lived."""
    command = [sys.executable, "-c", FORKING, str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ("", ["0", "1"]) == (done.stderr, done.stdout.splitlines())
