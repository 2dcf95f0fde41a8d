"""The survey: every member of a fleet and what its dirty log says, without changing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from cordwood.base.clock import SYSTEM_CLOCK, Clock
from cordwood.base.errors import CordwoodError, NotFoundError
from cordwood.fleet.dirty import PREFIX, DirtyLog
from cordwood.fleet.marks import Said, gather
from cordwood.fleet.rollup import LOOKS_AT_ONCE, dirty_of, look_at
from cordwood.fleet.select import Dirty, merge
from cordwood.log.log import Log
from cordwood.store.streams import as_generator
from cordwood.store.url import Store


@dataclass(slots=True)
class MemberSurvey:
    """What one member's dirty log says."""

    member: str
    marks: int = 0
    """Behind its cursor."""
    dirty: list[Dirty] = field(default_factory=list)
    clean: list[str] = field(default_factory=list)
    """Logs that are marked and have nothing to compact: the next roll-ups drop them."""
    errors: dict[str, str] = field(default_factory=dict)
    """Logs that could not be looked at, and why."""
    damage: str = ""
    """What of the dirty log cannot be read: no roll-up goes past it."""


@dataclass(slots=True)
class Survey:
    """What all members' dirty logs say."""

    members: list[MemberSurvey]

    @property
    def dirty(self) -> list[Dirty]:
        """Each dirty log once, oldest first."""
        return merge(one for member in self.members for one in member.dirty)


async def members(store: Store | str) -> list[str]:
    """The members that have a dirty log, by name. One LIST each."""
    lies_in = store if isinstance(store, Store) else Store(store)
    found: list[str] = []
    after = ""
    while True:
        async with aclosing(as_generator(lies_in.list(PREFIX, after))) as metas:
            meta = await anext(metas, None)
        if meta is None:
            return found
        member = meta.key.removeprefix(PREFIX).partition("/")[0]
        found.append(member)
        # "0" is the sign after "/": behind everything of this member, before the next.
        after = f"{PREFIX}{member}0"


async def survey(
    store: Store | str, only: Sequence[str] | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> Survey:
    """Look at the dirty logs of all members, or of some, and at every log they mark.

    Raises:
        NotFoundError: a member that was asked for has no dirty log.
    """
    lies_in = store if isinstance(store, Store) else Store(store)
    names = await members(lies_in) if only is None else only
    return Survey([await _survey_member(DirtyLog(lies_in, name, clock=clock)) for name in names])


async def _survey_member(dirty_log: DirtyLog) -> MemberSurvey:
    try:
        witness = await dirty_log.cursor()
        reading = await dirty_log.read(None if witness is None else witness.offset)
    except NotFoundError as error:
        raise NotFoundError(
            f"the fleet has no member {dirty_log.member!r}: {error.message}",
            code=error.code,
            hint="`cordwood fleet status` without --member lists those that wrote something",
        ) from error
    result = MemberSurvey(
        dirty_log.member,
        marks=len(reading.marks) + len(reading.beyond),
        damage=str(reading.damage or ""),
    )
    turns = asyncio.Semaphore(LOOKS_AT_ONCE)
    said = gather([*reading.marks, *reading.beyond])
    await asyncio.gather(*(_look(dirty_log, name, said[name], result, turns) for name in said))
    result.dirty.sort(key=lambda one: (one.first_us, one.log))
    result.clean.sort()
    return result


async def _look(
    dirty_log: DirtyLog, name: str, said: Said, result: MemberSurvey, turns: asyncio.Semaphore
) -> None:
    async with turns:
        try:
            look = await look_at(Log(dirty_log.store, name), said)
        except CordwoodError as error:
            result.errors[name] = error.message
            return
    dirty = dirty_of(name, said, look, dirty_log.member, dirty_log.clock.now_us())
    if dirty is None:
        result.clean.append(name)
    else:
        result.dirty.append(dirty)
