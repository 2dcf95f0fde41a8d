"""Groups of consumers on a store: who is there, who reads what, and how far they are.

::

    groups/{group}/members/{id}     a lease (store/leases.py), renewed as long as the member lives
    groups/{group}/{partition}      whose the partition is, and where the group goes on in it

Which partitions a member should have follows from who is there, as in a directory (members.py). It
makes one its own by writing its name there, if it is nobody's, or that of somebody whose lease is
over; who should give it up takes its name away. Every write is a compare-and-swap with what the
writer saw last. So a commit succeeds only as long as nobody else has made the partition its own,
whatever a member believes that was asleep meanwhile: position and owner are one object.

That somebody's lease is over is looked up after its name was read: a lease is there before the name
of its holder is, and never comes back.

A group's positions hold back nothing: retention is the topic's own. So they are not cursors of its
logs, which would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from cordwood.base import portal
from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    CordwoodError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.journal import document
from cordwood.store.api import Match, PutMode
from cordwood.store.leases import Lease, Leases
from cordwood.store.url import Store
from cordwood.topics.members import shares

TTL_S = 15.0
"""So long after its death a member keeps its partitions."""
TRIES_MAX = 5

T = TypeVar("T")


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose a partition is, and where its group goes on."""

    owner: str
    """A member; empty if it is nobody's."""
    offset: int | None
    """None: nothing was committed yet."""
    nonce: str
    """Makes every write another."""
    format: int = document.FORMAT


class Group:
    """The objects of a group."""

    def __init__(
        self, store: Store, folder: str, clock: Clock, entropy: Entropy, ttl_s: float
    ) -> None:
        """No I/O."""
        self.store = store
        self.folder = folder
        self.entropy = entropy
        self.leases = Leases(
            store, f"{folder}/members", clock, entropy, what="the consumer's lease", ttl_s=ttl_s
        )

    async def load(self, partition: int) -> tuple[Place, str] | None:
        """Whose a partition is, and the etag of that; None if nobody ever had it."""
        key = f"{self.folder}/{partition}"
        try:
            data, etag = await self.store.get(key)
        except NotFoundError:
            return None
        return document.decoded("place", Place, bytes(data), key), etag

    async def save(self, partition: int, owner: str, offset: int | None, etag: str) -> str:
        """Write a place over the one with this etag, none if it is empty; the new etag.

        Raises:
            ConflictError: somebody else wrote it.
            StoreError: nothing was written, or nobody can know.
        """
        key = f"{self.folder}/{partition}"
        place = Place(owner, offset, self.entropy.token())
        mode: PutMode = Match(etag) if etag else "create"
        try:
            return await self.store.put(key, document.encoded("place", place), mode)
        except AlreadyExistsError as error:
            raise ConflictError(f"{key} was made by somebody else") from error
        except (UncertainError, StoreError) as error:
            if isinstance(error, StoreError) and not error.applied:
                raise
            # It may be there or not: as long as it can be read, that can be known.
            there = await self.load(partition)
            if there is not None and there[0].nonce == place.nonce:
                return there[1]
            raise StoreError(
                f"{key} was not written, or not yet: {error.message}", transient=True
            ) from error

    async def positions(self) -> dict[int, int]:
        """Where it goes on, by partition."""
        numbers = await self.numbers()
        found = {}
        for number, there in zip(
            numbers, await asyncio.gather(*map(self.load, numbers)), strict=True
        ):
            if there is not None and there[0].offset is not None:
                found[number] = there[0].offset
        return found

    async def numbers(self) -> list[int]:
        """The partitions that some member had."""
        prefix = f"{self.folder}/"
        names = [meta.key.removeprefix(prefix) async for meta in self.store.list(prefix)]
        return sorted(int(name) for name in names if name.isdecimal())

    async def delete(self) -> None:
        """Forget it.

        Raises:
            NotFoundError: there is none.
            StateError: it has members.
        """
        keys = [meta.key async for meta in self.store.list(f"{self.folder}/")]
        if not keys:
            raise NotFoundError(f"there is no group {self.folder.rpartition('/')[2]!r}")
        if await self.leases.live_names():
            raise StateError(
                f"{self.folder} has members that are consuming",
                hint=f"close its consumers first; one that died counts for {self.leases.ttl_s:g} s",
            )
        keys = [meta.key async for meta in self.store.list(f"{self.folder}/")]
        await self.store.delete(keys)


class LeasedMember:
    """A member of a group."""

    def __init__(self, group: Group, partitions: int) -> None:
        """Join: from now on others see it."""
        self._group = group
        self._partitions = partitions
        self._owned: dict[int, tuple[Place, str]] = {}
        self._lease: Lease | None = None
        _run(self._join())

    @property
    def id(self) -> str:
        """The name of its lease."""
        return "" if self._lease is None else self._lease.key.rpartition("/")[2]

    def owned(self) -> frozenset[int]:
        """See `Membership`."""
        return _run(self._refresh())

    def positions(self) -> dict[int, int]:
        """See `Membership`: they were read when the partitions became its own."""
        return {
            number: place.offset
            for number, (place, _) in self._owned.items()
            if place.offset is not None
        }

    def commit(self, positions: Mapping[int, int]) -> None:
        """See `Membership`."""
        _run(self._commit(positions))

    def leave(self) -> None:
        """See `Membership`."""
        if self._lease is not None:
            _run(self._leave())

    async def _join(self) -> None:
        name = self._group.entropy.token()[:16]
        self._lease = await self._group.leases.take_named(name)
        self._lease.keep()

    async def _leave(self) -> None:
        lease, self._lease = self._lease, None
        assert lease is not None
        with suppress(CordwoodError):  # Else its lease runs out.
            await self._give_up(set(self._owned))
        await lease.release()

    async def _refresh(self) -> frozenset[int]:
        if self._lease is None:
            raise StateError("the consumer has left its group", hint="open another")
        try:
            self._lease.check()
        except StateError:
            # Asleep, or cut off, for too long: all is given up, and it comes back as a new one.
            self._owned.clear()
            await self._lease.release()
            await self._join()
            return frozenset()
        live = await self._group.leases.live_names(self._lease)
        mine = set(shares([*{*live, self.id}], self._partitions)[self.id])
        await self._give_up(set(self._owned) - mine)
        await self._claim(sorted(mine - set(self._owned)))
        return frozenset(self._owned)

    async def _give_up(self, partitions: set[int]) -> None:
        given = {number: self._owned.pop(number) for number in partitions}
        saves = [
            self._group.save(number, "", place.offset, etag)
            for number, (place, etag) in given.items()
        ]
        # One that is somebody else's by now was given up before.
        for outcome in await asyncio.gather(*saves, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, ConflictError):
                raise outcome

    async def _claim(self, partitions: list[int]) -> None:
        """Make partitions our own that are nobody's."""
        if not partitions:
            return
        there = await asyncio.gather(*map(self._group.load, partitions))
        owners = {one[0].owner for one in there if one is not None} - {"", self.id}
        alive = set(await self._group.leases.live_names(self._lease)) if owners else set()
        for number, one in zip(partitions, there, strict=True):
            place, etag = one or (Place("", None, ""), "")
            if place.owner in alive:
                continue
            with suppress(ConflictError):
                if place.owner != self.id:
                    etag = await self._group.save(number, self.id, place.offset, etag)
                    place = msgspec.structs.replace(place, owner=self.id)
                self._owned[number] = place, etag

    async def _commit(self, positions: Mapping[int, int]) -> None:
        commits = [self._commit_one(number, offset) for number, offset in positions.items()]
        failures = [
            one
            for one in await asyncio.gather(*commits, return_exceptions=True)
            if isinstance(one, BaseException)
        ]
        if failures:
            raise failures[0]

    async def _commit_one(self, partition: int, offset: int) -> None:
        failure: StoreError | None = None
        for _ in range(TRIES_MAX):
            if partition not in self._owned:
                raise _lost(partition)
            self._check_lease(partition)
            place, etag = self._owned[partition]
            try:
                etag = await self._group.save(partition, self.id, offset, etag)
            except ConflictError as error:
                self._owned.pop(partition, None)
                raise _lost(partition) from error
            except StoreError as error:
                if not error.transient:
                    raise
                failure = error
                continue
            self._owned[partition] = msgspec.structs.replace(place, offset=offset), etag
            return
        assert failure is not None
        raise failure

    def _check_lease(self, partition: int) -> None:
        if self._lease is None:
            raise _lost(partition)
        try:
            self._lease.check()
        except StateError as error:
            raise _lost(partition) from error


def _lost(partition: int) -> ConflictError:
    return ConflictError(
        f"partition {partition} is another member's by now, or may be: it was not committed",
        hint="whoever has it goes on from the last commit",
    )


def _run(work: Coroutine[Any, Any, T]) -> T:
    return portal.current().run(work)
