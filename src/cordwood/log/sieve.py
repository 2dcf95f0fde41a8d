"""Reading one stream: pass over what cannot hold it, without touching it.

Where the filters of log/filters.py lie::

    MANIFEST             cordwood.filters: those of the newest fragments, which are in the root
    filter/FILTER.<id>   beside the node snapshot/SNAPSHOT.<id>: those of its children
    a fragment's footer  its own, for who knows nothing else of it: one small read of a large file

A filter object lists each child of its node, by its setsum. A child that is a node has the filter
of all that is below it. So a reader of a rare stream reads one small object for a node of the root,
and goes down only where the stream may be.

1. A filter says "no" only if its check holds, and it is that of the setsum in question.
2. An object that does not list all of its node's children says nothing: their setsums add up to
   the node's, or it is not believed.
3. What has no filter is read: fragments and nodes of an earlier version, or of another program, and
   those whose filter was lost, or never written because the store was unwell.

Filter objects are made beside the hot path, when the node is (log/folding.py), create-only. Two
that write one write the same filters, or one knows less: then less is passed over, and nothing is
wrong. They are deleted with their nodes (log/deletion.py).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress

import msgspec
from msgspec import UNSET

from cordwood.base.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    NotFoundError,
    UnsupportedError,
)
from cordwood.base.setsum import Setsum
from cordwood.log import filters, paths, tree
from cordwood.log.filters import Filter, StreamSet
from cordwood.log.format import (
    FORMAT,
    STREAMS,
    Extension,
    Fragment,
    Manifest,
    Node,
    NodePointer,
    decode,
    encode,
)
from cordwood.log.fragment import FOOTER_PEEK_BYTES, read_footer_streams
from cordwood.log.objects import NODES_AHEAD, LogObjects

FOOTER_BYTES_MIN = 8 * FOOTER_PEEK_BYTES
"""A fragment of this size of which nothing, or not much, is known is asked first: its footer."""

ROOT_BYTES = 15_000
POINTER_BYTES = 300
ENTRY_BYTES = 6
"""What JSON puts around a slot and its filter."""
FILTERS_BYTES_MAX = 8_000
"""Filters in the root: so many bytes, and no more than keep it below 16 kB."""

KNOWN_MAX = 128
"""Sets that a writer remembers: those of its fragments until they are folded, and of nodes."""

Pointer = NodePointer | Fragment


class Filters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A filter object: for each child of a node its setsum and its filter, empty if unknown."""

    format: int
    node: str
    children: tuple[tuple[str, str], ...]

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be one."""
        if self.format != FORMAT:
            raise UnsupportedError(f"{where}: filters of format {self.format}")


# The root.


def with_filters(manifest: Manifest, known: Mapping[int, StreamSet | None]) -> Manifest:
    """The manifest with the filters of its newest fragments, as far as there is room.

    `known` are sets by slot that it does not have yet. One that holds no stream, and never did,
    stays as it is.
    """
    has_streams = STREAMS in manifest.features
    if not has_streams and all(streams is not None and not streams for streams in known.values()):
        return manifest
    pointers = len(manifest.nodes) + len(manifest.fragments)
    room = min(FILTERS_BYTES_MAX, ROOT_BYTES - POINTER_BYTES * pointers)
    there = _root_filters(manifest)
    chosen: dict[str, str] = {}
    left = len(manifest.fragments)
    # The oldest will be folded soon: the newest choose first, and leave the others their share.
    for fragment in reversed(manifest.fragments):
        slot = str(fragment.seq_no)
        share = room // left - len(slot) - ENTRY_BYTES
        left -= 1
        streams = known.get(fragment.seq_no)
        text = there.get(slot)
        if streams is not None:
            text = filters.encode_within(streams, fragment.setsum_hex, share)
        if text is not None and len(text) + len(slot) + ENTRY_BYTES <= room:
            room -= len(text) + len(slot) + ENTRY_BYTES
            chosen[slot] = text
    manifest = tree.with_features(manifest, (STREAMS,))
    assert manifest.cordwood is not UNSET
    extension: Extension = msgspec.structs.replace(manifest.cordwood, filters=chosen or UNSET)
    return msgspec.structs.replace(manifest, cordwood=extension)


def _root_filters(manifest: Manifest) -> dict[str, str]:
    """The texts, by slot."""
    if manifest.cordwood is UNSET or manifest.cordwood.filters is UNSET:
        return {}
    return manifest.cordwood.filters


def root_sets(manifest: Manifest) -> dict[int, Filter]:
    """What the root knows of its fragments, by slot."""
    there = _root_filters(manifest)
    found: dict[int, Filter] = {}
    for fragment in manifest.fragments if there else ():
        text = there.get(str(fragment.seq_no))
        streams = None if text is None else filters.decode(text, fragment.setsum_hex)
        if streams is not None:
            found[fragment.seq_no] = streams
    return found


# Filter objects.


async def read_filters(
    objects: LogObjects, pointer: NodePointer
) -> dict[str, Filter | None] | None:
    """What is known of a node's children, by setsum; None if nothing is. One GET.

    In a fork, one more for each log that may have the node.
    """
    data = await _get_filters(objects, pointer)
    if data is None:
        return None
    where = paths.filters(pointer.path)
    try:
        found = decode(Filters, data, where)
        whole = Setsum.sum([setsum_hex for setsum_hex, _ in found.children])
    except (CorruptionError, FormatError, UnsupportedError, ValueError):
        return None
    if found.node != pointer.path or whole.hexdigest() != pointer.setsum_hex:
        return None
    return {setsum_hex: filters.decode(text, setsum_hex) for setsum_hex, text in found.children}


async def copy_filters(source: LogObjects, target: LogObjects, pointer: NodePointer) -> None:
    """Put the filters of a node beside its copy. One GET, one PUT; without them it goes as well."""
    with suppress(CordwoodError):
        data = await _get_filters(source, pointer)
        if data is not None:
            await target.store.put(target.key(paths.filters(pointer.path)), data, "create")


async def _get_filters(objects: LogObjects, pointer: NodePointer) -> bytes | None:
    above = [objects.name_of(a) for a in reversed(objects.ancestors) if pointer.limit <= a.limit]
    for name in (objects.name, *above):
        with suppress(NotFoundError):
            return (await objects.store.get(f"{name}/{paths.filters(pointer.path)}")).data
    return None


async def read_streams(objects: LogObjects, fragment: Fragment) -> StreamSet | None:
    """What a fragment says of itself, in its footer; None if it says nothing. One ranged GET."""
    start = max(0, fragment.num_bytes - FOOTER_PEEK_BYTES)
    tail = await objects.get_part(fragment, start, fragment.num_bytes - start)
    text = read_footer_streams(tail)
    streams = None if text is None else filters.decode(text, fragment.setsum_hex)
    return streams if isinstance(streams, StreamSet) else None


class FilterWriter:
    """Writes the filters of nodes, and remembers what it needs for that."""

    def __init__(
        self, objects: LogObjects, into: LogObjects | None = None, most: int = KNOWN_MAX
    ) -> None:
        """Nothing known yet. Nodes lie in the log itself, or are written `into` another one."""
        self._objects = objects
        self._target = objects if into is None else into
        self._most = most
        self._known: OrderedDict[str, StreamSet | None] = OrderedDict()
        """By setsum, the latest last."""
        self._awaited: dict[str, asyncio.Future[StreamSet | None]] = {}
        """Of nodes that are being made: their parents may be made at the same time."""

    def learn(self, found: Iterable[tuple[Fragment, StreamSet | None]]) -> None:
        """Fragments with their streams; None if it is known that they have no filter."""
        for fragment, streams in found:
            self._remember(fragment.setsum_hex, streams)

    def learn_root(self, manifest: Manifest) -> None:
        """What the root says of fragments, ours and those of others."""
        sets = root_sets(manifest)
        for fragment in manifest.fragments:
            streams = sets.get(fragment.seq_no)
            # A rough one will not do: nothing can be made of it for a node.
            if fragment.setsum_hex not in self._known and isinstance(streams, StreamSet):
                self._remember(fragment.setsum_hex, streams)

    def sets_of(self, manifest: Manifest) -> dict[int, StreamSet | None]:
        """What is known of the fragments in the root, by slot."""
        known = self._known
        return {f.seq_no: known[f.setsum_hex] for f in manifest.fragments if f.setsum_hex in known}

    def expect(self, node: Node) -> None:
        """The node will be prepared: who makes its parent before that waits for it."""
        loop = asyncio.get_running_loop()
        # Equal uploads make nodes with equal sums: whoever waits for one is told by either.
        self._awaited.setdefault(node.setsum_hex, loop.create_future())

    async def prepare(self, node: Node) -> bytes | None:
        """The filters of a node that is to be written; None if there is nothing to say.

        A GET for each child of which nothing is known here.
        """
        pairs: list[tuple[str, StreamSet | None]] = []
        whole: StreamSet | None = None
        try:
            pairs = [(child.setsum_hex, await self._find(child)) for child in node.children]
            whole = filters.merge(streams for _, streams in pairs)
        except CordwoodError:
            return None
        finally:
            self._remember(node.setsum_hex, whole)
            awaited = self._awaited.pop(node.setsum_hex, None)
            if awaited is not None and not awaited.done():
                awaited.set_result(whole)
        if all(streams is None or not streams for _, streams in pairs):
            return None
        children = tuple((s, "" if k is None else k.encode(s)) for s, k in pairs)
        return encode(Filters(FORMAT, node.path, children), node.path)

    async def put(self, node: Node, data: bytes | None) -> None:
        """Put them beside the node, which is durable. One PUT.

        Whatever goes wrong, the log is none the worse for it: then readers read more.
        """
        if data is not None:
            key = self._target.key(paths.filters(node.path))
            with suppress(CordwoodError):
                await self._target.store.put(key, data, "create")

    async def _find(self, child: Pointer) -> StreamSet | None:
        if (awaited := self._awaited.get(child.setsum_hex)) is not None:
            return await asyncio.shield(awaited)
        if child.setsum_hex in self._known:
            return self._known[child.setsum_hex]
        if isinstance(child, Fragment):
            return await read_streams(self._objects, child)
        below = await read_filters(self._objects, child)
        return None if below is None else filters.merge(below.values())

    def _remember(self, setsum_hex: str, streams: StreamSet | None) -> None:
        self._known[setsum_hex] = streams
        while len(self._known) > self._most:
            self._known.popitem(last=False)


# Reading.


class Sieve:
    """Finds what may hold one stream."""

    def __init__(self, objects: LogObjects, stream: str) -> None:
        """No I/O."""
        self._objects = objects
        self._stream = stream

    async def sift(
        self, pointers: Sequence[Pointer], sets: Mapping[int, Filter], start: int, limit: int
    ) -> AsyncGenerator[Fragment, None]:
        """Fragments of `[start, limit)` that may hold the stream, in order.

        `sets` is what is known of fragments among the pointers, by slot.
        """
        found = [p for p in tree.overlapping(pointers, start, limit) if self.may_hold(p, sets)]
        ahead: dict[int, asyncio.Task[Sequence[Pointer]]] = {}
        try:
            for i, pointer in enumerate(found):
                for j, soon in enumerate(found[i : i + NODES_AHEAD], i):
                    if j not in ahead and self._wants_look(soon, sets):
                        ahead[j] = task = asyncio.ensure_future(self.open(soon))
                        task.add_done_callback(_retrieve)
                below = await ahead.pop(i) if i in ahead else [pointer]
                if isinstance(pointer, Fragment):
                    for _ in below:
                        yield pointer
                    continue
                async with aclosing(self.sift(below, {}, start, limit)) as fragments:
                    async for fragment in fragments:
                        yield fragment
        finally:
            for task in ahead.values():
                task.cancel()

    def may_hold(self, pointer: Pointer, sets: Mapping[int, Filter]) -> bool:
        """Whether it must be looked at."""
        return self._may(sets.get(pointer.seq_no) if isinstance(pointer, Fragment) else None)

    def _may(self, streams: Filter | None) -> bool:
        return streams is None or streams.may_hold(self._stream)

    def _wants_look(self, pointer: Pointer, sets: Mapping[int, Filter]) -> bool:
        """Whether there is something to find out before it is read."""
        if isinstance(pointer, NodePointer):
            return True
        is_sure = isinstance(sets.get(pointer.seq_no), StreamSet)
        return not is_sure and pointer.num_bytes >= FOOTER_BYTES_MIN

    async def denies(self, pointer: NodePointer) -> bool:
        """Whether nothing below a node holds the stream, for certain. One GET."""
        known = await read_filters(self._objects, pointer) or {}
        return bool(known) and not any(self._may(streams) for streams in known.values())

    async def open(self, pointer: Pointer) -> Sequence[Pointer]:
        """What is below a node and may hold the stream. One GET for its filters, one for the node.

        Of a fragment: itself, unless its footer says that it does not hold it.
        """
        if isinstance(pointer, Fragment):
            streams = await read_streams(self._objects, pointer)
            return [pointer] if self._may(streams) else []
        known = await read_filters(self._objects, pointer) or {}
        holds = {setsum_hex: self._may(streams) for setsum_hex, streams in known.items()}
        if known and not any(holds.values()):
            return []
        node = await self._objects.read_node(pointer)
        return [child for child in node.children if holds.get(child.setsum_hex, True)]


def _retrieve(task: asyncio.Task[Sequence[Pointer]]) -> None:
    """What was looked at ahead and not needed may fail without a complaint from asyncio."""
    if not task.cancelled():
        task.exception()
