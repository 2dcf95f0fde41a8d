"""Nobody starves: how an outsider gets a word in beside a busy writer.

A busy writer swaps the manifest as soon as its last swap landed. An outsider that reads the
manifest and then swaps it is always too late. So it leaves an *intent*, a small object under
`intent/`, and the live writer, which looks there every few seconds, makes room::

    outsider                              busy writer
    puts intent/turn-<time>-<id>
    polls the intent and the manifest     lists intent/ every `intent_interval_s`
                                          takes no new slots, lets its own land and be named
                                          deletes the intent: the turn is granted
    sees it gone: takes a slot, swaps     keeps quiet until the manifest changes, or for a while
    got through: deletes the intent       reads the manifest, goes on

A collection asks for less: an intent `unlink` says that the garbage of this id may be applied, and
the writer does so with its next manifest, without a pause (log/collect.py).

Safety never depends on any of this: whoever swaps, swaps by compare-and-swap. If the writer is dead
the manifest stands still, which the outsider sees, and goes ahead by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import AlreadyExistsError, CordwoodError, NotFoundError
from cordwood.log import paths
from cordwood.log.folding import Spawn
from cordwood.log.objects import LogObjects

TURN = "turn"
"""Let me write."""
UNLINK = "unlink"
"""Apply the garbage of this id with your next manifest."""
POLL_S = 0.05
STAND_STILL_MIN_S = 0.3
STAND_STILL_MAX_S = 3.0
STAND_STILL_PUTS = 10
"""A manifest that nobody replaced for as long as ten puts take has no busy writer."""

PATIENCE_S = 1.0
PATIENCE_SWAPS = 8
"""A granted turn lasts at least a second, and as long as this many of the writer's own swaps."""


CROWD = 8
"""A writer that was just asked looks this many times as often."""


class Intent(msgspec.Struct, frozen=True):
    """What an intent object says."""

    kind: str
    id: str
    created_us: int


class Asker:
    """An outsider's side: one intent, which keeps its age until the outsider has got through."""

    def __init__(
        self,
        objects: LogObjects,
        clock: Clock,
        entropy: Entropy,
        kind: str = TURN,
        token: str = "",
    ) -> None:
        """Nothing asked yet. `token` is the intent's id; a fresh one if there is none."""
        self._objects = objects
        self._clock = clock
        self._entropy = entropy
        self._kind = kind
        self._token = token
        self._key: str | None = None
        self._content = b""

    @property
    def is_asking(self) -> bool:
        """Whether an intent may stand."""
        return self._key is not None

    async def ask(self) -> None:
        """Return when it is our turn, or when nobody else writes. One PUT, then two HEADs a poll.

        Asked again before `release`, the same intent is put again: who lost its turn to somebody
        does not go to the end of the line.
        """
        if self._key is None:
            token = self._token or self._entropy.token()
            intent = Intent(self._kind, token, self._clock.now_us())
            path = paths.intent(self._kind, f"{intent.created_us:016x}-{intent.id}")
            self._key, self._content = self._objects.key(path), msgspec.json.encode(intent)
        started_s = self._clock.monotonic_s()
        with suppress(AlreadyExistsError):
            await self._objects.store.put(self._key, self._content, "create")
        put_s = self._clock.monotonic_s() - started_s
        still_s = min(STAND_STILL_MAX_S, max(STAND_STILL_MIN_S, STAND_STILL_PUTS * put_s))
        etag = await self._objects.manifest_etag()
        since_s = self._clock.monotonic_s()
        until_s = since_s + still_s
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._objects.store.head(self._key)
            except NotFoundError:
                return
            now = await self._objects.manifest_etag()
            now_s = self._clock.monotonic_s()
            if now != etag:
                etag, since_s, until_s = now, now_s, now_s + still_s
            elif now_s >= until_s:
                # Nobody is busy. Those who wait go one after the other, the oldest first.
                until_s = since_s + still_s * (1 + await self._rank())
                if now_s >= until_s:
                    return

    async def release(self) -> None:
        """We got through, or no longer want to. One DELETE, if anything was asked."""
        if self._key is not None:
            key, self._key = self._key, None
            with suppress(CordwoodError):
                await self._objects.store.delete([key])

    async def _rank(self) -> int:
        """How many have waited longer. One LIST."""
        waiting = [meta.key async for meta in self._objects.list(paths.intent(self._kind, ""))]
        return sum(key < (self._key or "") for key in waiting)


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
        self._was_asked = False
        self.asked: str | None = None
        """The intent to be granted. While there is one, its writer takes no new slots."""
        self.unlink: str | None = None
        """The intent of a collection that waits for its garbage to be applied."""
        self.task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Look for intents, if it is time. One LIST."""
        now_s = self._clock.monotonic_s()
        # Where somebody asked there are others, most likely.
        interval_s = self._interval_s / CROWD if self._was_asked else self._interval_s
        if now_s - self._looked_s >= interval_s and self.task is None and self.asked is None:
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
            keys = [meta.key async for meta in self._objects.list(paths.INTENT_PREFIX)]
            turn, unlink = (self._objects.key(paths.intent(k, "")) for k in (TURN, UNLINK))
            self.asked = min((key for key in keys if key.startswith(turn)), default=None)
            self.unlink = min((key for key in keys if key.startswith(unlink)), default=None)
        except CordwoodError:
            # Making room is a courtesy; the next look comes soon.
            self.asked = None
        finally:
            self.task = None
        self._was_asked = self.asked is not None or self.unlink is not None
        self._wake(False)

    def unlinked(self, intent: str) -> None:
        """Its garbage was applied, or does not fit: either way its collection goes on."""
        self._spawn(self._forget, intent)
        if self.unlink == intent:
            self.unlink = None

    async def _forget(self, key: str) -> None:
        with suppress(CordwoodError):
            await self._objects.store.delete([key])

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
