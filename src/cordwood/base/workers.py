"""A few threads for work that keeps a core busy: hashing, encoding, reading large files.

As many as there are cores and no more. More would not be faster, and every thread that handles
large buffers keeps its own pool of memory: with a thread per request the same scan costs a third
more. What waits for the disk (a sync) belongs elsewhere, in asyncio's own, larger pool.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_pool: ThreadPoolExecutor | None = None


async def in_worker(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a plain function in a worker thread and wait for it."""
    global _pool  # noqa: PLW0603 - one pool per process is the point
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="cordwood-worker")
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_pool, lambda: call(*args, **kwargs))


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool  # noqa: PLW0603 - it gets a pool of its own
    _pool = None


os.register_at_fork(after_in_child=_forget)
