"""What a forked child must forget: locks that a thread of its parent held, files it had open.

Of the threads of a process only the one that forks is in the child. Whatever the others were in the
middle of stays like that there, and a lock that one of them held is never freed. So what has locks
starts over in every child.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forgetful(Protocol):
    """What can start over."""

    def start_over(self) -> None:
        """Make all locks anew, and know nothing of files and threads."""
        ...


def starts_over(thing: Forgetful) -> None:
    """Let this start over in every child that is forked as long as it lives."""
    _things.add(thing)


_things: WeakSet[Forgetful] = WeakSet()


def _start_over() -> None:
    for thing in list(_things):
        thing.start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)
