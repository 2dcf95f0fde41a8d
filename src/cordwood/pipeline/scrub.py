"""A deep scrub in units: what `log.scrub(deep=True)` finds, on any number of machines.

The metadata is walked here, as a shallow scrub does; that also gives the fragments. Units read them
and recompute their setsums. Because sums do not depend on order, the rest is an addition::

    collected + sum over the fragments found whole = setsum in the manifest

Nothing is written. What is collected while it runs is not missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from cordwood.base.errors import Code, FormatError, InternalError
from cordwood.base.setsum import Setsum
from cordwood.log import scrub as of_log
from cordwood.log import tree
from cordwood.log.fetch import check_fragment
from cordwood.log.format import Ancestor, Fragment
from cordwood.log.log import Log
from cordwood.log.objects import LogObjects
from cordwood.log.scrub import Fault, ScrubReport
from cordwood.pipeline.divide import divide, read_bytes
from cordwood.pipeline.engine import AUTO, Engine, Progress, run
from cordwood.pipeline.job import Job, Unit

READS_AT_ONCE = 4
"""Fragments of a unit being read or checked at once."""


class ScrubSettings(Struct, frozen=True):
    """Which log."""

    store: str
    log: str


class ScrubUnit(Unit, frozen=True, kw_only=True):
    """Some fragments, neighbours."""

    fragments: tuple[Fragment, ...]
    ancestors: tuple[Ancestor, ...] = ()

    @property
    def title(self) -> str:
        """For people: which records."""
        return f"offsets [{self.fragments[0].start}, {self.fragments[-1].limit})"


class Wrong(Struct, frozen=True):
    """A fragment that is not what its pointer says."""

    fragment: Fragment
    code: Code
    where: str
    message: str


class ScrubResult(Struct, frozen=True):
    """What the records of some fragments add up to."""

    records: int
    bytes: int
    fragments: int
    setsum: str
    """As computed from the records of those that are whole."""
    wrong: tuple[Wrong, ...] = ()


class Scrub(Job[ScrubSettings, ScrubUnit, ScrubResult, ScrubReport]):
    """Checks every record of one log."""

    name = "scrub"
    settings_type = ScrubSettings
    unit_type = ScrubUnit
    result_type = ScrubResult

    async def weigh(self) -> int:
        """The bytes in fragments. One GET."""
        try:
            manifest = await self._log().manifest()
        except FormatError:
            return 0  # The plan finds it again, and reports it.
        return sum(pointer.num_bytes for pointer in tree.roots(manifest))

    async def plan(self, engine: Engine) -> list[ScrubUnit]:
        """Walk the metadata; its faults go into the report."""
        found: list[Fragment] = []
        objects = self._log().objects
        self._shallow = await of_log.scrub(objects, seen=found.append)
        self._named = Setsum.sum(fragment.setsum_hex for fragment in found)
        if not found:
            return []
        total = sum(fragment.num_bytes for fragment in found)
        target = read_bytes(total, await engine.slots())
        return [
            ScrubUnit(
                fragments=group,
                ancestors=objects.ancestors,
                num_bytes=sum(fragment.num_bytes for fragment in group),
            )
            for group in divide(found, lambda fragment: fragment.num_bytes, target)
        ]

    async def work(self, unit: ScrubUnit) -> ScrubResult:
        """Read the fragments and hash every record. One GET each."""
        store = self.store(self.settings.store)
        objects = LogObjects(store, self.settings.log, unit.ancestors)
        turn, places = asyncio.Lock(), asyncio.Semaphore(READS_AT_ONCE)

        async def check(fragment: Fragment) -> Wrong | None:
            async with places:
                try:
                    await check_fragment(objects, fragment, turn)
                except FormatError as error:
                    return Wrong(fragment, error.code, objects.key_of(fragment), error.message)
                return None

        found = await asyncio.gather(*(check(fragment) for fragment in unit.fragments))
        whole = [f for f, wrong in zip(unit.fragments, found, strict=True) if wrong is None]
        return ScrubResult(
            records=sum(fragment.num_records for fragment in whole),
            bytes=sum(fragment.num_bytes for fragment in whole),
            fragments=len(whole),
            # Each is what was recomputed: `check_fragment` compared it with its pointer.
            setsum=Setsum.sum(fragment.setsum_hex for fragment in whole).hexdigest(),
            wrong=tuple(wrong for wrong in found if wrong is not None),
        )

    async def finish(self, results: Sequence[ScrubResult]) -> ScrubReport:
        """Add up, and compare with the manifest. One GET if a fragment is missing."""
        wrong = [one for result in results for one in result.wrong]
        read = Setsum.sum(result.setsum for result in results)
        if read + Setsum.sum(one.fragment.setsum_hex for one in wrong) != self._named:
            raise InternalError("the units of a scrub are not all that there was to read")
        oldest = await self._oldest_since(wrong)
        missed = [one for one in wrong if one.fragment.limit > oldest]
        shallow = self._shallow
        return ScrubReport(
            deep=True,
            records=sum(result.records for result in results),
            bytes=sum(result.bytes for result in results),
            fragments=sum(result.fragments for result in results),
            nodes=shallow.nodes,
            setsum=shallow.setsum - Setsum.sum(one.fragment.setsum_hex for one in missed),
            errors=[*shallow.errors, *(Fault(one.code, one.where, one.message) for one in missed)],
        )

    async def _oldest_since(self, wrong: Sequence[Wrong]) -> int:
        """The oldest offset as it is now, if something is missing; else none that explains it."""
        if all(one.code is not Code.MISSING_OBJECT for one in wrong):
            return 0
        return (await self._log().manifest()).oldest_offset

    def _log(self) -> Log:
        return Log(self.store(self.settings.store), self.settings.log)


async def scrub_log(
    log: Log, *, engine: str | Engine = AUTO, progress: Progress | None = None
) -> ScrubReport:
    """Check every record of a log, on the engine of this name. See `Log.scrub`.

    Raises:
        NotFoundError: there is no such log.
        StoreError: the store could not be read; what is damaged goes into the report instead.
    """
    job = Scrub(ScrubSettings(log.store.url, log.name), [log.store])
    return await run(job, engine, progress)
