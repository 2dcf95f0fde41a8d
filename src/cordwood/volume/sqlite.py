"""SQLite on a volume: a database that is branched in milliseconds and opened lazily from a bucket.

::

    connection = connect("s3://bucket/wood", "app", directory="/data/app")
    connection.execute("create table if not exists notes (text)")
    connection.execute("pragma cordwood_push('first notes')")

A commit in SQL is a local commit: durable on this machine when the statement returns. A push
publishes what was committed since the last one as one version (pragmas.py). Any number of
connections, threads and processes may use one directory; one at a time writes.

This is the only module that imports apsw: the standard library's sqlite3 has no way to bring a file
of one's own. SQLite calls a `_Vfs` for names, and for each volume a `_MainFile` (database.py). A
rollback journal is only ever needed by the transaction that wrote it, and dies with it, so SQLite
keeps it in memory, whatever it is asked: one in a file of ours would make plain databases of the
same transaction depend on it after a crash, and it would be gone. Temporary files, and plain
databases that are attached, go to the operating system.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import apsw

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    Code,
    ContendedError,
    CordwoodError,
    FormatError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.store.patience import Patience
from cordwood.store.url import Store
from cordwood.volume.database import Database, ReadOnlyVolumeError
from cordwood.volume.desk import Desk
from cordwood.volume.home import default_directory
from cordwood.volume.moments import Moment
from cordwood.volume.pragmas import answer, version_at
from cordwood.volume.reader import PageReader
from cordwood.volume.volume import PAGE_SIZE, Volume

BUSY_TIMEOUT_S = 5.0
"""So long a statement waits for another connection's transaction."""
Connection = apsw.Connection
SqlError = apsw.Error
"""What every failing statement raises, one of its kinds."""
_PREFIX = "cordwood:"


class _Opened(NamedTuple):
    volume: Volume
    desk: Desk
    fixed: PageReader | None


def connect(
    store: Store | str,
    name: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    branch: str | None = None,
    at: Moment | None = None,
    create: bool = True,
    page_size: int = PAGE_SIZE,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    clock: Clock = SYSTEM_CLOCK,
    entropy: Entropy = SYSTEM_ENTROPY,
) -> apsw.Connection:
    """A connection to a database in a volume. Errors of its statements are apsw's, with our text.

    Args:
        store: where versions are published.
        name: the volume's.
        directory: local state, with commits that are not published; `default_directory` if None.
        branch: use this branch. If it is not there it is made, of what is published here.
        at: read a published version, by LSN or time, and write nothing.
        create: make the volume, or the branch, if it is not there.
        page_size: of a volume that is made now.
        busy_timeout_s: how long a statement waits for another connection's transaction.
        clock: what time it is.
        entropy: where ids come from.

    Raises:
        NotFoundError: there is no such volume, branch or version.
        StoreError: the directory does not know the volume, and the store cannot be reached.
    """
    opened = _open(store, name, directory, branch, at, create, page_size, clock, entropy)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    if at is not None:
        flags = apsw.SQLITE_OPEN_READONLY
    expected = _vfs.expect(opened)
    try:
        connection = apsw.Connection(expected, flags=flags, vfs=_vfs.name)
    finally:
        _vfs.dismiss(expected)
    connection.set_busy_handler(_Waiting(busy_timeout_s, entropy))
    # The file is made by a first write, in pages of the volume's size.
    connection.execute(f"pragma page_size = {opened.desk.page_size}")
    connection.execute("pragma journal_mode = memory")
    return connection


def attach(
    connection: apsw.Connection,
    schema: str,
    store: Store | str,
    name: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    branch: str | None = None,
    at: Moment | None = None,
    create: bool = True,
    page_size: int = PAGE_SIZE,
    clock: Clock = SYSTEM_CLOCK,
    entropy: Entropy = SYSTEM_ENTROPY,
) -> None:
    """Attach another volume to a connection that `connect` made, as the schema of a name.

    A transaction that writes to several volumes is committed to one after the other: a crash in
    between leaves the first committed and the second not.
    """
    opened = _open(store, name, directory, branch, at, create, page_size, clock, entropy)
    expected = _vfs.expect(opened)
    try:
        connection.execute("attach ? as ?", (expected, schema))
    finally:
        _vfs.dismiss(expected)
    quoted = '"' + schema.replace('"', '""') + '"'
    connection.execute(f"pragma {quoted}.page_size = {opened.desk.page_size}")
    connection.execute(f"pragma {quoted}.journal_mode = memory")


def plain(path: str | os.PathLike[str]) -> apsw.Connection:
    """A connection to a plain SQLite file, by the same SQLite: to compare with."""
    return apsw.Connection(os.fspath(path))


@contextmanager
def quiet(path: str | os.PathLike[str]) -> Iterator[None]:
    """While the block runs nobody writes to a plain SQLite file, and all of it is in that file.

    Raises:
        ContendedError: somebody has been writing to it for too long.
        InvalidInputError: it is no SQLite database.
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        raise NotFoundError(f"there is no file {name}")
    connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(round(BUSY_TIMEOUT_S * 1000))
        if connection.execute("pragma journal_mode").get == "wal":
            connection.execute("pragma wal_checkpoint(truncate)")
        if connection.readonly("main"):
            connection.execute("begin; select * from sqlite_schema").fetchall()
        else:
            connection.execute("begin immediate")
        if os.path.exists(f"{name}-wal") and os.path.getsize(f"{name}-wal"):
            raise ContendedError(
                f"{name} is in use, and part of it in its WAL", hint="close it first"
            )
        yield
    except apsw.BusyError as error:
        raise ContendedError(f"{name} is being written to", hint="close it first") from error
    except apsw.NotADBError as error:
        raise InvalidInputError(f"{name} is no SQLite database") from error
    except apsw.Error as error:
        raise StateError(f"{name}: {error}", hint="see to it with SQLite first") from error
    finally:
        connection.close()


def interact(connection: apsw.Connection) -> None:
    """A shell on the terminal, as SQLite's own: SQL, and commands that begin with a dot."""
    from apsw.shell import Shell  # noqa: PLC0415 - large, and seldom wanted

    Shell(db=connection).cmdloop()  # type: ignore[no-untyped-call]


def _open(
    store: Store | str,
    name: str,
    directory: str | os.PathLike[str] | None,
    branch: str | None,
    at: Moment | None,
    create: bool,
    page_size: int,
    clock: Clock,
    entropy: Entropy,
) -> _Opened:
    place = default_directory(store) if directory is None else directory
    volume = Volume(store, name, directory=place, clock=clock, entropy=entropy)
    return portal.current().run(_opened(volume, branch, at, create and at is None, page_size))


async def _opened(
    volume: Volume, branch: str | None, at: Moment | None, create: bool, page_size: int
) -> _Opened:
    """A volume or a branch, open; made if it is not there and may be."""
    wanted = volume.named(branch) if branch is not None and branch != volume.name else volume
    try:
        desk = await wanted.desk()
    except NotFoundError:
        if not create:
            raise
        if wanted is volume:
            await volume.create(page_size, exist_ok=True)
        else:
            try:
                await volume.branch(wanted.name)
            finally:
                await volume.close()
        desk = await wanted.desk()
    try:
        return _Opened(wanted, desk, None if at is None else await version_at(wanted, at))
    except BaseException:
        desk.close()
        raise


# What SQLite calls.


class _Waiting:
    """Waits for another's transaction: in short pauses, since nobody queues for the right to write.

    SQLite's own pauses grow to a tenth of a second, and who takes such finds others there first.
    """

    def __init__(self, limit_s: float, entropy: Entropy) -> None:
        self._limit_s = limit_s
        self._entropy = entropy
        self._patience = Patience(limit_s, entropy)

    def __call__(self, count: int) -> bool:
        if not count:
            self._patience = Patience(self._limit_s, self._entropy)
        return self._patience.pause()


class _Vfs(apsw.VFS):
    """Names of files: ours begin with `cordwood:` and belong to one connection each."""

    name = "cordwood"

    def __init__(self) -> None:
        super().__init__(self.name, base="")
        self._expected: dict[str, _Opened] = {}
        self._numbers = itertools.count(1)

    def expect(self, opened: _Opened) -> str:
        """A name under which SQLite is about to open a volume."""
        name = f"{_PREFIX}{next(self._numbers)}:{opened.volume.name}"
        self._expected[name] = opened
        return name

    def dismiss(self, name: str) -> None:
        """SQLite has not opened it after all."""
        opened = self._expected.pop(name, None)
        if opened is not None:
            opened.desk.close()

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802
        """A volume, or a file of the operating system."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not path.startswith(_PREFIX):
            return super().xOpen(name, flags)
        flags[1] = flags[0]
        opened = self._expected.pop(path, None)
        if opened is None:
            raise apsw.CantOpenError("volumes are opened with connect or attach")
        return _MainFile(opened)

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        """Our names are whole as they are."""
        return name if name.startswith(_PREFIX) else super().xFullPathname(name)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        """Whether there is such a file."""
        return not pathname.startswith(_PREFIX) and super().xAccess(pathname, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        """Away with a file; of a volume there is none but itself."""
        if not filename.startswith(_PREFIX):
            super().xDelete(filename, syncdir)


class _MainFile(Database):
    """A volume as a file of SQLite's."""

    __slots__ = ("_traits",)

    def __init__(self, opened: _Opened) -> None:
        super().__init__(opened.volume, opened.desk, opened.fixed, _told)
        self._traits: int = (
            getattr(apsw, f"SQLITE_IOCAP_ATOMIC{_size_name(opened.desk.page_size)}")
            | apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE
            | apsw.SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN
        )

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Nothing: it was committed when SQLite said that it would sync."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        """Whether anybody writes: asked by who finds a journal of the dead, and there is none."""
        return self.is_writing

    def xSectorSize(self) -> int:  # noqa: N802
        """What is written as one."""
        return self.page_size

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        """What may be relied upon: no more than a page at a time."""
        return self._traits

    def xFileControl(self, op: int, ptr: int) -> bool:  # noqa: N802
        """Commits, and pragmas."""
        if op == apsw.SQLITE_FCNTL_SYNC:
            self.sync()
            return True
        return self._pragma(ptr) if op == apsw.SQLITE_FCNTL_PRAGMA else False

    def xClose(self) -> None:  # noqa: N802
        """Let everything go."""
        self.close()

    def _pragma(self, ptr: int) -> bool:
        asked = apsw.VFSFcntlPragma(ptr)
        try:
            said = _settled(self, asked.name, asked.value)
            if said is None:
                said = answer(self, asked.name, asked.value)
        except CordwoodError as error:
            raise _told(error, apsw.SQLError) from error
        if said is not None:
            asked.result = said
        return said is not None


def _settled(database: Database, name: str, value: str | None) -> str | None:
    """The answer to SQLite's own pragmas that would not do here; None for all others."""
    asked = (value or "").strip("'\"").lower()
    if name == "locking_mode" and asked == "exclusive":
        return "normal"  # others may always read and, between transactions, write
    if name == "journal_mode" and asked not in {"", "memory"}:
        return "memory"
    if name == "page_size" and asked.isdecimal() and int(asked) != database.page_size:
        raise InvalidInputError(
            f"the volume has pages of {database.page_size} bytes, for good",
            hint="make another volume with that page_size and copy the tables",
        )
    return None


def _told(error: Exception, other: type[Exception] = apsw.IOError) -> Exception:
    """An error of ours as one of SQLite's, with the same words."""
    if isinstance(error, apsw.Error):
        return error
    kind: type[Exception] = other
    if isinstance(error, ContendedError):
        kind = apsw.BusyError
    elif isinstance(error, ReadOnlyVolumeError):
        kind = apsw.ReadOnlyError
    elif isinstance(error, LimitError) or (
        isinstance(error, StoreError) and error.code == Code.STORE_FULL
    ):
        kind = apsw.FullError
    elif isinstance(error, FormatError):
        kind = apsw.CorruptError
    elif isinstance(error, StoreError | UncertainError):
        kind = apsw.IOError
    return kind(str(error))


def _size_name(page_size: int) -> str:
    """A page size as SQLite's names have it: 512, 4K."""
    return f"{page_size // 1024}K" if page_size >= 1024 else str(page_size)


_vfs = _Vfs()
