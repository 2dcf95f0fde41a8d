"""An index that is open in this process: handles, transactions, merges. All of it blocks.

The engine keeps one handle for itself, which goes on to the newest state whenever it is used, and
the segments that are open, which handles share.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from cordwood.base.errors import (
    Code,
    ConflictError,
    CordwoodError,
    InvalidInputError,
    StateError,
    UncertainError,
)
from cordwood.index import operations
from cordwood.index.build import Builder, as_ids, slices_of
from cordwood.index.draft import Draft, Ended, checked_marks
from cordwood.index.home import CompactReport, Config, Files, Home, Visit
from cordwood.index.ledger import AddSegment, EndMerge, State
from cordwood.index.merge import Progress, merge
from cordwood.index.operations import OPS, Op, Operations
from cordwood.index.policy import Sized, worth_merging
from cordwood.index.query import Query
from cordwood.index.segment import Segment, View
from cordwood.index.snapshot import Snapshot
from cordwood.index.tokens import Splitter, Tokenizer, as_terms, as_texts, tokenizer
from cordwood.journal.failures import told
from cordwood.store.disk import Disk

SEGMENT_BYTES = 64 << 20
"""A transaction writes a segment when it has gathered so much text: six times that in memory."""


ROWS_AT_ONCE = 4_096
"""Documents that come one by one become arrays so many at a time."""

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found."""

    segments: int
    documents: int
    errors: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.errors


@dataclass(frozen=True, slots=True)
class IndexState:
    """What an index has."""

    transaction: int
    """The last one."""
    segments: int
    documents: int
    deleted: int
    """Documents that are deleted and still in segments."""
    terms: int
    """Of all segments: a term of two counts twice."""
    size_bytes: int
    merging: int
    """Segments that are being merged."""
    tokenizer: str
    frequencies: bool
    marks: dict[str, bytes]


class Engine:
    """An index, for any number of threads."""

    def __init__(
        self, home: Home, *, splitter: Splitter | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """No I/O. `splitter` is the user's tokenizer, for an index that was created with it."""
        self.home = home
        self._splitter = splitter
        self.segment_bytes = segment_bytes
        self._mutex = threading.RLock()
        self._config: Config | None = None
        self._visit: Visit | None = None
        self._snapshot: Snapshot | None = None
        self._segments: dict[int, Segment] = {}
        self._generators: dict[str, Any] = {}
        _engines.add(self)

    def create(self, named: str | Splitter, *, frequencies: bool, exist_ok: bool) -> None:
        """Make the index."""
        cutter = tokenizer(named)
        if cutter.name == "trigrams" and frequencies:
            frequencies = False  # It gives each trigram of a text once.
        config = Config(cutter.name, frequencies)
        try:
            self.home.create(config)
        except CordwoodError as error:
            if not exist_ok or error.code is not Code.ALREADY_EXISTS:
                raise
            there = self.home.config()
            if there != config:
                raise StateError(
                    f"{self.home.name} is another index: it has the tokenizer {there.tokenizer} "
                    f"and {'keeps' if there.frequencies else 'keeps no'} frequencies"
                ) from error
        if not isinstance(named, str):
            self._splitter = named

    @property
    def config(self) -> Config:
        """What the index is."""
        if self._config is None:
            self._config = self.home.config()
        return self._config

    @property
    def cutter(self) -> Tokenizer:
        """How it cuts texts."""
        wanted = self.config.tokenizer
        if self._splitter is None:
            try:
                return tokenizer(wanted)
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"{self.home.name} was created with a tokenizer of your own, {wanted!r}",
                    hint="give it again: Index(…, tokenizer=…)",
                ) from error
        cutter = tokenizer(self._splitter)
        if cutter.name != wanted:
            raise InvalidInputError(
                f"{self.home.name} was created with the tokenizer {wanted!r}, not {cutter.name!r}"
            )
        return cutter

    def close(self) -> None:
        """Close the engine's own handle; it opens again when it is used again."""
        with self._mutex:
            visit, self._visit, self._snapshot = self._visit, None, None
            self._segments.clear()
        if visit is not None:
            self.home.leave(visit)

    def forget(self) -> None:
        """In a forked child: the handle is the parent's, and so may be the mutex."""
        self._mutex = threading.RLock()
        self._visit = self._snapshot = None

    def newest(self) -> Snapshot:
        """The index as it is now. It stays as it is only until the next call."""
        with self._mutex:
            self._go_on()
            assert self._visit is not None
            if self._snapshot is None:
                self._snapshot = self.snapshot_of(self._visit)
                live = self._visit.state.live
                self._segments = {n: s for n, s in self._segments.items() if n in live}
            return self._snapshot

    def _go_on(self) -> None:
        """Bring our own handle to the newest state; one that lapsed is replaced."""
        if self._visit is not None:
            try:
                if self.home.advance(self._visit):
                    self._snapshot = None
            except StateError:
                visit, self._visit = self._visit, None
                self.home.leave(visit)
        if self._visit is None:
            self._visit, self._snapshot = self.home.enter(), None

    @contextmanager
    def visiting(self) -> Iterator[tuple[Visit, Snapshot]]:
        """A handle of its own, and the snapshot that it keeps."""
        visit = self.home.enter()
        try:
            yield visit, self.snapshot_of(visit)
        finally:
            self.home.leave(visit)

    def snapshot_of(self, visit: Visit) -> Snapshot:
        """The snapshot of a handle's state."""
        state = visit.state
        views = []
        for number in state.live:
            gone = visit.tombstones.get(number, BitMap()) | state.deleted.get(number, BitMap())
            views.append(View(self._segment(number, visit), gone))
        return Snapshot(views, self.cutter, state.id, dict(state.marks))

    def _segment(self, number: int, visit: Visit) -> Segment:
        with self._mutex:
            if number not in self._segments:
                data = visit.kept.get(number)
                data = self.home.open_segment(number) if data is None else data
                self._segments[number] = Segment(number, data, f"segment.{number}.idx")
            return self._segments[number]

    def builder(self) -> Builder:
        """For the documents of a segment."""
        return Builder(self.cutter, frequencies=self.config.frequencies)

    def merge(self, *, tiered: bool, progress: Progress | None = None) -> int:
        """Merge segments; how many fewer there are.

        Without `tiered`, all that no other process is merging become one. With it, those that are
        worth it (policy.py), which may be none.
        """
        self.home.cancel_dead_merges()
        gone = 0
        while True:
            with self.visiting() as (visit, snapshot):
                views = _mergeable(visit.state, snapshot, tiered=tiered)
                if not views:
                    return gone
                numbers = tuple(view.segment.number for view in views)
                try:
                    started = self.home.commit(visit, Draft(start=numbers), Files({}, {}))
                except UncertainError:
                    raise
                except ConflictError:
                    continue  # Somebody else began to merge one of them: look again.
                gone += self._merge(visit, views, started, progress)
            if not tiered:
                return gone

    def _merge(
        self,
        visit: Visit,
        views: Sequence[View],
        started: int,
        progress: Progress | None = None,
    ) -> int:
        numbers = tuple(view.segment.number for view in views)
        try:
            with self.home.spool() as folder:
                made = self._write_merged(views, folder, progress)
                number = self.home.new_segment()
                entry = EndMerge(started, number, made.documents, made.size_bytes, numbers)
                seen = {view.segment.number: view.deleted for view in views}
                files = Files({number: made.segment}, {number: made.idmap})
                self.home.commit(visit, Draft(ended=Ended(entry, seen)), files)
        except BaseException as error:
            self._cancel(visit, started, error)
            raise
        finally:
            self.home.release_merge(started)
        return len(views) - 1

    def _write_merged(
        self, views: Sequence[View], folder: Path, progress: Progress | None = None
    ) -> _Merged:
        waiting = folder / "waiting"
        with told("merge", self.home.name):
            waiting.mkdir()
        segment, idmap = folder / "segment", folder / "idmap"
        with told("merge", self.home.name), segment.open("wb") as sink:
            facts = merge(views, sink, idmap, waiting, progress)
        return _Merged(segment, idmap, facts.documents, segment.stat().st_size)

    def _cancel(self, visit: Visit, started: int, error: BaseException) -> None:
        """Let others merge what we could not; if that fails too, the merge is seen to be dead."""
        try:
            self.home.commit(visit, Draft(cancel=(started,)), Files({}, {}))
        except ConflictError:
            return  # It had been cancelled, or ended after all.
        except CordwoodError as second:
            error.add_note(f"and the merge could not be cancelled: {second}")

    def compact(self) -> CompactReport:
        """Drop what no open handle needs; our own goes on first."""
        with self._mutex:
            if self._visit is not None:
                self.newest()
        return self.home.compact()

    def state(self) -> IndexState:
        """What there is."""
        with self.visiting() as (visit, snapshot):
            segments = [view.segment for view in snapshot.views]
            return IndexState(
                snapshot.number,
                len(segments),
                snapshot.documents,
                sum(len(view.deleted) for view in snapshot.views),
                sum(segment.term_count for segment in segments),
                sum(segment.size_bytes for segment in segments),
                len(visit.state.merging()),
                self.config.tokenizer,
                self.config.frequencies,
                dict(visit.state.marks),
            )

    def new_id(self, name: str) -> int:
        """A number of a generator of the user's."""
        if not _is_name(name):
            raise InvalidInputError(
                f"generator {name!r}: a name has 1 to 64 letters, digits, - and _"
            )
        with self._mutex:
            if name not in self._generators:
                self._generators[name] = self.home.new_ids(f"user-{name}")
            generator = self._generators[name]
        return int(generator.next())

    def check(self, progress: Progress | None = None) -> CheckReport:
        """Read everything and compare."""
        wrong = self.home.check()
        segments = documents = done = 0
        try:
            with self.visiting() as (visit, snapshot):
                segments, documents = len(snapshot.views), snapshot.documents
                total = sum(view.segment.size_bytes for view in snapshot.views)
                for view in snapshot.views:
                    wrong += view.segment.check()
                    done += view.segment.size_bytes
                    if progress is not None:
                        progress(done, total)
                    live = visit.state.live[view.segment.number]
                    if view.segment.documents != live.documents:
                        wrong.append(
                            f"{view.segment.name} has {view.segment.documents} documents, and the "
                            f"ledger says {live.documents}"
                        )
        except CordwoodError as error:
            wrong.append(str(error))
        return CheckReport(segments, documents, tuple(wrong))


def _mergeable(state: State, snapshot: Snapshot, *, tiered: bool) -> list[View]:
    """The segments to merge next: none if it is not worth it."""
    busy = state.merging()
    views = [view for view in snapshot.views if view.segment.number not in busy]
    if tiered:
        chosen = worth_merging(
            [Sized(v.segment.number, v.documents, len(v.deleted)) for v in views]
        )
        return [view for view in views if view.segment.number in chosen]
    return [] if len(views) == 1 and not views[0].deleted else views


@dataclass(frozen=True, slots=True)
class _Merged:
    segment: Path
    idmap: Path
    documents: int
    size_bytes: int


class Writing:
    """A transaction under way. Nothing of it is seen before its commit, and then all of it."""

    def __init__(
        self,
        engine: Engine,
        marks: Mapping[str, bytes] | None = None,
        expected: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Open a handle, so that what the transaction deletes can be found."""
        self._engine = engine
        self._marks: dict[str, Any] = checked_marks(marks)
        self._expected = checked_marks(expected, or_none=True)
        with ExitStack() as opened:
            self._visit, self._snapshot = opened.enter_context(engine.visiting())
            self._folder = opened.enter_context(engine.home.spool())
            self._builder = engine.builder()
            self._open = opened.pop_all()  # Else all of it is closed again.
        self._segments: dict[int, tuple[Path, Segment]] = {}
        self._deleted: dict[int, BitMap] = {}
        self._rows: list[tuple[int, bytes, str | bytes]] = []
        self.is_over = False
        self._has_failed = False
        self._mutex = threading.RLock()

    def do(self, op: Op, user_id: bytes, text: str | bytes = b"") -> bool:
        """Add, update or delete one document; whether it is time to `drain`."""
        if type(user_id) is not bytes or type(text) not in {str, bytes}:
            as_ids([user_id])  # They say what is wrong.
            as_texts([text])
        with self._mutex:
            self._check_open()
            one = text if isinstance(text, str) else bytes(text)
            self._rows.append((OPS.index(op), bytes(user_id), one))
            return len(self._rows) >= ROWS_AT_ONCE

    def drain(self) -> None:
        """What came one by one, all at once: what a later one undoes is left out."""
        with self._changing():
            if not self._rows:
                return
            kinds, ids, texts = zip(*self._rows, strict=True)
            self._rows = []
            values = as_texts(texts, takes_bytes=self._engine.cutter.takes_bytes)
            done = operations.settle(Operations(as_ids(ids), values, np.array(kinds, np.int8)))
            self._delete(done.replaced)
            self._add(done.ids, done.texts)

    def add(self, ids: Any, texts: Any) -> None:
        """More documents."""
        keys = as_ids(ids)
        values = as_texts(texts, takes_bytes=self._engine.cutter.takes_bytes)
        _check_lengths(keys, values)
        with self._changing():
            self.drain()
            self._add(keys, values)

    def _add(self, keys: pa.Array, values: pa.Array) -> None:
        # Text by text a document may be large: slices keep a segment about as large as asked.
        for start, limit in slices_of(values, self._engine.segment_bytes):
            part = slice(start, limit)
            self._builder.add(keys[part], values[part])
            self._flush_if_full()

    def add_terms(self, ids: Any, terms: Any) -> None:
        """More documents, each with its terms as they are to be kept."""
        keys, lists = as_ids(ids), as_terms(terms)
        _check_lengths(keys, lists)
        with self._changing():
            self.drain()
            self._builder.add_terms(keys, lists)
            self._flush_if_full()

    def delete(self, ids: Any) -> None:
        """Delete every document of ids: those of the snapshot, and those added before this call."""
        keys = as_ids(ids)
        with self._changing():
            self.drain()
            self._delete(keys)

    def _delete(self, keys: pa.Array) -> None:
        if not len(keys):
            return
        self._builder.discard(keys)
        mine = [View(segment, BitMap()) for _, segment in self._segments.values()]
        for snapshot in (self._snapshot, Snapshot(mine, self._engine.cutter, 0, {})):
            for number, docs in snapshot.documents_of(keys).items():
                self._deleted[number] = self._deleted.get(number, BitMap()) | docs

    def delete_matching(self, query: str | Query) -> int:
        """Delete every id that a query finds in the snapshot; how many."""
        found = self._snapshot.match(query).to_arrow()
        self.delete(found)
        return len(found)

    def mark(self, name: str, value: bytes) -> None:
        """Leave something with the transaction: the newest of a name is the index's."""
        self._marks.update(checked_marks({name: value}))

    @property
    def snapshot(self) -> Snapshot:
        """The index as the transaction sees it, without what it does itself."""
        return self._snapshot

    def commit(self) -> int | None:
        """Make it count, as a whole; its number, or None if it did nothing."""
        with self._mutex:
            try:
                self._check_open()
                self._visit.check()  # Before anything is written for a handle that is over.
                self.drain()
                self._flush()
                if not (self._segments or self._deleted or self._marks):
                    return None
                added = tuple(
                    AddSegment(number, segment.documents, segment.size_bytes)
                    for number, (_, segment) in self._segments.items()
                )
                draft = Draft(added, self._deleted, marks=self._marks, expected=self._expected)
                files = Files({number: path for number, (path, _) in self._segments.items()}, {})
                return self._engine.home.commit(self._visit, draft, files)
            finally:
                self._end()

    def roll_back(self) -> None:
        """Forget it; once it is over, that does nothing."""
        with self._mutex:
            if not self.is_over:
                self._end()

    def _flush_if_full(self) -> None:
        if self._builder.size_bytes >= self._engine.segment_bytes:
            self._flush()

    def _flush(self) -> None:
        """What was gathered becomes a segment, which nobody knows yet."""
        if not self._builder.documents:
            return
        number = self._engine.home.new_segment()
        path = self._folder / f"segment.{number}"
        with told("write", self._engine.home.name), path.open("wb") as sink:
            facts = self._builder.write(sink)
        self._builder = self._engine.builder()
        if facts.documents:
            self._segments[number] = (path, Segment(number, Disk().map(str(path)), path.name))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One at a time. What fails half way has lost some of it, so the rest must not count."""
        with self._mutex:
            self._check_open()
            try:
                yield
            except BaseException:
                self._has_failed = True
                raise

    def _check_open(self) -> None:
        if self.is_over:
            raise StateError("the transaction is over", code=Code.CLOSED, hint="begin another")
        if self._has_failed:
            raise StateError(
                "something failed earlier in the transaction: nothing of it counts",
                code=Code.CLOSED,
                hint="begin another, and do all of it again",
            )

    def _end(self) -> None:
        self.is_over = True
        self._open.close()


def _is_name(name: object) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def _check_lengths(ids: pa.Array, others: pa.Array) -> None:
    if len(ids) != len(others):
        raise InvalidInputError(f"{len(ids)} ids came with {len(others)} documents")


_engines: WeakSet[Engine] = WeakSet()


def _forget_all() -> None:
    for engine in _engines:
        engine.forget()


os.register_at_fork(after_in_child=_forget_all)
