"""Leases: on a store, what a lock is on a disk. Who holds one says so again and again.

A lease is one object. It counts until it is released, or until nobody has renewed it for its time
to live; both its age and the time are told by the store's own clock. It is renewed by a conditional
put: one that was found to be over, and removed, cannot come back. Its holder stops using what it
protects before its time is over, by a clock that does not jump.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress

from cordwood.base import portal
from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    Code,
    ConflictError,
    CordwoodError,
    NotFoundError,
    StateError,
    UncertainError,
)
from cordwood.store.api import Buffer, Match, PutMode
from cordwood.store.url import Store

TTL_S = 60.0
RENEWALS = 4
"""How often a lease is renewed within its time."""
TRUSTED = 0.75
"""The part of its time for which a holder relies on a lease."""


class Lease:
    """One that is held, and renewed in the background."""

    def __init__(self, leases: Leases, key: str, etag: str, made_s: float) -> None:
        """Made by `Leases.take_named`."""
        self._leases = leases
        self.key = key
        self._etag = etag
        self._renewed_s = made_s
        self._is_over = False
        self._portal = portal.current()
        self._busy = asyncio.Lock()
        self._work: Future[None] | None = None

    def check(self) -> None:
        """Go on only if it still holds.

        Raises:
            StateError: it lapsed: nobody could renew it in time. Or it is a parent's process.
        """
        portal.check_same(self._portal, self._leases.what)
        age_s = self._leases.clock.monotonic_s() - self._renewed_s
        if self._is_over or age_s > TRUSTED * self._leases.ttl_s:
            raise StateError(
                f"{self._leases.what} has lapsed: it could not be renewed in time",
                code=Code.CLOSED,
                hint="open a new one; what it looked at may be gone",
            )

    def keep(self) -> None:
        """Renew it until it is released."""
        self._work = portal.current().start(self._renew_on())

    async def release(self) -> None:
        """End it; twice is no error, and a forked child leaves it to its parent."""
        if self._portal is not portal.current():
            return
        if self._work is not None:
            self._work.cancel()
        async with self._busy:
            self._is_over = True
            with suppress(CordwoodError):
                await self._leases.store.delete([self.key])

    async def _renew_on(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._leases.ttl_s / RENEWALS)
            with suppress(CordwoodError):
                await asyncio.shield(asyncio.ensure_future(self._renew()))

    async def _renew(self) -> None:
        async with self._busy:
            if self._is_over:
                return
            now_s = self._leases.clock.monotonic_s()
            try:
                self._etag = await self._leases.put(self.key, Match(self._etag))
            except UncertainError:
                raise  # It may hold or not; the time that we trust it goes on as before.
            except (ConflictError, NotFoundError):
                self._is_over = True
                return
            self._renewed_s = now_s


class Leases:
    """All leases of one kind: the objects of a folder."""

    def __init__(
        self,
        store: Store,
        folder: str,
        clock: Clock,
        entropy: Entropy,
        *,
        what: str,
        ttl_s: float = TTL_S,
    ) -> None:
        """In a folder of a store; no I/O. `what` is what lapses, for errors."""
        self.store = store
        self.clock = clock
        self.what = what
        self.ttl_s = ttl_s
        self._folder = folder
        self._entropy = entropy

    async def put(self, key: str, mode: PutMode) -> str:
        """Write a lease; every time with other bytes, so that every time is another."""
        return await self.store.put(key, f"{self.ttl_s} {self._entropy.token()}".encode(), mode)

    async def take_named(self, name: str) -> Lease:
        """A lease of this name, which nobody else has. One PUT."""
        key = f"{self._folder}/{name}"
        made_s = self.clock.monotonic_s()
        etag = await self.put(key, "create")
        return Lease(self, key, etag, made_s)

    async def live_names(self, own: Lease | None = None) -> list[str]:
        """The names of the leases that count; those that are over are removed.

        One LIST, and if there are any, a PUT and a HEAD for the time, and a GET for each that may
        be over. Who has a lease and names it saves asking for the time: its own was renewed not
        long ago.
        """
        found = [meta async for meta in self.store.list(f"{self._folder}/")]
        if not found:
            return []
        mine = [meta.modified_us for meta in found if own is not None and meta.key == own.key]
        now_us = mine[0] if mine else await self.now_us()
        return [
            meta.key.rpartition("/")[2]
            for meta in found
            if not await self._is_over(meta.key, meta.modified_us, now_us)
        ]

    async def now_us(self) -> int:
        """What time it is by the store's own clock. One PUT, one HEAD."""
        probe = f"{self._folder.rpartition('/')[0]}/clock".lstrip("/")
        await self.store.put(probe, self._entropy.token().encode(), "overwrite")
        return (await self.store.head(probe)).modified_us

    async def _is_over(self, key: str, modified_us: int, now_us: int) -> bool:
        """Whether its time has passed; if so it is taken away, unless it was renewed just now."""
        if now_us - modified_us <= _age_us(self.ttl_s):
            return False
        try:
            there = await self.store.get(key)
            ttl_s = _ttl_s(there.data, self.ttl_s)
            # The time it was made for counts, whatever ours is; and stores keep whole seconds.
            if now_us - modified_us <= _age_us(ttl_s):
                return False
            # So that a renewal under way fails: from now on it is another object, and then none.
            await self.store.put(key, b"0 over", Match(there.etag))
        except NotFoundError:
            return True
        except ConflictError:
            return False
        await self.store.delete([key])
        return True


def _ttl_s(data: Buffer, usual_s: float) -> float:
    """The time a lease was made for; of one that cannot be read, the usual."""
    try:
        return float(bytes(data).split()[0])
    except (IndexError, ValueError):
        return usual_s


def _age_us(ttl_s: float) -> int:
    return int(ttl_s * 1_000_000) + 2_000_000
