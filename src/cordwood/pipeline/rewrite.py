"""One unit of a compaction: read fragments or files of a table, leave out what loses, write a file.

The file gets a name of its own each time, so that a unit may be done twice; only the file whose
result comes back is named by the table, the other is swept by age.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import groupby

import numpy as np
import pyarrow as pa
from msgspec import Struct

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
    get_file,
    is_tombstone,
    read_file,
    rows_of,
    setsum_of,
    unpack,
)
from cordwood.pipeline.job import Unit
from cordwood.pipeline.tabledoc import Keyless, Mode, data_path
from cordwood.store.api import Buffer
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

    file: DataFile | None
    """None if no row is left."""
    records: int
    """Read from the logs."""
    read: str
    """The setsum of the fragments, as computed from all of their records."""
    kept: int
    """Rows from the logs that are in the file."""
    kept_sum: str
    left_sum: str
    """Of the records that were read and left out."""
    tombstones: int
    """Left out because they only delete."""
    replaced: int
    """Rows of the table that are not in the new file."""
    drops: tuple[str, ...] = ()
    """Files of the table that are replaced."""


class _Tally:
    """What was read, kept and left out so far."""

    def __init__(self) -> None:
        self.records = self.kept = self.tombstones = self.replaced = 0
        self.read = self.kept_sum = self.left_sum = Setsum()


async def rewrite(
    unit: RewriteUnit, logs: Store, table_store: Store, table: str, compression: str
) -> Rewritten:
    """Do the unit. One GET for each fragment or file, one PUT.

    Raises:
        CorruptionError: a fragment or a file is missing, or not what its pointer says.
    """
    tally, builder = _Tally(), Builder(compression)
    async for part, records in _fragments(unit, logs):
        await in_worker(_take_fragment, part, records, unit, builder, tally)
    for file in unit.files:
        stored = await get_file(table_store, table, file.file)
        await in_worker(_take_file, file, stored, builder, tally)
    file_made: DataFile | None = None
    if builder.rows:
        made, data = await in_worker(builder.finish, data_path(SYSTEM_ENTROPY.token()))
        await table_store.put(f"{table}/{made.path}", data, "create")
        file_made = made
    return Rewritten(
        file=file_made,
        records=tally.records,
        read=tally.read.hexdigest(),
        kept=tally.kept,
        kept_sum=tally.kept_sum.hexdigest(),
        left_sum=tally.left_sum.hexdigest(),
        tombstones=tally.tombstones,
        replaced=tally.replaced,
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


def _take_fragment(
    part: FragmentPart, records: pa.Table, unit: RewriteUnit, builder: Builder, tally: _Tally
) -> None:
    rows = rows_of(records, part.log)
    skipped = max(0, part.start - part.fragment.start)
    drop = unpack(part.drop, rows.num_rows)
    if unit.mode == "upsert":
        tombstones = is_tombstone(rows)
        tally.tombstones += int(np.count_nonzero((tombstones & ~drop)[skipped:]))
        drop |= tombstones
        if unit.keyless == "skip":
            drop |= np.asarray(rows.column("key").is_null())
    drop[:skipped] = False
    before = np.arange(rows.num_rows) < skipped
    kept = builder.add(rows.filter(pa.array(~drop & ~before)) if drop.any() or skipped else rows)
    left = setsum_of(rows.filter(pa.array(drop)))
    # Rows are summed in the form with all columns and absolute offsets: only such a fragment is.
    is_alike = "key" in records.schema.names and not paths.is_bulk(part.fragment.path)
    if is_alike and not skipped and kept + left != part.fragment.setsum:
        raise InternalError(f"fragment {part.fragment.path}: what was kept and left do not add up")
    tally.records += rows.num_rows - skipped
    tally.read = tally.read + part.fragment.setsum
    tally.kept += rows.num_rows - skipped - int(np.count_nonzero(drop))
    tally.kept_sum = tally.kept_sum + kept
    tally.left_sum = tally.left_sum + left


def _take_file(part: FilePart, data: Buffer, builder: Builder, tally: _Tally) -> None:
    rows = read_file(data, part.file)
    drop = unpack(part.drop, rows.num_rows)
    builder.add(rows.filter(pa.array(~drop)) if drop.any() else rows)
    tally.replaced += int(np.count_nonzero(drop))
