"""What a compaction writes into: files that nobody sees, then one commit that names them.

A target keeps, in the same commit as its files, how much of each log is in it. That is what makes
a compaction exactly once: the position and the rows cannot come apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from cordwood.pipeline.columns import DataFile
from cordwood.pipeline.tabledoc import Keyless, Mode, Position, TableDoc
from cordwood.store.url import Store


class Seen(ABC):
    """A target as it was at one moment."""

    mode: Mode
    keyless: Keyless
    files: tuple[DataFile, ...]
    version: str
    """Which moment: another one has another version."""
    is_tidied: bool
    """Whether small files are put together by who compacts, not by tools of the table's own."""

    @abstractmethod
    def position(self, incarnation: str) -> Position | None:
        """How much of a log is in it; None if nothing is."""

    @abstractmethod
    def has_other(self, log: str, incarnation: str) -> bool:
        """Whether it holds records of another log that had this name."""


def is_as_asked(there: Seen | TableDoc, mode: Mode, keyless: Keyless) -> bool:
    """Whether a table that exists is one that would be created so.

    Where every record is kept, nobody asks for keys.
    """
    return there.mode == mode and (mode == "append" or there.keyless == keyless)


class Change(NamedTuple):
    """What one compaction does to a target, all of it or nothing."""

    positions: Mapping[str, Position]
    """Of its logs, as they will be."""
    begins: Mapping[str, int]
    """Where it began in each of them: the positions before, if they were in it."""
    adds: tuple[DataFile, ...]
    drops: tuple[str, ...]
    """Files whose rows are all in the ones it adds, or are replaced."""
    since_us: int
    """When its first file may have been written, by the store's clock."""

    def fits(self, seen: Seen) -> bool:
        """Whether the target still is what this was made for.

        Somebody else may have added files of other logs meanwhile, and may even have rewritten
        some; rows of our logs came from nobody else as long as the positions stand.
        """
        for incarnation, begin in self.begins.items():
            there = seen.position(incarnation)
            if there is not None and there.limit != begin:
                return False
            if seen.has_other(self.positions[incarnation].log, incarnation):
                return False
        return set(self.drops) <= {file.path for file in seen.files}


class Target(Protocol):
    """A table that a compaction can write into."""

    store: Store
    name: str
    tells_in_names: bool
    """Whether the names of its files tell their checksums, for want of another place."""

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    async def look(self) -> Seen:
        """The table as it is now.

        Raises:
            NotFoundError: there is none.
        """
        ...

    async def sync(self) -> None:
        """Return once the table as it was seen would survive a power cut.

        Before anybody lets go of the records that it holds: somebody else's commit may be seen a
        moment before it is durable.
        """
        ...

    async def begin(self) -> int:
        """What time it is by the store's clock, before the first file is written."""
        ...

    async def commit(self, seen: Seen, change: Change) -> bool:
        """Make a change visible, in one step; False if somebody else was faster.

        Raises:
            UncertainError: nobody can know now; the table itself tells later.
            StateError: its files are so old that they may be gone.
        """
        ...
