"""`cordwood log append`: lines become records, without a hole.

One block of lines at a time is in the writer's hands, as one atomic append, while the next is
gathered::

    lines ──(main thread)──▶ gathered ──(a thread of its own)──▶ flying ──▶ durable

1. In order: a block goes out when the one before it is durable. After a failure none does, so what
   is in the log is the beginning of the input.
2. Bounded: a block holds BLOCK_BYTES at most (or one line), and reading waits for it to leave. Two
   blocks are the most that is in memory.
3. Self-clocked: a block is what came while the last one flew. A line that trickles in goes out at
   once, and a file goes out in large blocks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO, Any, NamedTuple, NoReturn

import msgspec
import pyarrow as pa

from cordwood.base.errors import CordwoodError, InvalidInputError, LimitError, UncertainError
from cordwood.base.limits import RECORD_BYTES_MAX
from cordwood.cli.answers import AnswerError
from cordwood.cli.output import fail, not_answered
from cordwood.cli.questions import say
from cordwood.cli.start import STOPPED
from cordwood.log.flight import not_written
from cordwood.log.records import check_record
from cordwood.sync import Log, Writer

BLOCK_BYTES = 16 * 2**20
"""Lines that are appended together; large enough to be worth a round trip to a store far away."""

LINE_BYTES = 64
"""What a line costs in memory beside its bytes: bounds blocks of empty lines."""


class Line(NamedTuple):
    """One record to be."""

    number: int
    """Of the line in the input, from 1."""
    body: bytes
    key: bytes | None = None


class Block:
    """Lines that are appended together."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.bodies: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.first_line = 0
        self.last_line = 0
        self.num_bytes = 0

    def add(self, line: Line, num_bytes: int) -> None:
        """One more line."""
        self.first_line = self.first_line or line.number
        self.last_line = line.number
        self.bodies.append(line.body)
        self.keys.append(line.key)
        self.num_bytes += num_bytes


@dataclass
class Durable:
    """What is in the log for certain."""

    records: int = 0
    lines: int = 0
    """Of the input, from its start: where to go on after a failure."""
    first_offset: int | None = None
    last_offset: int | None = None
    contiguous: bool = True
    """Whether nobody else's records are between ours."""

    def add(self, offset: int, block: Block) -> None:
        """A block became durable, its first record at `offset`."""
        if self.last_offset is None:
            self.first_offset = offset
        elif offset != self.last_offset + 1:
            self.contiguous = False
        self.last_offset = offset + len(block.bodies) - 1
        self.records += len(block.bodies)
        self.lines = block.last_line

    @property
    def offsets(self) -> str:
        """For people."""
        if self.records == 1:
            return f"offset {self.first_offset:,}"
        between = "" if self.contiguous else ", between those of other writers"
        return f"offsets {self.first_offset:,} to {self.last_offset:,}{between}"

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "records": self.records,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "contiguous": self.contiguous,
        }


@dataclass
class Outcome:
    """How it ended."""

    durable: Durable = field(default_factory=Durable)
    error: BaseException | None = None
    """What ended it early."""
    doubt: tuple[int, int] | None = None
    """The first and the last line that may or may not be in the log."""
    is_abandoned: bool = False
    """Whether a block was still flying when nobody wanted to wait for it any more."""


class _Stream:
    """The way of the lines from one thread to the other.

    Ctrl-C may end a call of the reading thread anywhere, also between taking a lock and the block
    that would release it. So they share no lock of Python's: only queues, whose calls are done or
    not done, and attributes that one of the two writes.
    """

    def __init__(self, write: Callable[[Block], int]) -> None:
        """`write` appends a block and returns its first offset, once it is durable."""
        self.durable = Durable()
        self.flying: Block | None = None
        """What the writer was given last, unless it is durable."""
        self.error: BaseException | None = None
        self._write = write
        self._lines: SimpleQueue[tuple[Line, int] | None] = SimpleQueue()
        """Each with its bytes; None is the end."""
        self._handed_bytes = 0
        self._taken_bytes = 0
        self._is_stopped = False
        self._is_over = False
        self._news: SimpleQueue[None] = SimpleQueue()
        """Something whenever a block was taken, and when it is over: a reason to look again."""
        threading.Thread(target=self._run, name="cordwood-append", daemon=True).start()

    def put(self, line: Line) -> bool:
        """Hand over a line, when there is room for it; False if a line before it has failed."""
        num_bytes = len(line.body) + len(line.key or b"") + LINE_BYTES
        while not self._is_over and self._is_too_much(num_bytes):
            self._news.get()
        self._handed_bytes += num_bytes
        self._lines.put((line, num_bytes))
        return self.error is None

    def end(self, *, at_once: bool = False) -> None:
        """Wait until every line is durable or one has failed; `at_once`: those flying now."""
        self._is_stopped = at_once
        self._lines.put(None)
        # Not `Thread.join`: once interrupted, it takes the thread for dead.
        while not self._is_over:
            self._news.get()

    def _is_too_much(self, num_bytes: int) -> bool:
        waiting = self._handed_bytes - self._taken_bytes
        return waiting > 0 and waiting + num_bytes > BLOCK_BYTES

    def _run(self) -> None:
        try:
            while (block := self._next()) is not None:
                self.flying = block
                self.durable.add(self._write(block), block)
                self.flying = None
        except BaseException as error:  # noqa: BLE001 - told by the thread that reads
            self.error = error
        self._is_over = True
        self._news.put(None)

    def _next(self) -> Block | None:
        """Wait for a line, and take it with all that have gathered; None at the end."""
        block = Block()
        item = self._lines.get()
        while item is not None:
            block.add(*item)
            if self._lines.empty():
                break
            item = self._lines.get()
        else:
            self._lines.put(None)  # To be found again once this block is durable.
        if self._is_stopped or not block.bodies:
            return None
        self._taken_bytes += block.num_bytes  # Only now: what is taken meanwhile stays bounded.
        self._news.put(None)
        return block


def append_lines(write: Callable[[Block], int], lines: Iterable[Line]) -> Outcome:
    """Append every line, or those before the first that fails; Ctrl-C ends it early as well.

    A second Ctrl-C also ends the wait for what is under way.
    """
    stream = _Stream(write)
    ended_by: BaseException | None = None
    is_abandoned = False
    try:
        try:
            for line in lines:
                if not stream.put(line):
                    break
        except (CordwoodError, OSError) as error:
            ended_by = error  # The lines before it are good: they are still written.
        stream.end()
    except KeyboardInterrupt as stopped:
        ended_by = stopped
        try:
            stream.end(at_once=True)
        except KeyboardInterrupt:
            is_abandoned = True
    flying = stream.flying
    is_known = isinstance(stream.error, CordwoodError) and not isinstance(
        stream.error, UncertainError
    )
    return Outcome(
        durable=stream.durable,
        error=ended_by if isinstance(ended_by, KeyboardInterrupt) else stream.error or ended_by,
        doubt=None if flying is None or is_known else (flying.first_line, flying.last_line),
        is_abandoned=is_abandoned,
    )


def append_to(
    log: Log, lines: Iterable[Line], *, create: bool, stream: str | None = None
) -> Outcome:
    """Append lines to a log, or to one of its streams."""
    try:
        writer = log.writer(create=create).open()
    except KeyboardInterrupt as stopped:
        return Outcome(error=stopped)
    outcome = append_lines(lambda block: _write(log, writer, block, stream), lines)
    try:
        if not outcome.is_abandoned:
            writer.close()
    except KeyboardInterrupt as stopped:
        outcome.error = stopped  # Closing adds nothing to what is known.
    return outcome


def _write(log: Log, writer: Writer, block: Block, stream: str | None) -> int:
    try:
        if all(key is None for key in block.keys):
            return writer.append_many(block.bodies, stream=stream)
        columns = {"body": block.bodies, "key": block.keys}
        table = pa.table({name: pa.array(column, pa.binary()) for name, column in columns.items()})
        if stream is not None:
            table = table.append_column("stream", pa.repeat(stream, len(table)))
        return writer.append_arrow(table)
    except UncertainError as error:
        # A store that is back by now can tell, and whoever calls a command cannot ask it.
        try:
            offset = log.find_write(error)
        except CordwoodError:
            raise error from None
        if offset is None:
            raise not_written(error.__cause__ or error) from error
        return offset


# The input.


def lines_of(file: IO[bytes], form: str, key_field: str | None) -> Iterator[Line]:
    """The records to be of a file: its lines, its lines of JSON, or (`form` "file") all of it."""
    is_whole = form == "file"
    for number, body in enumerate(_whole(file) if is_whole else _lines(file), 1):
        if form == "jsonl" and not body:
            continue
        place = "the file" if is_whole else f"line {number}"
        key = None
        if form == "jsonl" or key_field is not None:
            value = _parse_json(body, place, form, key_field)
            key = None if key_field is None else _key_of(value, key_field, place)
        if key is not None or len(body) > RECORD_BYTES_MAX:
            _check(body, key, place)
        yield Line(number, body, key)


def _whole(file: IO[bytes]) -> Iterator[bytes]:
    yield file.read(RECORD_BYTES_MAX + 1)  # One byte too many is enough to be refused.


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    # Of a line that is too long no more is read than shows it, two bytes for its end included.
    while line := file.readline(RECORD_BYTES_MAX + 3):
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _check(body: bytes, key: bytes | None, place: str) -> None:
    try:
        check_record(body, key)
    except LimitError as error:
        message = f"{place} is too large: {error.message}"
        raise LimitError(message, code=error.code, hint=error.hint) from error


_NO_JSON_HINTS = {
    "lines": "leave --key away: plain lines have no fields to take it from",
    "jsonl": "use --as lines for plain text",
    "file": "leave --key away: only a JSON object has fields to take it from",
}
"""By how the input is read."""


def _parse_json(body: bytes, place: str, form: str, key_field: str | None) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:  # What is no UTF-8 has an error of its own.
        if key_field is not None and _is_half(body, key_field):
            message = f"the key of {place} is not valid text: it has half of a surrogate pair"
            raise InvalidInputError(message) from error
        message = f"{place} is not JSON: {error}"
        raise InvalidInputError(message, hint=_NO_JSON_HINTS[form]) from error


def _is_half(body: bytes, key_field: str) -> bool:
    """Whether the key has half of a surrogate pair: JSON can write it, and no text can be it."""
    try:
        value = json.loads(body)
        str(value.get(key_field)).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError, AttributeError):
        pass
    return False


def _key_of(value: Any, key_field: str, place: str) -> bytes:
    """A text as it is, anything else as its JSON; what is null is no key, and not the text null."""
    found = value.get(key_field) if isinstance(value, dict) else None
    if found is None:
        is_null = isinstance(value, dict) and key_field in value
        how = f"only null in its field {key_field!r}" if is_null else f"no field {key_field!r}"
        raise InvalidInputError(f"{place} has {how} to take the key from")
    return found.encode() if isinstance(found, str) else msgspec.json.encode(found)


# The answer.


def report(outcome: Outcome, *, as_json: bool) -> None:
    """Say what is in the log; end with an exit code if that is not everything."""
    durable = outcome.durable
    if outcome.error is not None:
        _report_failure(outcome, outcome.error, as_json=as_json)
    words = "nothing to append"
    if durable.records:
        plural = "" if durable.records == 1 else "s"
        words = f"appended {durable.records:,} record{plural}, {durable.offsets}"
    try:
        say(durable.facts(), words, as_json=as_json)
    except AnswerError as error:
        # Whoever hears of an error appends again: the records would be there twice.
        not_answered(error, f"{words}; only ", as_json=as_json)


def _report_failure(outcome: Outcome, error: BaseException, *, as_json: bool) -> NoReturn:
    durable, doubt = outcome.durable, outcome.doubt
    is_stopped = isinstance(error, KeyboardInterrupt)
    message, hint, code = f"the append failed: {error!r}", "", "internal"
    if is_stopped:
        message, code = "stopped", "stopped"
    elif isinstance(error, OSError):
        message, code = f"{error.filename or 'the input'}: {error.strerror or error}", "os"
    elif isinstance(error, CordwoodError):
        message, hint, code = error.message, error.hint, str(error.code)
    if doubt is not None:
        hint = (
            "once a later append has succeeded, look at the end of the log "
            "before you append those lines again"
        )
    elif durable.lines and not is_stopped:
        hint += ("; " if hint else "") + f"go on with line {durable.lines + 1:,}"
    facts = durable.facts() | {"lines": durable.lines, "uncertain_lines": doubt}
    known = _known(durable, doubt)
    exit_code = STOPPED if is_stopped else 1
    fail(f"{message}; {known}", hint, code, as_json=as_json, exit_code=exit_code, facts=facts)


def _known(durable: Durable, doubt: tuple[int, int] | None) -> str:
    parts = []
    if durable.records:
        lines = "line is" if durable.lines == 1 else f"{durable.lines:,} lines are"
        parts.append(f"the first {lines} in the log, {durable.offsets}")
    if doubt is not None:
        first, last = doubt
        lines = f"line {first:,}" if first == last else f"lines {first:,} to {last:,}"
        parts.append(f"{lines} may or may not be in the log")
    return "; ".join(parts) or "nothing was appended"
