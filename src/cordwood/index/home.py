"""What an index needs of the place where it lives.

There are two: a folder of files with locks (folder.py), and any object store, where a log is the
ledger and leases stand for locks (shelf.py). All methods block; the async classes call them in
threads. Searching needs none of them: a visit holds all that a snapshot is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
from pyroaring import BitMap

from cordwood.index.draft import Draft
from cordwood.index.ledger import State


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an index is from its creation on."""

    tokenizer: str
    frequencies: bool
    format: int = 1


class Visit(Protocol):
    """A handle: while it is open, nothing that its state needs is deleted."""

    @property
    def state(self) -> State:
        """The index as it was when the visit began, or last went on."""
        ...

    @property
    def tombstones(self) -> Mapping[int, BitMap]:
        """Deleted documents that the ledger does not speak of any more, by segment."""
        ...

    @property
    def kept(self) -> Mapping[int, Any]:
        """The bytes of segments that stay for this visit alone, where nothing could be locked."""
        ...

    def check(self) -> None:
        """Go on only if it still holds.

        Raises:
            StateError: it is closed, it lapsed, or it was opened before this process was forked.
        """
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """Files that a commit brings with it, finished, by the segments they are of."""

    segments: Mapping[int, Path]
    idmaps: Mapping[int, Path]
    since_s: float | None = None
    """When the first upload was begun of what others brought to a store before, by this process's
    monotonic clock: uploads do not stay for ever."""


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did."""

    segments_removed: int
    documents_tombstoned: int
    transactions_before: int
    transactions_after: int
    merges_cancelled: int
    orphans_removed: int


class Home(Protocol):
    """Where an index lives."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    def create(self, config: Config) -> None:
        """Make an empty index; AlreadyExistsError if there is one."""
        ...

    def config(self) -> Config:
        """What it is; NotFoundError if there is none."""
        ...

    def enter(self) -> Visit:
        """Open a handle to the newest state."""
        ...

    def advance(self, visit: Visit) -> bool:
        """Let a handle go on to the newest state; whether that is another."""
        ...

    def leave(self, visit: Visit) -> None:
        """Close a handle; twice is no error."""
        ...

    def new_segment(self) -> int:
        """A number for a segment that nobody has had."""
        ...

    def new_ids(self, name: str) -> Any:
        """A generator of numbers for the caller."""
        ...

    def open_segment(self, number: int) -> Any:
        """The bytes of a segment."""
        ...

    def spool(self) -> AbstractContextManager[Path]:
        """A folder for files that are being made, gone when the block ends."""
        ...

    def commit(self, visit: Visit, draft: Draft, files: Files) -> int:
        """Write a transaction; its id. Durable when this returns."""
        ...

    def release_merge(self, started: int) -> None:
        """A merge of ours has ended, one way or the other."""
        ...

    def cancel_dead_merges(self) -> int:
        """Cancel merges whose processes are gone; how many."""
        ...

    def compact(self) -> CompactReport:
        """Drop what no handle needs."""
        ...

    def check(self) -> list[str]:
        """What is wrong with it, but for the segments."""
        ...
