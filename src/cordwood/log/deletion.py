"""Deletion: what was unlinked goes, but for what is held.

What a pin or a fork holds is written down before anything is deleted, in `gc/HELD-<nonce>`, where
the nonce is that of the garbage it belongs to. Later collections look there again, and free what is
held no more.

Two may do this at once, or one may sleep for a year in the middle of it, because for what is once
unlinked the holds that count only become fewer (log/holds.py). So whoever looked earlier keeps more
than it must and deletes nothing that is needed; and a HELD object that lists what is gone already
is found empty the next time. Slots are kept in runs, however many there are. The filters of a node
(log/sieve.py) go with it.

It must not sleep while the log is destroyed and another one gets its name: that one has the same
slots. There is no conditional delete, so before each batch we look whether it is still the same log
and past all that goes; and HELD says of which log it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec import Struct

from cordwood.base.clock import Entropy
from cordwood.base.errors import CorruptionError, NotFoundError, StateError
from cordwood.log import paths
from cordwood.log.chain import names
from cordwood.log.format import FORMAT, STREAMS, Manifest, NodePointer, decode, encode
from cordwood.log.garbage import Upload, check_uploads
from cordwood.log.holds import Hold, live_holds
from cordwood.log.objects import LogObjects

DELETES_AT_ONCE = 500

Progress = Callable[[int, int], None]
"""Called with how many objects were deleted, and how many will be."""


class Slots(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A run of slots, `[first_seq_no, limit_seq_no)`."""

    first_seq_no: int
    limit_seq_no: int

    def __len__(self) -> int:
        """How many."""
        return max(0, self.limit_seq_no - self.first_seq_no)


class Held(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object gc/HELD-<nonce>: unlinked, not yet deleted."""

    format: int = FORMAT
    log: str
    """The log's incarnation."""
    slots: tuple[Slots, ...]
    nodes: tuple[NodePointer, ...]
    uploads: tuple[Upload, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self.slots and not self.nodes and not self.uploads

    def paths(self) -> list[str]:
        """Of what has a name of its own."""
        return [*(node.path for node in self.nodes), *(upload.path for upload in self.uploads)]

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be one."""
        is_wrong = any(not 0 <= s.first_seq_no <= s.limit_seq_no for s in self.slots)
        is_wrong |= any(
            not paths.is_node(n.path, n.setsum_hex, n.start, n.limit) for n in self.nodes
        )
        if self.format != FORMAT or is_wrong:
            raise CorruptionError(f"{where}: not a list of what is held", where=where)
        check_uploads(self.uploads, where)


@dataclass(slots=True)
class Deleted:
    """What a deletion did."""

    count: int = 0
    held: list[str] = field(default_factory=list)
    """Which pins and forks kept something."""


class Deleter:
    """Deletes the objects of one log, at a pace."""

    def __init__(
        self,
        objects: LogObjects,
        entropy: Entropy,
        *,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """No I/O. `rate`: objects per second at most."""
        self._objects = objects
        self._entropy = entropy
        self._rate = rate
        self._progress = progress
        self.done = Deleted()

    async def delete(self, garbage: Held, nonce: str) -> None:
        """Delete these, but for what is held; that is written down first."""
        holds = await live_holds(self._objects, self._entropy)
        await self._delete(garbage, nonce, holds, is_known=False)

    async def delete_held(self, pending: str) -> None:
        """Delete what earlier collections left because it was held, and is held no more.

        One LIST if there is nothing. The garbage that is `pending` is left to its own sweep.
        """
        prefix = self._objects.key(paths.HELD_PREFIX)
        found = [meta.key async for meta in self._objects.list(paths.HELD_PREFIX)]
        keys = [key for key in found if key.removeprefix(prefix) != pending]
        if not keys:
            return
        holds = await live_holds(self._objects, self._entropy)
        manifest, _ = await self._objects.load()
        for key in keys:
            try:
                data, _ = await self._objects.store.get(key)
            except NotFoundError:
                continue
            held = decode(Held, data, key)
            # What a slow collection of an earlier log of this name left means nothing here.
            if held.log == manifest.incarnation:
                await self._delete(held, key.removeprefix(prefix), holds, is_known=True)

    async def _delete(
        self, garbage: Held, nonce: str, holds: Sequence[Hold], *, is_known: bool
    ) -> None:
        """`is_known`: whether this is what HELD says already."""
        slots = _merged(garbage.slots)
        kept = Held(
            log=garbage.log,
            slots=tuple(_merged(_common(s, h) for s in slots for h in holds)),
            nodes=tuple(n for n in garbage.nodes if any(_overlaps(n, h) for h in holds)),
            uploads=tuple(u for u in garbage.uploads if any(_has(h, u) for h in holds)),
        )
        self._note(kept, holds)
        if is_known and kept == garbage:
            return
        key = self._objects.key(paths.held(nonce))
        if not kept.is_empty:
            await self._objects.store.put(key, encode(kept, key), "overwrite")
        free = _without(slots, kept.slots)
        kept_paths = set(kept.paths())
        named = [path for path in garbage.paths() if path not in kept_paths]
        total = sum(map(len, free)) + len(named)
        await self._delete_keys(self._keys(free, named), total, garbage)
        if kept.is_empty:
            await self._objects.store.delete([key])

    def _note(self, kept: Held, holds: Iterable[Hold]) -> None:
        for hold in holds:
            is_needed = (
                any(len(_common(s, hold)) for s in kept.slots)
                or any(_overlaps(n, hold) for n in kept.nodes)
                or any(_has(hold, u) for u in kept.uploads)
            )
            if is_needed and hold.what not in self.done.held:
                self.done.held.append(hold.what)

    def _keys(self, slots: Iterable[Slots], named: Iterable[str]) -> Iterator[str]:
        for run in slots:
            for number in range(run.first_seq_no, run.limit_seq_no):
                yield self._objects.key(paths.fragment(number))
        for path in named:
            yield self._objects.key(path)

    def _filters(self, keys: Iterable[str]) -> list[str]:
        """The filters that belong to the nodes among these."""
        prefix = self._objects.key("")
        found = (key.removeprefix(prefix) for key in keys)
        nodes = (path for path in found if path.startswith(paths.NODE_PREFIX))
        return [self._objects.key(paths.filters(path)) for path in nodes]

    async def _delete_keys(self, keys: Iterator[str], total: int, garbage: Held) -> None:
        rate = self._rate
        step = DELETES_AT_ONCE if rate is None else max(1, min(DELETES_AT_ONCE, int(rate)))
        count = 0
        while batch := list(islice(keys, step)):
            manifest = (await self._objects.load()).manifest
            _check_passed(self._objects.name, manifest, garbage)
            beside = self._filters(batch) if STREAMS in manifest.features else []
            await self._objects.store.delete([*batch, *beside])
            count += len(batch)
            self.done.count += len(batch)
            if self._progress is not None:
                self._progress(count, total)
            if rate is not None and count < total:
                await asyncio.sleep(len(batch) / rate)


def _check_passed(name: str, manifest: Manifest, garbage: Held) -> None:
    """Raise unless it is the garbage of this log, and the log can never name it again."""
    if manifest.incarnation != garbage.log:
        raise StateError(
            f"the log {name!r} was replaced by another one while it was collected",
            hint="what is left of the old one goes when the new one is destroyed",
        )
    is_passed = all(s.limit_seq_no <= manifest.first_seq_no for s in garbage.slots if len(s))
    is_passed &= all(u.seq_no < manifest.first_seq_no for u in garbage.uploads)
    if not is_passed or any(n.start >= manifest.oldest_offset for n in garbage.nodes):
        raise CorruptionError(
            f"log {name!r}: the manifest has gone back before what is being deleted",
            hint="an older manifest was restored; run `cordwood log scrub`",
        )


def _overlaps(node: NodePointer, hold: Hold) -> bool:
    return max(node.start, hold.start) < min(node.limit, hold.limit)


def _has(hold: Hold, upload: Upload) -> bool:
    name = names.parse_fragment(upload.path)
    if name is not None:
        # By offsets: numbers of fragments begin anew when a log is rebuilt.
        return max(name.start, hold.start) < min(name.limit, hold.limit)
    return hold.first_seq_no <= upload.seq_no < hold.limit_seq_no


def _common(slots: Slots, hold: Hold) -> Slots:
    return Slots(
        max(slots.first_seq_no, hold.first_seq_no), min(slots.limit_seq_no, hold.limit_seq_no)
    )


def _merged(runs: Iterable[Slots]) -> list[Slots]:
    """The same slots in runs that do not touch, in order."""
    merged: list[Slots] = []
    for run in sorted(run for run in runs if len(run)):
        if merged and run.first_seq_no <= merged[-1].limit_seq_no:
            last = merged.pop()
            merged.append(Slots(last.first_seq_no, max(last.limit_seq_no, run.limit_seq_no)))
        else:
            merged.append(run)
    return merged


def _without(runs: Iterable[Slots], kept: Iterable[Slots]) -> list[Slots]:
    """The slots that are in none of the runs kept."""
    left = list(runs)
    for hole in kept:
        parts = []
        for run in left:
            parts.append(Slots(run.first_seq_no, min(run.limit_seq_no, hole.first_seq_no)))
            parts.append(Slots(max(run.first_seq_no, hole.limit_seq_no), run.limit_seq_no))
        left = [part for part in parts if len(part)]
    return left
