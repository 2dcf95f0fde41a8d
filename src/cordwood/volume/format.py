"""The documents of volumes: commit, manifest, tag. One encoder and one decoder each; no I/O.

A commit, and a checkpoint, which is a commit that stands for all before it::

    magic     8   CWCOMMIT
    version   4   u32, 1
    head      4   u32, bytes of the head
    head          JSON: who, when, which version, how large, which packs
    packs         for each: its set of pages, the part of it that counts unless that is all of it,
                  its table of frames (volume/pack.py)
    hash     32   BLAKE2b-256 of everything before: the commit's name for ever

Each commit has the hash of the one before, so the newest hash vouches for the whole history and,
by the digests in the tables, for every page. How a page is found::

    in a pack's live set  ─▶ that is the page
    above `cut`           ─▶ zeros: the volume was that small since the commit before
    else                  ─▶ the commit before decides

The first commit of all and every checkpoint have a cut of 0: nothing before them is asked.

Invariants, which are checked before every write and after every read:

VOL-1  A commit's page size is a power of two from 512 to 65536; 0 <= cut <= page_count < 2^32.
VOL-2  Live sets of different packs have no page in common, and no page above page_count; only a
       checkpoint names packs of which not all counts.
VOL-3  A pack's table fits its set of pages, frame by frame.
VOL-4  Only a commit with a cut of 0 has a parent hash of zeros; a checkpoint has a cut of 0 and the
       hash of the commit whose version it is.
VOL-5  A manifest's checkpoints ascend, and none is below what was collected, or below the parent's
       LSN; a watermark, and where collection went up to, are among them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import msgspec
from pyroaring import BitMap

from cordwood.base.errors import CorruptionError, InternalError, InvalidInputError, UnsupportedError
from cordwood.journal import document
from cordwood.volume.ids import is_id
from cordwood.volume.pack import ROW_BYTES, SIZES, Frames, PackIndex, check_index
from cordwood.volume.pagesets import PAGE_MAX, decode_pages, encode_pages
from cordwood.volume.paths import LSN_MAX

MAGIC = b"CWCOMMIT"
VERSION = 1
HASH_BYTES = 32
NO_HASH = bytes(HASH_BYTES)
"""The parent hash of a volume's first commit."""
COMMIT_BYTES_MAX = 512 * 2**20
"""One commit or checkpoint: the tables of several terabytes."""
DOCUMENT_BYTES_MAX = 16 * 2**20
"""A manifest or a tag."""
MESSAGE_BYTES_MAX = 64 * 1024
GRACE_S = 600.0
"""How long what is collected stays; fixed when a volume is created."""
_FIXED = struct.Struct("<8sII")
_HASH = re.compile(r"[0-9a-f]{64}")


def is_hash(text: str) -> bool:
    """Whether this is how the hash of a commit is written."""
    return _HASH.fullmatch(text) is not None


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose commit it is: by this a client knows its own again after a lost answer."""

    client: str
    watermark: int
    """Every local entry up to this one is contained in the commit."""
    nonce: str


class _PackHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    log: str
    own_bytes: int
    live_bytes: int
    """Zero where every page counts."""
    frames: int


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log: str
    lsn: int
    parent_hash: str
    commit_hash: str
    """Of a checkpoint: the commit whose version it is. Else empty."""
    timestamp_us: int
    message: str
    provenance: Provenance
    page_size: int
    page_count: int
    cut: int
    packs: list[_PackHead]


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """One version of a volume, or a checkpoint of it."""

    log: str
    lsn: int
    parent_hash: bytes
    timestamp_us: int
    message: str
    provenance: Provenance
    page_size: int
    page_count: int
    cut: int
    packs: tuple[PackIndex, ...]
    checkpoint_of: bytes = b""
    """The hash of the commit whose version it is; empty if it is that commit."""
    hash: bytes = b""
    """Of its bytes; known once it was encoded."""

    @property
    def commit_hash(self) -> bytes:
        """What the commit after it has as its parent hash."""
        return self.checkpoint_of or self.hash

    @property
    def pages(self) -> BitMap:
        """Every page that it holds."""
        return BitMap.union(*(pack.live for pack in self.packs)) if self.packs else BitMap()


class Sealed(NamedTuple):
    """A commit that knows its hash, and its bytes."""

    commit: Commit
    data: bytes


def seal(commit: Commit) -> Sealed:
    """A commit's bytes. Its invariants are checked before."""
    try:
        _check_commit(commit, "commit")
    except CorruptionError as error:
        raise InternalError(f"a commit that cannot be: {error.message}") from error
    packs: list[_PackHead] = []
    parts: list[bytes] = []
    for pack in commit.packs:
        own = encode_pages(pack.own)
        live = b"" if pack.live == pack.own else encode_pages(pack.live)
        packs.append(_PackHead(pack.id, pack.log, len(own), len(live), pack.num_frames))
        parts += [own, live, pack.frames.encode()]
    head = msgspec.json.encode(
        _Head(
            commit.log,
            commit.lsn,
            commit.parent_hash.hex(),
            commit.checkpoint_of.hex(),
            commit.timestamp_us,
            commit.message,
            commit.provenance,
            commit.page_size,
            commit.page_count,
            commit.cut,
            packs,
        )
    )
    body = b"".join([_FIXED.pack(MAGIC, VERSION, len(head)), head, *parts])
    if len(body) > COMMIT_BYTES_MAX:
        raise InvalidInputError(f"a commit of {len(body)} bytes", hint="push fewer pages at once")
    hashed = blake2b(body, digest_size=HASH_BYTES).digest()
    return Sealed(replace(commit, hash=hashed), body + hashed)


def open_commit(data: bytes, where: str) -> Commit:
    """The commit that bytes say.

    Raises:
        CorruptionError: they are damaged, or break an invariant.
        UnsupportedError: they are of a newer kind.
    """
    if not _FIXED.size + HASH_BYTES <= len(data) <= COMMIT_BYTES_MAX + HASH_BYTES:
        raise CorruptionError(f"{where}: {len(data)} bytes cannot be a commit", where=where)
    body, hashed = memoryview(data)[:-HASH_BYTES], bytes(data[-HASH_BYTES:])
    magic, version, head_bytes = _FIXED.unpack_from(body)
    if magic != MAGIC:
        raise CorruptionError(f"{where}: this is no commit", where=where)
    if blake2b(body, digest_size=HASH_BYTES).digest() != hashed:
        raise CorruptionError(f"{where}: the commit does not match its hash", where=where)
    if version != VERSION:
        raise UnsupportedError(f"{where} is of version {version}", hint="update cordwood")
    try:
        head = msgspec.json.decode(body[_FIXED.size : _FIXED.size + head_bytes], type=_Head)
        parent, of = bytes.fromhex(head.parent_hash), bytes.fromhex(head.commit_hash)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError(f"{where}: its head is damaged: {error}", where=where) from error
    packs = _open_packs(head, bytes(body[_FIXED.size + head_bytes :]), where)
    commit = Commit(
        head.log,
        head.lsn,
        parent,
        head.timestamp_us,
        head.message,
        head.provenance,
        head.page_size,
        head.page_count,
        head.cut,
        packs,
        of,
        hashed,
    )
    _check_commit(commit, where)
    return commit


def _open_packs(head: _Head, data: bytes, where: str) -> tuple[PackIndex, ...]:
    """The packs of a commit, from what follows its head."""
    if head.page_size not in SIZES:
        raise CorruptionError(f"{where}: VOL-1: a page size of {head.page_size}", where=where)
    lengths = [(pack.own_bytes, pack.live_bytes, ROW_BYTES * pack.frames) for pack in head.packs]
    if any(min(sizes) < 0 for sizes in lengths) or sum(map(sum, lengths)) != len(data):
        raise CorruptionError(f"{where}: its parts are of another length", where=where)
    packs: list[PackIndex] = []
    at = 0
    for pack, (own_bytes, live_bytes, table_bytes) in zip(head.packs, lengths, strict=True):
        middle, table = at + own_bytes, at + own_bytes + live_bytes
        own = decode_pages(data[at:middle], where)
        live = decode_pages(data[middle:table], where) if live_bytes else own
        at = table + table_bytes
        frames = Frames.decode(data[table:at], pack.frames)
        packs.append(PackIndex(pack.id, pack.log, head.page_size, own, live, frames))
    return tuple(packs)


def _check_commit(commit: Commit, where: str) -> None:
    """Raise CorruptionError if an invariant does not hold."""
    broken = ""
    is_named = is_id(commit.log) and is_id(commit.provenance.client)
    if not is_named or not is_id(commit.provenance.nonce):
        broken = "its ids"
    elif not 1 <= commit.lsn <= LSN_MAX or not 0 <= commit.timestamp_us < 2**63:
        broken = f"LSN {commit.lsn}, time {commit.timestamp_us}"
    elif not 0 <= commit.provenance.watermark < 2**64:
        broken = f"watermark {commit.provenance.watermark}"
    elif len(commit.message.encode(errors="surrogatepass")) > MESSAGE_BYTES_MAX:
        broken = "its message is too long"
    elif commit.page_size not in SIZES or not 0 <= commit.cut <= commit.page_count <= PAGE_MAX:
        broken = f"VOL-1: {commit.page_count} pages of {commit.page_size}, cut {commit.cut}"
    elif len(commit.parent_hash) != HASH_BYTES or len(commit.checkpoint_of) not in {0, HASH_BYTES}:
        broken = "VOL-4: its hashes are of another length"
    elif commit.cut and (commit.parent_hash == NO_HASH or commit.checkpoint_of):
        broken = f"VOL-4: a cut of {commit.cut} where nothing comes before"
    else:
        broken = _check_packs(commit, where)
    if broken:
        raise CorruptionError(f"{where}: {broken}", where=where)


def _check_packs(commit: Commit, where: str) -> str:
    """What is wrong with a commit's packs, if anything is."""
    seen = BitMap()
    for pack in commit.packs:
        if not is_id(pack.id) or not is_id(pack.log) or pack.page_size != commit.page_size:
            return f"pack {pack.id!r} has no such id, or pages of another size"
        check_index(pack, where)
        if not commit.checkpoint_of and pack.live != pack.own:
            return f"VOL-2: pack {pack.id}: only in a checkpoint not all may count"
        if not seen.isdisjoint(pack.live) or pack.live.max() > commit.page_count:
            return f"VOL-2: pack {pack.id} has pages of another pack, or above the last page"
        seen |= pack.live
    return ""


# The small documents.


class Parent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a branch begins as."""

    log: str
    lsn: int
    hash: str


class Watermark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be collected: versions before a checkpoint."""

    lsn: int
    marked_us: int
    """By the store's clock."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one object of a log that is ever replaced."""

    log: str
    page_size: int
    grace_s: float
    created_us: int
    nonce: str
    """New with each swap: etags of some stores repeat where content does."""
    parent: Parent | None = None
    checkpoints: tuple[int, ...] = ()
    watermark: Watermark | None = None
    """Marked: nobody may branch below it any more, and a sweep will collect."""
    collected: int = 0
    """Versions below this are gone, or going."""
    condemned_us: int | None = None
    """When it was found that no tag and no branch needs the log, by the store's clock."""
    swept: bool = False
    """The log is being deleted, and nothing brings it back."""
    format: int = document.FORMAT

    @property
    def first(self) -> int:
        """The LSN of the first commit of its own."""
        return self.parent.lsn + 1 if self.parent else 1

    @property
    def floor(self) -> int:
        """Nobody may begin anything below this LSN."""
        return max(self.collected, self.watermark.lsn if self.watermark else 0)


class Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which log a name means."""

    log: str
    nonce: str
    format: int = document.FORMAT


Document = TypeVar("Document", Manifest, Tag)


def encode_document(value: Manifest | Tag) -> bytes:
    """A manifest or tag as bytes. Its invariants are checked before."""
    if broken := _broken(value):
        raise InternalError(f"a {_name(type(value))} that cannot be: {broken}")
    return document.encoded(_name(type(value)), value)


def decode_document(kind: type[Document], data: bytes, where: str) -> Document:
    """The manifest or tag that bytes say.

    Raises:
        CorruptionError: they are damaged, or break an invariant.
        UnsupportedError: they are of a newer kind.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        raise CorruptionError(f"{where}: {len(data)} bytes are too many", where=where)
    value = document.decoded(_name(kind), kind, data, where)
    if broken := _broken(value):
        raise CorruptionError(f"{where}: {broken}", where=where)
    return value


def _name(kind: type) -> str:
    return "manifest" if kind is Manifest else "tag"


def _broken(value: Manifest | Tag) -> str:
    """The invariant that does not hold, if any."""
    if not is_id(value.log) or not is_id(value.nonce):
        return "its ids"
    if isinstance(value, Tag):
        return ""
    return _broken_shape(value) or _broken_checkpoints(value)


def _broken_shape(value: Manifest) -> str:
    parent = value.parent
    if value.page_size not in SIZES or not 0 < value.grace_s < 1e9:
        return f"pages of {value.page_size}, a grace of {value.grace_s}"
    if parent and not (is_id(parent.log) and is_hash(parent.hash) and parent.log != value.log):
        return "its parent"
    if parent and not 1 <= parent.lsn < LSN_MAX:
        return f"its parent's LSN {parent.lsn}"
    return "swept, and not condemned" if value.swept and value.condemned_us is None else ""


def _broken_checkpoints(value: Manifest) -> str:
    kept = value.checkpoints
    lowest = max(1, value.collected, value.parent.lsn if value.parent else 1)
    if list(kept) != sorted(set(kept)) or (kept and not lowest <= kept[0] <= kept[-1] <= LSN_MAX):
        return f"VOL-5: checkpoints {kept[:3]}… below {lowest}, or not in order"
    if value.collected and value.collected not in kept:
        return f"VOL-5: collected up to {value.collected}, which is no checkpoint"
    if value.watermark and value.watermark.lsn not in kept:
        return f"VOL-5: a watermark at {value.watermark.lsn}, which is no checkpoint"
    return ""
