"""Adoption: what a new or refused writer does with fragments that no manifest names.

A writer takes slots with create-only puts and names them in a manifest afterwards. It can be cut
off in between, by a crash or by another writer. The slots above the manifest then look like this::

    manifest: … 4          tail = fragment 4 (write id t)
    slot 5   prev = t      adopted: it follows the tail, which becomes 5
    slot 6   prev = 5      adopted
    slot 7   prev = x      void: its predecessor never made it. Skipped, for ever
    slot 8   prev = 6      adopted (its writer had met 7 and gone on)
    slot 9   empty         the end of the run; the next fragment goes here

Rules:

1. The scan starts at the slot after the manifest's newest fragment and ends at the first empty one.
2. A fragment is adopted if and only if its link names the current tail: the same write id, the same
   setsum, the offset that comes next.
3. What is not adopted when the scan passes it is void for ever: a write id belongs to one put at
   one slot, so the tail it waits for cannot come back. Its writer may write the batch again.
4. A fragment without a link (another program's) is adopted only in the first slot after the
   manifest, if its offsets fit.
5. Before a manifest names an object that was found by reading, the object is synced.
6. Above a sealed manifest everything is void: nothing is adopted, for ever. The manifest is synced
   before anybody relies on that.
7. Where somebody wants to know of new records before they are named (`before_naming`), adoption
   tells too, after it has read the manifest and before it swaps. Records of others that it adopts
   make new ground: whoever writes behind them tells again, with the offset behind them.

Readers see only what the manifest names, so nothing is read before it was adopted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import msgspec
import pyarrow.compute as pc

from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    ConflictError,
    CorruptionError,
    InvalidInputError,
    UncertainError,
)
from cordwood.base.given import given
from cordwood.base.limits import FRAGMENT_BYTES_MAX, OFFSET_LIMIT
from cordwood.log import fragment as fragments
from cordwood.log import paths, tree
from cordwood.log.filters import EMPTY, StreamSet, streams_of
from cordwood.log.format import COLUMNS, ZERO, Fragment, Manifest
from cordwood.log.objects import Loaded, LogObjects
from cordwood.log.sieve import with_filters
from cordwood.log.tag import WriterTag

SWAPS_MAX = 3
"""Lost swaps before a newcomer stops fighting a busy writer and asks for a turn."""


SLOTS_AHEAD = 8
"""Slots read at once when there is a run: as many as a writer has in the air by default."""


UNKNOWN = ""
"""In place of a setsum: the fragment was collected."""


BeforeNaming = Callable[[int], Awaitable[None]]
"""Awaited, with the log's next offset, after a manifest was read and before the first of our swaps
that name records on top of it. What it raises keeps them from being named."""


class Tail(NamedTuple):
    """The end of a log: what the next fragment must follow."""

    id: str
    """The newest fragment's write id; the incarnation of an empty log; empty if a foreign one."""
    setsum_hex: str
    next_offset: int
    next_seq_no: int
    at_us: int

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """The tail of what a manifest names."""
        tag = WriterTag.parse(manifest.writer)
        newest = manifest.fragments[-1] if manifest.fragments else None
        return cls(
            id=tag.tail_id if tag else "",
            setsum_hex=newest.setsum_hex if newest else _setsum_before(manifest, tag),
            next_offset=manifest.next_offset,
            next_seq_no=manifest.next_seq_no,
            at_us=tag.tail_us if tag else 0,
        )

    def after(self, link: fragments.Link, seq_no: int) -> Tail:
        """The tail once a fragment with this link lies in this slot."""
        return Tail(link.id, link.setsum, link.limit, seq_no + 1, link.at)

    def is_followed_by(self, link: fragments.Link) -> bool:
        """Rule 2."""
        is_sum = self.setsum_hex in {link.prev_setsum, UNKNOWN}
        return is_sum and (link.prev_id, link.start) == (self.id, self.next_offset)


def _setsum_before(manifest: Manifest, tag: WriterTag | None) -> str:
    """The setsum that a fragment must name where the manifest names none.

    Of a log whose newest fragment was collected only the id is known. It is enough: ids are unique.
    """
    is_new = tag is None or tag.tail_id in {tag.incarnation, ""}
    return ZERO if is_new else UNKNOWN


class Landed(NamedTuple):
    """A fragment known to lie in its slot."""

    fragment: Fragment
    link: fragments.Link
    has_columns: bool
    streams: StreamSet | None = EMPTY


@dataclass(slots=True)
class Run:
    """What a scan above a manifest found."""

    tail: Tail
    adopted: list[Fragment]
    found: list[str]
    """Paths of the adopted that were found by reading (rule 5)."""
    has_columns: bool = False
    sets: dict[int, StreamSet | None] = field(default_factory=dict)
    """Which streams the adopted hold, by slot."""
    is_whole: bool = False
    """Whether it ends at an empty slot."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a writer stands: a manifest nobody has replaced, and the tail above it."""

    manifest: Manifest
    etag: str
    tail: Tail
    named: bool
    """Whether the manifest names everything up to the tail."""
    is_announced: bool = False
    """Whether `before_naming` was awaited for it."""


async def scan(objects: LogObjects, manifest: Manifest, own: Mapping[int, Landed]) -> Run:
    """Follow the slots above a manifest.

    One GET per slot not our own and one for the empty slot; a few more are read ahead in a run.
    Stops after `tree.APPENDED_MAX` fragments: a busy writer may add them faster than we read.
    """
    if manifest.seal is not None:
        # Rule 6. A power cut must not bring back a manifest that could still be appended to.
        await objects.sync([paths.MANIFEST])
        return Run(Tail.of(manifest), [], [], is_whole=True)
    if manifest.chain is not None:
        # A chain has no slots: what no manifest names is nothing. Its tail must survive before
        # anything is put behind it.
        await objects.sync([paths.MANIFEST])
        return Run(Tail.of(manifest), [], [], is_whole=True)
    run = Run(await tail_of(objects, manifest), [], [])
    seq_no = run.tail.next_seq_no
    ahead: dict[int, bytes | None] = {}
    count = 1
    while len(run.adopted) < tree.APPENDED_MAX:
        landed = own.get(seq_no)
        if landed is None:
            if seq_no not in ahead:
                slots = range(seq_no, seq_no + count)
                data = await asyncio.gather(*(objects.get_slot(slot) for slot in slots))
                ahead = dict(zip(slots, data, strict=True))
            found = ahead.pop(seq_no)
            if found is None:
                run.is_whole = True
                break
            # Most often there is nothing; where there is something there is likely more.
            count = SLOTS_AHEAD
            landed = _examine(found, seq_no, run, is_first=seq_no == manifest.next_seq_no)
            if landed is not None:
                run.found.append(landed.fragment.path)
        elif not run.tail.is_followed_by(landed.link):
            landed = None
        seq_no += 1
        if landed is not None:
            run.adopted.append(landed.fragment)
            run.has_columns |= landed.has_columns
            run.sets[landed.fragment.seq_no] = landed.streams
            run.tail = run.tail.after(landed.link, seq_no - 1)
    run.tail = run.tail._replace(next_seq_no=seq_no)
    return run


def check_has_tail(name: str, manifest: Manifest) -> None:
    """Raise unless the manifest can be replaced: wal3 can leave one that names no newest fragment.

    Whoever is going to write a manifest asks first, before it has left anything behind.
    """
    if manifest.nodes and not manifest.fragments:
        raise CorruptionError(
            f"log {name!r} breaks invariant LOG-8: its root names nodes and no fragment, so the "
            "next sequence number is unknown",
            hint="it can be read, but not written, collected, forked or copied; append its records "
            "to a new log",
        )


async def tail_of(objects: LogObjects, manifest: Manifest) -> Tail:
    """The tail of what a manifest names; if wal3 wrote it, with the time of its newest fragment."""
    tail = Tail.of(manifest)
    if tail.id or not manifest.fragments:
        return tail
    newest = manifest.fragments[-1]
    try:
        table = fragments.decode(await objects.get_fragment(newest), newest)
    except CorruptionError:
        # A damaged fragment is for readers and scrubs to report; it need not stop an append.
        return tail
    return tail._replace(at_us=int(pc.max(table.column("timestamp_us")).as_py()))


def _examine(data: bytes, seq_no: int, run: Run, *, is_first: bool) -> Landed | None:
    """The fragment in a slot if it is to be adopted; None if it is void."""
    try:
        table, link = fragments.inspect(data, f"slot {seq_no}")
    except CorruptionError:
        # Never acknowledged, and unreadable: nothing can be made of it.
        return None
    has_columns = table.num_columns > 3
    streams = streams_of(table.column("stream")) if "stream" in table.schema.names else EMPTY
    if link is not None:
        # What no manifest may name is void, too.
        is_nameable = len(data) <= FRAGMENT_BYTES_MAX and link.at < OFFSET_LIMIT
        if not is_nameable or not run.tail.is_followed_by(link):
            return None
        return Landed(fragments.pointer(link, seq_no, len(data)), link, has_columns, streams)
    try:
        pointer = fragments.foreign_pointer(table, seq_no, len(data)) if is_first else None
    except CorruptionError:
        return None
    if pointer is None or pointer.start != run.tail.next_offset:
        return None
    stamp = int(table.column("timestamp_us")[-1].as_py())
    at_us = max(stamp, run.tail.at_us)
    stand_in = fragments.Link(
        "", pointer.start, pointer.limit, at_us, pointer.setsum_hex, run.tail.id, ""
    )
    return Landed(pointer, stand_in, has_columns, streams)


async def find_ground(
    objects: LogObjects,
    entropy: Entropy,
    own: Mapping[int, Landed],
    fold: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    before_naming: BeforeNaming | None = None,
) -> Ground:
    """Load the manifest and adopt what follows it; `fold` may make what is swapped smaller.

    Two GETs on a log at rest. After `SWAPS_MAX` lost swaps the ground is returned as it is, not
    `named`: a busy writer is naming its own fragments.
    """
    losses = 0
    while True:
        manifest, etag = await objects.load()
        check_has_tail(objects.name, manifest)
        run = await scan(objects, manifest, own)
        if losses == SWAPS_MAX or (run.is_whole and not run.adopted):
            return Ground(manifest, etag, run.tail, named=not run.adopted)
        await objects.sync(run.found)
        if before_naming is not None:
            await before_naming(manifest.next_offset)
        adopted = with_filters(fold(adopt(manifest, run, entropy)), run.sets)
        try:
            etag = await objects.swap(adopted, etag)
        except ConflictError:
            losses += 1
            continue
        if run.is_whole:
            is_announced = not run.found
            return Ground(adopted, etag, run.tail, named=True, is_announced=is_announced)


async def find_named(
    objects: LogObjects, manifest: Manifest, candidates: Iterable[tuple[Fragment, str]]
) -> set[int]:
    """The slots of those candidates that a manifest names, directly or below its nodes.

    A candidate is a pointer and a write id. Both must be the same: two writers that append equal
    records at the same moment make equal pointers. They were found by reading, so they and the
    manifest are synced before anybody relies on them.
    """
    named = [
        fragment
        for fragment, write_id in candidates
        if manifest.oldest_offset <= fragment.start < manifest.next_offset
        and await objects.find(tree.roots(manifest), fragment.start) == fragment
        and await _write_id(objects, fragment) == write_id
    ]
    if named:
        await objects.sync([*(fragment.path for fragment in named), paths.MANIFEST])
    return {fragment.seq_no for fragment in named}


def adopt(manifest: Manifest, run: Run, entropy: Entropy) -> Manifest:
    """The manifest that names the run."""
    features = (COLUMNS,) if run.has_columns else ()
    return tree.append(manifest, run.adopted, next_tag(manifest, run.tail, entropy), features)


def next_tag(manifest: Manifest, tail: Tail, entropy: Entropy) -> WriterTag:
    """The tag of the manifest after this one. A log that wal3 wrote last gets an incarnation."""
    tag = WriterTag.parse(manifest.writer)
    incarnation = tag.incarnation if tag else entropy.token()
    return WriterTag(incarnation, entropy.token(), tail.id, tail.at_us)


async def _write_id(objects: LogObjects, fragment: Fragment) -> str | None:
    link = await objects.get_link(fragment)
    return link.id if link else None


async def fence(objects: LogObjects, entropy: Entropy, seen: Loaded) -> None:
    """Replace a manifest by an equal one: who stood on it must look again before it names. One PUT.

    Raises:
        ConflictError: it has been replaced already, or nobody can know.
    """
    tag = next_tag(seen.manifest, Tail.of(seen.manifest), entropy)
    await objects.swap(msgspec.structs.replace(seen.manifest, writer=str(tag)), seen.etag)


async def have_replaced(objects: LogObjects, entropy: Entropy, seen: Loaded) -> Manifest:
    """The manifest after `seen`, by us or by somebody else: who stood on that must look again."""
    while True:
        with suppress(ConflictError):
            await fence(objects, entropy, seen)
        now = await objects.load()
        if now.etag != seen.etag:
            return now.manifest


async def find_write(
    objects: LogObjects,
    entropy: Entropy,
    error: UncertainError,
    before_naming: BeforeNaming | None = None,
) -> int | None:
    """Where an append that ended in UncertainError is, or None if it never will be anywhere.

    Offsets are given once: when the log has passed the place where a fragment of the chain would
    begin, that one is there or never will be, and if it is not, nor will those that follow it. A
    sealed log has passed every place.

    Raises:
        UncertainError: that cannot be known yet, or no more.
    """
    if not given(error, UncertainError, "what was uncertain").chain:
        raise InvalidInputError("this error is not about an append", hint="read the log instead")
    ground = await find_ground(objects, entropy, {}, before_naming=before_naming)
    manifest = ground.manifest
    if manifest.chain is not None:
        # Whatever is still under way could only follow what this puts an end to.
        manifest = await have_replaced(objects, entropy, Loaded(manifest, ground.etag))
    place = error.chain[-1][0]
    if place < manifest.oldest_offset:
        raise _still_open(error, "the place where it would be has been collected", "")
    # Its own place decides, once the log has passed it; until then those it would follow.
    for start, write_id in reversed(error.chain):
        if manifest.oldest_offset <= start < manifest.next_offset:
            fragment = await objects.find(tree.roots(manifest), start)
            if fragment is None or fragment.start != start:
                return None
            if await _write_id(objects, fragment) != write_id:
                return None
            if start == place:
                await objects.sync([paths.MANIFEST], [fragment])
                return place + error.index
    if manifest.seal is not None or manifest.chain is not None:
        return None
    raise _still_open(
        error,
        "the place where it would be is still open",
        "append something else, which closes it, and ask again",
    )


def _still_open(error: UncertainError, why: str, hint: str) -> UncertainError:
    return UncertainError(
        f"write {error.write_id} may or may not be in the log: {why}",
        write_id=error.write_id,
        chain=error.chain,
        hint=hint,
    )
