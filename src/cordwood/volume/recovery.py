"""Who opens a volume's directory alone makes what is shared anew, from the files that are durable.

What memory held before is not looked at: after a power cut it may be anything. (But for one hint:
if it says that a sync failed, the last frame is written once more.) The documents `head` and
`drained` and the frames of the two WAL files say everything:

1.  The WAL files are read, and what does not fit is refused (`journal/pair.py`).
2.  Every transaction that is whole counts. The last one may be one that nobody was told of: it was
    made on what lies before it, and nothing was published since, so it is as good as the others.
3.  Entries go on behind the highest number that any of the files knows of.
"""

from __future__ import annotations

from contextlib import closing, suppress

import msgspec
import numpy as np

from cordwood.base.clock import Entropy
from cordwood.journal import document, frames, pair
from cordwood.journal.frames import Frame
from cordwood.store.disk import Disk
from cordwood.volume import change
from cordwood.volume.base import Base, Drained, load
from cordwood.volume.control import Control, State
from cordwood.volume.tables import Cuts, Numbers, Pages, Table, needed

CONTROL, HEAD, DRAINED, WAL, LOCKS = "control", "head", "drained", "wal", "locks"
_SHARED = ("wal/cuts", "wal/wal0.table", "wal/wal0.entries", "wal/wal1.table", "wal/wal1.entries")


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document: which published version lies below, and how much of the WAL is in it."""

    log: str = ""
    lsn: int = 0
    hash: str = "00" * 32
    watermark: int = 0
    published_count: int = 0
    """How many pages that version has."""
    entry: int = 0
    page_count: int = 0
    """How many pages the volume had, as of this entry."""
    format: int = document.FORMAT


def make_folders(disk: Disk, folder: str) -> None:
    """Make the folders of a volume's directory."""
    for path in (folder, f"{folder}/{WAL}", f"{folder}/{LOCKS}"):
        _make(disk, path)


def rebuild(disk: Disk, folder: str, page_bytes: int, entropy: Entropy) -> None:
    """Make what is shared anew. Nobody else has the directory open.

    Raises:
        CorruptionError: a file is damaged; it is kept as it is.
        InvalidInputError: the volume has pages of another size.
    """
    control = Control(disk, f"{folder}/{CONTROL}")
    suspect = control.is_poisoned
    control.begin()
    for name in _SHARED:
        with suppress(FileNotFoundError):
            disk.unlink(f"{folder}/{name}")
    state, drained = _Rebuilding(disk, folder, page_bytes).run(entropy, suspect=suspect)
    # Whoever made these names may have died before they were durable.
    for path in (f"{folder}/{WAL}", folder, folder.rpartition("/")[0] or "/"):
        disk.fsync_dir(path)
    control.make(state, drained)
    control.close()


def is_ahead(disk: Disk, folder: str) -> bool:
    """Whether a directory has commits that are not published, or may have.

    Only looks: others may be using it, and nothing is recovered.

    Raises:
        CorruptionError: a document is damaged.
        OSError: the disk failed.
    """
    head = load(disk, f"{folder}/{HEAD}", HEAD, Head) or Head()
    drained = load(disk, f"{folder}/{WAL}/{DRAINED}", DRAINED, Drained) or Drained()
    last = max(head.entry, drained.entry)
    for number in (0, 1):
        path = f"{folder}/{WAL}/{pair.name_of(number)}"
        with suppress(FileNotFoundError), closing(disk.open(path, write=False)) as file:
            found = pair.head_of(file.read(0, pair.FRAMES_AT), path)
            if found is None:
                if file.stat().size_bytes:
                    return True
                continue
            tail = found.start
            for frame in frames.whole_from(file, tail):
                tail = frames.behind(found.salt, frame)
            last = max(last, tail.number - 1)
            if next(frames.whole_after(file, tail), None) is not None:
                return True
    return last > head.watermark


class _Rebuilding:
    """One recovery."""

    def __init__(self, disk: Disk, folder: str, page_bytes: int) -> None:
        self._disk = disk
        self._wal = f"{folder}/{WAL}"
        self._page_bytes = page_bytes
        self._drained = load(disk, f"{self._wal}/{DRAINED}", DRAINED, Drained) or Drained()
        self._head = load(disk, f"{folder}/{HEAD}", HEAD, Head) or Head()
        self._tables = [Table(disk, self._wal, index) for index in (0, 1)]
        self._found: list[list[tuple[int, Pages, Numbers, Numbers]]] = [[], []]
        """For each file and transaction: its first entry, counted from 1, pages, places, sums."""
        self._cuts: list[tuple[int, int]] = list(self._drained.cuts)
        # Of two that say how many pages there are after one entry, the first is right.
        self._counts = [(self._head.entry, self._head.page_count)]
        self._counts.append((self._drained.entry, self._drained.page_count))

    def run(self, entropy: Entropy, *, suspect: bool) -> tuple[State, int]:
        """Read everything; the state, and how many uses of the WAL files are drained."""
        found = self._recovered(entropy, suspect=suspect)
        self._load()
        active, tail = found.active, found.tail
        head = self._head
        # A last frame that was published, and is damaged, looks torn. Its numbers stay used.
        entry = max(tail.number - 1, head.watermark, head.entry, self._drained.entry)
        table = self._tables[active.sequence & 1]
        for each in self._tables:
            each.cover(max(count for _, count in self._counts), 0)
        table.cover(0, entry - active.first + 1)
        rows = np.array(sorted(self._cuts), np.uint64).reshape(-1, 2)
        kept = needed(rows, head.watermark, entry)
        cuts = Cuts(self._disk, self._wal)
        if len(kept):
            cuts.reserve(0, len(kept))
            cuts.put(0, kept)
        cuts.close()
        idle, idle_tail = found.idle, found.idle_tail
        state = State(
            turn=0,
            sequence=active.sequence,
            entry=entry,
            first=active.first,
            end=tail.end,
            checksum=tail.checksum,
            salt=active.salt,
            idle_first=active.first if idle is None else idle.first,
            idle_entry=active.first - 1,
            idle_end=0 if idle_tail is None else idle_tail.end,
            idle_count=self._count_at(active.first - 1),
            cuts_start=0,
            cuts_limit=len(kept),
            cuts_round=0,
            lsn=head.lsn,
            watermark=head.watermark,
            page_count=self._count_at(entry),
            published_count=head.published_count,
            epoch=1,
            hash=bytes.fromhex(head.hash),
        )
        self._close()
        return state, active.sequence if idle is None else idle.sequence

    def _recovered(self, entropy: Entropy, *, suspect: bool) -> pair.Recovered:
        arguments = (self._disk, self._wal, self._page_bytes, self._drained.uses, self._visit)
        found = pair.recover(*arguments, suspect=suspect)
        if found is not None:
            return found
        first = 1 + max(self._drained.entry, self._head.watermark, self._head.entry)
        salt = int(entropy.token()[:16], 16)
        made = pair.Head(self._page_bytes, self._drained.uses, salt, first)
        pair.make(self._disk, self._wal, made)
        return pair.Recovered(made, made.start, None, None)

    def _load(self) -> None:
        """Fill in the tables."""
        for table, found in zip(self._tables, self._found, strict=True):
            if found:
                starts, pages, places, sums = zip(*found, strict=True)
                counts = np.array([len(each) for each in pages])
                before = np.cumsum(counts) - counts
                shift = np.repeat(np.array(starts) - before, counts)
                numbers = (shift + np.arange(counts.sum())).astype(np.uint32)
                every = [np.concatenate(each) for each in (pages, places, sums)]
                table.load(numbers, *every)

    def _visit(self, head: pair.Head, frame: Frame) -> None:
        """Take in what a transaction wrote."""
        name = f"{self._wal}/{pair.name_of(head.sequence)}"
        read = change.decoded(frame, self._page_bytes, name)
        first = frame.number - head.first + 1
        # Copies: the arrays look at what was read, which is much.
        found = (first, read.pages.copy(), read.places, read.sums.copy())
        self._found[head.sequence & 1].append(found)
        if read.cut is not None:
            self._cuts.append((frame.number, read.cut))
        self._counts.append((frame.number + frame.span - 1, read.page_count))

    def _count_at(self, entry: int) -> int:
        """How many pages the volume had after an entry."""
        earlier = [count for count in self._counts if count[0] <= entry]
        return max(earlier, key=_by_entry)[1] if earlier else 0

    def _close(self) -> None:
        for table in self._tables:
            table.close()
        Base(self._disk, self._wal, self._page_bytes).close()


def _by_entry(count: tuple[int, int]) -> int:
    return count[0]


def _make(disk: Disk, path: str) -> None:
    """Make a folder, and those above it."""
    parent = path.rpartition("/")[0]
    try:
        disk.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        if not parent:
            raise
        _make(disk, parent)
        _make(disk, path)
    disk.fsync_dir(parent or "/")
