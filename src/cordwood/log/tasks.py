"""Tasks that belong to an object, not to its callers: cancelling a caller never reaches them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Work = Callable[..., Coroutine[Any, Any, None]]


class Tasks:
    """Starts tasks and holds on to them: the event loop itself keeps only weak references."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        """`on_failure` is called when a task has failed or was cancelled, even before it began."""
        self._on_failure = on_failure
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Work, *args: Any) -> asyncio.Task[None]:
        """Start `work(*args)`."""
        task = asyncio.get_running_loop().create_task(self._begin(work, *args))
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    async def _begin(self, work: Work, *args: Any) -> None:
        # Called here and not by spawn: a coroutine that is never awaited would be complained about.
        await work(*args)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)
