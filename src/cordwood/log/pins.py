"""Pins: keep a range readable for a while, without holding up anybody.

A pin is one object, `pin/<name>.json`, with the pointers of its range and a time to live. It does
not hold back the manifest, as a cursor does: collection goes on past it, and leaves its files in
place until it ends. `log.reader(pin=name)` reads them. The rules are in log/holds.py.

An ended pin leaves its object behind, whose name can be used again. Who makes pins again and again
takes names at random from a small set, which grows only as far as there are such pins at the same
time (`under_free_name`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Self

import msgspec

from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    ContendedError,
    CordwoodError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    UncertainError,
)
from cordwood.log import paths, tree
from cordwood.log.format import Fragment, NodePointer, decode, encode
from cordwood.log.holds import (
    PinRecord,
    collected,
    cover,
    ended,
    prove_not_collected,
    slots_of,
    store_time_us,
)
from cordwood.log.objects import LogObjects
from cordwood.store.api import Match, PutMode
from cordwood.store.timekeeping import age_us

TTL_S_MAX = 10 * 365 * 86_400

RENEWALS = 3
"""How often a pin that is kept is renewed within its time to live."""

TRIES = 10
"""After an error a renewal is tried again so often in the time between two of them."""

NAMES_MIN = 16
NAMES_GROWTH = 4
NAMES_TRIES = 16

_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")


class Pin:
    """A hold on a range. Release it, or let it expire."""

    def __init__(
        self, objects: LogObjects, entropy: Entropy, name: str, record: PinRecord, etag: str
    ) -> None:
        """Made by `Log.pin`."""
        self._objects = objects
        self._entropy = entropy
        self._record = record
        self._etag = etag
        self._unsure: PinRecord | None = None
        """What was put last, if its answer was lost: it may be what is there."""
        self._turn = asyncio.Lock()
        """A release waits for a renewal that has begun: it must know the pin as that leaves it."""
        self.name = name

    @property
    def start(self) -> int:
        """The first offset held: that of the first fragment of its range."""
        return self._record.start

    @property
    def limit(self) -> int:
        """The first offset behind the last fragment of its range."""
        return self._record.limit

    @property
    def ttl_s(self) -> int:
        """How long it holds after it was made or renewed."""
        return self._record.ttl_s

    async def renew(self, ttl_s: int | None = None) -> None:
        """Begin its time anew. One PUT.

        Raises:
            CollectedError: it has ended.
        """
        async with self._turn:
            await self._settle()
            record = msgspec.structs.replace(
                self._record,
                ttl_s=self._record.ttl_s if ttl_s is None else _check_ttl(ttl_s),
                writer=_writer(self._entropy),
            )
            await self._replace(record)

    async def release(self) -> None:
        """End it: the next collection frees what it held. One PUT; to end it twice is no error."""
        try:
            async with self._turn:
                await self._settle()
                await self._replace(ended(self._record, self._entropy))
        except CollectedError:
            return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def _replace(self, record: PinRecord) -> None:
        key = self._objects.key(paths.pin(self.name))
        try:
            self._etag = await self._objects.store.put(key, encode(record, key), Match(self._etag))
        except UncertainError:
            self._unsure = record
            raise
        except ConflictError as error:
            raise CollectedError(
                f"the pin {self.name!r} of log {self._objects.name!r} has ended, or is not the one "
                "this was made for",
                hint="make a new one",
            ) from error
        self._record = record

    async def _settle(self) -> None:
        """Find out what became of a put whose answer was lost. One GET, if there was one."""
        if self._unsure is None:
            return
        record, etag = await _load(self._objects, self.name)
        if record == self._unsure:
            self._record, self._etag = record, etag
        self._unsure = None


async def make_pin(
    objects: LogObjects, entropy: Entropy, name: str, start: int, limit: int, ttl_s: int
) -> Pin:
    """Hold `[start, limit)`. A PUT, three GETs, and one for each level of the tree.

    Raises:
        AlreadyExistsError: there is a pin of this name that has not ended.
        CollectedError: the range has been collected, or is about to be.
        InvalidInputError: there is no such range.
    """
    key = _key(objects, name)
    _check_ttl(ttl_s)
    manifest, _ = await objects.load()
    if type(start) is not int or type(limit) is not int or not 0 <= start < limit:
        raise InvalidInputError(f"[{start!r}, {limit!r}) is not a range of offsets")
    if limit > manifest.next_offset:
        raise InvalidInputError(f"the log ends at {manifest.next_offset}, before {limit}")
    if start < manifest.oldest_offset:
        raise collected(objects.name, start, manifest.oldest_offset)
    try:
        pointers = await cover(objects, tree.roots(manifest), start, limit)
        first_seq_no, limit_seq_no = await slots_of(objects, pointers)
    except CorruptionError as error:
        if await objects.has_passed(manifest.oldest_offset, error):
            # We slept, and what we were about to look at was collected: look again.
            return await make_pin(objects, entropy, name, start, limit, ttl_s)
        raise
    record = _record(pointers, first_seq_no, limit_seq_no, ttl_s, entropy)
    mode = await _mode(objects, entropy, name)
    try:
        etag = await objects.store.put(key, encode(record, key), mode)
    except (AlreadyExistsError, ContendedError) as error:
        raise _taken(objects, name) from error
    pin = Pin(objects, entropy, name, record, etag)
    try:
        await prove_not_collected(objects, record.start)
    except CollectedError:
        await pin.release()
        raise
    return pin


async def keep_pin(pin: Pin) -> None:
    """Renew a pin again and again, until it has ended: for a task beside the work it is for.

    A store that fails is asked again: the pin holds as long as its time is not over.
    """
    between_s = pin.ttl_s / RENEWALS
    pause_s = between_s
    while True:
        await asyncio.sleep(pause_s)
        try:
            await pin.renew()
        except CollectedError:
            return
        except CordwoodError:
            pause_s = between_s / TRIES
        else:
            pause_s = between_s


async def under_free_name(
    kind: str, make: Callable[[str], Awaitable[Pin]], entropy: Entropy
) -> Pin:
    """The pin that `make` makes of a name that is free, one of those of this kind.

    Raises:
        AlreadyExistsError: there are too many.
    """
    names = NAMES_MIN
    for _ in range(NAMES_TRIES):
        try:
            return await make(f"{kind}_{int(entropy.uniform() * names):x}")
        except AlreadyExistsError:
            names *= NAMES_GROWTH
    raise AlreadyExistsError(
        f"there are more pins named {kind}_… than can be",
        hint="release some: `cordwood log pin` lists them",
    )


async def open_pin(objects: LogObjects, entropy: Entropy, name: str) -> Pin:
    """A pin made before, to renew or release it. One GET.

    Raises:
        NotFoundError: there is none.
        CollectedError: it has ended.
    """
    record, etag = await _load(objects, name)
    return Pin(objects, entropy, name, record, etag)


async def load_pin(objects: LogObjects, name: str) -> PinRecord:
    """A pin that has not ended, as far as its object says.

    Raises:
        NotFoundError: there is none.
        CollectedError: it has ended.
    """
    return (await _load(objects, name))[0]


async def _load(objects: LogObjects, name: str) -> tuple[PinRecord, str]:
    key = _key(objects, name)
    try:
        data, etag = await objects.store.get(key)
    except NotFoundError as error:
        raise NotFoundError(f"log {objects.name!r} has no pin named {name!r}") from error
    record = decode(PinRecord, data, key)
    if record.ended:
        raise CollectedError(
            f"the pin {name!r} of log {objects.name!r} has ended",
            hint="what it held may be gone; read what the log still has",
        )
    return record, etag


async def list_pins(objects: LogObjects) -> dict[str, PinRecord]:
    """Every pin that has not ended, by name. One LIST, one GET each."""
    found: dict[str, PinRecord] = {}
    async for meta in objects.list_in(paths.PIN_PREFIX):
        name = paths.pin_name(meta.key.removeprefix(objects.key("")))
        if name is not None:
            try:
                found[name] = await load_pin(objects, name)
            except (CollectedError, NotFoundError):
                continue
    return found


async def _mode(objects: LogObjects, entropy: Entropy, name: str) -> PutMode:
    """How to put a pin: a name is free if it was never used, or its pin has ended or expired."""
    key = _key(objects, name)
    try:
        data, etag = await objects.store.get(key)
    except NotFoundError:
        return "create"
    there = decode(PinRecord, data, key)
    if not there.ended:
        for surely in (False, True):
            now_us = await store_time_us(objects, entropy, surely=surely)
            modified_us = (await objects.store.head(key)).modified_us
            if age_us(modified_us, now_us) <= there.ttl_s * 1_000_000:
                raise _taken(objects, name)
    return Match(etag)


def _taken(objects: LogObjects, name: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"there is a pin {name!r} of log {objects.name!r} that has not ended",
        hint="release it, or use another name",
    )


def _record(
    pointers: list[NodePointer | Fragment],
    first_seq_no: int,
    limit_seq_no: int,
    ttl_s: int,
    entropy: Entropy,
) -> PinRecord:
    nodes = [p for p in pointers if isinstance(p, NodePointer)]
    fragments = [p for p in pointers if isinstance(p, Fragment)]
    border = nodes[0].start if nodes else pointers[-1].limit
    return PinRecord(
        start=pointers[0].start,
        limit=pointers[-1].limit,
        first_seq_no=first_seq_no,
        limit_seq_no=limit_seq_no,
        ttl_s=ttl_s,
        writer=_writer(entropy),
        before=tuple(f for f in fragments if f.start < border),
        nodes=tuple(nodes),
        after=tuple(f for f in fragments if f.start >= border),
    )


def _writer(entropy: Entropy) -> str:
    return f"cordwood/1 write={entropy.token()}"


def _key(objects: LogObjects, name: str) -> str:
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            f"{name!r} cannot name a pin", hint="use letters, digits and _, 128 at most"
        )
    return objects.key(paths.pin(name))


def _check_ttl(ttl_s: int) -> int:
    if type(ttl_s) is not int or not 0 < ttl_s <= TTL_S_MAX:
        raise InvalidInputError(
            f"ttl_s is a whole number of seconds from 1 to {TTL_S_MAX:,}, not {ttl_s!r}"
        )
    return ttl_s
