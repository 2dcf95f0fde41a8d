"""One unit of a compaction: read fragments or files of a table, leave out what loses, write files.

Each file gets a name of its own each time, so that a unit may be done twice; only the files whose
result comes back are named by the table, the others are swept by age.

Proof: the sum over a fragment is computed from its records as they were decoded, and the sums of
what is kept and what is left out from the rows that were made of them. They must be equal. The same
for a file that is replaced, whose sum the table knows.

Memory: rows are handled in pieces of about `ROW_GROUP_BYTES`, however well they are compressed, and
a file is closed when it is as large as a unit. So a unit holds, besides a few such pieces, what is
read ahead of a log (log/fetch.py: two fragments decoded) or one file of the table as it is stored,
and the file it writes, twice while that is handed to the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import InternalError
from cordwood.base.setsum import Setsum
from cordwood.base.workers import in_worker
from cordwood.log import paths
from cordwood.log.fetch import Ahead
from cordwood.log.format import Ancestor, Fragment
from cordwood.log.objects import LogObjects
from cordwood.pipeline.columns import (
    Builder,
    DataFile,
    cut,
    damaged,
    get_file,
    in_full,
    is_tombstone,
    read_pieces,
    rows_of,
    setsum_of,
    unpack,
)
from cordwood.pipeline.divide import UNIT_BYTES
from cordwood.pipeline.job import Unit
from cordwood.pipeline.tabledoc import Keyless, Mode, data_path, telling_path
from cordwood.store.url import Store


class FragmentPart(Struct, frozen=True, omit_defaults=True):
    """A fragment to be read."""

    log: str
    fragment: Fragment
    start: int
    """The first offset that counts."""
    drop: bytes = b""
    """A bitmap of the rows that lose."""
    ancestors: tuple[Ancestor, ...] = ()


class FilePart(Struct, frozen=True, omit_defaults=True):
    """A file of the table to be replaced."""

    file: DataFile
    drop: bytes = b""


class RewriteUnit(Unit, frozen=True, kw_only=True):
    """What becomes one file: neighbouring fragments, or files of the table."""

    mode: Mode
    keyless: Keyless
    fragments: tuple[FragmentPart, ...] = ()
    files: tuple[FilePart, ...] = ()

    @property
    def title(self) -> str:
        """For people: what is read."""
        if not self.fragments:
            return f"{len(self.files)} files from {self.files[0].file.path}"
        first, last = self.fragments[0], self.fragments[-1]
        logs = repr(first.log) if first.log == last.log else f"{first.log!r} to {last.log!r}"
        return f"{len(self.fragments)} fragments of {logs} from offset {first.start}"


class Rewritten(Struct, frozen=True, kw_only=True):
    """What a unit did."""

    files: tuple[DataFile, ...]
    """None if no row is left; several if one would be too large."""
    records: int
    """Read from the logs."""
    read: str
    """The setsum of the fragments, each checked against all of its records."""
    full: str
    """Of the records that count, in the form with all columns, from the fragments as decoded."""
    kept: int
    """Rows from the logs that are in the files."""
    kept_sum: str
    left_sum: str
    """Of the records that were read and left out."""
    tombstones: int
    """Left out because they only delete."""
    replaced: int
    """Rows of the table that are not in the new files."""
    drops: tuple[str, ...] = ()
    """Files of the table that are replaced."""


class Place(Struct, frozen=True):
    """Where the files of a unit go, and how they are made."""

    store: Store
    table: str
    compression: str
    file_bytes: int = UNIT_BYTES
    """A file that is as large as this gets no more rows."""
    tells_in_names: bool = False
    """Whether the name of a file tells its checksums."""


class _Output:
    """The files of a unit, one after the other; what it tells of what went in."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._builder = Builder(place.compression)
        self.files: list[DataFile] = []
        self.records = self.kept = self.tombstones = self.replaced = 0
        self.read = self.full = self.kept_sum = self.left_sum = Setsum()

    @property
    def builder(self) -> Builder:
        """The file being made."""
        return self._builder

    async def put_if_full(self) -> None:
        """End the file if it is large enough."""
        if self._builder.stored_bytes >= self._place.file_bytes:
            await self.put()

    async def put(self) -> None:
        """End the file, if there is a row in it. One PUT."""
        if not self._builder.rows:
            return
        full, self._builder = self._builder, Builder(self._place.compression)
        made, data = await in_worker(full.finish, data_path(SYSTEM_ENTROPY.token()))
        if self._place.tells_in_names:
            made = replace(made, path=telling_path(made.path, made.xxh3, made.setsum))
        await self._place.store.put(f"{self._place.table}/{made.path}", data, "create")
        self.files.append(made)


async def rewrite(unit: RewriteUnit, logs: Store, place: Place) -> Rewritten:
    """Do the unit. One GET for each fragment or file, one PUT for each file made.

    Raises:
        CorruptionError: a fragment or a file is missing, or not what its pointer says.
    """
    output = _Output(place)
    async for part, records in _fragments(unit, logs):
        taking = _Taking(part, records, unit, output)
        for piece in cut(records):
            await in_worker(taking.take, piece)
            await output.put_if_full()
        taking.prove()
    for file in unit.files:
        await _take_file(file, place, output)
    await output.put()
    return Rewritten(
        files=tuple(output.files),
        records=output.records,
        read=output.read.hexdigest(),
        full=output.full.hexdigest(),
        kept=output.kept,
        kept_sum=output.kept_sum.hexdigest(),
        left_sum=output.left_sum.hexdigest(),
        tombstones=output.tombstones,
        replaced=output.replaced,
        drops=tuple(file.file.path for file in unit.files),
    )


async def _fragments(
    unit: RewriteUnit, store: Store
) -> AsyncIterator[tuple[FragmentPart, pa.Table]]:
    """The fragments, verified, read a little ahead."""
    for log, group in groupby(unit.fragments, key=lambda part: part.log):
        parts = list(group)
        ahead = Ahead(LogObjects(store, log, parts[0].ancestors), verify=True)
        waiting = iter(parts)
        try:
            for part in parts:
                while not ahead.is_full and (soon := next(waiting, None)) is not None:
                    ahead.add(soon.fragment)
                yield part, await ahead.take()
        finally:
            await ahead.drop()


class _Taking:
    """One fragment on its way into the output, piece by piece."""

    def __init__(
        self, part: FragmentPart, records: pa.Table, unit: RewriteUnit, output: _Output
    ) -> None:
        self._part = part
        self._unit = unit
        self._output = output
        self._drop = unpack(part.drop, records.num_rows)
        self._num_before = max(0, part.start - part.fragment.start)
        self._at = 0
        # Rows are summed in the form with all columns and absolute offsets. Only such a fragment's
        # own sum, which was compared with its records when it was decoded, is of that form.
        self._is_alike = "key" in records.schema.names and not paths.is_bulk(part.fragment.path)
        self._full = self._made = self._before = Setsum()

    def take(self, records: pa.Table) -> None:
        """Make rows of the next records; keep them or leave them out."""
        count, output = records.num_rows, self._output
        rows = rows_of(records, self._part.log)
        before = np.arange(self._at, self._at + count) < self._num_before
        drop = self._drop[self._at : self._at + count] & ~before
        if self._unit.mode == "upsert":
            tombstones = is_tombstone(rows) & ~before
            output.tombstones += int(np.count_nonzero(tombstones & ~drop))
            drop |= tombstones
            if self._unit.keyless == "skip":
                drop |= np.asarray(rows.column("key").is_null()) & ~before
        kept = output.builder.add(_some(rows, ~drop & ~before))
        left = setsum_of(_some(rows, drop))
        earlier = setsum_of(_some(rows, before))
        if count < self._part.fragment.num_records:
            # What waits is a part of the fragment, and would keep all of it in memory.
            output.builder.write()
        if not self._is_alike:
            self._full = self._full + Setsum.of_fragment(in_full(records))
        self._made = self._made + kept + left + earlier
        self._before = self._before + earlier
        self._at += count
        output.records += count - int(np.count_nonzero(before))
        output.kept += count - int(np.count_nonzero(drop | before))
        output.kept_sum = output.kept_sum + kept
        output.left_sum = output.left_sum + left

    def prove(self) -> None:
        """Raise unless the rows that were made are the records that were read."""
        fragment = self._part.fragment
        full = fragment.setsum if self._is_alike else self._full
        if (self._made, self._at) != (full, fragment.num_records):
            raise InternalError(
                f"fragment {fragment.path} of log {self._part.log!r}: its records have the setsum "
                f"{full}, and what was kept and left out of it {self._made}",
                hint="nothing was changed; please report it",
            )
        self._output.read = self._output.read + fragment.setsum
        self._output.full = self._output.full + full - self._before


async def _take_file(part: FilePart, place: Place, output: _Output) -> None:
    """Carry over what a file of the table does not lose."""
    file = part.file
    pieces = read_pieces(await get_file(place.store, place.table, file), file)
    drop = unpack(part.drop, 8 * len(part.drop))
    at, found = 0, Setsum()

    def take(pieces: Iterator[pa.Table]) -> bool:
        nonlocal at, found
        rows = next(pieces, None)
        if rows is None:
            return False
        loses = _padded(drop[at : at + rows.num_rows], rows.num_rows)
        at += rows.num_rows
        found = found + output.builder.add(_some(rows, ~loses)) + setsum_of(_some(rows, loses))
        output.replaced += int(np.count_nonzero(loses))
        return True

    while await in_worker(take, pieces):
        await output.put_if_full()
    expected, got = (file.rows, file.setsum), (at, found.hexdigest())
    if file.setsum and got != expected:
        raise damaged(file.path, f"rows, setsum {expected}", f"{got}")


def _padded(bits: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """So many bits: a bitmap ends with the last row that loses."""
    return np.pad(bits, (0, count - len(bits)))


def _some(rows: pa.Table, chosen: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows that are chosen; without a copy where that is all of them or none."""
    if chosen.all():
        return rows
    return rows.filter(pa.array(chosen)) if chosen.any() else rows.slice(0, 0)
