"""Engines: who does the units of a job. `local` is this process, `spark` a cluster.

An engine is found by its name through the entry points of the group `cordwood.engines`, so nothing
here needs to know Spark. `auto` takes `local` below a gigabyte, where starting Spark takes longer
than the work, and `spark` above, if it can run here and its tasks can reach the stores; if not, it
stays in this process and says why, with a warning.

Every engine keeps to this: results come in the order of the units; if a unit fails, the whole job
does, with the error of that unit, and nothing is published.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from cordwood.base.errors import CordwoodError, CordwoodWarning, InvalidInputError, StateError
from cordwood.pipeline.job import Job, Unit
from cordwood.store.url import Store

ResultT = TypeVar("ResultT", bound=Struct)
ReportT = TypeVar("ReportT")

GROUP = "cordwood.engines"

OURS = {
    "local": "cordwood.pipeline.local:LocalEngine",
    "spark": "cordwood.spark.engine:SparkEngine",
}
"""What the entry points of this package say, for when it is used without being installed."""

AUTO = "auto"

LOCAL_BYTES_MAX = 10**9
"""Below this `auto` stays in the process."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done so far and the bytes there are."""

Drops: TypeAlias = dict[int, bytes]
"""Rows that lost, by source: a bitmap each, the first row in the lowest bit of the first byte."""


class Engine(Protocol):
    """Does the units of jobs."""

    name: str

    @property
    def missing(self) -> str:
        """What keeps it from running here, in one line; empty if nothing does."""
        ...

    def refuses(self, stores: Iterable[Store]) -> str:
        """Why it cannot work on these stores, in one line; empty if it can."""
        ...

    async def start(self) -> None:
        """Be ready for work.

        Raises:
            StateError: it cannot run here after all.
        """
        ...

    async def slots(self) -> int:
        """How many units it does at once."""
        ...

    async def work(
        self, job: Job[Any, Any, ResultT, Any], units: Sequence[Unit], progress: Progress | None
    ) -> list[ResultT]:
        """The results of the units, in their order.

        Raises:
            CordwoodError: a unit failed; the message says which.
        """
        ...

    async def losers(
        self, job: Job[Any, Any, Any, Any], fresh: Sequence[Unit], old: Sequence[Unit]
    ) -> Drops:
        """Of the rows of a question (pipeline/keys.py), those that a newer one replaces.

        An old row can be replaced, but it replaces nothing that is old: among themselves the old
        ones have been sorted out.
        """
        ...


def engine(name: str = "local") -> Engine:
    """The engine of this name; `auto` is not one, see `choose`.

    Raises:
        InvalidInputError: there is none.
        StateError: it cannot run here.
    """
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    homes = OURS | found
    if name not in homes:
        raise InvalidInputError(
            f"there is no engine {name!r}", hint=f"use {AUTO}, {' or '.join(sorted(homes))}"
        )
    module, _, kind = homes[name].partition(":")
    made: Engine = getattr(import_module(module), kind)()
    if made.missing:
        raise StateError(made.missing, hint="or use the engine local, which needs nothing")
    return made


async def choose(name: str, num_bytes: int, stores: Iterable[Store] = ()) -> Engine:
    """The engine for so much work: the one that is named; for `auto` what suits and can run."""
    if name != AUTO:
        return engine(name)
    if num_bytes < LOCAL_BYTES_MAX:
        return engine("local")
    does, reason = await fastest(stores)
    if reason:
        # The work takes longer here, but it can be done.
        message = f"{num_bytes / 1e9:,.1f} GB are worked on in this process: {reason}"
        warnings.warn(message, CordwoodWarning, stacklevel=2)
    return does


async def fastest(stores: Iterable[Store] = ()) -> tuple[Engine, str]:
    """Spark, started, if it can run here and reach these stores; else this process, and why."""
    try:
        spark = engine("spark")
        reason = spark.refuses(stores)
        if not reason:
            await spark.start()
            return spark, ""
    except StateError as error:
        reason = error.message
    return engine("local"), reason


async def run(
    job: Job[Any, Any, Any, ReportT],
    engine_name: str | Engine = AUTO,
    progress: Progress | None = None,
) -> ReportT:
    """Do a job from its plan to its report.

    Raises:
        CordwoodError: a unit failed, or the job; nothing was published.
    """
    if isinstance(engine_name, str):
        num_bytes = await job.weigh() if engine_name == AUTO else 0
        does = await choose(engine_name, num_bytes, job.stores)
    else:
        does = engine_name
    async with job:
        units = await job.plan(does)
        return await job.finish(await _work(job, units, does, progress))


async def _work(
    job: Job[Any, Any, ResultT, Any], units: Sequence[Unit], does: Engine, progress: Progress | None
) -> list[ResultT]:
    """The results of the units, in their order; the job hears of each group of them."""
    total = sum(unit.num_bytes for unit in units)
    results: list[ResultT] = []
    done = 0
    for start in range(0, len(units), job.at_once or max(1, len(units))):
        group = units[start : start + (job.at_once or len(units))]
        results += await does.work(job, group, _after(progress, done, total))
        await job.note(group, results[start:])
        done += sum(unit.num_bytes for unit in group)
    return results


def _after(progress: Progress | None, before: int, total: int) -> Progress | None:
    """The progress of a group, as part of the whole."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def failed(job: Job[Any, Any, Any, Any], unit: Unit, error: CordwoodError) -> CordwoodError:
    """The same error, which also says what was being done."""
    twin = copy(error)
    twin.message = f"{job.name} of {unit.title}: {error.message}"
    twin.args = (twin.message,)
    return twin
