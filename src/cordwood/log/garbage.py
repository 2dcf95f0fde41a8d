"""GARBAGE: what a collection takes out of a log, and how far it has come. Pure, but for the load.

The object is wal3's, with one field more. It goes round::

    empty ──mark──▶ marked ──unlink──▶ unlinked ──grace, sweep──▶ empty
                      │                   ▲
                      └──▶ cancelled ─────┴──▶ empty

Every step is a compare-and-swap of this one object, and each state carries a nonce of its own: no
two have the same bytes, and on S3 the same etag.

`apply` is the whole effect on the log. It removes from the root what lies before `first_to_keep`,
and puts a smaller node in the place of the one that straddles it:

    root  [ a ][ b ][ c ][ d ] f f f                    first_to_keep inside c
    after           [ c'][ d ] f f f                    discarded: a + b + c - c'

A garbage fits a manifest or it does not; the tree may have been folded since it was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from cordwood.base.errors import CorruptionError, NotFoundError, UnsupportedError
from cordwood.base.limits import OFFSET_LIMIT
from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.format import (
    FORMAT,
    ZERO,
    Manifest,
    Node,
    NodePointer,
    Position,
    check_node,
    decode,
)
from cordwood.log.objects import LogObjects


class Phase(StrEnum):
    """How far a collection has come."""

    EMPTY = "empty"
    LISTED = "listed"
    """It is written what might go, and not yet verified: nobody may unlink it. Of a chain log."""
    MARKED = "marked"
    """It is written what goes; the manifest still names it."""
    CANCELLED = "cancelled"
    """It will not be done; but somebody may still be about to do it."""
    UNLINKED = "unlinked"
    """The manifest no longer names it; the grace interval runs."""


class Upload(Struct, frozen=True, forbid_unknown_fields=True):
    """A fragment whose name does not follow from its slot: a bulk commit's, or one in a shard."""

    path: str
    seq_no: int


class GarbageExtension(Struct, frozen=True, forbid_unknown_fields=True):
    """What wal3 does not have."""

    nonce: str
    """Unique: which garbage this is."""
    phase: Phase
    manifest: str = ""
    """The etag of the manifest it was computed from."""
    format: int = FORMAT
    uploads: tuple[Upload, ...] | UnsetType = UNSET
    """Which of the fragments that go are uploads, if any are."""
    prefix: str | UnsetType = UNSET
    """Of a chain log, once it was verified: the setsum that names the new beginning."""


class Garbage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object gc/GARBAGE."""

    nodes_to_drop: tuple[NodePointer, ...] = msgspec.field(name="snapshots_to_drop", default=())
    nodes_to_make: tuple[Node, ...] = msgspec.field(name="snapshots_to_make", default=())
    node_for_root: NodePointer | None = msgspec.field(name="snapshot_for_root", default=None)
    drop_start: int = msgspec.field(name="fragments_to_drop_start", default=0)
    drop_limit: int = msgspec.field(name="fragments_to_drop_limit", default=0)
    drop_uuid_limit: str | UnsetType = msgspec.field(
        name="fragments_to_drop_uuid_limit", default=UNSET
    )
    are_uuids: bool = msgspec.field(name="fragments_are_uuids", default=False)
    discard_hex: str = msgspec.field(name="setsum_to_discard", default=ZERO)
    first_to_keep: Position = Position(1)
    cordwood: GarbageExtension | UnsetType = UNSET

    @property
    def phase(self) -> Phase:
        """How far it has come; wal3 knows only empty and pending."""
        if self.cordwood is not UNSET:
            return self.cordwood.phase
        return Phase.EMPTY if self == Garbage() else Phase.MARKED

    @property
    def nonce(self) -> str:
        """Which garbage this is; empty if wal3 wrote it."""
        return "" if self.cordwood is UNSET else self.cordwood.nonce

    @property
    def prefix(self) -> str:
        """The setsum that names the new beginning of a chain log; empty if there is none."""
        if self.cordwood is UNSET or self.cordwood.prefix is UNSET:
            return ""
        return self.cordwood.prefix

    @property
    def uploads(self) -> tuple[Upload, ...]:
        """Which of the fragments that go are uploads."""
        if self.cordwood is UNSET or self.cordwood.uploads is UNSET:
            return ()
        return self.cordwood.uploads

    @property
    def is_foreign(self) -> bool:
        """Whether another program's collection is under way."""
        return self.cordwood is UNSET and self.phase is not Phase.EMPTY

    @property
    def is_pending(self) -> bool:
        """Whether what it names may go, or is gone: nothing new may rely on it."""
        return self.phase is not Phase.EMPTY

    def in_phase(self, phase: Phase, prefix: str = "") -> Garbage:
        """The same garbage, further on."""
        assert self.cordwood is not UNSET
        extension = msgspec.structs.replace(self.cordwood, phase=phase)
        if prefix:
            extension = msgspec.structs.replace(extension, prefix=prefix)
        return msgspec.structs.replace(self, cordwood=extension)

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be a garbage."""
        if self.cordwood is not UNSET and self.cordwood.format != FORMAT:
            raise UnsupportedError(
                f"{where}: format {self.cordwood.format} is not known to this version",
                hint="upgrade Cordwood before collecting this log",
            )
        if not 0 <= self.first_to_keep.offset < OFFSET_LIMIT or self.drop_start > self.drop_limit:
            raise CorruptionError(f"{where}: its ranges cannot be", where=where)
        for node in self.nodes_to_make:
            check_node(node, f"{where}: {node.path}")
        for pointer in self.nodes_to_drop:
            place = pointer.start, pointer.limit
            if not paths.is_node(pointer.path, pointer.setsum_hex, *place):
                raise CorruptionError(f"{where}: {pointer.path} is no node's name", where=where)
        check_uploads(self.uploads, where)


def check_uploads(uploads: Iterable[Upload], where: str) -> None:
    """Raise unless each can be an upload of the log."""
    for upload in uploads:
        is_named = paths.is_bulk(upload.path) or paths.is_in_shard(upload.path)
        if not paths.is_known(upload.path) or not is_named or upload.seq_no < 0:
            raise CorruptionError(f"{where}: {upload.path} is no upload's name", where=where)


class GarbageSeen(NamedTuple):
    """A garbage and the etag that proves which one it was; empty if there is no object yet."""

    garbage: Garbage
    etag: str


def empty(nonce: str) -> Garbage:
    """Nothing is being collected."""
    return Garbage(cordwood=GarbageExtension(nonce, Phase.EMPTY))


async def load_garbage(objects: LogObjects) -> GarbageSeen:
    """What is being collected now. One GET."""
    key = objects.key(paths.GARBAGE)
    try:
        data, etag = await objects.store.get(key)
    except NotFoundError:
        return GarbageSeen(Garbage(), "")
    return GarbageSeen(decode(Garbage, data, key), etag)


def is_applied(manifest: Manifest, garbage: Garbage) -> bool:
    """Whether the manifest is past it already."""
    return manifest.oldest_offset >= garbage.first_to_keep.offset


def apply(manifest: Manifest, garbage: Garbage) -> Manifest | None:
    """The manifest without the garbage, or None if it does not fit. The writer tag is unchanged.

    It fits if nothing but a node it drops straddles `first_to_keep`, and what goes adds up to the
    sum it was made for.
    """
    first = garbage.first_to_keep.offset
    if is_applied(manifest, garbage) or first > manifest.next_offset:
        return None
    gone = [p for p in tree.roots(manifest) if p.start < first]
    nodes = tuple(p for p in manifest.nodes if p.start >= first)
    fragments = tuple(p for p in manifest.fragments if p.start >= first)
    root = garbage.node_for_root
    straddles = gone[-1].limit > first
    if straddles != (root is not None):
        return None
    discard = Setsum.sum([p.setsum_hex for p in gone])
    if root is not None:
        dropped = {pointer.path for pointer in garbage.nodes_to_drop}
        if gone[-1].path not in dropped or (root.start, root.limit) != (first, gone[-1].limit):
            return None
        nodes, discard = (root, *nodes), discard - Setsum.from_hex(root.setsum_hex)
    if discard.hexdigest() != garbage.discard_hex:
        return None
    return msgspec.structs.replace(
        manifest,
        collected_hex=(Setsum.from_hex(manifest.collected_hex) + discard).hexdigest(),
        nodes=nodes,
        fragments=fragments,
        initial_offset_position=garbage.first_to_keep,
        initial_seq_no=garbage.drop_limit,
    )
