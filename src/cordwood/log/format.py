"""The JSON objects of a log, and the invariants that hold for each of them.

Specified in docs/formats/log.md; byte-compatible with wal3. Python names differ from the names on
disk in two places: a *node* is on disk a SNAPSHOT, and a position `{"offset": N}` is here the plain
number. Field order is the order on disk; there is no whitespace.

A manifest is the whole state of a log::

    setsum      = collected + sum of node setsums + sum of fragment setsums
    nodes         older ranges, each behind one immutable SNAPSHOT object
    fragments     the newest ranges, directly

Invariants, checked by the one encoder before every write and by the one decoder after every read
(numbers as in docs/formats/log.md):

LOG-1  setsum balances.
LOG-2  start < limit for every pointer; 0 <= start, limit < 2^63.
LOG-3  nodes, then fragments, are contiguous: each starts where the one before ended.
LOG-4  sequence numbers of fragments increase; they are consecutive unless the feature `gaps` is on.
LOG-5  initial_offset, if present, is the oldest offset; initial_seq_no is above no fragment's.
LOG-6  every path stays inside the log; a slot's path names its sequence number; a node's path ends
       in its setsum, or over uploads in the digest of its setsum and its place.
LOG-7  a node holds nodes or fragments, never both, never nothing; its depth is more than its
       children's; its setsum is the sum of theirs.
LOG-8  where there is a node there is a fragment: the newest is always in the root, because the next
       sequence number is read from it. (Checked on writing; wal3 can leave such a root.)
LOG-9  format is 1 and every feature is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol, Self, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from cordwood.base.errors import Code, CorruptionError, FormatError, UnsupportedError
from cordwood.base.limits import (
    FRAGMENT_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    NODE_DEPTH_MAX,
    OFFSET_LIMIT,
)
from cordwood.base.setsum import Setsum
from cordwood.log import paths
from cordwood.log.chain.document import ChainLink, Shards, check_fragment_name, check_link
from cordwood.log.tag import WriterTag

ZERO = "0" * 64
FORMAT = 1
GRACE_S_DEFAULT = 600
U64_LIMIT = 2**64

BULK = "bulk"
CHAIN = "chain"
COLUMNS = "columns"
FORK = "fork"
GAPS = "gaps"
GRACE = "grace"
PRODUCERS = "producers"
SEAL = "seal"
STREAMS = "streams"
KNOWN_FEATURES = frozenset({BULK, CHAIN, COLUMNS, FORK, GAPS, GRACE, PRODUCERS, SEAL, STREAMS})

STAGED_GRACES = 144
"""Grace intervals after which an upload that nobody committed is swept: a day, by default."""


class Position(Struct, frozen=True, forbid_unknown_fields=True):
    """An offset as wal3 writes it."""

    offset: int


class Fragment(Struct, frozen=True, forbid_unknown_fields=True):
    """A pointer to one immutable file of records: `[start, limit)` at `path`."""

    path: str
    seq_no: int
    start_position: Position = field(name="start")
    limit_position: Position = field(name="limit")
    num_bytes: int
    setsum_hex: str = field(name="setsum")

    @classmethod
    def of(
        cls, path: str, seq_no: int, start: int, limit: int, num_bytes: int, setsum_hex: str
    ) -> Self:
        """A pointer from plain numbers."""
        return cls(path, seq_no, Position(start), Position(limit), num_bytes, setsum_hex)

    @property
    def start(self) -> int:
        """The first offset in the fragment."""
        return self.start_position.offset

    @property
    def limit(self) -> int:
        """The first offset after the fragment."""
        return self.limit_position.offset

    @property
    def num_records(self) -> int:
        """How many records it holds."""
        return self.limit - self.start

    @property
    def setsum(self) -> Setsum:
        """The sum over its records."""
        return Setsum.from_hex(self.setsum_hex)


class NodePointer(Struct, frozen=True, forbid_unknown_fields=True):
    """A pointer to a node of the manifest tree."""

    setsum_hex: str = field(name="setsum")
    path: str = field(name="path_to_snapshot")
    depth: int
    start_position: Position = field(name="start")
    limit_position: Position = field(name="limit")
    num_bytes: int
    """Fragment bytes below it."""

    @property
    def start(self) -> int:
        """The first offset below the node."""
        return self.start_position.offset

    @property
    def limit(self) -> int:
        """The first offset after the node."""
        return self.limit_position.offset


DESTROYED = "destroyed"
"""The reason of a seal that begins a destruction; nobody else may give it."""


class Seal(Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a log: no later slot will ever be named."""

    reason: str
    at_us: int
    moved_to: str = ""
    """The log that goes on from here, if there is one: a name in the same store, or a URL."""

    @property
    def is_destruction(self) -> bool:
        """Whether the log is being destroyed: nothing may rely on it any more."""
        return self.reason == DESTROYED


class Ancestor(Struct, frozen=True, forbid_unknown_fields=True):
    """A log whose files a fork shares: pointers up to `limit` lie there."""

    log: str
    """Its name, relative to the fork's: `../orders` (log/paths.py)."""
    limit: int
    """The first offset that is not its."""
    seq_no: int
    """The first slot that is not its."""


class Producer(Struct, frozen=True, forbid_unknown_fields=True):
    """Who committed in bulk, and its last batch: the same batch is never committed again."""

    id: str
    batch: int
    nonce: str
    records: int
    offset: int
    """Of the batch's first record."""
    at_us: int
    once: bool = False
    """Whether nobody will ask for it any more when its uploads would have been swept."""

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be one."""
        is_range = 0 <= self.offset <= self.offset + self.records < OFFSET_LIMIT
        if not self.id or not is_range or not 0 <= self.batch < OFFSET_LIMIT:
            raise _broken("LOG-9", where, "a producer", str(self))


class Remembered(Struct, frozen=True, forbid_unknown_fields=True):
    """The object producer/<hash>.json: a producer that has left the manifest."""

    log: str
    """The log's incarnation: one left by an earlier log of this name means nothing."""
    producer: Producer

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be one."""
        self.producer.check(where, writing=writing)


class Extension(Struct, frozen=True, forbid_unknown_fields=True):
    """What wal3 does not have: the last field of a manifest, only there when a feature needs it."""

    format: int = FORMAT
    features: tuple[str, ...] = ()
    grace_s: int | UnsetType = UNSET
    """With `grace`: seconds between unlink and sweep, fixed at creation."""
    fork: tuple[Ancestor, ...] | UnsetType = UNSET
    """With `fork`: whose files it shares, the oldest first; empty until the fork is finished."""
    seal: Seal | UnsetType = UNSET
    """With `seal`: why and when the log ended."""
    producers: tuple[Producer, ...] | UnsetType = UNSET
    """With `producers`: the latest who committed in bulk, the latest last."""
    filters: dict[str, str] | UnsetType = UNSET
    """With `streams`: which streams the newest fragments hold, by slot (log/filters.py)."""
    chain: ChainLink | UnsetType = UNSET
    """With `chain`: its place in the chain of manifests (log/chain/document.py)."""


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The root of a log: the one object that is ever replaced."""

    setsum_hex: str = field(name="setsum")
    collected_hex: str = field(name="collected", default=ZERO)
    acc_bytes: int
    """Fragment bytes ever appended; collection does not lower it."""
    writer: str
    """Free text for wal3; for us a `WriterTag`."""
    nodes: tuple[NodePointer, ...] = field(name="snapshots")
    fragments: tuple[Fragment, ...]
    initial_offset_position: Position | UnsetType = field(name="initial_offset", default=UNSET)
    initial_seq_no: int | UnsetType = UNSET
    cordwood: Extension | UnsetType = UNSET

    @property
    def oldest_offset(self) -> int:
        """The first offset still in the log; where it would be if the log is empty."""
        if self.nodes:
            return self.nodes[0].start
        if self.fragments:
            return self.fragments[0].start
        return self.initial_offset

    @property
    def next_offset(self) -> int:
        """The offset the next record will get."""
        if self.fragments:
            return self.fragments[-1].limit
        if self.nodes:
            return self.nodes[-1].limit
        return self.initial_offset

    @property
    def initial_offset(self) -> int:
        """Where the log begins after collection; 1 for a log never collected."""
        position = self.initial_offset_position
        return 1 if isinstance(position, UnsetType) else position.offset

    @property
    def first_seq_no(self) -> int:
        """No slot below this one belongs to the log any more."""
        return 1 if isinstance(self.initial_seq_no, UnsetType) else self.initial_seq_no

    @property
    def next_seq_no(self) -> int:
        """The slot after the newest one the manifest names."""
        return self.fragments[-1].seq_no + 1 if self.fragments else self.first_seq_no

    @property
    def incarnation(self) -> str:
        """Tells the log from others that had or will have its name; empty if wal3 wrote it last."""
        tag = WriterTag.parse(self.writer)
        return tag.incarnation if tag else ""

    @property
    def features(self) -> frozenset[str]:
        """The features in use."""
        return frozenset() if self.cordwood is UNSET else frozenset(self.cordwood.features)

    @property
    def grace_s(self) -> int:
        """Seconds that must pass between unlinking and deleting."""
        if self.cordwood is UNSET or self.cordwood.grace_s is UNSET:
            return GRACE_S_DEFAULT
        return self.cordwood.grace_s

    @property
    def seal(self) -> Seal | None:
        """Why the log ended, if it did."""
        if self.cordwood is UNSET or self.cordwood.seal is UNSET:
            return None
        return self.cordwood.seal

    @property
    def ancestors(self) -> tuple[Ancestor, ...]:
        """Whose files it shares, if it is a fork."""
        if self.cordwood is UNSET or self.cordwood.fork is UNSET:
            return ()
        return self.cordwood.fork

    @property
    def producers(self) -> tuple[Producer, ...]:
        """The latest who committed in bulk."""
        if self.cordwood is UNSET or self.cordwood.producers is UNSET:
            return ()
        return self.cordwood.producers

    @property
    def chain(self) -> ChainLink | None:
        """Its place in the chain, if the log is one."""
        if self.cordwood is UNSET or self.cordwood.chain is UNSET:
            return None
        return self.cordwood.chain

    @property
    def shards(self) -> Shards | None:
        """How its fragments are spread over prefixes, if the log is a chain."""
        return Shards(self.chain.shards, self.chain.width) if self.chain else None

    @property
    def staged_s(self) -> int:
        """How old an upload is when it is swept; one half as old is committed no more."""
        return STAGED_GRACES * self.grace_s

    @property
    def is_unborn(self) -> bool:
        """Whether it is a fork that was begun and not finished."""
        return FORK in self.features and not self.ancestors

    @property
    def is_destroyed(self) -> bool:
        """Whether it is sealed for destruction: nothing may rely on it any more."""
        return self.seal is not None and self.seal.is_destruction

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing here to go on from: it is unborn, or destroyed."""
        return self.is_unborn or self.is_destroyed

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless LOG-1 to LOG-9 hold."""
        check_manifest(self, where, writing=writing)


class Node(Struct, frozen=True, forbid_unknown_fields=True):
    """An immutable interior node; on disk a SNAPSHOT object."""

    path: str
    depth: int
    setsum_hex: str = field(name="setsum")
    writer: str
    nodes: tuple[NodePointer, ...] = field(name="snapshots")
    fragments: tuple[Fragment, ...]

    @property
    def children(self) -> tuple[NodePointer, ...] | tuple[Fragment, ...]:
        """Whichever kind of child it has."""
        return self.nodes or self.fragments

    def pointer(self) -> NodePointer:
        """The pointer a parent keeps to this node."""
        children = self.children
        return NodePointer(
            self.setsum_hex,
            self.path,
            self.depth,
            children[0].start_position,
            children[-1].limit_position,
            sum(child.num_bytes for child in children),
        )

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless LOG-2 to LOG-4, LOG-6 and LOG-7 hold."""
        check_node(self, where)


class Checked(Protocol):
    """A document that knows its invariants."""

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless they hold."""
        ...


Document = TypeVar("Document", bound=Checked)


def encode(document: Checked, where: str = "") -> bytes:
    """The bytes on disk, after checking every invariant.

    Raises:
        CorruptionError: the document breaks one; nothing should be written.
    """
    document.check(where or getattr(document, "path", paths.MANIFEST), writing=True)
    return msgspec.json.encode(document)


def decode(kind: type[Document], data: bytes, where: str) -> Document:
    """The document in `data`, with every invariant checked.

    Raises:
        UnsupportedError: it was written by something newer.
        CorruptionError: it is not such a document, or breaks an invariant.
    """
    if len(data) > MANIFEST_BYTES_MAX:
        raise CorruptionError(
            f"{where}: {len(data)} bytes, more than any {kind.__name__.lower()} may have",
            where=where,
        )
    try:
        document = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if "unknown field" in str(error):
            raise UnsupportedError(
                f"{where}: {error}",
                hint="it was written by a newer version: upgrade before using this log",
            ) from error
        raise _not_a(kind, where, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_a(kind, where, error) from error
    document.check(where, writing=False)
    return document


def _not_a(kind: type, where: str, error: Exception) -> FormatError:
    return CorruptionError(
        f"{where}: not a {kind.__name__.lower()}: {error}",
        where=where,
        code=Code.NOT_A_LOG if kind is Manifest else Code.CORRUPT,
        hint="this is not a log, or its bytes were damaged",
    )


def check_manifest(
    manifest: Manifest, where: str = paths.MANIFEST, *, writing: bool = False
) -> None:
    """Raise unless LOG-1 to LOG-9 hold."""
    _check_extension(manifest, where)
    nodes, fragments = manifest.nodes, manifest.fragments
    _check_pointers(nodes, fragments, where)
    if nodes and fragments and nodes[-1].limit != fragments[0].start:
        raise _broken("LOG-3", where, f"fragments from {nodes[-1].limit}", str(fragments[0].start))
    if BULK not in manifest.features and any(paths.is_bulk(f.path) for f in fragments):
        raise _broken("LOG-9", where, "the feature bulk", "an upload without it")
    if writing and nodes and not fragments:
        raise _broken("LOG-8", where, "a fragment in the root", "nodes only")
    if writing and GAPS not in manifest.features:
        for before, after in pairwise(fragments):
            if after.seq_no != before.seq_no + 1:
                raise _broken("LOG-4", where, str(before.seq_no + 1), str(after.seq_no))
    if manifest.initial_offset_position is not UNSET and (
        manifest.initial_offset != manifest.oldest_offset
    ):
        raise _broken(
            "LOG-5", where, f"oldest offset {manifest.initial_offset}", str(manifest.oldest_offset)
        )
    if not (0 <= manifest.initial_offset < OFFSET_LIMIT and 0 <= manifest.first_seq_no < U64_LIMIT):
        raise _broken("LOG-2", where, "initial values in range", str(manifest.initial_offset))
    if not 0 <= manifest.acc_bytes < U64_LIMIT:
        raise _broken("LOG-2", where, "acc_bytes of 64 bits", str(manifest.acc_bytes))
    if fragments and fragments[0].seq_no < manifest.first_seq_no:
        raise _broken(
            "LOG-5", where, f"seq_no from {manifest.first_seq_no}", str(fragments[0].seq_no)
        )
    _check_sum("LOG-1", where, manifest.setsum_hex, (manifest.collected_hex,), nodes, fragments)


def check_node(node: Node, where: str | None = None) -> None:
    """Raise unless LOG-2 to LOG-4, LOG-6 and LOG-7 hold."""
    where = where or node.path
    if bool(node.nodes) == bool(node.fragments):
        raise _broken("LOG-7", where, "either nodes or fragments", "both or neither")
    _check_pointers(node.nodes, node.fragments, where)
    if not 0 < node.depth <= NODE_DEPTH_MAX or any(c.depth >= node.depth for c in node.nodes):
        raise _broken("LOG-7", where, "a depth above its children's", str(node.depth))
    _check_node_path(node.pointer(), where)
    _check_sum("LOG-7", where, node.setsum_hex, (), node.nodes, node.fragments)


def _check_extension(manifest: Manifest, where: str) -> None:
    extension = manifest.cordwood
    if extension is UNSET:
        return
    unknown = sorted(set(extension.features) - KNOWN_FEATURES)
    if extension.format != FORMAT or unknown:
        what = f"features {', '.join(unknown)}" if unknown else f"format {extension.format}"
        raise UnsupportedError(
            f"{where}: LOG-9: the log uses {what}, which this version does not know",
            hint="upgrade Cordwood before using this log",
        )
    if (GRACE in extension.features) != (extension.grace_s is not UNSET):
        raise _broken("LOG-9", where, "grace_s exactly with the feature grace", "one without it")
    if extension.grace_s is not UNSET and not is_grace(extension.grace_s):
        raise _broken("LOG-9", where, "a grace of at least a second", str(extension.grace_s))
    if (SEAL in extension.features) != (extension.seal is not UNSET):
        raise _broken("LOG-9", where, "seal exactly with the feature seal", "one without it")
    if (FORK in extension.features) != (extension.fork is not UNSET):
        raise _broken("LOG-9", where, "fork exactly with the feature fork", "one without it")
    if (PRODUCERS in extension.features) != (extension.producers is not UNSET):
        raise _broken("LOG-9", where, "producers exactly with that feature", "one without it")
    if (CHAIN in extension.features) != (extension.chain is not UNSET):
        raise _broken("LOG-9", where, "chain exactly with that feature", "one without it")
    if extension.chain is not UNSET:
        check_link(extension.chain, where)
    for producer in manifest.producers:
        producer.check(where, writing=False)
    limit = 0
    for ancestor in manifest.ancestors:
        # Equal where a fork was forked before it had anything of its own.
        if not (paths.is_relative_name(ancestor.log) and limit <= ancestor.limit < OFFSET_LIMIT):
            raise _broken("LOG-9", where, "ancestors with rising limits", str(ancestor))
        limit = ancestor.limit


def is_grace(grace_s: object) -> bool:
    """Whether it can be a grace interval: whole seconds, from one to some thousand years."""
    return isinstance(grace_s, int) and not isinstance(grace_s, bool) and 0 < grace_s < 2**37


def _check_pointers(
    nodes: Sequence[NodePointer], fragments: Sequence[Fragment], where: str
) -> None:
    pointers: tuple[NodePointer | Fragment, ...]
    for pointers in (tuple(nodes), tuple(fragments)):
        limit = pointers[0].start if pointers else 0
        for pointer in pointers:
            if not 0 <= pointer.start < pointer.limit < OFFSET_LIMIT:
                raise _broken(
                    "LOG-2", where, "start < limit", f"[{pointer.start}, {pointer.limit})"
                )
            if pointer.start != limit:
                raise _broken("LOG-3", where, f"start {limit}", f"start {pointer.start}")
            if not paths.stays_inside(pointer.path):
                raise _broken("LOG-6", where, "a path inside the log", repr(pointer.path))
            if pointer.num_bytes < 0:
                raise _broken("LOG-2", where, "num_bytes >= 0", str(pointer.num_bytes))
            limit = pointer.limit
    for node in nodes:
        _check_node_pointer(node, where)
    seq_no = -1
    for fragment in fragments:
        _check_fragment(fragment, seq_no, where)
        seq_no = fragment.seq_no


def _check_node_pointer(node: NodePointer, where: str) -> None:
    if not 0 < node.depth <= NODE_DEPTH_MAX:
        raise _broken("LOG-7", where, f"depth 1 to {NODE_DEPTH_MAX}", str(node.depth))
    _check_node_path(node, where)


def _check_node_path(node: NodePointer, where: str) -> None:
    if not paths.is_node(node.path, node.setsum_hex, node.start, node.limit):
        raise _broken("LOG-6", where, paths.node(node.setsum_hex), node.path)


def _check_fragment(fragment: Fragment, seq_no_before: int, where: str) -> None:
    seq_no = fragment.seq_no
    if seq_no <= seq_no_before:
        raise _broken("LOG-4", where, f"seq_no above {seq_no_before}", str(seq_no))
    if paths.is_in_shard(fragment.path):
        place = fragment.start, fragment.limit
        check_fragment_name(fragment.path, *place, fragment.setsum_hex, where)
    elif paths.fragment_seq_no(fragment.path) != seq_no and not paths.is_bulk(fragment.path):
        raise _broken("LOG-6", where, paths.fragment(seq_no), fragment.path)
    if fragment.num_bytes > FRAGMENT_BYTES_MAX:
        raise _broken("LOG-2", where, f"at most {FRAGMENT_BYTES_MAX} bytes", fragment.path)


def _check_sum(
    rule: str,
    where: str,
    total: str,
    more: Iterable[str],
    nodes: Iterable[NodePointer],
    fragments: Iterable[Fragment],
) -> None:
    try:
        expected = Setsum.from_hex(total)
        actual = Setsum.sum(
            [*more, *(n.setsum_hex for n in nodes), *(f.setsum_hex for f in fragments)]
        )
    except ValueError as error:
        raise _broken(rule, where, "canonical setsums", str(error)) from error
    if expected != actual:
        raise _broken(rule, where, total, actual.hexdigest(), code=Code.SETSUM_MISMATCH)


def _broken(
    rule: str, where: str, expected: str, got: str, code: Code = Code.CORRUPT
) -> CorruptionError:
    return CorruptionError(
        f"{where} breaks invariant {rule}: expected {expected}, got {got}",
        where=where,
        expected=expected,
        got=got,
        code=code,
        hint="the object was damaged or written by a faulty program; "
        "run `cordwood log scrub` to see how far the damage goes",
    )
