"""Where the pages of a WAL file are: a table that all processes share.

::

    wal{k}.table     u32 for each page: its newest entry in the file, 0 if there is none
    wal{k}.entries   for each entry: u32 page ‖ u32 previous ‖ u64 place in the file ‖ u64 XXH3
    cuts             for each cut: u64 entry ‖ u64 page count

Entries are counted from 1 here: from the first one of the file's use. `previous` is the entry of
the same page before. So a page of the newest state is found with one look, however many commits
there are, and one of an older snapshot by going back from there.

A writer fills in entries, then the table, and only then publishes its state. A reader skips entries
behind its snapshot; so it does not matter to it whether they belong to a commit or to a writer that
died. The next writer takes those back. A reader that is overtaken by that finds an entry of another
page, and looks again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordwood.base.errors import CorruptionError
from cordwood.store.disk import Disk, Shared

_ENTRY = struct.Struct("<IIQQ")
ENTRY_TYPE = np.dtype([("page", "<u4"), ("previous", "<u4"), ("place", "<u8"), ("sum", "<u8")])
_CUT_BYTES = 16
_LOOKS = 1_000
_STEPS_MAX = 8
_FEW = 32
"""Up to so many entries are filled in one by one: that costs less than to make arrays of them."""
_GROWTH_BYTES = 1 << 16
_BLOCK_BYTES = 4096

Pages = NDArray[np.uint32]
Numbers = NDArray[np.uint64]


class Found(NamedTuple):
    """The entry of a page."""

    entry: int
    """Counted from 1."""
    place: int
    sum: int


class _Room:
    """A file that is shared, and grows."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._shared: Shared = disk.share(path, _GROWTH_BYTES)
        self._reserved: set[int] = set()
        """Blocks that have room on the disk, as far as this handle knows."""

    @property
    def view(self) -> memoryview:
        return self._shared.view

    def cover(self, size_bytes: int) -> None:
        """Make it at least so large: only who holds WRITE, or is alone, may do so.

        A file that two make longer at once may end up shorter than one of them made it.
        """
        size_bytes = max(_GROWTH_BYTES, 1 << (size_bytes - 1).bit_length())
        self._share(size_bytes)

    def look_anew(self) -> None:
        """See how large others made it."""
        self._share(0)

    def _share(self, size_bytes: int) -> None:
        old, self._shared = self._shared, self._disk.share(self.path, size_bytes)
        old.close()

    def reserve(self, blocks: Iterable[int]) -> None:
        """Make sure that blocks can be written."""
        for block in blocks:
            if block not in self._reserved:
                self._shared.reserve(block * _BLOCK_BYTES, _BLOCK_BYTES)
                self._reserved.add(block)

    def close(self) -> None:
        self._shared.close()


class Table:
    """The pages of one WAL file."""

    def __init__(self, disk: Disk, folder: str, index: int) -> None:
        """Map it."""
        self._cells_room = _Room(disk, f"{folder}/wal{index}.table")
        self._list_room = _Room(disk, f"{folder}/wal{index}.entries")
        self._look()

    def look_anew(self) -> None:
        """See how large others made it."""
        self._cells_room.look_anew()
        self._list_room.look_anew()
        self._look()

    def _look(self) -> None:
        self._cells = self._cells_room.view.cast("I")
        self._list = self._list_room.view
        self.cells: Pages = np.frombuffer(self._cells, np.uint32)
        size = len(self._list) // _ENTRY.size * _ENTRY.size
        self.entries: NDArray[np.void] = np.frombuffer(self._list[:size], ENTRY_TYPE)

    def cover(self, page_count: int, last: int) -> None:
        """See to it that so many pages and entries have a place; with WRITE held, or alone."""
        if page_count >= len(self._cells):
            self._cells_room.cover(4 * (page_count + 1))
        if (last + 1) * _ENTRY.size > len(self._list):
            self._list_room.cover((last + 1) * _ENTRY.size)
        self._look()

    def cover_pages(self, page_count: int) -> None:
        """See to it that readers find a place for so many pages; with WRITE held."""
        if page_count >= len(self._cells):
            self.cover(page_count, 0)

    def reserve(self, pages: list[int], last: int, page_count: int) -> None:
        """Make room for the next entries, up to the `last`, of these pages.

        Raises:
            OSError: the disk is full; nothing has changed.
        """
        begin = last - len(pages)
        if page_count >= len(self._cells) or (last + 1) * _ENTRY.size > len(self._list):
            self.cover(page_count, last)
        self._cells_room.reserve({page >> 10 for page in pages})
        blocks = range(begin * _ENTRY.size >> 12, ((last + 1) * _ENTRY.size - 1 >> 12) + 1)
        self._list_room.reserve(blocks)

    def find(self, page: int, last: int, far: dict[int, Found]) -> Found | None:
        """The newest entry of a page that is not behind `last`; None if there is none.

        What takes many steps back is kept in `far`, for the next time.

        Raises:
            CorruptionError: something else wrote to the table.
        """
        cells = self._cells
        if page < len(cells) and not cells[page]:
            return None  # most pages are not in most files
        for _ in range(_LOOKS):
            if page >= len(self._cells):
                self.look_anew()
                if page >= len(self._cells):
                    return None
            entry = self._cells[page]
            steps = 0
            while entry:
                if (entry + 1) * _ENTRY.size > len(self._list):
                    self.look_anew()
                    if (entry + 1) * _ENTRY.size > len(self._list):
                        break
                found, previous, place, checksum = _ENTRY.unpack_from(
                    self._list, entry * _ENTRY.size
                )
                if found != page:
                    break
                if entry <= last:
                    if steps > _STEPS_MAX:
                        far[page] = Found(entry, place, checksum)
                    return Found(entry, place, checksum)
                entry = previous
                steps += 1
            else:
                return None
        raise CorruptionError(
            f"{self._cells_room.path} does not fit its entries",
            where=self._cells_room.path,
            hint="close all that use the directory; who opens it next makes the file anew",
        )

    def add(self, last: int, pages: list[int], place: int, step: int, sums: list[int]) -> None:
        """Fill in the next entries, up to the `last`: first they, then the table.

        The first page is at a place of the file, the others `step` bytes after each other.
        """
        entry = last - len(pages) + 1
        if len(pages) <= _FEW:
            cells, fill, filled = self._cells, _ENTRY.pack_into, self._list
            for number, (page, checksum) in enumerate(zip(pages, sums, strict=True), entry):
                fill(filled, number * _ENTRY.size, page, cells[page], place, checksum)
                place += step
            for number, page in enumerate(pages, entry):
                cells[page] = number
            return
        listed = np.array(pages, np.uint32)
        added = np.empty(len(pages), ENTRY_TYPE)
        added["page"], added["previous"] = listed, self.cells[listed]
        added["place"] = np.arange(place, place + step * len(pages), step, dtype=np.uint64)
        added["sum"] = sums
        self.entries[entry : last + 1] = added
        self.cells[listed] = np.arange(entry, last + 1, dtype=np.uint32)

    def load(self, numbers: Pages, pages: Pages, places: Numbers, sums: Numbers) -> None:
        """Fill in all entries of a file at once: who is alone, and found the table empty.

        Raises:
            OSError: the disk is full.
        """
        if not len(numbers):
            return
        last = int(numbers[-1])
        self.cover(int(pages.max()), last)
        self._cells_room.reserve(np.unique(pages >> 10).tolist())
        self._list_room.reserve(range(((last + 1) * _ENTRY.size - 1 >> 12) + 1))
        order = np.argsort(pages, kind="stable")
        page, number = pages[order], numbers[order]
        is_same = page[1:] == page[:-1]
        previous = np.zeros(len(pages), np.uint32)
        previous[order[1:][is_same]] = number[:-1][is_same]
        added = np.empty(len(pages), ENTRY_TYPE)
        added["page"], added["place"], added["sum"] = pages, places, sums
        added["previous"] = previous
        self.entries[numbers] = added
        is_newest = np.append(~is_same, True)
        self.cells[page[is_newest]] = number[is_newest]

    def undo(self, last: int) -> None:
        """Take back the entries behind `last`, which belong to a writer that died."""
        self.look_anew()  # that one may have made it longer
        behind = self.entries[last + 1 :]
        pages = behind["page"]
        count = int(np.argmin(pages != 0)) if len(pages) and pages[-1] == 0 else len(pages)
        behind = behind[:count]
        numbers = np.arange(last + 1, last + 1 + count, dtype=np.uint32)
        filled = self.cells[behind["page"]] == numbers
        self.cells[behind["page"][filled]] = behind["previous"][filled]
        behind[:] = np.zeros((), ENTRY_TYPE)

    def clear(self, last: int) -> None:
        """Forget all entries: the file is used anew."""
        self.look_anew()  # others may have made it longer, and drained the file
        self.cells[self.entries["page"][1 : last + 1]] = 0
        self.entries[1 : last + 1] = np.zeros((), ENTRY_TYPE)

    def newest(self, last: int) -> tuple[Pages, NDArray[np.uint32]]:
        """The pages that have an entry up to `last`, in their order, and the newest of each."""
        if (last + 1) * _ENTRY.size > len(self._list):
            self.look_anew()
        pages = self.entries["page"][1 : last + 1]
        found, index = np.unique(pages[::-1], return_index=True)
        numbers = (len(pages) - index).astype(np.uint32)
        kept = found != 0
        return found[kept].astype(np.uint32), numbers[kept]

    def close(self) -> None:
        """Close the files."""
        self._cells_room.close()
        self._list_room.close()


class Cuts:
    """Where the volume was made shorter: all pages behind were zeros from then on."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """Map them."""
        self._room = _Room(disk, f"{folder}/cuts")

    def read(self, start: int, limit: int) -> Numbers:
        """Cuts as rows of entry and page count."""
        if limit * _CUT_BYTES > len(self._room.view):
            self._room.look_anew()
        return np.frombuffer(
            bytes(self._room.view[start * _CUT_BYTES : limit * _CUT_BYTES]), np.uint64
        ).reshape(-1, 2)

    def reserve(self, start: int, limit: int) -> None:
        """Make room.

        Raises:
            OSError: the disk is full.
        """
        if limit * _CUT_BYTES >= len(self._room.view):
            self._room.cover(limit * _CUT_BYTES + 1)
        self._room.reserve(range(start * _CUT_BYTES >> 12, (limit * _CUT_BYTES >> 12) + 1))

    def put(self, at: int, cuts: Numbers) -> None:
        """Write cuts to their place."""
        data = np.ascontiguousarray(cuts, np.uint64).tobytes()
        self._room.view[at * _CUT_BYTES : at * _CUT_BYTES + len(data)] = data

    def close(self) -> None:
        """Close the file."""
        self._room.close()


def needed(cuts: Numbers, watermark: int, entry: int) -> Numbers:
    """The cuts that matter to a snapshot: one that is followed by a deeper one does not."""
    cuts = cuts[(cuts[:, 0] > watermark) & (cuts[:, 0] <= entry)]
    if len(cuts) < 2:
        return cuts
    deepest_after = np.minimum.accumulate(cuts[::-1, 1])[::-1]
    kept = np.ones(len(cuts), bool)
    kept[:-1] = cuts[:-1, 1] < deepest_after[1:]
    return cuts[kept]
