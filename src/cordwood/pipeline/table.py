"""A table: Parquet files in a store, and one document, TABLE, that names them.

::

    <name>/TABLE                    replaced by compare-and-swap; what a table is (tabledoc.py)
    <name>/data/<id>.parquet        rows; written once, never changed
    <name>/CLOCK                    asks the store what time it is

Why nothing that is needed is ever deleted. A file goes in one of two ways, both in `sweep`:

1. *Dropped*: a commit replaced it. It stays in the document until it was dropped for the table's
   grace interval, so that whoever reads an older state can finish. The moment is that of the state
   that dropped it, by the store's clock, written into the next state.
2. *Orphaned*: no state names it. A commit may be about to. So the sweep first replaces the document
   by an equal one, and deletes only what was `orphan_s` old at that moment, T. A commit that stood
   on the state before fails, and looks again; one that looks later than T, and then finds its own
   work older than half of `orphan_s`, gives up.

Crash here: a commit that did not happen leaves orphans; a sweep that did not finish is done again.
Answer lost: the document says whose it is. Two of us: one swap is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Self

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from cordwood.base.clock import SYSTEM_ENTROPY, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    ContendedError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StateError,
)
from cordwood.base.workers import in_worker
from cordwood.log.format import GRACE_S_DEFAULT
from cordwood.log.kinds import TABLE, refuse_others
from cordwood.pipeline.columns import (
    DataFile,
    chosen,
    damaged,
    get_file,
    read_file,
    setsum_of,
    together,
)
from cordwood.pipeline.engine import Progress
from cordwood.pipeline.naming import check_name, split_url
from cordwood.pipeline.tabledoc import (
    KEYLESSES,
    MODES,
    Dropped,
    Keyless,
    Mode,
    Position,
    TableDoc,
    decode,
    encode,
    is_data,
)
from cordwood.pipeline.target import Change, Seen, is_as_asked
from cordwood.store.api import Match
from cordwood.store.probe import verify_conditional_puts
from cordwood.store.streams import as_generator
from cordwood.store.timekeeping import age_us
from cordwood.store.url import Store

CLOCK = "CLOCK"
DATA_PREFIX = "data/"

ORPHAN_S = 86_400
"""A compaction has half of this time from its first file to its commit."""


class SweepReport(Struct, frozen=True):
    """What a sweep deleted."""

    dropped: int = 0
    """Files that a commit had replaced, their grace interval over."""
    orphans: int = 0
    """Files that no state of the table named."""
    bytes: int = 0
    waiting: int = 0
    """Files that are dropped, and still kept for readers."""
    young: int = 0
    """Files that no state names, and that a commit may still name."""


class TableSeen(Seen):
    """A table as it was at one moment."""

    def __init__(self, doc: TableDoc, etag: str) -> None:
        """What was loaded."""
        self.doc = doc
        self.etag = etag
        self.mode = doc.mode
        self.keyless = doc.keyless
        self.files = doc.files
        self.version = doc.write
        self.is_tidied = True

    def position(self, incarnation: str) -> Position | None:
        """How much of a log is in it; None if nothing is."""
        return self.doc.positions.get(incarnation)

    def has_other(self, log: str, incarnation: str) -> bool:
        """Whether it holds records of another log that had this name."""
        return any(p.log == log and i != incarnation for i, p in self.doc.positions.items())


class Table:
    """A table in a store. Naming one does no I/O; it can be pickled and shared."""

    tells_in_names = False

    def __init__(self, store: Store | str, name: str, *, entropy: Entropy = SYSTEM_ENTROPY) -> None:
        """Name a table. `store` is a Store or a store's URL."""
        self.name = check_name(name)
        self.store = store if isinstance(store, Store) else Store(store)
        self._entropy = entropy

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """The table that a single URL names: the last segment is the table, the rest the store."""
        head, name = split_url(url)
        return cls(Store(head, **options), name)

    @property
    def url(self) -> str:
        """The URL that `from_url` takes."""
        return f"{self.store.url.rstrip('/')}/{self.name}"

    def __repr__(self) -> str:
        return f"Table({self.url!r})"

    async def create(
        self,
        *,
        mode: Mode = "append",
        keyless: Keyless = "refuse",
        grace_s: int = GRACE_S_DEFAULT,
        orphan_s: int = ORPHAN_S,
        exist_ok: bool = False,
    ) -> None:
        """Create the table, empty. One PUT, one HEAD; of several callers exactly one creates it.

        Args:
            mode: `append` keeps every record, `upsert` of each key of a log the newest.
            keyless: what an upsert does with records without a key: refuse, skip or keep them.
            grace_s: how long a file that was replaced is kept for readers.
            orphan_s: how old a file that nobody names must be to be deleted.
            exist_ok: an existing table of the same mode and keyless is left as it is.

        Raises:
            AlreadyExistsError: it exists; or something else of its name does.
        """
        for name, value in (("grace_s", grace_s), ("orphan_s", orphan_s)):
            if type(value) is not int or value < 1:
                raise InvalidInputError(
                    f"{name} is a whole number of seconds from 1 on, not {value!r}"
                )
        if mode not in MODES or keyless not in KEYLESSES:
            raise InvalidInputError(f"no table has mode {mode!r} and keyless {keyless!r}")
        await verify_conditional_puts(self.store)
        await refuse_others(self.store, self.name, "table")
        token = self._entropy.token()
        doc = TableDoc(
            id=token, write=token, mode=mode, keyless=keyless, grace_s=grace_s, orphan_s=orphan_s
        )
        try:
            await self.store.put(self._key(TABLE), encode(doc, self._key(TABLE)), "create")
        except AlreadyExistsError as error:
            there = await self.state()
            if not exist_ok or not is_as_asked(there, mode, keyless):
                raise AlreadyExistsError(
                    f"the table {self.name!r} exists already, in mode {there.mode}, "
                    f"keyless {there.keyless}",
                    hint="use it as it is, or choose another name",
                ) from error

    async def state(self) -> TableDoc:
        """Everything the table says of itself. One GET.

        Raises:
            NotFoundError: there is no such table.
        """
        return (await self._load())[0]

    # Reading.

    async def files(self) -> list[DataFile]:
        """The files that hold the rows, for any program that reads Parquet. One GET."""
        return list((await self.state()).files)

    async def scan(
        self, columns: Sequence[str] | None = None, *, verify: bool = True
    ) -> AsyncGenerator[pa.Table, None]:
        """The rows as they are now, a file at a time, each checked against its checksum.

        Raises:
            CollectedError: a file was replaced and deleted since this began.
            CorruptionError: a file is missing or damaged.
        """
        names = chosen(columns)
        for file in await self.files():
            yield await self._rows(file, names, verify=verify)

    async def to_arrow(
        self, columns: Sequence[str] | None = None, *, verify: bool = True
    ) -> pa.Table:
        """All rows at once. See `scan`."""
        async with aclosing(self.scan(columns, verify=verify)) as parts:
            found = [part async for part in parts]
        return together(found, chosen(columns))

    async def scrub(self, progress: Progress | None = None) -> list[str]:
        """Read every file and compare it with its checksum and its setsum: what is wrong.

        `progress` is called with bytes done and bytes to do.
        """
        faults = []
        files = await self.files()
        done, total = 0, sum(file.bytes for file in files)
        for file in files:
            try:
                rows = await self._rows(file, None, verify=True)
                found = (rows.num_rows, (await in_worker(setsum_of, rows)).hexdigest())
                if found != (file.rows, file.setsum):
                    raise damaged(file.path, f"{(file.rows, file.setsum)}", f"{found}")
            except CollectedError:
                pass  # It was replaced while we were on our way: nobody needs it any more.
            except CorruptionError as error:
                faults.append(error.message)
            done += file.bytes
            if progress is not None:
                progress(done, total)
        return faults

    async def _rows(
        self, file: DataFile, columns: Sequence[str] | None, *, verify: bool
    ) -> pa.Table:
        try:
            data = await get_file(self.store, self.name, file)
        except CorruptionError as error:
            if file in await self.files():
                raise
            raise CollectedError(
                f"the table {self.name!r} has replaced {file.path}, and its grace is over",
                hint="read the table again",
            ) from error
        return await in_worker(read_file, data, file, columns, verify=verify)

    # Changing: see pipeline/target.py.

    async def look(self) -> TableSeen:
        """The table as it is now. One GET."""
        return TableSeen(*await self._load())

    async def sync(self) -> None:
        """Return once the table as it was seen would survive a power cut."""
        await self.store.sync([self._key(TABLE)])

    async def begin(self) -> int:
        """What time it is by the store's clock. One PUT, one HEAD."""
        key = self._key(CLOCK)
        await self.store.put(key, self._entropy.token().encode(), "overwrite")
        return (await self.store.head(key)).modified_us

    async def commit(self, seen: Seen, change: Change) -> bool:
        """Make a change visible, in one step; False if somebody else was faster. Two PUTs."""
        assert isinstance(seen, TableSeen), "what this table gave"
        while True:
            doc = seen.doc
            if _is_made(doc, change):
                return True
            if not change.fits(seen):
                return False
            # After the look: this order is what makes the sweep safe.
            if _is_older(change.since_us, await self.begin(), doc.orphan_s // 2):
                raise StateError(
                    f"the compaction into {self.name!r} has taken more than {doc.orphan_s // 2} s: "
                    "what it wrote may be gone",
                    hint="compact less at a time, or make the table with a longer orphan_s",
                )
            try:
                await self._replace((doc, seen.etag), lambda doc: _changed(doc, change))
            except ConflictError:
                # If it was ours and the answer was lost, the table says so. If it still arrives,
                # then once: the next swap is of the same files.
                seen = await self.look()
            else:
                return True

    async def sweep(self) -> SweepReport:
        """Delete files that nobody needs any more. A few requests, one LIST, one for each file.

        Raises:
            ContendedError: the table changed meanwhile; what was deleted nobody needed.
        """
        doc, etag = await self._replace(await self._load(), lambda doc: doc)
        meta = await self.store.head(self._key(TABLE))
        if meta.etag != etag:
            raise _moved(self.name)
        named = set(doc.paths)
        over = {
            d.path: d.bytes
            for d in doc.dropped
            if d.at_us and _is_older(d.at_us, meta.modified_us, doc.grace_s)
        }
        orphans: dict[str, int] = {}
        young = 0
        async with aclosing(as_generator(self.store.list(self._key(DATA_PREFIX)))) as found:
            async for one in found:
                path = one.key.removeprefix(self._key(""))
                if path in named or not is_data(path):
                    continue
                if _is_older(one.modified_us, meta.modified_us, doc.orphan_s):
                    orphans[path] = one.size_bytes
                else:
                    young += 1
        await self.store.delete([self._key(path) for path in (*over, *orphans)])
        left = tuple(d for d in doc.dropped if d.path not in over)
        if over:
            # After the delete: a name that is left behind is deleted again.
            await self._replace((doc, etag), lambda doc: replace(doc, dropped=left))
        num_bytes = sum(over.values()) + sum(orphans.values())
        return SweepReport(len(over), len(orphans), num_bytes, len(left), young)

    # Below.

    async def _load(self) -> tuple[TableDoc, str]:
        key = self._key(TABLE)
        try:
            data, etag = await self.store.get(key)
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no table named {self.name!r}: {key} does not exist",
                hint="create it first (table.create(), or `cordwood log compact --create`), "
                "or check the name and the store's URL",
            ) from error
        return decode(data, key), etag

    async def _replace(
        self, seen: tuple[TableDoc, str], change: Callable[[TableDoc], TableDoc]
    ) -> tuple[TableDoc, str]:
        """Swap the state that was seen. One PUT; one HEAD if it had dropped something.

        Raises:
            ContendedError: it is not the table's state any more.
        """
        doc, etag = seen
        key = self._key(TABLE)
        if any(not d.at_us for d in doc.dropped):
            meta = await self.store.head(key)
            if meta.etag != etag:
                raise _moved(self.name)
            at = meta.modified_us
            doc = replace(
                doc, dropped=tuple(d if d.at_us else replace(d, at_us=at) for d in doc.dropped)
            )
        doc = replace(change(doc), write=self._entropy.token())
        return doc, await self.store.put(key, encode(doc, key), Match(etag))

    def _key(self, path: str) -> str:
        return f"{self.name}/{path}"


def _is_made(doc: TableDoc, change: Change) -> bool:
    """Whether a change is in the table, by us: the answer may have been lost."""
    if change.adds:
        return change.adds[0].path in doc.paths
    return all(doc.positions.get(log) == there for log, there in change.positions.items())


def _changed(doc: TableDoc, change: Change) -> TableDoc:
    """The table after a change."""
    goes = set(change.drops)
    dropped = tuple(Dropped(file.path, file.bytes) for file in doc.files if file.path in goes)
    return replace(
        doc,
        positions={**doc.positions, **change.positions},
        files=(*(file for file in doc.files if file.path not in goes), *change.adds),
        dropped=(*doc.dropped, *dropped),
    )


def _is_older(modified_us: int, now_us: int, seconds: int) -> bool:
    return age_us(modified_us, now_us) > seconds * 1_000_000


def _moved(name: str) -> ContendedError:
    return ContendedError(f"the table {name!r} was changed meanwhile", hint="try again")
