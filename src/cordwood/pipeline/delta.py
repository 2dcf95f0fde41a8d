"""A Delta table as the target of compactions, through the library deltalake.

The same as pipeline/table.py, with Delta's own log in place of TABLE: units write the files, one
commit names them. In the same commit stand two transaction numbers for each log::

    app id                     version
    <incarnation>              the limit: the first offset that is not in the table
    cordwood.log:<log name>    60 bits of the incarnation: whose records carry this name

Delta refuses a commit if another one with the same app id came in between, and if a file that it
removes is gone. So of two compactions at once one commits.

Delta has no place that the library lets us keep a file's checksums in. So the names of our files
tell them, and they are checked before rows are carried over into another file.

Who else may write: anybody, to rows of other logs, but no other columns: an upsert would lose them.
To put small files together (`optimize`) and to delete old ones (`vacuum`) is left to Delta's own
tools. Of files that these wrote nobody knows a checksum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product, takewhile
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    ContendedError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
    StateError,
    StoreError,
    UnsupportedError,
)
from cordwood.base.workers import in_worker
from cordwood.log.kinds import refuse_others
from cordwood.pipeline.columns import (
    SCHEMA,
    DataFile,
    chosen,
    get_file,
    read_file,
    together,
)
from cordwood.pipeline.naming import check_name, split_url
from cordwood.pipeline.tabledoc import KEYLESSES, MODES, Keyless, Mode, Position, told_by
from cordwood.pipeline.target import Change, Seen, is_as_asked
from cordwood.store.url import Store

if TYPE_CHECKING:
    from deltalake import DeltaTable

TRIES_MAX = 5
"""Commits that others may come before, as long as ours still fits."""

MODE = "cordwood.mode"
KEYLESS = "cordwood.keyless"
COMMIT = "cordwood.commit"

_DECORATION = re.compile(r"\x1b\[[0-9;]*m|↳")
_STACK = re.compile(r"\d+: |stack backtrace", re.IGNORECASE)


class DeltaSeen(Seen):
    """A Delta table as it was at one version."""

    def __init__(self, table: DeltaTable) -> None:
        """Refuse what a compaction cannot work with."""
        self.table = table
        self.version = str(table.version())
        self.is_tidied = False
        properties = table.metadata().configuration
        kept = properties.get(MODE), properties.get(KEYLESS, "refuse")
        if kept not in product(MODES, KEYLESSES) or table.metadata().partition_columns:
            raise InvalidInputError(
                f"{table.table_uri} is not a Delta table that was made for compactions",
                hint="make one with Delta(store, name).create(), or `cordwood log compact --create "
                "--format delta`",
            )
        self.mode = msgspec.convert(kept[0], Mode)
        self.keyless = msgspec.convert(kept[1], Keyless)
        _check_columns(table)
        if self.mode == "upsert":
            self.refuse_deletion_vectors()
        actions = pa.table(table.get_add_actions())
        columns = (
            actions.column(name).to_pylist() for name in ("path", "num_records", "size_bytes")
        )
        self.files = tuple(
            DataFile(path, rows or 0, size, *told_by(path))
            for path, rows, size in zip(*columns, strict=True)
        )

    def refuse_deletion_vectors(self) -> None:
        """Raise if rows were deleted without rewriting their files: we would bring them back."""
        if pa.table(self.table.deletion_vectors()).num_rows:
            raise UnsupportedError(
                f"{self.table.table_uri} has deletion vectors",
                hint="rewrite the files that have some (REORG TABLE … APPLY (PURGE))",
            )

    def position(self, incarnation: str) -> Position | None:
        """How much of a log is in it; where it began is not kept."""
        limit = self.table.transaction_version(incarnation)
        return None if limit is None else Position("", 0, limit)

    def has_other(self, log: str, incarnation: str) -> bool:
        """Whether it holds records of another log that had this name."""
        there = self.table.transaction_version(_app(log))
        return there is not None and there != _number(incarnation)


class Delta:
    """A Delta table in a store. Naming one does no I/O."""

    tells_in_names = True

    def __init__(
        self,
        store: Store | str,
        name: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name a table. The library takes its credentials from the environment."""
        self.name = check_name(name)
        self.store = store if isinstance(store, Store) else Store(store)
        self._clock = clock
        self._entropy = entropy
        if self.store.scheme == "memory":
            raise InvalidInputError(f"a Delta table cannot lie in {self.store.url}")

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """The table that a single URL names: the last segment is the table, the rest the store."""
        head, name = split_url(url)
        return cls(Store(head, **options), name)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{self.store.url.rstrip('/')}/{self.name}"

    def __repr__(self) -> str:
        return f"Delta({self.url!r})"

    async def create(
        self, *, mode: Mode = "append", keyless: Keyless = "refuse", exist_ok: bool = False
    ) -> None:
        """Create the table, empty. See `Table.create`.

        Raises:
            AlreadyExistsError: it exists; or something else of its name does.
        """
        kind = _library().DeltaTable
        if mode not in MODES or keyless not in KEYLESSES:
            raise InvalidInputError(f"no table has mode {mode!r} and keyless {keyless!r}")
        await refuse_others(self.store, self.name, "Delta table")

        def make() -> None:
            if kind.is_deltatable(self.url):
                there = DeltaSeen(kind(self.url))
                if not exist_ok or not is_as_asked(there, mode, keyless):
                    raise AlreadyExistsError(
                        f"the Delta table {self.url} exists already, in mode {there.mode}, "
                        f"keyless {there.keyless}",
                        hint="use it as it is, or choose another name",
                    )
                return
            kind.create(
                self.url,
                SCHEMA,
                mode="ignore" if exist_ok else "error",
                configuration={MODE: mode, KEYLESS: keyless},
                raise_if_key_not_exists=False,
            )

        await self._ask(make)

    async def files(self) -> list[DataFile]:
        """The files that hold the rows."""
        return list((await self.look()).files)

    async def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows at once, each file checked as far as anybody knows its checksums.

        Not by the library's reader, which checks nothing, and whose threads read through a file
        system in Python: a process that had used it was once seen to abort at its end.

        Raises:
            CorruptionError: a file is missing or damaged.
            UnsupportedError: it has deletion vectors.
        """
        names = chosen(columns)
        seen = await self.look()
        await self._ask(seen.refuse_deletion_vectors)
        parts = []
        for file in seen.files:
            data = await get_file(self.store, self.name, file)
            parts.append(await in_worker(read_file, data, file, names))
        return together(parts, names)

    # Changing: see pipeline/target.py.

    async def look(self) -> DeltaSeen:
        """The table as it is now."""
        kind = _library().DeltaTable
        seen: DeltaSeen = await self._ask(lambda: DeltaSeen(kind(self.url)))
        return seen

    async def sync(self) -> None:
        """Nothing: how durable a commit is the library decides."""

    async def begin(self) -> int:
        """Nothing: how long a file may wait for its commit is what `vacuum` is told."""
        return 0

    async def commit(self, seen: Seen, change: Change) -> bool:
        """Make a change visible, in one step; False if somebody else was faster."""
        library = _library()
        token = self._entropy.token()
        properties = library.CommitProperties(
            custom_metadata={COMMIT: token}, app_transactions=_transactions(library, change)
        )
        for _ in range(TRIES_MAX):
            assert isinstance(seen, DeltaSeen), "what this table gave"
            if not change.fits(seen):
                return await self._has(seen, token)
            table, actions = seen.table, self._actions(library, seen, change)
            try:
                await self._ask(
                    lambda table=table, actions=actions: table.create_write_transaction(
                        actions, "append", SCHEMA, commit_properties=properties
                    )
                )
            except ContendedError:
                seen = await self.look()
            else:
                return True
        raise ContendedError(f"the Delta table {self.url} changes too fast", hint="try again")

    async def _has(self, seen: DeltaSeen, token: str) -> bool:
        """Whether a commit whose answer we do not have is in the table."""
        past = await self._ask(lambda: seen.table.history(TRIES_MAX * 10))
        return any(commit.get(COMMIT) == token for commit in past)

    def _actions(self, library: Any, seen: Seen, change: Change) -> list[Any]:
        now_ms = self._clock.now_us() // 1_000
        sizes = {file.path: file.bytes for file in seen.files}
        adds = [
            library.transaction.AddAction(
                file.path, file.bytes, {}, now_ms, True, json.dumps({"numRecords": file.rows})
            )
            for file in change.adds
        ]
        removes = [
            library.transaction.RemoveAction(path, True, now_ms, sizes[path], {})
            for path in change.drops
        ]
        return [*adds, *removes]

    async def _ask(self, call: Any) -> Any:
        """Call the library in a worker; its errors become ours."""
        errors = _library().exceptions
        try:
            return await in_worker(call)
        except errors.TableNotFoundError as error:
            raise NotFoundError(
                f"there is no Delta table at {self.url}",
                hint="create it first, or check the URL",
            ) from error
        except errors.CommitFailedError as error:
            raise ContendedError(
                f"Delta table {self.url}: {_in_a_line(error)}", hint="try again"
            ) from error
        except (errors.DeltaError, OSError, ValueError) as error:
            if isinstance(error, CordwoodError):
                raise
            raise StoreError(
                f"Delta table {self.url}: {_in_a_line(error)}", applied=True
            ) from error


def _in_a_line(error: Exception) -> str:
    """What went wrong and why, without the library's colours and the stack that it may print."""
    lines = (_DECORATION.sub("", line).strip() for line in str(error).splitlines())
    said = takewhile(lambda line: not _STACK.match(line), lines)
    return ": ".join(line for line in said if line) or type(error).__name__


def _check_columns(table: DeltaTable) -> None:
    """Raise unless the table has our columns and no others."""
    ours = {field.name: field.type for field in _library().Schema.from_arrow(SCHEMA).fields}
    there = {field.name: field.type for field in table.schema().fields}
    if ours == there:
        return
    strange = sorted(
        name for name in ours.keys() | there.keys() if ours.get(name) != there.get(name)
    )
    raise StateError(
        f"the columns of {table.table_uri} were changed: {strange[0]!r} is not as a compaction "
        "writes it, and its values would be lost",
        hint="compact into a new table, and keep other columns in one of your own",
    )


def _transactions(library: Any, change: Change) -> list[Any]:
    """Both numbers of each log."""
    return [
        library.Transaction(app, version)
        for incarnation, position in change.positions.items()
        for app, version in (
            (incarnation, position.limit),
            (_app(position.log), _number(incarnation)),
        )
    ]


def _app(log: str) -> str:
    return f"cordwood.log:{log}"


def _number(incarnation: str) -> int:
    return int(incarnation[:15], 16)


def _library() -> Any:
    """The library, loaded on first use."""
    try:
        import deltalake  # noqa: PLC0415 - an extra
        import deltalake.exceptions  # noqa: PLC0415
        import deltalake.transaction  # noqa: PLC0415
    except ImportError as error:
        raise StateError(
            "Delta tables need the library deltalake", hint="pip install 'cordwood[delta]'"
        ) from error
    return deltalake
