"""Which rows are replaced: the question an upsert asks before it moves anything.

Of every key of a log the record with the largest offset is the newest; the others lose. To find
them, only keys and offsets are read, never bodies::

    log     int32, not null     which of the logs being compacted
    key     binary, not null
    offset  int64, not null
    source  int32, not null     which fragment or file
    row     int32, not null     where in it

The answer is a bitmap of the losers of each source. An engine finds it in its own way: in memory
here, by a window over a DataFrame on Spark. Which records are tombstones is not asked: they win
over older records like any other, and are left out when the bodies are at hand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from cordwood.base.errors import InternalError, InvalidInputError
from cordwood.base.workers import in_worker
from cordwood.log.columns import fetch_columns
from cordwood.log.format import Ancestor, Fragment
from cordwood.log.objects import LogObjects
from cordwood.pipeline.columns import DataFile, get_columns, pack
from cordwood.pipeline.engine import Drops, Engine
from cordwood.pipeline.job import Job, Unit
from cordwood.pipeline.tabledoc import Keyless

SCHEMA = pa.schema(
    [
        pa.field("log", pa.int32(), False),
        pa.field("key", pa.binary(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("source", pa.int32(), False),
        pa.field("row", pa.int32(), False),
    ]
)


OF_FILE = ("log", "key", "offset")
"""What is read of a file of the table."""


class KeysSettings(Struct, frozen=True):
    """Where the logs and the table are."""

    store: str
    logs: tuple[str, ...]
    table_store: str
    table: str
    keyless: Keyless = "refuse"


class FragmentKeys(Struct, frozen=True):
    """A fragment of one of the logs."""

    source: int
    log: int
    fragment: Fragment
    start: int
    """The first offset that counts."""
    ancestors: tuple[Ancestor, ...] = ()


class FileKeys(Struct, frozen=True):
    """A file of the table."""

    source: int
    file: DataFile


class KeysUnit(Unit, frozen=True, kw_only=True):
    """Some fragments, or some files."""

    fragments: tuple[FragmentKeys, ...] = ()
    files: tuple[FileKeys, ...] = ()

    @property
    def title(self) -> str:
        """For people: what is read."""
        first = self.fragments[0].fragment if self.fragments else self.files[0].file
        return f"{len(self.fragments) + len(self.files)} files from {first.path}"


class Nothing(Struct, frozen=True):
    """A question has no results, only rows."""


class Keys(Job[KeysSettings, KeysUnit, Nothing, None]):
    """Gives the keys and offsets of what an upsert looks at."""

    name = "keys"
    settings_type = KeysSettings
    unit_type = KeysUnit
    result_type = Nothing

    async def plan(self, engine: Engine) -> list[KeysUnit]:
        """Made by who asks."""
        raise InternalError("a question is planned by who asks it")

    async def work(self, unit: KeysUnit) -> Nothing:
        """A question gives rows."""
        raise InternalError("a question gives rows")

    async def finish(self, results: Sequence[Nothing]) -> None:
        """A question gives rows."""
        raise InternalError("a question gives rows")

    async def rows(self, unit: KeysUnit) -> AsyncIterator[pa.RecordBatch]:
        """A batch for each fragment or file. A few small GETs each.

        Bodies are not read: whether a fragment is whole is proved by who reads those.
        """
        settings = self.settings
        store = self.store(settings.store)
        for part in unit.fragments:
            name = settings.logs[part.log]
            objects = LogObjects(store, name, part.ancestors)
            found = await fetch_columns(objects, part.fragment, ["key"])
            keys = found.column("key").combine_chunks()
            yield await in_worker(_of_fragment, keys, part, name, settings.keyless)
        table_store = self.store(settings.table_store)
        for file in unit.files:
            rows = await get_columns(table_store, settings.table, file.file, OF_FILE)
            yield await in_worker(_of_file, rows, file, settings.logs)


def _of_fragment(keys: pa.Array, part: FragmentKeys, name: str, keyless: Keyless) -> pa.RecordBatch:
    fragment = part.fragment
    offsets = np.arange(fragment.start, fragment.limit, dtype=np.int64)
    has_key = np.asarray(keys.is_valid())
    lacking = np.flatnonzero(~has_key & (offsets >= part.start))
    if len(lacking) and keyless == "refuse":
        raise InvalidInputError(
            f"the record {offsets[lacking[0]]} of log {name!r} has no key, and the table is one of "
            "newest records by key",
            hint="append with a key, or make the table with keyless 'skip' or 'keep'",
        )
    return _batch(part.log, keys, offsets, part.source, has_key & (offsets >= part.start))


def _of_file(rows: pa.Table, part: FileKeys, logs: Sequence[str]) -> pa.RecordBatch:
    """The keys of those rows that are of our logs."""
    places = pc.index_in(rows.column("log"), value_set=pa.array(logs, pa.string()))
    of_log = np.asarray(places.fill_null(-1).to_numpy(), np.int32)
    keys = rows.column("key").combine_chunks()
    offsets = rows.column("offset").to_numpy()
    return _batch(of_log, keys, offsets, part.source, np.asarray(keys.is_valid()) & (of_log >= 0))


def _batch(log: Any, keys: pa.Array, offsets: Any, source: int, counts: Any) -> pa.RecordBatch:
    chosen = np.flatnonzero(counts)
    columns = [
        pa.array(np.broadcast_to(np.asarray(log, np.int32), len(offsets))[chosen]),
        keys.take(pa.array(chosen)),
        pa.array(offsets[chosen]),
        pa.array(np.full(len(chosen), source, np.int32)),
        pa.array(chosen.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def losers(rows: pa.Table) -> Drops:
    """Of the rows of a question, those that a newer one of their key replaces."""
    if not rows.num_rows:
        return {}
    # Large: the keys of many fragments may be more than 2 GiB together.
    keys = rows.column("key").cast(pa.large_binary()).combine_chunks().dictionary_encode()
    logs = rows.column("log").to_numpy().astype(np.int64)
    groups = keys.indices.to_numpy().astype(np.int64)
    if logs.any():
        _, groups = np.unique(groups * (int(logs.max()) + 1) + logs, return_inverse=True)
    offsets = rows.column("offset").to_numpy()
    newest = np.full(int(groups.max()) + 1, -1, np.int64)
    np.maximum.at(newest, groups, offsets)
    lost = np.flatnonzero(offsets < newest[groups])
    if not len(lost):
        return {}
    sources = rows.column("source").to_numpy()[lost]
    order = np.argsort(sources, kind="stable")
    names, starts = np.unique(sources[order], return_index=True)
    places = rows.column("row").to_numpy()[lost][order]
    return {
        int(source): _bitmap(of_source)
        for source, of_source in zip(names, np.split(places, starts[1:]), strict=True)
    }


def _bitmap(places: Any) -> bytes:
    bits = np.zeros(int(places.max()) + 1, np.bool_)
    bits[places] = True
    return pack(bits)
