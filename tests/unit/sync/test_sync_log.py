"""The blocking twins do what the async classes do, from threads and after a fork too."""

from __future__ import annotations

import multiprocessing
import pickle
import threading

import pyarrow as pa
import pytest

import cordwood
from cordwood import sync


@pytest.fixture
def log(tmp_path):
    """A log in a directory of its own."""
    made = sync.Log(sync.Store(str(tmp_path)), "orders")
    made.create()
    return made


def test_append_and_read_back(log):
    """What was appended is read, in order, with offsets from 1."""
    with log.writer() as writer:
        assert writer.append(b"a", key=b"k", headers={"h": b"v"}) == 1
        assert writer.append_many([b"b", b"c"]) == 2
        assert writer.append_arrow(pa.table({"body": [b"d"]})) == 4
        assert writer.append_soon(b"e").result() == 5
        writer.flush()
    with log.reader() as reader:
        records = list(reader.read())
        assert [b"a", b"b", b"c", b"d", b"e"] == [r.body for r in records]
        assert (b"k", {"h": b"v"}) == (records[0].key, records[0].headers)
        fragments = reader.scan(2)
        assert reader.fetch(fragments[0]).num_rows >= 1
        assert len(reader.fetch_bytes(fragments[0])) == fragments[0].num_bytes
        assert reader.offset_at(0) == 1
        rows = reader.read_arrow(2, sync.Limits(max_records=2))
        assert sum(batch.num_rows for batch in rows) == 2
    assert log.state().next_offset == 6
    assert log.scrub(deep=True).ok


def test_tail_follows_a_writer_in_another_thread(log):
    """A tail waits for records that come later."""

    def work():
        with log.writer() as writer:
            for number in range(5):
                writer.append(str(number).encode())

    thread = threading.Thread(target=work)
    with log.reader() as reader:
        thread.start()
        seen = []
        for record in reader.tail(1):
            seen.append(record.body)
            if len(seen) == 5:
                break
    thread.join()
    assert [b"0", b"1", b"2", b"3", b"4"] == seen


def test_many_threads_share_a_writer(log):
    """Appends from threads all get offsets of their own."""
    offsets = []

    def work(writer):
        offsets.extend(writer.append(b"x") for _ in range(20))

    with log.writer() as writer:
        threads = [threading.Thread(target=work, args=(writer,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert list(range(1, 81)) == sorted(offsets)


def test_logs_pickle_and_writers_do_not(log):
    """A log travels to another process by name; an open writer refuses."""
    copy = pickle.loads(pickle.dumps(log))
    assert log == copy
    assert hash(log) == hash(copy)
    with log.writer() as writer, pytest.raises(cordwood.StateError):
        pickle.dumps(writer)


def test_errors_cross_the_thread(log):
    """An error on the background loop is raised where the call was made."""
    with pytest.raises(cordwood.AlreadyExistsError):
        log.create()
    with pytest.raises(cordwood.NotFoundError), sync.Log(log.store, "nothing").reader():
        pass
    with log.writer() as writer, pytest.raises(cordwood.InvalidInputError):
        writer.append("text")


def _child(log, writer, answers):
    try:
        writer.append(b"in vain")
    except cordwood.StateError as error:
        answers.put(str(error.code))
    with log.writer() as own:
        answers.put(own.append(b"from the child"))


def test_a_forked_child_gets_its_own_loop(log):
    """After a fork the log works in the child; a writer opened before refuses clearly."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with log.writer() as writer:
        writer.append(b"from the parent")
        child = context.Process(target=_child, args=(log, writer, answers))
        child.start()
        assert answers.get(timeout=60) == "forked"
        assert answers.get(timeout=60) == 2
        child.join(60)
        assert writer.append(b"again from the parent") == 3
    assert child.exitcode == 0


def test_a_blocking_call_on_the_loop_is_refused(log):
    """A blocking call from a callback of the loop itself would wait for ever; it raises."""
    problems = []

    def progress(report, manifest):
        try:
            log.state()
        except cordwood.StateError as error:
            problems.append(error)

    with log.writer() as writer:
        writer.append(b"x")
    log.scrub(progress=progress)
    assert problems
