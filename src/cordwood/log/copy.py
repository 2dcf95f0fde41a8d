"""Copy: the same log elsewhere, byte for byte, and the proof that it is.

Fragments and nodes keep their paths, offsets and slots. Within a store that can copy objects itself
the bytes stay there; otherwise each fragment is fetched, checked against its checksum and its
setsum, and put. At most `AT_ONCE` are under way, and `AT_ONCE_BYTES` of them.

1. One manifest of the source is the view: what is appended meanwhile is not copied.
2. Every object is put with mode create. One that is there already counts if it is the same one:
   the same length and the same link, which has the write id and the checksum of the whole file; a
   node, the same children.
3. The setsums of what was copied add up to what the new manifest says.
4. The streams (log/roll.py) are as they were: open, or closed.
5. The manifest is created, as the last object: until then there is no log.

Crash anywhere, and copying again goes on where this one stopped. Two copies onto one name: one
creates the manifest, or neither does. An object that vanishes was collected: then nothing is made.

A copy of a fork is a log of its own, without ancestors. What follows in the copy follows its own
incarnation (as in a fork): nothing that lies in its slots already can be adopted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CollectedError,
    CorruptionError,
    NotFoundError,
    UnsupportedError,
)
from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.chain import names
from cordwood.log.cut import Cut, cut_for
from cordwood.log.fetch import decode_table
from cordwood.log.format import STREAMS, Fragment, Manifest, Node, NodePointer, encode
from cordwood.log.objects import LogObjects
from cordwood.log.recovery import check_has_tail, tail_of
from cordwood.log.roll import bequeath
from cordwood.log.sieve import copy_filters
from cordwood.log.tag import WriterTag
from cordwood.store.api import ServerCopies
from cordwood.store.streams import as_generator

AT_ONCE = 16
AT_ONCE_BYTES = 64 * 2**20
"""Objects under way; a single one may be larger."""


@dataclass(slots=True)
class CopyReport:
    """What a copy moved."""

    oldest_offset: int = 1
    """Where the copy begins."""
    next_offset: int = 1
    records: int = 0
    bytes: int = 0
    """Of the fragments, as stored."""
    fragments: int = 0
    nodes: int = 0
    by_store: int = 0
    """Fragments that the store copied itself."""
    reused: int = 0
    """Fragments that were there already, from a copy that was cut off."""
    setsum: Setsum = field(default_factory=Setsum)
    """Over the records copied: the copy's own, and that of the source over the same range."""


Progress = Callable[[CopyReport, Manifest], None]
"""Called after every fragment, with the manifest that the copy will have."""


async def copy(
    source: LogObjects,
    target: LogObjects,
    entropy: Entropy,
    start: int | None = None,
    *,
    copies: ServerCopies | None = None,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy a log, from `start` (rounded down to a fragment) on.

    A GET and a PUT for each node and each fragment; with `copies`, for a fragment one copy and one
    HEAD instead.

    Args:
        source: the log.
        target: where it goes; there must be no log of its name.
        entropy: where the new incarnation comes from.
        start: copy nothing older.
        copies: copies within the store of both, if it can.
        progress: called after every fragment.

    Raises:
        AlreadyExistsError: there is a log, or something that is not part of the source.
        CollectedError: `start`, or something copied, was collected.
        CorruptionError: the source is damaged. There is no log at the target then.
    """
    manifest, _ = await source.load()
    check_has_tail(source.name, manifest)
    await _check_free(target)
    incarnation = entropy.token()
    at_us = (await tail_of(source, manifest)).at_us
    tag = WriterTag(incarnation, entropy.token(), incarnation, at_us)
    oldest = manifest.oldest_offset
    try:
        cut = await cut_for(source, manifest, start, target, str(tag))
        oldest = cut.first_to_keep
        copied = tree.heir(manifest, cut.kept, oldest, cut.first_seq_no, tag)
        encode(copied)
        report = await _Copier(source, target, cut, copied, copies, progress).run()
    except CorruptionError as error:
        now, _ = await source.load()
        if error.code is not Code.MISSING_OBJECT or now.oldest_offset <= oldest:
            raise
        raise CollectedError(
            f"log {source.name!r} was collected while it was copied: from {oldest} to "
            f"{now.oldest_offset}",
            hint="copy again from there, or hold the range with a pin while it is copied",
        ) from error
    if report.setsum.hexdigest() != copied.setsum_hex:
        raise CorruptionError(
            f"the fragments of log {source.name!r} add up to {report.setsum.hexdigest()}, its "
            f"manifest says {copied.setsum_hex}",
            where=source.key(paths.MANIFEST),
            code=Code.SETSUM_MISMATCH,
            hint="run `cordwood log scrub`; no log was created",
        )
    await bequeath(source, target, incarnation, entropy)
    await target.create(copied, manifest.shards)
    return report


async def _check_free(target: LogObjects) -> None:
    if not await target.exists():
        return
    raise AlreadyExistsError(
        f"the log {target.name!r} exists already", hint="copy to another name, or destroy it"
    )


class _Copier:
    """Moves the objects of one view."""

    def __init__(
        self,
        source: LogObjects,
        target: LogObjects,
        cut: Cut,
        copied: Manifest,
        copies: ServerCopies | None,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._target = target
        self._cut = cut
        self._copied = copied
        self._copies = copies
        self._progress = progress
        self._is_resumed = False
        """Whether there may be something already, so that it is worth looking."""
        self._pending: dict[asyncio.Task[None], int] = {}
        """What is under way, with its bytes."""
        self._report = CopyReport(copied.oldest_offset, copied.next_offset)

    async def run(self) -> CopyReport:
        """Move everything, then say what was moved."""
        for prefix in ("log/", names.SHARD_PREFIX):
            async with aclosing(as_generator(self._target.list(prefix))) as there:
                self._is_resumed |= await anext(there, None) is not None
        self._report.nodes = len(self._cut.made)
        made = {node.path: node for node in self._cut.made}
        try:
            await self._walk(self._cut.kept, made)
            await self._settle(0, 0)
        finally:
            for task in self._pending:
                task.cancel()
            await asyncio.gather(*self._pending, return_exceptions=True)
        return self._report

    async def _walk(
        self, pointers: Sequence[NodePointer | Fragment], made: dict[str, Node]
    ) -> None:
        """Start every object below these pointers; nodes that the cut made are there."""
        for pointer in pointers:
            if isinstance(pointer, Fragment):
                await self._start(self._copy_fragment(pointer), pointer.num_bytes)
                continue
            node = made.get(pointer.path)
            if node is None:
                node = await self._source.read_node(pointer)
                await self._start(self._copy_node(node), 0)
            await self._walk(node.children, made)

    async def _start(self, work: Coroutine[Any, Any, None], num_bytes: int) -> None:
        """Begin, once there is room for it."""
        try:
            await self._settle(AT_ONCE - 1, AT_ONCE_BYTES - num_bytes)
        except BaseException:
            work.close()
            raise
        self._pending[asyncio.ensure_future(work)] = num_bytes

    async def _settle(self, most: int, most_bytes: int) -> None:
        """Wait until no more than this is under way."""
        while self._pending and (
            len(self._pending) > most or sum(self._pending.values()) > max(0, most_bytes)
        ):
            done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del self._pending[task]
            # All of them are looked at, so that nobody warns of an error never retrieved.
            faults = [fault for task in done if (fault := task.exception()) is not None]
            if faults:
                raise faults[0]

    # One object.

    async def _copy_node(self, node: Node) -> None:
        try:
            await self._target.write_node(node)
        except (AlreadyExistsError, CorruptionError) as error:
            raise self._is_taken(node.path) from error
        if STREAMS in self._copied.features:
            await copy_filters(self._source, self._target, node.pointer())
        self._report.nodes += 1

    async def _copy_fragment(self, fragment: Fragment) -> None:
        report = self._report
        if self._is_resumed and await self._is_there(fragment):
            report.reused += 1
        elif await self._by_store(fragment):
            report.by_store += 1
        else:
            await self._by_hand(fragment)
        report.fragments += 1
        report.records += fragment.num_records
        report.bytes += fragment.num_bytes
        report.setsum = report.setsum + fragment.setsum
        if self._progress is not None:
            self._progress(report, self._copied)

    async def _by_store(self, fragment: Fragment) -> bool:
        """Have the store copy it; False if it does not."""
        if self._copies is None:
            return False
        source, target = self._source.key_of(fragment), self._target.key(fragment.path)
        try:
            await self._copies.copy(source, target)
        except UnsupportedError:
            self._copies = None
            return False
        except AlreadyExistsError:
            # Another's, or our own whose answer was lost; or the store meant "try again".
            return await self._is_there(fragment)
        except NotFoundError as error:
            raise CorruptionError(
                f"the fragment {source} is named by the log and does not exist",
                where=source,
                code=Code.MISSING_OBJECT,
                hint="restore the object from a copy or a version of the bucket",
            ) from error
        size_bytes = (await self._target.store.head(target)).size_bytes
        if size_bytes != fragment.num_bytes:
            raise CorruptionError(
                f"{source} has {size_bytes} bytes, its pointer says {fragment.num_bytes}",
                where=source,
                hint="run `cordwood log scrub`; no log was created",
            )
        return True

    async def _by_hand(self, fragment: Fragment) -> None:
        data = await self._source.get_fragment(fragment)
        with self._source.located(fragment):
            await decode_table(data, fragment, verify=True)
        key = self._target.key(fragment.path)
        try:
            await self._target.store.put(key, bytes(data), "create")
        except AlreadyExistsError:
            if not await self._is_there(fragment):
                raise

    async def _is_there(self, fragment: Fragment) -> bool:
        """Whether the target has this very fragment already; then it is durable.

        Raises:
            AlreadyExistsError: it has something else in the place.
        """
        try:
            meta = await self._target.store.head(self._target.key(fragment.path))
        except NotFoundError:
            return False
        if meta.size_bytes != fragment.num_bytes:
            raise self._is_taken(fragment.path)
        link = await self._source.get_link(fragment)
        if link is None:
            # Another program's, without a checksum: only its records can tell.
            try:
                there = await self._target.get_fragment(fragment)
                await decode_table(there, fragment, verify=True)
            except CorruptionError as error:
                raise self._is_taken(fragment.path) from error
        elif await self._target.get_link(fragment) != link:
            raise self._is_taken(fragment.path)
        await self._target.sync([fragment.path])
        return True

    def _is_taken(self, path: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"{self._target.key(path)} exists, and is not what log {self._source.name!r} has there",
            hint="copy to another name",
        )
