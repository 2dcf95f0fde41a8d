"""The chain of manifests: which one is the newest, and how the next one is put.

Recovery reads as many manifests as writers keep in the air, however long the chain is::

    list      the newest name there is: manifest I, perhaps a stray
    get       I, which says what its writer knew: manifest k is part of the chain, and everything
              before name u is decided; I is at most alpha names above u
    get       the names u .. I, all at once; of all that they know, the newest counts
    walk      from there up (log/chain/document.py): the newest that links back, and the free name

What a manifest says it knew is true whether it became part of the chain or not, and stays true.

The next manifest is created at the free name. Of two who try, one is refused; so is whoever comes
late, for a name that is taken stays taken as long as anybody may still believe it is free
(`Chain.is_late`, and log/chain/sweep.py). A stray that sits there is passed by.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from cordwood.base.clock import Clock
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    CorruptionError,
    NotFoundError,
    StoreError,
    UncertainError,
)
from cordwood.log.chain import names
from cordwood.log.chain.document import ChainLink, Known, Prev, Shards, check_step, walk
from cordwood.log.format import CHAIN, ZERO, Extension, Manifest, decode, encode
from cordwood.log.tag import WriterTag
from cordwood.store.api import Object, ObjectStore
from cordwood.store.streams import as_generator

REPEATS_MAX = 3
"""Times that manifests are looked for while nothing changes, before they count as lost."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest manifest of a chain, and where the next one belongs."""

    manifest: Manifest
    index: int
    write: str
    free: int
    """The first name behind it that was empty."""
    top: int
    """The highest name there was: a successor points behind it."""
    read_s: float
    """When the search for it began."""
    read_us: int
    seen: tuple[str, ...]
    """Keys of the manifests it rests on, as far as they were found by reading."""

    @property
    def etag(self) -> str:
        """What tells it from every other."""
        return f"{self.index:x}.{self.write}"

    @property
    def known(self) -> Known:
        """What a successor may say it knew."""
        return Known(self.index, self.write, self.free)


def write_id(manifest: Manifest) -> str:
    """The id that no other manifest has."""
    tag = WriterTag.parse(manifest.writer)
    return tag.write_id if tag else ""


def linked(manifest: Manifest, link: ChainLink) -> Manifest:
    """The manifest at this place of the chain."""
    extension = Extension() if manifest.cordwood is UNSET else manifest.cordwood
    features = tuple(sorted({*extension.features, CHAIN}))
    extension = msgspec.structs.replace(extension, features=features, chain=link)
    return msgspec.structs.replace(manifest, cordwood=extension)


def successor(manifest: Manifest, before: Manifest, link: ChainLink) -> Manifest:
    """The manifest as the one behind `before`, whose step is a valid one.

    `link` is without `prev`, and with the counters as they were.
    """
    there = before.chain
    assert there is not None
    prev = Prev(names.manifest(there.index), before.setsum_hex, write_id(before))
    made = linked(manifest, msgspec.structs.replace(link, prev=prev))
    check_step(before, made, names.manifest(link.index))
    return made


def signpost() -> Manifest:
    """What `manifest/MANIFEST` is in a chain log: it says so, for ever, and nothing else."""
    nobody = "0" * 32
    plain = Manifest(
        setsum_hex=ZERO,
        acc_bytes=0,
        writer=str(WriterTag(nobody, nobody, nobody, 0)),
        nodes=(),
        fragments=(),
    )
    return linked(plain, ChainLink(0, names.manifest(1), Known(0, nobody, 1), 1, (1,), 1))


SIGNPOST_BYTES = len(encode(signpost()))
"""It never changes: what has another size is a cas log's manifest."""


class Chain:
    """The manifests of one chain log."""

    def __init__(self, store: ObjectStore, name: str, clock: Clock) -> None:
        """No I/O."""
        self._store = store
        self._name = name
        self._clock = clock
        self._head: Head | None = None
        """As it was found last."""

    def key(self, index: int) -> str:
        """The store's key of a manifest."""
        return f"{self._name}/{names.manifest(index)}"

    @property
    def seen(self) -> tuple[str, ...]:
        """Keys of the manifests that the newest one found rests on."""
        return self._head.seen if self._head else ()

    # Which manifest is the newest.

    async def head(self) -> Head:
        """The newest manifest. A LIST, and as many GETs as manifests may be in the air, at once.

        Raises:
            NotFoundError: there is none.
            CorruptionError, UnsupportedError: one of them cannot be understood.
            StoreError: the store is too slow for the log's grace interval.
        """
        top = -1
        repeats = 0
        is_slow = False
        while repeats < REPEATS_MAX:
            started_s, started_us = self._clock.monotonic_s(), self._clock.now_us()
            before, top = top, await self._top()
            repeats = repeats + 1 if top == before else 0
            found = await self._get(top)
            is_slow = False
            if found is None:
                # Deleted since, by a collection or a destruction.
                continue
            docs = {top: found}
            link = _link(found)
            window = range(min(top, link.known.undecided), top)
            there = await asyncio.gather(*map(self._get, window))
            docs |= {i: doc for i, doc in zip(window, there, strict=True) if doc is not None}
            links = {i: _link(doc) for i, doc in docs.items()}
            writes = {i: write_id(doc) for i, doc in docs.items()}
            start = max((one.known for one in links.values()), key=lambda known: known.index)
            end = walk(start, links, writes)
            is_slow = self.age_s(started_s, started_us) > found.grace_s / 2
            if end.undecided <= top and is_slow:
                # A hole: what stood there may have been swept since we began (chain/sweep.py).
                continue
            newest = docs.get(end.index) or await self._get(end.index)
            if newest is None:
                continue
            seen = tuple(self.key(i) for i in sorted({*docs, end.index}))
            self._head = Head(
                newest, end.index, end.write, end.undecided, top, started_s, started_us, seen
            )
            return self._head
        if is_slow:
            raise StoreError(
                f"log {self._name!r}: to read its manifests took longer than half its grace "
                "interval, again and again, so nobody can say which is the newest",
                operation="get",
                key=self.key(top),
                transient=True,
                hint="try again when the store is faster; a log whose grace interval is longer "
                "(grace_s, when it is created) can be read on a slower store",
            )
        raise CorruptionError(
            f"the manifests of log {self._name!r} do not hang together: the newest, {top}, leads "
            "to one that does not exist",
            where=self.key(top),
            code=Code.MISSING_OBJECT,
            hint="restore the manifests from a version of the bucket, or make one from the "
            "fragments with `cordwood log rebuild`",
        )

    async def etag(self) -> str:
        """Which manifest is the newest. One LIST, if nothing was put since we looked.

        Where a stray lies on top, the next one is put below it: then the highest name says nothing.
        """
        last = self._head
        if last is not None and last.free > last.top and await self._top() == last.top:
            return last.etag
        return (await self.head()).etag

    async def get(self, index: int) -> Manifest | None:
        """A manifest by its number, part of the chain or not; None if there is none. One GET."""
        return await self._get(index)

    async def _top(self) -> int:
        prefix = f"{self._name}/{names.MANIFEST_PREFIX}"
        async with aclosing(as_generator(self._store.list(prefix))) as found:
            async for meta in found:
                index = names.manifest_index(meta.key.removeprefix(f"{self._name}/"))
                if index is not None:
                    return index
        raise NotFoundError(
            f"there is no log named {self._name!r}: it has no manifest",
            code=Code.NO_SUCH_LOG,
            hint="create it first (log.create() or `cordwood log create`), "
            "or check the name and the store's URL",
        )

    async def _get(self, index: int) -> Manifest | None:
        key = self.key(index)
        try:
            found: Object = await self._store.get(key)
        except NotFoundError:
            return None
        manifest = decode(Manifest, found.data, key)
        if _link(manifest).index != index:
            raise CorruptionError(
                f"{key} breaks invariant CHAIN-1: it is manifest {_link(manifest).index}", where=key
            )
        return manifest

    # The next one.

    async def create(self, manifest: Manifest, shards: Shards) -> str:
        """Write manifest 0. One PUT.

        Raises:
            AlreadyExistsError: there is one.
        """
        known = Known(0, write_id(manifest), 1)
        link = ChainLink(0, names.manifest(1), known, 1, *shards)
        await self._store.put(self.key(0), encode(linked(manifest, link)), "create")
        return f"0.{known.write}"

    async def swap(self, manifest: Manifest, etag: str, shards: Shards | None = None) -> str:
        """Put the manifest behind the one that `etag` named; its own etag. One PUT.

        A log that is made anew brings its `shards`; otherwise they stay.

        Raises:
            ContendedError: that one has a successor already; ours was not written.
            UncertainError: nobody can know whether ours is the successor.
        """
        head = self._head
        if head is None or head.etag != etag or self.is_late(head, head.manifest.grace_s):
            head = await self.head()
            if head.etag != etag:
                raise self._contended(etag)
        await self._store.sync(head.seen)
        there = _link(head.manifest)
        counters, width = shards or (there.shards, there.width)
        place = head.free
        while True:
            link = ChainLink(
                index=place,
                next=names.manifest(max(place, head.top) + 1),
                known=Known(head.index, head.write, place),
                alpha=1,
                shards=counters,
                width=width,
            )
            made = successor(manifest, head.manifest, link)
            if await self.put(made):
                break
            occupant = await self._get(place)
            if occupant is None or _link(occupant).follows(head.write):
                raise self._contended(etag)
            place += 1
        after = f"{place:x}.{write_id(made)}"
        if self.is_late(head, head.manifest.grace_s) and (await self.head()).etag != after:
            raise UncertainError(
                f"manifest {place} of log {self._name!r} was put too late to be sure of it",
                write_id=write_id(made),
                hint="load the log again and see whether it is there",
            )
        return after

    async def put(self, made: Manifest) -> bool:
        """Put a manifest at its own place; False if the name is taken. One PUT."""
        link = _link(made)
        key = self.key(link.index)
        try:
            await self._store.put(key, encode(made, key), "create")
        except AlreadyExistsError:
            return False
        return True

    def is_late(self, head: Head, grace_s: float) -> bool:
        """Whether what was known then can no longer be relied on.

        A name is freed a grace interval after it was taken, at the earliest. So who looked less
        than half of that ago, and has its answer by then, put at a name that never was taken. By
        both clocks: while a machine is suspended the one stands still, and the other may be set.
        """
        return self.age_s(head.read_s, head.read_us) > grace_s / 2

    def age_s(self, read_s: float, read_us: int) -> float:
        """How long ago that was."""
        clock = self._clock
        return max(clock.monotonic_s() - read_s, (clock.now_us() - read_us) / 1_000_000)

    def _contended(self, etag: str) -> ContendedError:
        return ContendedError(
            f"log {self._name!r}: manifest {etag.partition('.')[0]} has a successor already",
            hint="load the log again, and decide again",
        )


def _link(manifest: Manifest) -> ChainLink:
    link = manifest.chain
    if link is None:
        raise CorruptionError("a manifest among those of a chain has no place in it")
    return link
