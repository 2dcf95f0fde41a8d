"""Nobody starves: how an outsider gets a word in beside a busy writer.

A busy writer swaps the manifest as soon as its last swap landed. An outsider that reads the
manifest and then swaps it is always too late. So it leaves an *intent*, a small object under
`intent/`, and the live writer, which looks there every few seconds, makes room::

    outsider                              busy writer
    puts intent/turn-<id>
    polls the intent and the manifest     lists intent/ every `intent_interval_s`
                                          takes no new slots, lets its own land and be named
                                          deletes the intent: the turn is granted
    sees it gone: takes a slot, swaps     keeps quiet until the manifest changes, or for a while
                                          reads the manifest, goes on

Safety never depends on any of this: whoever swaps, swaps by compare-and-swap. If the writer is dead
the manifest stands still, which the outsider sees, and goes ahead by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import CordwoodError, NotFoundError
from cordwood.log import paths
from cordwood.log.folding import Spawn
from cordwood.log.objects import LogObjects

TURN = "turn"
POLL_S = 0.05
STAND_STILL_MIN_S = 0.3
STAND_STILL_MAX_S = 3.0
STAND_STILL_PUTS = 10
"""A manifest that nobody replaced for as long as ten puts take has no busy writer."""

PATIENCE_S = 1.0
PATIENCE_SWAPS = 8
"""A granted turn lasts at least a second, and as long as this many of the writer's own swaps."""


class Intent(msgspec.Struct, frozen=True):
    """What an intent object says."""

    kind: str
    id: str
    created_us: int


async def ask_turn(objects: LogObjects, clock: Clock, entropy: Entropy) -> None:
    """Return when it is our turn, or when nobody else writes. One PUT, then two HEADs a poll."""
    token = entropy.token()
    key = objects.key(paths.intent(TURN, token))
    intent = Intent(TURN, token, clock.now_us())
    started_s = clock.monotonic_s()
    await objects.store.put(key, msgspec.json.encode(intent), "create")
    put_s = clock.monotonic_s() - started_s
    stand_still_s = min(STAND_STILL_MAX_S, max(STAND_STILL_MIN_S, STAND_STILL_PUTS * put_s))
    try:
        etag = await objects.manifest_etag()
        since_s = clock.monotonic_s()
        while clock.monotonic_s() - since_s < stand_still_s:
            await asyncio.sleep(POLL_S)
            try:
                await objects.store.head(key)
            except NotFoundError:
                return
            now = await objects.manifest_etag()
            if now != etag:
                etag, since_s = now, clock.monotonic_s()
    finally:
        await objects.store.delete([key])


class TurnKeeper:
    """A busy writer's side: looks for those who ask, and lets one of them go ahead."""

    def __init__(
        self,
        objects: LogObjects,
        clock: Clock,
        interval_s: float,
        spawn: Spawn,
        wake: Callable[[bool], None],
    ) -> None:
        """Look every `interval_s`; call `wake` after each look (False) and each turn (True)."""
        self._objects = objects
        self._clock = clock
        self._interval_s = interval_s
        self._spawn = spawn
        self._wake = wake
        self._looked_s = clock.monotonic_s()
        self.asked: str | None = None
        """The intent to be granted. While there is one, its writer takes no new slots."""
        self.task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Look for intents, if it is time. One LIST."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= self._interval_s and self.task is None and self.asked is None:
            self._looked_s = now_s
            self.task = self._spawn(self._find)

    def grant(self, etag: str, swap_s: float) -> None:
        """Give way, now that nothing of the writer's is under way. `etag` names its manifest."""
        if self.asked is not None and self.task is None:
            patience_s = max(PATIENCE_S, PATIENCE_SWAPS * swap_s)
            self.task = self._spawn(self._give_way, self.asked, etag, patience_s)

    async def _find(self) -> None:
        """The turn that was asked for first."""
        try:
            prefix = paths.intent(TURN, "")
            turns = [(m.modified_us, m.key) async for m in self._objects.list(prefix)]
            self.asked = min(turns)[1] if turns else None
        except CordwoodError:
            # Making room is a courtesy; the next look comes soon.
            self.asked = None
        finally:
            self.task = None
        self._wake(False)

    async def _give_way(self, key: str, etag: str, patience_s: float) -> None:
        # Whether the turn was taken is seen when the writer looks at the ground again.
        with suppress(CordwoodError):
            await self._objects.store.delete([key])
            until_s = self._clock.monotonic_s() + patience_s
            while self._clock.monotonic_s() < until_s:
                await asyncio.sleep(POLL_S)
                if await self._objects.manifest_etag() != etag:
                    break
        self.asked = None
        self.task = None
        self._wake(True)
