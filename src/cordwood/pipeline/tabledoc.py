"""TABLE: the one document that says what a table is. Specified in docs/formats/table.md.

Invariants, checked before every write and after every read:

TABLE-1  format is 1, and every field is known.
TABLE-2  paths are those of data files, and each is named once: among `files` or among `dropped`.
TABLE-3  for every log, first <= limit; no two logs of one name.
TABLE-4  in a table that keeps everything (`append`), the rows of its files are as many as the
         records of its positions: the sum over logs of limit - first.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from cordwood.base.errors import CorruptionError, UnsupportedError
from cordwood.base.limits import OFFSET_LIMIT
from cordwood.pipeline.columns import DataFile

FORMAT = 1

Mode = Literal["append", "upsert"]
"""append: every record is a row. upsert: of each key of a log the newest."""

Keyless = Literal["refuse", "skip", "keep"]
"""What an upsert does with a record that has no key."""

MODES = get_args(Mode)
KEYLESSES = get_args(Keyless)

DOCUMENT_BYTES_MAX = 256 * 2**20

_DATA = re.compile(r"data/[0-9a-f]{32}\.parquet")
_TELLING = re.compile(r"data/[0-9a-f]{32}-([0-9a-f]{16})-([0-9a-f]{64})\.parquet")


class Position(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a log is in the table: the records `[first, limit)`."""

    log: str
    first: int
    limit: int


class Dropped(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that was replaced, kept for whoever still reads it."""

    path: str
    bytes: int
    at_us: int = 0
    """No later than this it was dropped, by the store's clock; 0 as long as nobody knows."""


class TableDoc(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object TABLE."""

    format: int = FORMAT
    id: str
    """Made when the table was created."""
    write: str
    """Unique for each state, so that no two have the same bytes, and on S3 the same etag."""
    mode: Mode
    keyless: Keyless = "refuse"
    grace_s: int
    """Seconds that a dropped file is kept."""
    orphan_s: int
    """Seconds after which a file that no state names may be deleted; no commit takes so long."""
    positions: dict[str, Position] = {}
    """By the log's incarnation."""
    files: tuple[DataFile, ...] = ()
    dropped: tuple[Dropped, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """How large its files are."""
        return sum(file.bytes for file in self.files)

    @property
    def paths(self) -> list[str]:
        """Every file it names: those that hold its rows, and those kept for readers."""
        return [*(file.path for file in self.files), *(file.path for file in self.dropped)]

    def check(self, where: str) -> None:
        """Raise unless TABLE-1 to TABLE-4 hold."""
        if self.format != FORMAT:
            raise UnsupportedError(
                f"{where}: format {self.format} is not known to this version",
                hint="upgrade Cordwood before using this table",
            )
        paths = self.paths
        if len(set(paths)) != len(paths):
            raise _broken("TABLE-2", where, "each file once", "one twice")
        strange = [path for path in paths if not is_data(path)]
        if strange:
            raise _broken("TABLE-2", where, "data/<id>.parquet", strange[0])
        for position in self.positions.values():
            if not 0 <= position.first <= position.limit < OFFSET_LIMIT:
                raise _broken("TABLE-3", where, "first <= limit", str(position))
        names = {position.log for position in self.positions.values()}
        if len(names) != len(self.positions):
            raise _broken("TABLE-3", where, "each log once", "one name twice")
        expected = sum(p.limit - p.first for p in self.positions.values())
        if self.mode == "append" and self.rows != expected:
            raise _broken("TABLE-4", where, f"{expected} rows", f"{self.rows}")


def is_data(path: str) -> bool:
    """Whether the path is that of a data file."""
    return _DATA.fullmatch(path) is not None


def data_path(token: str) -> str:
    """The path of a data file with this id."""
    return f"data/{token}.parquet"


def telling_path(path: str, xxh3: str, setsum: str) -> str:
    """The path of a data file that tells what is in it, where the table cannot keep that."""
    return f"{path.removesuffix('.parquet')}-{xxh3}-{setsum}.parquet"


def told_by(path: str) -> tuple[str, str]:
    """The checksum and the setsum that a path tells; empty if it tells none."""
    found = _TELLING.fullmatch(path)
    return (found[1], found[2]) if found else ("", "")


def encode(doc: TableDoc, where: str) -> bytes:
    """The bytes on disk, after checking every invariant."""
    doc.check(where)
    return msgspec.json.encode(doc)


def decode(data: bytes, where: str) -> TableDoc:
    """The document in `data`, checked.

    Raises:
        UnsupportedError: it was written by something newer.
        CorruptionError: it is not such a document, or breaks an invariant.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        raise CorruptionError(f"{where}: {len(data)} bytes, more than any table has", where=where)
    try:
        doc = msgspec.json.decode(data, type=TableDoc)
    except msgspec.ValidationError as error:
        if "unknown field" in str(error):
            raise UnsupportedError(
                f"{where}: {error}",
                hint="it was written by a newer version: upgrade before using this table",
            ) from error
        raise _not_a_table(where, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_a_table(where, error) from error
    doc.check(where)
    return doc


def _not_a_table(where: str, error: Exception) -> CorruptionError:
    return CorruptionError(
        f"{where}: not a table: {error}",
        where=where,
        hint="this is not a table, or its bytes were damaged",
    )


def _broken(rule: str, where: str, expected: str, got: str) -> CorruptionError:
    return CorruptionError(
        f"{where} breaks invariant {rule}: expected {expected}, got {got}",
        where=where,
        expected=expected,
        got=got,
        hint="the object was damaged or written by a faulty program",
    )
