"""`cordwood log append`: in order, bounded, without a hole, and honest about what is durable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from cordwood import InvalidInputError, StoreError, UncertainError, sync
from cordwood.base.limits import KEY_BYTES_MAX
from cordwood.cli import append, output
from cordwood.cli.append import LINE_BYTES, Line, append_lines
from cordwood.log.batch import Queue
from cordwood.log.objects import LogObjects

PATIENCE_S = 60


def numbered(count, size=10):
    """Lines that tell where they belong."""
    return [b"%0*d" % (size, number) for number in range(1, count + 1)]


def text(bodies):
    """A file of these lines."""
    return b"".join(body + b"\n" for body in bodies)


def bodies_in(url):
    """What the log holds."""
    with sync.Log.from_url(url).reader() as reader:
        return [record.body for record in reader.read()]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of ten short lines at most."""
    monkeypatch.setattr(append, "BLOCK_BYTES", 10 * (10 + LINE_BYTES))


@pytest.fixture
def put_fragment(monkeypatch):
    """A function: from now on the n-th fragment is put by something else."""

    def replace(failing, instead):
        count = 0
        put = LogObjects.put_fragment

        async def counted(objects, seq_no, data):
            nonlocal count
            count += 1
            if count == failing:
                return await instead(put, objects, seq_no, data)
            return await put(objects, seq_no, data)

        monkeypatch.setattr(LogObjects, "put_fragment", counted)

    return replace


class TestStream:
    """The way from lines to appends, without a log."""

    def test_what_is_in_memory_is_bounded(self, small_blocks):
        """However much is fed, no more than two blocks and a line are read and not durable."""
        most = durable = fed = 0

        def write(block):
            nonlocal durable
            assert block.num_bytes <= append.BLOCK_BYTES
            durable += len(block.bodies)
            return durable - len(block.bodies) + 1

        def lines():
            nonlocal most, fed
            for number, body in enumerate(numbered(5_000), 1):
                fed += 1
                most = max(most, fed - durable)
                yield Line(number, body)

        outcome = append_lines(write, lines())
        assert 5_000 == outcome.durable.records == outcome.durable.lines == durable
        assert 21 >= most > 1

    def test_lines_share_an_append(self):
        """What comes while a block is under way goes out together; a large line goes alone."""
        blocks = []
        may_go = threading.Event()

        def write(block):
            assert may_go.wait(PATIENCE_S)
            blocks.append(block)
            return sum(len(b.bodies) for b in blocks[:-1]) + 1

        def lines():
            yield from (Line(number, b"x") for number in range(1, 10_001))
            may_go.set()
            yield Line(10_001, bytes(append.BLOCK_BYTES + 1))

        outcome = append_lines(write, lines())
        assert 10_001 == outcome.durable.records
        assert 3 >= len(blocks)
        assert 1 == len(blocks[-1].bodies)

    def test_nothing_follows_a_failure(self, small_blocks):
        """After a block has failed no other is written, however many lines were read ahead."""
        tried = []

        def write(block):
            tried.append(block)
            if len(tried) == 3:
                raise StoreError("the disk is on fire")
            return block.first_line

        outcome = append_lines(write, (Line(n, b"%010d" % n) for n in range(1, 100_000)))
        assert 3 == len(tried)
        assert tried[1].last_line == outcome.durable.lines == outcome.durable.last_offset
        assert "on fire" in str(outcome.error)
        assert outcome.doubt is None

    @pytest.mark.parametrize("error", [UncertainError("who knows"), ZeroDivisionError()])
    def test_what_nobody_knows(self, error):
        """A block that is uncertain, or failed in a way nobody foresaw, is neither in nor out."""

        def write(block):
            raise error

        outcome = append_lines(write, [Line(1, b"a")])
        assert (1, 1) == outcome.doubt
        assert 0 == outcome.durable.records

    def test_good_lines_before_a_bad_one_are_written(self):
        """A line that cannot be read ends the input; those before it are good."""

        def lines():
            yield Line(1, b"a")
            raise InvalidInputError("bad")

        outcome = append_lines(lambda block: 7, lines())
        assert (1, 7) == (outcome.durable.lines, outcome.durable.first_offset)
        assert "bad" == str(outcome.error)

    def test_stopped_twice(self):
        """The first Ctrl-C waits for the block that is under way, the second does not."""
        begun, may_end = threading.Event(), threading.Event()

        def write(block):
            begun.set()
            assert may_end.wait(PATIENCE_S)
            return 1

        def lines():
            yield Line(1, b"a")
            assert begun.wait(PATIENCE_S)
            main = threading.main_thread().ident
            threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT]).start()
            raise KeyboardInterrupt

        # Whatever started the tests may have had it ignored, as a shell does in the background.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            outcome = append_lines(write, lines())
        finally:
            signal.signal(signal.SIGINT, before)
        may_end.set()
        assert outcome.is_abandoned
        assert isinstance(outcome.error, KeyboardInterrupt)
        assert (1, 1) == outcome.doubt

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_stopped_at_any_moment(self, small_blocks):
        """Wherever Ctrl-C finds the reading thread, the wait for what is under way has an end."""
        interrupted = stopped = 0

        def interrupt(*_):
            nonlocal interrupted
            interrupted += 1
            raise KeyboardInterrupt

        def lines(nth):
            # A second one, much later, would end a wait that has no end.
            signal.setitimer(signal.ITIMER_REAL, 1e-4 + nth * 1e-5, PATIENCE_S)
            number = 0
            while interrupted == nth:  # Python ignores one while it frees something.
                yield Line(number := number + 1, b"x")

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for nth in range(300):
                outcome = append_lines(lambda block: block.first_line, lines(nth))
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert not outcome.is_abandoned
                assert outcome.doubt is None
                assert outcome.durable.lines == outcome.durable.records
                stopped += isinstance(outcome.error, KeyboardInterrupt)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert stopped > 200


def test_a_full_queue_is_waited_for(run, url, monkeypatch):
    """Every line is in the log, in order, however little the writer takes at a time."""
    monkeypatch.setattr("cordwood.log.writer.Queue", lambda batch, _: Queue(batch, 1_000))
    expected = numbered(3_000)
    said = run("log", "append", url, "--create", stdin=text(expected))
    assert "appended 3,000 records, offsets 1 to 3,000\n" == said
    assert expected == bodies_in(url)


def test_a_failure_leaves_no_hole(run, url, put_fragment, small_blocks):
    """What is in the log is the beginning of the input, and the error says how long it is."""

    async def refuse(put, objects, seq_no, data):
        raise StoreError("the disk is on fire", hint="call somebody")

    put_fragment(3, refuse)
    expected = numbered(500)
    failed = run("log", "append", url, "--create", "--json", stdin=text(expected), code=1)
    count = failed["records"]
    assert 0 < count < 500
    assert expected[:count] == bodies_in(url)
    assert (count, 1, count, None) == (
        failed["lines"],
        failed["first_offset"],
        failed["last_offset"],
        failed["uncertain_lines"],
    )
    assert (
        f"on fire; the first {count} lines are in the log, offsets 1 to {count}"
        in (failed["message"])
    )
    assert f"call somebody; go on with line {count + 1}" == failed["hint"]
    run("log", "append", url, stdin=text(expected[count:]))
    assert expected == bodies_in(url)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_lost_answer_is_looked_for(run, url, monkeypatch, is_written):
    """An uncertain append is asked after once more: it counts as what it turns out to be."""
    append_many = sync.Writer.append_many

    def lose(writer, bodies, stream=None):
        if is_written:
            append_many(writer, bodies, stream=stream)
        raise UncertainError("no answer") from StoreError("the line is dead")

    monkeypatch.setattr(sync.Writer, "append_many", lose)
    monkeypatch.setattr(sync.Log, "find_write", lambda *_: 1 if is_written else None)
    if is_written:
        assert "offsets 1 to 2" in run("log", "append", url, "--create", stdin="a\nb\n")
        return
    said = run("log", "append", url, "--create", stdin="a\nb\n", code=1)
    assert "cordwood: nothing was written: the line is dead; nothing was appended\n" == said


def test_an_uncertain_append_says_so(run, url, monkeypatch):
    """If nobody can tell, the lines in question are named."""

    def lose(*_, **__):
        raise UncertainError("no answer", hint="for programs")

    run("log", "append", url, "--create", stdin="a\n")
    monkeypatch.setattr(sync.Writer, "append_many", lose)
    monkeypatch.setattr(sync.Log, "find_write", lose)
    said = run("log", "append", url, stdin="b\nc\n", code=1)
    assert said.startswith("cordwood: no answer; lines 1 to 2 may or may not be in the log. ")
    assert "look at the end of the log" in said
    said = run("log", "append", url, "--json", stdin="b\nc\n", code=1)
    assert ([1, 2], 0, "uncertain") == (said["uncertain_lines"], said["records"], said["error"])


def test_a_bad_line_in_the_middle(run, url):
    """The line is named, and so is what was appended before it; blank lines count as lines."""
    lines = '{"n":1}\n\n[2]\n{bad\n4\n'
    said = run("log", "append", url, "--create", "--as", "jsonl", stdin=lines, code=1)
    assert "line 4 is not JSON" in said
    assert "the first 3 lines are in the log, offsets 1 to 2" in said
    assert "go on with line 4" in said
    assert [b'{"n":1}', b"[2]"] == bodies_in(url)
    said = run("log", "append", url, "--as", "jsonl", "--json", stdin="3\nbad\n", code=1)
    assert ("invalid_input", 1, 1, 3, 3) == tuple(
        said[name] for name in ("error", "lines", "records", "first_offset", "last_offset")
    )


@pytest.mark.parametrize(
    "bad", [b'{"n":"\xff"}', b"[" * 100_000, b'"\\ud800"'], ids=["no UTF-8", "deep", "surrogate"]
)
def test_a_line_that_no_decoder_can_read(run, url, bad):
    """It is told as any other bad line is, and what came before it is in the log."""
    lines = b'{"n":1}\n' + bad + b"\n3\n"
    said = run("log", "append", url, "--create", "--as", "jsonl", stdin=lines, code=1)
    assert "line 2 is not JSON" in said
    assert "the first line is in the log, offset 1" in said
    assert [b'{"n":1}'] == bodies_in(url)
    run("topic", "create", "topics", "a/b")
    said = run("topic", "produce", "topics", "a/b", "--as", "jsonl", stdin=bad + b"\n", code=1)
    assert "line 1 is no record" in said


@pytest.mark.parametrize(
    ("line", "form", "expected"),
    [
        ('{"id": null}', "jsonl", "line 1 has only null in its field 'id' to take the key from"),
        ("{}", "jsonl", "line 1 has no field 'id' to take the key from"),
        ("[1]", "jsonl", "line 1 has no field 'id' to take the key from"),
        (
            r'{"id": "\ud800"}',
            "jsonl",
            "the key of line 1 is not valid text: it has half",
        ),
        (r'{"id": "a", "b": ["\ud800"]}', "jsonl", "line 1 is not JSON"),
        ("plain text", "lines", "leave --key away: plain lines have no fields"),
        ("plain text", "file", "leave --key away: only a JSON object has fields"),
        ("plain text", "jsonl", "use --as lines"),
    ],
)
def test_a_key_that_is_none_is_refused(run, url, line, form, expected):
    """It says what is wrong with it, and what to do."""
    run("log", "create", url)
    words = ("log", "append", url, "--as", form, "--key", "id")
    assert expected in run(*words, stdin=f"{line}\n", code=1)
    assert "" == run("log", "read", url)


def test_a_key_is_a_text_or_its_json(run, url):
    """So a number and its digits are one key."""
    lines = [b'{"id": "7"}', b'{"id": 7}', b'{"id": [1, "a"]}', b'{"id": "null"}']
    run("log", "append", url, "--create", "--as", "jsonl", "--key", "id", stdin=text(lines))
    keys = [row["key"] for row in run("log", "read", url, "--json")]
    assert ["7", "7", '[1,"a"]', "null"] == keys


def test_lines_that_are_too_large(run, url, monkeypatch):
    """A line, a key or a file beyond the limits is refused by its place."""
    for module in ("cordwood.cli.append", "cordwood.log.records"):
        monkeypatch.setattr(f"{module}.RECORD_BYTES_MAX", 10)
    exact = b"0123456789"
    run("log", "append", url, "--create", stdin=exact + b"\r\n" + exact)
    assert [exact, exact] == bodies_in(url)
    said = run("log", "append", url, stdin=b"a\n" + b"x" * 11 + b"\r\nb\n", code=1)
    assert "line 2 is too large" in said
    assert "the first line is in the log, offset 3" in said
    assert "the file is too large" in run(
        "log", "append", url, "--as", "file", stdin=b"x" * 11, code=1
    )
    monkeypatch.undo()
    row = json.dumps({"k": "x" * (KEY_BYTES_MAX + 1)})
    said = run("log", "append", url, "--as", "jsonl", "--key", "k", stdin=row, code=1)
    assert "line 1 is too large" in said
    assert 3 == len(bodies_in(url))


def test_only_the_end_of_a_line_is_taken_off(run, url):
    """A carriage return that is not part of the end is content."""
    run("log", "append", url, "--create", stdin=b"a\r\r\nb\r\n\nc")
    assert [b"a\r", b"b", b"", b"c"] == bodies_in(url)


@pytest.mark.parametrize("as_json", [False, True])
def test_other_writers_between(run, url, tmp_path, as_json):
    """Records of somebody else between ours are not counted as ours."""
    log = sync.Log.from_url(url)
    log.create()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed():
        with pipe.open("wb", buffering=0) as file, log.reader() as reader:
            file.write(b"a\n")
            next(reader.tail(1))
            with log.writer() as other:
                other.append(b"not ours")
            file.write(b"b\n")

    feeding = threading.Thread(target=feed)
    feeding.start()
    said = run("log", "append", url, pipe, *(["--json"] if as_json else []))
    feeding.join()
    assert [b"a", b"not ours", b"b"] == bodies_in(url)
    if as_json:
        assert {"records": 2, "first_offset": 1, "last_offset": 3, "contiguous": False} == said
    else:
        assert "appended 2 records, offsets 1 to 3, between those of other writers\n" == said


def test_nothing_to_append(run, url):
    """An empty input is no error and claims no offset."""
    said = run("log", "append", url, "--create", "--json", stdin="")
    nothing = {"records": 0, "first_offset": None, "last_offset": None, "contiguous": True}
    assert nothing == said


@pytest.mark.parametrize("step", ["open", "close"])
def test_stopped_before_or_after_the_work(run, url, monkeypatch, step):
    """Ctrl-C says what is durable whenever it comes."""

    def stop(_):
        raise KeyboardInterrupt

    run("log", "create", url)
    monkeypatch.setattr(sync.Writer, step, stop)
    known = "nothing was appended" if step == "open" else "the first line is in the log, offset 1"
    assert f"cordwood: stopped; {known}\n" == run("log", "append", url, stdin="a\n", code=130)


# In processes of their own, as a shell runs them.


WITH_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "cordwood", *sys.argv[1:]])
"""


def start(*words, **pipes):
    """The command, running, as in the foreground of a shell: Ctrl-C is not ignored."""
    return subprocess.Popen([sys.executable, "-c", WITH_CTRL_C, *words], **pipes)


@pytest.mark.parametrize("as_json", [False, True])
def test_stopped_while_it_waits_for_input(url, as_json):
    """Ctrl-C: one line that says what is durable, and exit code 130."""
    log = sync.Log.from_url(url)
    log.create()
    words = ["log", "append", url, *(["--json"] if as_json else [])]
    pipe = subprocess.PIPE
    with start(*words, stdin=pipe, stdout=pipe, stderr=pipe) as process, log.reader() as reader:
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        next(reader.tail(2))
        process.send_signal(signal.SIGINT)
        said, complaint = process.stdout.read(), process.stderr.read()
        assert 130 == process.wait(PATIENCE_S)
    expected = "stopped; the first 2 lines are in the log, offsets 1 to 2"
    assert f"cordwood: {expected}\n" == complaint.decode()
    if as_json:
        assert expected == json.loads(said)["message"]
    else:
        assert b"" == said


def test_the_reader_of_the_output_leaves(run, url):
    """As in `log read | head -1`: no complaint, no traceback."""
    run("log", "append", url, "--create", stdin=text(numbered(20_000, 20)))
    pipe = subprocess.PIPE
    for words in (["read", url], ["tail", url, "--start", "1"], ["read", url, "--json"]):
        with start("log", *words, stdout=pipe, stderr=pipe) as process:
            assert process.stdout.readline()
            process.stdout.close()
            assert (b"", 0) == (process.stderr.read(), process.wait(PATIENCE_S))


@pytest.mark.parametrize("words", [["show"], ["cursor", "list"], ["read"]])
def test_nobody_reads_the_output(run, url, words):
    """The reader was gone before the first word: tables end as quietly as lines do."""
    run("log", "append", url, "--create", stdin="a\n")
    read, write = os.pipe()
    os.close(read)
    with start("log", *words, url, stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        assert (b"", 0) == (process.stderr.read(), process.wait(PATIENCE_S))


def test_a_file_has_a_bar_on_a_terminal(run, url, tmp_path, monkeypatch):
    """It shows how much of the file was read; what comes through a pipe has none."""
    seen = []

    @contextmanager
    def bar(title, total, *, shown):
        """As a terminal would have it."""
        assert shown
        yield lambda done, _=None: seen.append((title, done, total))

    monkeypatch.setattr(output, "byte_progress", bar)
    lines = text(numbered(2_500, 20))
    (tmp_path / "lines").write_bytes(lines.encode() if isinstance(lines, str) else lines)
    total = (tmp_path / "lines").stat().st_size
    assert "appended 2,500 records" in run("log", "append", url, "lines", "--create")
    assert ("append", total, total) == seen[-1]
    assert 4 == len(seen)
    assert sorted(seen) == seen
    seen.clear()
    run("log", "append", url, stdin="a\n")
    assert [] == seen
