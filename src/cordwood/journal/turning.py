"""Being alone with a journal, and a turn, as `with` blocks: whatever happens, others append later.

An interrupt may come before the first step of `__exit__`, and nobody would let go. But the block is
left, and with it goes the object that stands for it: then that lets go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cordwood.journal.journal import Journal
    from cordwood.journal.turn import Turn


class _Holding:
    """What holds a journal, from `_begin` to `_end`. Not a generator: that is every commit."""

    _is_outermost = False

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def _begin(self) -> None:
        self._is_outermost = not self._journal.is_held
        self._journal.lock()

    def _end(self) -> None:
        if self._is_outermost:
            self._journal.free()  # Also of what a block within did not let go.
            self._is_outermost = False
        else:
            self._journal.unlock()

    def __del__(self) -> None:
        if self._is_outermost:
            self._journal.free()


class Alone(_Holding):
    """A `with` block in which nobody else appends."""

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._end()


class Turning(_Holding):
    """A `with` block in which one may append; what fails in it leaves nothing behind."""

    def __init__(self, journal: Journal) -> None:
        """Made by `Journal.turn`."""
        super().__init__(journal)
        self._turn: Turn | None = None

    def __enter__(self) -> Turn:
        try:
            self._begin()
            try:
                self._turn = turn = self._journal.begin_turn()
            except BaseException:
                self._end()
                raise
        except OSError as error:
            raise self._journal.error("append to", error) from error
        return turn

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception) and self._turn is not None:
                self._turn.undo()
        finally:
            self._end()
        if isinstance(error, OSError):
            raise self._journal.error("append to", error) from error
