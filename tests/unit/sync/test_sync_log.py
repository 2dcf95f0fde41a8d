"""The blocking twins do what the async classes do, from threads and after a fork too."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pyarrow as pa
import pytest

import cordwood
from cordwood import sync
from cordwood.base import portal
from cordwood.base.limits import RECORD_BYTES_MAX


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


def test_append_soon_waits_for_room(log):
    """A full queue makes it wait: every record is taken, in order, and none is left out."""
    bodies = [b"%d" % number for number in range(500)]
    with log.writer(options=sync.Options(queue_bytes=1_000)) as writer:
        answers = [writer.append_soon(body, key=b"k") for body in bodies]
        assert 501 == writer.append(b"last")
        assert list(range(1, 501)) == [answer.result() for answer in answers]
    with log.reader() as reader:
        assert [*bodies, b"last"] == [record.body for record in reader.read()]


def test_append_soon_runs_ahead_by_so_many_bytes(log, monkeypatch):
    """A caller waits when the loop has not yet taken what it was handed."""
    monkeypatch.setattr("cordwood.sync.log.HANDED_BYTES_MAX", 10_000)
    with log.writer(options=sync.Options(queue_bytes=1_000)) as writer:
        ahead = []
        for _ in range(200):
            writer.append_soon(bytes(900))
            ahead.append(writer._handed_bytes)
        assert 10_000 >= max(ahead) > 0
        writer.append_soon(bytes(20_000))  # alone, a larger one passes
        writer.flush()
        assert 201 == log.state().records
    assert 0 == writer._handed_bytes


def test_closing_waits_for_what_append_soon_has_handed_over(log):
    """Records that still wait for room when a writer is closed are taken and made durable."""
    with log.writer(options=sync.Options(queue_bytes=100)) as writer:
        answers = [writer.append_soon(bytes(50)) for _ in range(50)]
    assert list(range(1, 51)) == [answer.result(timeout=0) for answer in answers]


def test_append_soon_refuses_a_wrong_call_at_once(log):
    """It raises where the call was made; that the writer is closed comes with the future."""
    with log.writer() as writer:
        with pytest.raises(cordwood.InvalidInputError):
            writer.append_soon("text")
        with pytest.raises(cordwood.LimitError, match="body"):
            writer.append_soon(bytes(RECORD_BYTES_MAX + 1))
    with pytest.raises(cordwood.StateError):
        writer.append_soon(b"late").result()
    assert 0 == log.state().records


def test_a_failure_that_nobody_heard_of_is_raised_at_the_end(log):
    """Who does not ask the futures learns it when the writer is closed, once."""
    with pytest.raises(cordwood.CordwoodError, match="never"), log.writer() as writer:
        writer.append_soon(b"a")
        writer.append_soon(b"b", stream="never-opened")
    assert not writer.is_open
    assert 1 == log.state().records
    writer.close()


def test_a_failure_that_was_heard_of_is_not_raised_again(log):
    """Whoever asked the future, or has it call back, decides what follows from it."""
    heard = []
    with log.writer() as writer:
        with pytest.raises(cordwood.CordwoodError):
            writer.append_soon(b"a", stream="never-opened").result()
        assert writer.append_soon(b"b", stream="never-opened").exception() is not None
        writer.append_soon(b"c", stream="never-opened").add_done_callback(heard.append)
    assert 1 == len(heard)


def test_an_error_of_the_block_comes_before_one_of_a_record(log):
    """The one that ended the block is the one to look at."""
    with pytest.raises(ZeroDivisionError), log.writer() as writer:
        writer.append_soon(b"a", stream="never-opened")
        raise ZeroDivisionError
    assert not writer.is_open


@pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",  # one that came while something was freed
)
def test_ctrl_c_at_any_moment_leaves_a_writer_in_order(log):
    """What was handed over becomes durable, and more can follow."""
    interrupted = 0

    def interrupt(*_):
        nonlocal interrupted
        interrupted += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with log.writer() as writer:
            for nth in range(300):
                with suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 + nth * 1e-6)
                    while interrupted == nth:
                        writer.append_soon(b"x")
                answered = threading.Event()
                writer._portal.loop.call_soon_threadsafe(answered.set)
                assert answered.wait(60)
            assert writer.append(b"last") == log.state().records
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_answer_of_append_soon(log, monkeypatch):
    """It brings the error of a record that failed; given up, it leaves the record alone."""
    with log.writer() as writer:
        writer.append_soon(b"a").cancel()
        writer.flush()
        assert 1 == log.state().records

        def fail(*_):
            raise cordwood.StoreError("no")

        monkeypatch.setattr("cordwood.log.pipeline.build", fail)
        assert "no" in str(writer.append_soon(b"b").exception())
        writer.append_soon(b"c").cancel()
        writer.flush()
    assert 1 == log.state().records


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
        answer = writer.append_soon(b"y")
        answer.add_done_callback(lambda _: problems.append(_refusal(writer)))
        answer.result()
        writer.flush()
    log.scrub(progress=progress)
    assert {cordwood.StateError} == {type(problem) for problem in problems}
    assert 2 <= len(problems)


def _refusal(writer):
    with pytest.raises(cordwood.StateError) as caught:
        writer.append_soon(b"from the loop")
    return caught.value


def test_a_log_moves_and_is_destroyed(log):
    """Seal, migrate and destroy do what their twins do; a blocking writer is told of the seal."""
    other = sync.Log(log.store, "orders2")
    seen = []
    with log.writer() as writer:
        writer.append(b"a")
        log.migrate(other, reason="larger house")
        assert "larger house" == log.seal("again").reason
        with pytest.raises(cordwood.StateError, match="orders2") as caught:
            writer.append(b"b")
        assert cordwood.Code.SEALED is caught.value.code
        with pytest.raises(cordwood.StateError, match="orders2"):
            writer.append_soon(b"c").result()
    with other.writer() as writer:
        assert 2 == writer.append(b"b")
    # The fragment that the seal made void goes with the log.
    assert 3 == log.destroy(lambda done, total: seen.append((done, total)))
    assert [(2, 3), (3, 3)] == seen
    assert 3 == other.state().next_offset


def test_copy_and_fork(log):
    """The blocking calls make the same logs as the awaited ones."""
    with log.writer() as writer:
        for body in (b"a", b"b", b"c"):
            writer.append(body)
    fork, copy = sync.Log(log.store, "fork"), sync.Log(log.store, "copy")
    assert log.fork(fork, 2) is None
    seen = []
    report = fork.copy(copy, progress=lambda report, manifest: seen.append(report.records))
    assert (2, [1, 2]) == (report.records, seen)
    for made in (fork, copy):
        with made.reader() as reader:
            assert [b"b", b"c"] == [record.body for record in reader.read()]


def test_streams(tmp_path):
    """The blocking twin: opened, written, read, listed, closed."""
    log = sync.Log(f"file://{tmp_path}/wood", "orders")
    log.create()
    log.streams.open("a", "b", metadata={"x": 1})
    with log.writer() as writer:
        assert 1 == writer.append(b"1", stream="a")
        assert 2 == writer.append_many([b"2", b"3"], stream="b")
        assert 4 == writer.append_soon(b"4", stream="a").result()
        with pytest.raises(cordwood.StateError, match="is not open"):
            writer.append(b"5", stream="c")
        with pytest.raises(cordwood.StateError, match="is not open"):
            writer.append_soon(b"5", stream="c").result()
    with log.reader() as reader:
        assert [b"1", b"4"] == [record.body for record in reader.read(stream="a")]
        assert 2 == sum(batch.num_rows for batch in reader.read_arrow(stream="b"))
        assert 1 == len(reader.scan(stream="b"))
    log.streams.close("a")
    assert ["b"] == list(log.streams.list())
    assert {"x": 1} == log.streams.meta("a")
    assert {"x": 2} == log.streams.meta("b", {"x": 2})


def test_an_iterator_that_is_dropped_may_be_freed_anywhere(log):
    """Also by a garbage collection in the thread of the loop: nobody hears of it."""
    with log.writer() as writer:
        for body in (b"a", b"b"):
            writer.append(body)

    def drop():
        """Begin to read, and forget it, in a circle that only garbage collection finds."""
        circle = [log.reader().read_arrow()]
        assert 1 == next(circle[0]).num_rows
        circle.append(circle)

    heard = []
    before, sys.unraisablehook = sys.unraisablehook, heard.append
    was_on = gc.isenabled()
    gc.disable()
    try:
        drop()

        async def collect():
            """On the loop."""
            gc.collect()

        portal.current().run(collect())
    finally:
        sys.unraisablehook = before
        if was_on:
            gc.enable()
    assert [] == heard
    with log.reader() as reader:
        assert [b"a", b"b"] == [record.body for record in reader.read()]


def test_a_fork_while_arrow_looks_for_pandas(tmp_path):
    """Arrow does that under a lock, with the first array, in the thread of the loop.

    It is waited for before the fork; else the child would wait for ever.
    """
    code = f"""
import os, signal, sys, threading
from cordwood import sync
log = sync.Log({str(tmp_path)!r}, "orders")
log.create()
def append():
    with log.writer() as writer:
        writer.append(b"parent")
thread = threading.Thread(target=append)
thread.start()
while "pandas" not in sys.modules and thread.is_alive():
    pass
child = os.fork()
if not child:
    signal.alarm(60)
    with log.writer() as writer:
        writer.append(b"child")
    os._exit(0)
_, status = os.waitpid(child, 0)
thread.join()
assert status == 0, status
assert sorted(r.body for r in log.reader().read()) == [b"child", b"parent"]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
