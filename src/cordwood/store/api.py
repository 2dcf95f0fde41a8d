"""What Cordwood asks of an object store: six operations and four promises.

The promises, which the conformance suite in `cordwood.testing.stores` checks on every store:

1. **Atomic**: a put is seen whole or not at all; a get returns the bytes of exactly one put.
2. **Conditional**: of any number of concurrent `create` puts of one key exactly one succeeds; a
   `Match` put succeeds only if the object is still the one that etag named; an etag is never
   reused for another put of the same key (S3's etags repeat when content repeats, so every
   mutable object carries a unique id in its body).
3. **Strong**: a get, head or list that starts after a put returned sees that put. A list is
   complete for every object that exists from its start to its end; objects written or deleted
   meanwhile may or may not be in it. There are no torn lists.
4. **Durable**: a put that returned survives a crash of the machine that ran it. What another
   process has put is durable once `sync` returned: on a remote store visible is durable and `sync`
   is free, in a directory a name can be seen a moment before it is safe.

A failed write is either definite (nothing happened) or not: `StoreError.applied` tells. Nothing
here retries; `store/retry.py` does, and resolves lost answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from cordwood.base.errors import InvalidInputError
from cordwood.base.limits import KEY_SEGMENT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Match:
    """Put only if the object is still the one with this etag."""

    etag: str


Buffer: TypeAlias = bytes | memoryview
"""Bytes, perhaps where they lie: large objects are handed on without a copy."""

PutMode = Literal["create", "overwrite"] | Match
"""create: only if absent. overwrite: whatever is there. Match: compare and swap."""


class Object(NamedTuple):
    """An object's bytes, and the etag of the put that wrote them."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Meta:
    """What a store knows of an object without its bytes."""

    key: str
    size_bytes: int
    etag: str
    modified_us: int
    """Last-modified by the store's own clock, in microseconds; some stores keep whole seconds."""


class ObjectStore(Protocol):
    """Objects by key. Keys are relative, `/`-separated, without empty, `.` or `..` segments."""

    async def get(self, key: str) -> Object:
        """The whole object. One request.

        Raises:
            NotFoundError: there is none.
            StoreError: the store failed.
        """
        ...

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Bytes `[start, start + length)`, fewer where the object ends earlier. One request.

        This is the call for large objects whose size is known: it may give a view instead of bytes.

        Raises:
            NotFoundError: there is no object.
            InvalidInputError: `start` lies past the end, or a number is negative.
            StoreError: the store failed.
        """
        ...

    async def head(self, key: str) -> Meta:
        """Size, etag and time of the object. One request.

        Raises:
            NotFoundError: there is none.
            StoreError: the store failed.
        """
        ...

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object atomically and durably; the new etag. One request.

        A read-only view of bytes may be sent as it is, even after the call was cancelled: what it
        shows never changes again.

        Raises:
            AlreadyExistsError: mode is `create` and the object is there.
            ContendedError: mode is `Match` and the object is another one, or gone.
            StoreError: the store failed; `.applied` tells whether the write may have happened.
        """
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects; one that is not there counts as deleted. Batched where it can be.

        Raises:
            StoreError: some of them may be left; the call may be repeated.
        """
        ...

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects whose key starts with `prefix` and is greater than `start_after`, in key order.

        `prefix` is plain text, not a folder: `a/b` matches `a/b1` and `a/b/c`. Order is by the
        UTF-8 bytes of the key. One request per page.
        """
        ...

    async def sync(self, keys: Iterable[str]) -> None:
        """Return once what is visible under these keys now would survive a power cut."""
        ...


class LocalReads(Protocol):
    """What a store on this machine can do besides: be read in the calling thread."""

    def read_now(self, key: str, start: int, length: int) -> Buffer:
        """As `ObjectStore.get_range`, blocking: for worker threads."""
        ...


def at_rest(data: Buffer) -> Buffer:
    """The bytes to put, which do not change any more: as they are if that was promised."""
    if isinstance(data, memoryview):
        is_plain = data.ndim == 1 and data.format == "B" and data.c_contiguous
        return data if is_plain and data.readonly else bytes(data)
    return bytes(data)


@runtime_checkable
class ServerCopies(Protocol):
    """What some stores can do besides: copy an object without its bytes passing through us."""

    async def copy(self, source: str, target: str) -> None:
        """Make `target` an object with the bytes of `source`; atomic, durable, only if absent.

        For objects that are never replaced: a directory store gives the same file a second name.

        Raises:
            NotFoundError: there is no source.
            AlreadyExistsError: there is a target. After an answer that was lost it may be ours.
            UnsupportedError: it cannot be done here; get and put instead.
            StoreError: the store failed; the call may be repeated.
        """
        ...


def check_key(key: Any) -> str:
    """The key, if it is one that every store can hold.

    Raises:
        InvalidInputError: it is empty, absolute, climbs, or has a segment some store refuses.
    """
    is_text = isinstance(key, str) and key.isprintable()
    if not is_text or not key or "\\" in key:
        raise InvalidInputError(f"object key {key!r}: a key is printable text without backslashes")
    for segment in key.split("/"):
        if segment in {"", ".", ".."} or segment.startswith(RESERVED_SEGMENT_PREFIX):
            raise InvalidInputError(
                f"object key {key!r}: segment {segment!r} is not allowed",
                hint="use relative keys without empty, '.' or '..' segments",
            )
        if len(segment.encode()) > KEY_SEGMENT_BYTES_MAX:
            raise InvalidInputError(
                f"object key {key!r}: a segment has more than {KEY_SEGMENT_BYTES_MAX} bytes"
            )
    return str(key)


RESERVED_SEGMENT_PREFIX = ".cordwood-"
"""Names of a directory store's own files (locks, temporary files); no key may use them."""
