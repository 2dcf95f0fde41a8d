"""The roll-up of a fleet: a unit is one member's dirty log. See fleet/rollup.py.

All members together say which logs are dirty; fleet/select.py says which of them are worth a
compaction now, by size, age and the roll-ups they have outlasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from cordwood.base.clock import SYSTEM_CLOCK, Clock
from cordwood.base.errors import ConflictError, CordwoodError
from cordwood.fleet.dirty import DirtyLog
from cordwood.fleet.rollup import QUIET_S, roll_up
from cordwood.fleet.select import DEFAULT_POLICY, Dirty, Policy, Selected, merge, select
from cordwood.fleet.survey import MemberSurvey, members, survey
from cordwood.pipeline.engine import Engine, Progress, run
from cordwood.pipeline.job import Job, Unit
from cordwood.store.url import Store


class RollUpSettings(Struct, frozen=True):
    """Which fleet, and what is worth a compaction."""

    store: str
    policy: Policy = DEFAULT_POLICY
    quiet_s: float = QUIET_S


class RollUpUnit(Unit, frozen=True, kw_only=True):
    """One member's dirty log."""

    member: str

    @property
    def title(self) -> str:
        """For people: whose."""
        return self.member


class RolledUp(Struct, frozen=True):
    """What one member's dirty log said."""

    member: str
    marks: int = 0
    dirty: tuple[Dirty, ...] = ()
    dropped: tuple[str, ...] = ()
    errors: dict[str, str] = {}
    """Logs that could not be looked at, and why; of the member itself under its own name."""


class FleetRolledUp(Struct, frozen=True):
    """What a whole fleet needs."""

    members: tuple[RolledUp, ...]
    dirty: tuple[Dirty, ...]
    """Each dirty log once, oldest first."""
    selected: tuple[Selected, ...]
    """Those that are worth a compaction now, and why."""

    @property
    def errors(self) -> dict[str, str]:
        """What could not be looked at, and why."""
        return {name: why for one in self.members for name, why in one.errors.items()}


class RollUp(Job[RollUpSettings, RollUpUnit, RolledUp, FleetRolledUp]):
    """Rolls up every dirty log of a fleet."""

    name = "rollup"
    settings_type = RollUpSettings
    unit_type = RollUpUnit
    result_type = RolledUp

    clock: Clock = SYSTEM_CLOCK
    """Of who works here; elsewhere it is the machine's."""

    async def plan(self, engine: Engine) -> list[RollUpUnit]:
        """A unit for each member. One LIST each."""
        found = await members(self.store(self.settings.store))
        return [RollUpUnit(member=member, num_bytes=1) for member in found]

    async def work(self, unit: RollUpUnit) -> RolledUp:
        """Roll one dirty log up; should somebody else do the same, nothing is lost."""
        store = self.store(self.settings.store)
        async with DirtyLog(store, unit.member, clock=self.clock) as dirty_log:
            try:
                report = await roll_up(dirty_log, quiet_s=self.settings.quiet_s)
                if report.limit > report.start:
                    with suppress(ConflictError):
                        await dirty_log.log.collect(wait_s=0.0)
            except CordwoodError as error:
                return RolledUp(unit.member, errors={unit.member: error.message})
        errors = dict(report.errors)
        if report.damage:
            errors[unit.member] = report.damage
        return RolledUp(
            unit.member, report.marks, tuple(report.dirty), tuple(report.dropped), errors
        )

    async def finish(self, results: Sequence[RolledUp]) -> FleetRolledUp:
        """All members together, and what is to be done."""
        return _together(results, self.settings.policy, self.clock)


async def roll_up_fleet(
    store: Store | str,
    *,
    policy: Policy = DEFAULT_POLICY,
    quiet_s: float = QUIET_S,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    engine: str | Engine = "local",
    progress: Progress | None = None,
) -> FleetRolledUp:
    """Roll up all dirty logs of a store, and select what is worth a compaction.

    Args:
        store: where the fleet's logs lie.
        policy: which logs are worth a compaction.
        quiet_s: a mark younger than this stays although its log needs no compaction.
        dry_run: only look; every mark stays.
        clock: what time it is; on Spark, for the selection alone.
        engine: `local`, `spark`.
        progress: called with members done and members there are.
    """
    lies_in = store if isinstance(store, Store) else Store(store)
    if dry_run:
        found = await survey(lies_in, clock=clock)
        return _together([_looked_at(member) for member in found.members], policy, clock)
    job = RollUp(RollUpSettings(lies_in.url, policy, quiet_s), [lies_in])
    job.clock = clock
    return await run(job, engine, progress)


def _together(results: Sequence[RolledUp], policy: Policy, clock: Clock) -> FleetRolledUp:
    """What all members say, and what is to be done."""
    dirty = merge(one for result in results for one in result.dirty)
    selected = select(dirty, clock.now_us(), policy)
    return FleetRolledUp(tuple(results), tuple(dirty), tuple(selected))


def _looked_at(found: MemberSurvey) -> RolledUp:
    """What a roll-up of this member would say."""
    errors = dict(found.errors) | ({found.member: found.damage} if found.damage else {})
    return RolledUp(found.member, found.marks, tuple(found.dirty), (), errors)
