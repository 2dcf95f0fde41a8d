"""Does this store keep its promises? Ask it, before a log depends on the answer.

There are servers that accept a condition and ignore it, and servers that check it without a lock.
A log on such a store loses records without a word. `probe` is the thorough examination behind
`cordwood store probe`; `verify_conditional_puts` is the short one that the first open of a remote
store makes, once per process and URL.

Both write small objects under `cordwood-probe-<token>/`, a name nobody else has, and delete them at
the end. Neither proves a promise: a race that came out well may come out otherwise tomorrow. But a
store that ignores conditions fails every time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
    StoreError,
    UncertainError,
)
from cordwood.store.api import Match, ObjectStore
from cordwood.store.location import parse_location
from cordwood.store.prefix import PrefixStore
from cordwood.store.url import Store

_RACERS = 8
_SAMPLES = 10
_UNSAFE_HINT = (
    "logs on this store would lose records; use a store that enforces If-Match and "
    "If-None-Match, or turn them on"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and what came of it."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a probe found."""

    checks: tuple[Check, ...]
    put_median_s: float
    put_max_s: float
    get_median_s: float
    get_max_s: float

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return all(check.ok for check in self.checks)


class _BrokenError(Exception):
    """A promise was not kept; the text says how."""


_BROKEN = (_BrokenError, AlreadyExistsError, ContendedError, NotFoundError, InvalidInputError)
"""Also a refusal where there was nothing to refuse."""


async def probe(
    store: ObjectStore, *, clock: Clock = SYSTEM_CLOCK, entropy: Entropy = SYSTEM_ENTROPY
) -> ProbeReport:
    """Examine a store: about a hundred small requests, cleaned up afterwards.

    Raises:
        StoreError: the store cannot be used at all: unreachable, denied.
    """
    run = _Probe(store, clock, entropy)
    try:
        checks = [await _check(name, call) for name, call in run.checks()]
        puts_s, gets_s = await run.latencies()
    finally:
        await run.clean_up()
    return ProbeReport(
        tuple(checks), puts_s[len(puts_s) // 2], puts_s[-1], gets_s[len(gets_s) // 2], gets_s[-1]
    )


async def verify_conditional_puts(
    store: ObjectStore, *, swaps: bool = True, entropy: Entropy = SYSTEM_ENTROPY
) -> None:
    """Refuse a store that ignores conditions: a few requests, once per process and store.

    A `Store` that is not remote is ours and is taken to be sound. Who only ever creates objects
    asks without `swaps`.

    Raises:
        StoreError: `store_unsafe`, conditional puts are not enforced; or the store failed.
    """
    url = store.url if isinstance(store, Store) else ""
    identity = store.identity if isinstance(store, Store) else None
    verified = _verified if swaps else _verified | _verified_creates
    if identity in verified or (isinstance(store, Store) and not store.is_remote):
        return
    run = _Probe(store, SYSTEM_CLOCK, entropy)
    try:
        await run.create_once()
        if swaps:
            await run.swap_once()
    except _BROKEN as error:
        raise StoreError(
            f"store {url or store!r} does not enforce conditional puts: {error}",
            code=Code.STORE_UNSAFE,
            operation="put",
            hint=_UNSAFE_HINT,
        ) from error
    finally:
        await run.clean_up()
    if identity is not None:
        (_verified if swaps else _verified_creates).add(identity)


_verified: set[int] = set()
"""Stores that passed in this process, by `Store.identity`."""

_verified_creates: set[int] = set()
"""Stores of which only creating was asked."""


async def _check(name: str, call: Callable[[], Awaitable[str]]) -> Check:
    try:
        return Check(name, ok=True, detail=await call())
    except _BROKEN as error:
        return Check(name, ok=False, detail=str(error))


class _Probe:
    """The objects of one probe, and the checks on them. A check returns what it saw, or raises."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy) -> None:
        self._folder = f"cordwood-probe-{entropy.token()[:16]}"
        self._store = PrefixStore(store, self._folder)
        self._clock = clock
        self._entropy = entropy
        self._written: set[str] = set()
        self._root = ""
        if isinstance(store, Store) and store.scheme == "file":
            self._root = parse_location(store.url).name
        self._is_new = not os.path.exists(self._root)

    def checks(self) -> list[tuple[str, Callable[[], Awaitable[str]]]]:
        """Every promise by name."""
        return [
            ("create once", self.create_once),
            ("swap by etag", self.swap_once),
            ("swap of an absent object", self.swap_absent),
            ("create race", self.create_race),
            ("swap race", self.swap_race),
            ("read after write", self.read_after_write),
            ("range reads", self.range_reads),
            ("list after write", self.list_after_write),
            ("list order", self.list_order),
            ("delete", self.delete),
        ]

    def _body(self) -> bytes:
        """Bytes that no other put has: S3's etags repeat where bytes do."""
        return self._entropy.token().encode()

    async def _put(self, key: str, data: bytes, etag: str | None = None) -> str:
        """Create, or swap."""
        self._written.add(key)
        return await self._store.put(key, data, "create" if etag is None else Match(etag))

    async def create_once(self) -> str:
        """A second create is refused."""
        first = self._body()
        await self._put("create", first)
        try:
            await self._put("create", self._body())
        except AlreadyExistsError:
            return "the second create of a key was refused"
        raise _BrokenError("a second create of one key succeeded")

    async def swap_once(self) -> str:
        """A stale etag is refused."""
        stale = await self._put("swap", self._body())
        await self._put("swap", self._body(), stale)
        try:
            await self._put("swap", self._body(), stale)
        except ContendedError:
            return "a stale etag was refused"
        raise _BrokenError("a put that matched on a stale etag succeeded")

    async def swap_absent(self) -> str:
        """A match does not create."""
        etag = await self._put("gone", self._body())
        await self._store.delete(["gone"])
        try:
            await self._put("gone", self._body(), etag)
        except ContendedError:
            return "a match on a deleted object was refused"
        raise _BrokenError("a put that matched on a deleted object created it")

    async def create_race(self) -> str:
        """Of concurrent creates one succeeds."""
        return await self._race("create-race", None)

    async def swap_race(self) -> str:
        """Of concurrent swaps from one etag one succeeds."""
        return await self._race("swap-race", await self._put("swap-race", self._body()))

    async def _race(self, key: str, etag: str | None) -> str:
        bodies = [self._body() for _ in range(_RACERS)]
        outcomes = await asyncio.gather(
            *(self._put(key, body, etag) for body in bodies), return_exceptions=True
        )
        won = [
            body for body, outcome in zip(bodies, outcomes, strict=True) if outcome.__class__ is str
        ]
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, AlreadyExistsError | ContendedError | UncertainError
            ):
                raise outcome
        unsure = any(isinstance(outcome, UncertainError) for outcome in outcomes)
        if len(won) > 1 or not (won or unsure):
            raise _BrokenError(f"{len(won)} of {_RACERS} concurrent puts succeeded")
        if won and (await self._store.get(key)).data != won[0]:
            raise _BrokenError("the object is not the winner's")
        return f"one of {_RACERS} concurrent puts succeeded"

    async def read_after_write(self) -> str:
        """Each put is seen by the next get and head."""
        etag = await self._put("fresh", first := self._body())
        for num in range(3):
            found = await self._store.get("fresh")
            if found != (first, etag) or (await self._store.head("fresh")).etag != etag:
                raise _BrokenError(f"read {num} after a put returned something else")
            etag = await self._put("fresh", first := self._body(), etag)
        return "every put was seen by the next read"

    async def range_reads(self) -> str:
        """Ranges are exact."""
        await self._put("range", b"0123456789")
        parts = [
            await self._store.get_range("range", 0, 4),
            await self._store.get_range("range", 8, 9),
        ]
        if parts != [b"0123", b"89"]:
            raise _BrokenError(f"ranges of 0123456789 came back as {parts!r}")
        return "ranges are exact"

    async def list_after_write(self) -> str:
        """A list sees what was just put."""
        for num in range(5):
            await self._put(f"list/{num}", b"")
            keys = await self._keys("list/")
            if keys != [f"list/{before}" for before in range(num + 1)]:
                raise _BrokenError(f"after {num + 1} puts a list gave {len(keys)} keys")
        return "every put was in the next list"

    async def list_order(self) -> str:
        """Lists are in key order, whatever the folders."""
        expected = ["order/a", "order/b-c", "order/b/c", "order/b0", "order/é"]
        for key in reversed(expected):
            await self._put(key, b"")
        if await self._keys("order/") != expected:
            raise _BrokenError(f"a list gave {await self._keys('order/')}")
        if await self._keys("order/b", "order/b-c") != expected[2:4]:
            raise _BrokenError("a list ignored its prefix or its start")
        return "lists are in key order"

    async def delete(self) -> str:
        """A deleted object is gone at once."""
        await self._put("deleted", self._body())
        await self._store.delete(["deleted", "never-there"])
        with suppress(NotFoundError):
            await self._store.get("deleted")
            raise _BrokenError("a deleted object could still be read")
        if await self._keys("deleted"):
            raise _BrokenError("a deleted object was still listed")
        return "a deleted object was gone at once"

    async def latencies(self) -> tuple[list[float], list[float]]:
        """Seconds that single small puts and gets took, sorted."""
        puts_s, gets_s = [], []
        for num in range(_SAMPLES):
            started_s = self._clock.monotonic_s()
            await self._put(f"latency-{num}", self._body())
            between_s = self._clock.monotonic_s()
            await self._store.get(f"latency-{num}")
            puts_s.append(between_s - started_s)
            gets_s.append(self._clock.monotonic_s() - between_s)
        return sorted(puts_s), sorted(gets_s)

    async def clean_up(self) -> None:
        """Delete what was written. What a store that just failed will not delete now is left."""
        with suppress(CordwoodError):
            await self._store.delete(sorted(self._written))
            if self._root:
                await asyncio.to_thread(self._remove_folders)

    def _remove_folders(self) -> None:
        """Of a directory, also what is no object: our folders, with the locks that stay in them."""
        shutil.rmtree(os.path.join(self._root, self._folder), ignore_errors=True)
        if self._is_new:
            with suppress(OSError):  # Somebody may have made use of it meanwhile.
                os.rmdir(self._root)

    async def _keys(self, prefix: str, start_after: str = "") -> list[str]:
        return [meta.key async for meta in self._store.list(prefix, start_after)]
