"""The engine that is this process: a few units at a time, on its own event loop and workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import Struct

from cordwood.base.errors import CordwoodError
from cordwood.base.workers import in_worker
from cordwood.pipeline import keys
from cordwood.pipeline.each import each
from cordwood.pipeline.engine import Drops, Progress, failed
from cordwood.pipeline.job import Job, Unit
from cordwood.store.url import Store

ResultT = TypeVar("ResultT", bound=Struct)

AT_ONCE = min(4, os.cpu_count() or 1)
"""Units under way: enough for all cores; each may hold a file of a table in memory."""


class LocalEngine:
    """Does units in this process."""

    name = "local"

    @property
    def missing(self) -> str:
        """Nothing: it always runs."""
        return ""

    def refuses(self, stores: Iterable[Store]) -> str:
        """Nothing: what this process opened, it can work on."""
        return ""

    async def start(self) -> None:
        """It runs already."""

    async def slots(self) -> int:
        """How many units it does at once."""
        return AT_ONCE

    async def work(
        self, job: Job[Any, Any, ResultT, Any], units: Sequence[Unit], progress: Progress | None
    ) -> list[ResultT]:
        """The results of the units, in their order; the first failure ends it."""
        total = sum(unit.num_bytes for unit in units)
        done = 0

        async def take(unit: Unit) -> ResultT:
            nonlocal done
            try:
                result = await job.work(unit)
            except CordwoodError as error:
                raise failed(job, unit, error) from error
            done += unit.num_bytes
            if progress is not None:
                progress(done, total)
            return result

        if progress is not None:
            progress(0, total)
        return await each(units, take, AT_ONCE)

    async def losers(
        self, job: Job[Any, Any, Any, Any], fresh: Sequence[Unit], old: Sequence[Unit]
    ) -> Drops:
        """The rows that a newer one replaces, found in memory."""

        async def take(unit: Unit) -> list[pa.RecordBatch]:
            return [batch async for batch in job.rows(unit)]

        batches = await each([*fresh, *old], take, AT_ONCE)
        rows = [batch for of_unit in batches for batch in of_unit]
        return await in_worker(keys.losers, pa.Table.from_batches(rows, schema=keys.SCHEMA))
