"""Holds: what keeps the files of a range while collection goes on past them.

There are two kinds. A **pin** has a name and a time to live; a **fork** holds what it shares with
its parent for as long as it exists. Neither stops the manifest from moving on: a hold only keeps
objects, which sweep leaves alone and writes down in a HELD object for a later collection.

Whoever makes a hold writes it, then reads GARBAGE, then MANIFEST, and withdraws if either is past
its start (as a new cursor does, log/cursors.py). So a hold that counts was there before its range
was unlinked, and every sweep of it, which comes after, sees it.

A pin ends by compare-and-swap: its owner releases it, or a collection finds it expired by the
store's own clock and ends it, before anything it held is deleted. A renewal that comes too late
therefore fails, and never revives what is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import Struct

from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    CollectedError,
    ConflictError,
    CorruptionError,
    FormatError,
    NotFoundError,
    UnsupportedError,
)
from cordwood.log import paths, tree
from cordwood.log.format import FORMAT, Fragment, Manifest, NodePointer, decode, encode
from cordwood.log.garbage import load_garbage
from cordwood.log.objects import LogObjects
from cordwood.log.tag import WriterTag
from cordwood.store import timekeeping
from cordwood.store.api import Match
from cordwood.store.timekeeping import age_us

Pointer = NodePointer | Fragment


class Hold(NamedTuple):
    """A range whose files must stay."""

    what: str
    """For people: which pin, which fork."""
    start: int
    limit: int
    first_seq_no: int
    limit_seq_no: int


class PinRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object pin/<name>.json."""

    format: int = FORMAT
    start: int
    """Of its first fragment."""
    limit: int
    """Of its last fragment."""
    first_seq_no: int
    limit_seq_no: int
    ttl_s: int
    """It expires so long after it was written, by the store's clock."""
    ended: bool = False
    writer: str
    before: tuple[Fragment, ...]
    """Its pointers: fragments, then nodes, then fragments, oldest first."""
    nodes: tuple[NodePointer, ...]
    after: tuple[Fragment, ...]

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """Everything it holds, oldest first."""
        return (*self.before, *self.nodes, *self.after)

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be a pin."""
        _check_format(self.format, where)
        _check_range(self, where)
        if any(not paths.stays_inside(pointer.path) for pointer in self.pointers):
            raise CorruptionError(f"{where}: a path leaves the log", where=where)


class ForkRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object fork/<incarnation>.json: what a fork needs of this log."""

    format: int = FORMAT
    log: str
    """The fork's name, relative to the log that is held: `../trial` (log/paths.py)."""
    start: int
    """What lies before it the fork has collected. It only rises."""
    limit: int
    first_seq_no: int
    limit_seq_no: int
    writer: str

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be a fork's hold."""
        _check_format(self.format, where)
        _check_range(self, where)
        if not paths.is_relative_name(self.log):
            raise CorruptionError(f"{where}: {self.log!r} cannot name a fork", where=where)


def _check_format(found: int, where: str) -> None:
    if found != FORMAT:
        raise UnsupportedError(
            f"{where}: format {found} is not known to this version",
            hint="upgrade Cordwood before collecting this log",
        )


def _check_range(record: PinRecord | ForkRecord, where: str) -> None:
    if record.start > record.limit or record.first_seq_no > record.limit_seq_no:
        raise CorruptionError(f"{where}: its range cannot be", where=where)


async def cover(
    objects: LogObjects, pointers: Sequence[Pointer], start: int, limit: int
) -> list[Pointer]:
    """The fewest pointers that hold `[start, limit)`, whole fragments. Reads two paths at most."""
    found: list[Pointer] = []
    for pointer in tree.overlapping(pointers, start, limit):
        if isinstance(pointer, Fragment) or (start <= pointer.start and pointer.limit <= limit):
            found.append(pointer)
        else:
            node = await objects.read_node(pointer)
            found += await cover(objects, node.children, start, limit)
    return found


async def slots_of(objects: LogObjects, pointers: Sequence[Pointer]) -> tuple[int, int]:
    """The first slot of these pointers, and the one after their last."""
    first, last = pointers[0], pointers[-1]
    while isinstance(first, NodePointer):
        first = (await objects.read_node(first)).children[0]
    while isinstance(last, NodePointer):
        last = (await objects.read_node(last)).children[-1]
    return first.seq_no, last.seq_no + 1


async def prove_not_collected(objects: LogObjects, start: int) -> Manifest:
    """The manifest, if no collection is past `start`, now that a hold was written.

    Raises:
        CollectedError: one is, or is about to be; or the whole log is being destroyed.
    """
    garbage, _ = await load_garbage(objects)
    reached = garbage.first_to_keep.offset if garbage.is_pending else 0
    manifest, _ = await objects.load()
    if manifest.seal is not None and manifest.seal.is_destruction:
        raise CollectedError(
            f"log {objects.name!r} is being destroyed", hint="nothing of it can be kept any more"
        )
    reached = max(reached, manifest.oldest_offset)
    if reached > start:
        raise collected(objects.name, start, reached)
    return manifest


def collected(log: str, offset: int, oldest: int) -> CollectedError:
    """What who comes too late is told."""
    return CollectedError(
        f"offset {offset} of log {log!r} has been collected, or is about to be: "
        f"the oldest to be kept is {oldest}",
        hint=f"start from offset {oldest}",
    )


async def store_time_us(objects: LogObjects, entropy: Entropy, *, surely: bool = False) -> int:
    """What time it is by the store's own clock. One PUT, one HEAD; `surely`, a DELETE more.

    A directory gives each put of a name a later time than the one before had. Where its clock was
    ahead once, the answer stays ahead until the clock catches up, or the object is deleted. So who
    takes something for old, and acts on that, asks `surely`.
    """
    return await timekeeping.store_time_us(
        objects.store, objects.key(paths.CLOCK), entropy, surely=surely
    )


async def live_holds(objects: LogObjects, entropy: Entropy) -> list[Hold]:
    """Every hold that counts now; those that are over are ended first.

    One LIST for each kind, a GET and a HEAD for each pin, two GETs for each fork.
    """
    return [*await _live_pins(objects, entropy), *await _live_forks(objects)]


async def _live_pins(objects: LogObjects, entropy: Entropy) -> list[Hold]:
    pins = [meta.key async for meta in objects.list_in(paths.PIN_PREFIX)]
    now_us = await store_time_us(objects, entropy) if pins else 0
    found = [await _live_pin(objects, key, now_us, entropy) for key in pins]
    return [hold for hold in found if hold]


async def _live_forks(objects: LogObjects) -> list[Hold]:
    """The holds of forks, listed until there are no new ones.

    A fork of a fork may rely on its parent's hold until its own is there (log/fork.py). So whoever
    has seen the one raised must not miss the other, which is older than that.
    """
    holds: list[Hold] = []
    seen: set[str] = set()
    while new := [m.key async for m in objects.list_in(paths.FORK_PREFIX) if m.key not in seen]:
        seen.update(new)
        found = [await _live_fork(objects, key) for key in new]
        holds += [hold for hold in found if hold]
    return holds


async def _live_pin(objects: LogObjects, key: str, now_us: int, entropy: Entropy) -> Hold | None:
    try:
        data, etag = await objects.store.get(key)
        pin = decode(PinRecord, data, key)
        if pin.ended:
            return None
        meta = await objects.store.head(key)
    except NotFoundError:
        return None
    # Another etag: it was renewed a moment ago. Its age is that of the object we have read, and no
    # other (a list may be older), or a pin would be ended that its owner has just renewed.
    is_over = meta.etag == etag and age_us(meta.modified_us, now_us) > pin.ttl_s * 1_000_000
    if is_over:
        now_us = await store_time_us(objects, entropy, surely=True)
        is_over = age_us(meta.modified_us, now_us) > pin.ttl_s * 1_000_000
    if is_over:
        try:
            await objects.store.put(key, encode(ended(pin, entropy), key), Match(etag))
        except ConflictError:
            pass  # renewed at this moment, or ended by somebody else: it counts once more
        else:
            return None
    name = paths.pin_name(key.removeprefix(objects.key("")))
    return Hold(f"pin {name!r}", pin.start, pin.limit, pin.first_seq_no, pin.limit_seq_no)


def ended(pin: PinRecord, entropy: Entropy) -> PinRecord:
    """The pin when it is over: it holds nothing, and its name may be used again."""
    return PinRecord(
        start=pin.start,
        limit=pin.limit,
        first_seq_no=pin.first_seq_no,
        limit_seq_no=pin.limit_seq_no,
        ttl_s=pin.ttl_s,
        ended=True,
        writer=f"cordwood/1 write={entropy.token()}",
        before=(),
        nodes=(),
        after=(),
    )


async def _live_fork(objects: LogObjects, key: str) -> Hold | None:
    """A fork's hold counts while a log of its name and incarnation exists, finished or not.

    It also counts where that cannot be found out.
    """
    try:
        data, _ = await objects.store.get(key)
    except NotFoundError:
        return None
    record = decode(ForkRecord, data, key)
    incarnation = key.removeprefix(objects.key(paths.FORK_PREFIX)).removesuffix(".json")
    name = paths.resolve_name(objects.name, record.log)
    if name is not None and await _is_gone(objects, name, incarnation):
        # It was destroyed. An incarnation comes only once, so nobody else has this key.
        await objects.store.delete([key])
        return None
    what = f"fork {name!r}" if name else f"fork {record.log!r} above the root of this store"
    return Hold(what, record.start, record.limit, record.first_seq_no, record.limit_seq_no)


async def _is_gone(objects: LogObjects, name: str, incarnation: str) -> bool:
    """Whether it is certain that there is no such fork any more."""
    try:
        manifest, _ = await LogObjects(objects.store, name).look()
    except NotFoundError:
        return True
    except FormatError:
        return False
    tag = WriterTag.parse(manifest.writer)
    if manifest.chain is not None and manifest.is_destroyed:
        # What a destroyed chain log leaves for a while: it needs nothing.
        return True
    return tag is not None and tag.incarnation != incarnation


async def let_go(
    objects: LogObjects, entropy: Entropy, manifest: Manifest, start: int, first_seq_no: int
) -> None:
    """Tell the ancestors of a fork that it needs nothing of theirs before `start` any more.

    What its own pins hold it still needs; its forks hold for themselves. A hold only rises, and to
    lose a race is harmless: the next collection tells them again.
    """
    tag = WriterTag.parse(manifest.writer)
    if tag is None or not manifest.ancestors:
        return
    pins = await _live_pins(objects, entropy)
    start, first_seq_no = min([(start, first_seq_no), *((p.start, p.first_seq_no) for p in pins)])
    for ancestor in manifest.ancestors:
        key = f"{objects.name_of(ancestor)}/{paths.fork(tag.incarnation)}"
        try:
            data, etag = await objects.store.get(key)
        except NotFoundError:
            continue
        hold = decode(ForkRecord, data, key)
        if min(start, hold.limit) > hold.start:
            raised = msgspec.structs.replace(
                hold,
                start=min(start, hold.limit),
                first_seq_no=min(max(hold.first_seq_no, first_seq_no), hold.limit_seq_no),
                writer=f"cordwood/1 write={entropy.token()}",
            )
            with suppress(ConflictError):
                await objects.store.put(key, encode(raised, key), Match(etag))
