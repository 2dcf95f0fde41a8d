"""What a compaction writes into: files that nobody sees, then one commit that names them.

A target keeps, in the same commit as its files, how much of each log is in it. That is what makes
a compaction exactly once: the position and the rows cannot come apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from cordwood.pipeline.columns import DataFile
from cordwood.pipeline.tabledoc import Keyless, Mode, Position
from cordwood.store.url import Store


class Seen(NamedTuple):
    """A target as it was at one moment."""

    mode: Mode
    keyless: Keyless
    positions: Mapping[str, Position]
    """How much of each log is in it, by the log's incarnation."""
    files: tuple[DataFile, ...]
    state: Any
    """The target's own: what the next commit must show."""

    def limit_of(self, incarnation: str) -> int | None:
        """Up to where a log is in it; None if it holds nothing of it."""
        position = self.positions.get(incarnation)
        return None if position is None else position.limit


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
        stand = all(seen.limit_of(log) in {None, begin} for log, begin in self.begins.items())
        names = {position.log for log, position in seen.positions.items() if log not in self.begins}
        is_ours = names.isdisjoint(position.log for position in self.positions.values())
        return stand and is_ours and set(self.drops) <= {file.path for file in seen.files}

    def is_in(self, seen: Seen, paths: Collection[str]) -> bool:
        """Whether it has been made, by us, where these are all files the target remembers."""
        reached = all(seen.positions.get(log) == there for log, there in self.positions.items())
        if not self.adds:
            return reached
        return any(file.path in paths for file in self.adds)


class Target(Protocol):
    """A table that a compaction can write into."""

    store: Store
    name: str

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
