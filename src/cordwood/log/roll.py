"""The roll: which streams of a log are open, as create-only objects that anybody can follow.

::

    stream/<incarnation>/fffffffffffffffc.json   3   change    a: closed     the latest comes first
    stream/<incarnation>/fffffffffffffffd.json   2   change    b: open
    stream/<incarnation>/fffffffffffffffe.json   1   full      a: open

Each object is one **change**: the new state of one or more streams. It has the number after the
last one that its maker saw, and is put with mode create, so of two that change at once one is
refused, looks again, and decides again. That is the whole protocol, and all it needs of a store is
"create if absent".

1. Changes count in the order of their numbers; the last one that names a stream is its state.
2. Every `FULL_EVERY` changes one is *full*: it has every stream, and what lies before it is not
   read any more. Each change says in `base` which full one it builds on.
3. The folder is named after the log's incarnation: what a slow program puts when the log was
   destroyed and made anew is nobody's.
4. Nothing is ever replaced. Changes go when the log is destroyed.

What a crash leaves is a change that is there or is not. An answer that was lost is found again by
its bytes, which carry an id of their own (store/retry.py). Whoever is told "uncertain" does the
same again: to open what is open changes nothing.

Costs: who has the roll learns with one LIST that nothing changed, however many streams there are.
Who has nothing needs a LIST, and a GET for each change since the last full one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from msgspec import Struct

from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CorruptionError,
    NotFoundError,
    StateError,
)
from cordwood.log import paths
from cordwood.log.format import FORMAT, Manifest, decode, encode
from cordwood.log.objects import LogObjects
from cordwood.store.streams import as_generator

FULL_EVERY = 64
GETS_AT_ONCE = 32
BACKOFF_S = 0.02


class Stream(Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a stream."""

    open: bool
    metadata: dict[str, Any]
    at_us: int
    """When it was changed last, by the clock of who did."""


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """One object of the roll."""

    format: int
    number: int
    base: int
    """The number of the full change that this one builds on; its own if it is full."""
    writer: str
    streams: dict[str, Stream]

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be one."""
        is_known = self.format == FORMAT and 0 < self.base <= self.number < 2**64
        if not is_known or not all(self.streams):
            raise CorruptionError(f"{where}: not a change of streams", where=where)


class Roll(Struct, frozen=True):
    """The streams of a log as they were at some moment."""

    incarnation: str
    """Of the log that it belongs to."""
    number: int = 0
    """The last change; 0 if there never was one."""
    base: int = 0
    """The last full change."""
    streams: Mapping[str, Stream] = {}

    def is_open(self, name: str) -> bool:
        """Whether it takes records."""
        stream = self.streams.get(name)
        return stream is not None and stream.open

    def after(self, changes: Iterable[Change]) -> Roll:
        """The roll after these changes, in the order of their numbers."""
        streams, number, base = dict(self.streams), self.number, self.base
        for change in changes:
            if change.base == change.number:
                streams = {}
            streams.update(change.streams)
            number, base = change.number, change.base
        return Roll(self.incarnation, number, base, streams)

    def next(self, wanted: Mapping[str, Stream], write_id: str) -> Change:
        """The change that comes next."""
        number = self.number + 1
        is_full = not self.base or number - self.base >= FULL_EVERY
        streams = {**self.streams, **wanted} if is_full else dict(wanted)
        base = number if is_full else self.base
        return Change(FORMAT, number, base, f"cordwood/1 write={write_id}", streams)


Decide = Callable[[Roll], Mapping[str, Stream]]
"""What to change, given the roll as it is; nothing if it is as wanted."""


async def load_roll(objects: LogObjects, known: Roll | None = None) -> Roll:
    """The roll as it is now. One GET and one LIST if nothing changed since `known`.

    Raises:
        NotFoundError: there is no such log.
        CorruptionError: a change is damaged, or missing.
    """
    return await _follow(objects, (await objects.load()).manifest.incarnation, known)


async def _follow(objects: LogObjects, incarnation: str, known: Roll | None) -> Roll:
    if known is None or known.incarnation != incarnation:
        known = Roll(incarnation)
    if not incarnation:
        # Another program wrote the log last, and does not know of streams.
        return known
    latest = await _latest(objects, incarnation)
    if latest == known.number:
        return known
    if latest < known.number:
        # An older state of the store was restored: what we know did not happen.
        known = Roll(incarnation)
        if not latest:
            return known
    newest = await _get(objects, incarnation, latest)
    first = max(newest.base, known.number + 1)
    changes: list[Change] = []
    for start in range(first, latest, GETS_AT_ONCE):
        some = range(start, min(latest, start + GETS_AT_ONCE))
        changes += await asyncio.gather(*(_get(objects, incarnation, n) for n in some))
    return known.after([*changes, newest])


async def change_roll(
    objects: LogObjects,
    entropy: Entropy,
    known: Roll | None,
    check: Callable[[Manifest], None],
    decide: Decide,
) -> Roll:
    """Change streams; the roll after it. One PUT, and what `load_roll` costs.

    `check` raises where the log takes no changes.

    Raises:
        StateError: another program wrote the log last.
        UncertainError: it may have been changed, and the store does not answer.
    """
    losses = 0
    while True:
        manifest = (await objects.load()).manifest
        check(manifest)
        if not manifest.incarnation:
            raise StateError(
                f"log {objects.name!r} was written by another program, which knows no streams",
                hint="append a record to it first",
            )
        known = await _follow(objects, manifest.incarnation, known)
        wanted = decide(known)
        if not wanted:
            # Seen by reading: it must survive a power cut before anybody relies on it.
            if known.number:
                await objects.sync([paths.stream_change(known.incarnation, known.number)])
            return known
        change = known.next(wanted, entropy.token())
        try:
            await _put(objects, known.incarnation, change)
        except AlreadyExistsError:
            losses = min(losses + 1, 6)
            await asyncio.sleep(entropy.uniform() * BACKOFF_S * 2**losses)
            continue
        return known.after([change])


async def bequeath(
    source: LogObjects, target: LogObjects, incarnation: str, entropy: Entropy
) -> None:
    """Give a log that is about to begin the streams of another, open and closed as they are.

    Before its first manifest: the log is never there without its streams. Nothing is put if there
    are none.
    """
    roll = await load_roll(source)
    if roll.streams:
        # Who moves a log again after a crash finds what it put then.
        with suppress(AlreadyExistsError):
            await _put(target, incarnation, Roll(incarnation).next(roll.streams, entropy.token()))


async def inherit(objects: LogObjects, incarnation: str, entropy: Entropy) -> None:
    """Give a log that gets another incarnation the streams it had. A LIST, and what a look costs.

    Nobody remembers which incarnation that was: of several the one that was changed last.

    Raises:
        CorruptionError: a change is damaged, or missing.
    """
    latest = (0, "")
    async for meta in objects.list(paths.STREAM_PREFIX):
        path = meta.key.removeprefix(objects.key(""))
        if paths.stream_change_number(path) is not None:
            latest = max(latest, (meta.modified_us, path.split("/")[1]))
    roll = await _follow(objects, latest[1], None)
    if roll.streams:
        await _put(objects, incarnation, Roll(incarnation).next(roll.streams, entropy.token()))


async def _put(objects: LogObjects, incarnation: str, change: Change) -> None:
    key = objects.key(paths.stream_change(incarnation, change.number))
    await objects.store.put(key, encode(change, key), "create")


async def _latest(objects: LogObjects, incarnation: str) -> int:
    """The number of the last change; 0 if there is none. One LIST."""
    folder = paths.stream_changes(incarnation)
    async with aclosing(as_generator(objects.list(folder))) as metas:
        async for meta in metas:
            number = paths.stream_change_number(meta.key.removeprefix(objects.key("")))
            if number is not None:
                return number
    return 0


async def _get(objects: LogObjects, incarnation: str, number: int) -> Change:
    key = objects.key(paths.stream_change(incarnation, number))
    try:
        data, _ = await objects.store.get(key)
    except NotFoundError as error:
        raise CorruptionError(
            f"the change {key} of the log's streams does not exist, and a later one builds on it",
            where=key,
            code=Code.MISSING_OBJECT,
            hint="restore the object from a copy or a version of the bucket",
        ) from error
    change = decode(Change, data, key)
    if change.number != number:
        raise CorruptionError(f"{key}: it is change {change.number}", where=key)
    return change
