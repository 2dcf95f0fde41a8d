"""A turn as a `with` block: what fails in it leaves nothing behind, and lets others append."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cordwood.journal.journal import Journal, Turn


class Turning:
    """A `with` block in which one may append. Not a generator: it is entered with every commit."""

    __slots__ = ("_journal", "_turn")

    def __init__(self, journal: Journal) -> None:
        """Made by `Journal.turn`."""
        self._journal = journal
        self._turn: Turn | None = None

    def __enter__(self) -> Turn:
        try:
            self._journal.lock()
            try:
                self._turn = turn = self._journal.begin_turn()
            except BaseException:
                self._journal.unlock()
                raise
        except OSError as error:
            raise self._journal.error("append to", error) from error
        return turn

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception) and self._turn is not None:
                self._turn.undo()
        finally:
            self._journal.unlock()
        if isinstance(error, OSError):
            raise self._journal.error("append to", error) from error
