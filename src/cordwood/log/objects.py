"""The objects of one log, read and written: the only place where log code meets the store.

It is also the one place where the two protocols meet. A cas log has one manifest that is replaced;
a chain log has manifests that follow each other (log/chain/chain.py), and keeps versions of
whatever else changes (log/chain/registers.py). Which of them a log is says `manifest/MANIFEST`: in
a chain log it is a signpost, made once. Everything above loads a manifest and swaps it for the
next one.

Every document goes through the one encoder and the one decoder of log/format.py, so its invariants
were checked before each write and after each read. Costs are in requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import NamedTuple

from cordwood.base.clock import SYSTEM_CLOCK, Clock
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ConflictError,
    CordwoodError,
    CorruptionError,
    FormatError,
    NotFoundError,
    StateError,
)
from cordwood.log import paths, tree
from cordwood.log.chain import chain as chains
from cordwood.log.chain.document import Shards
from cordwood.log.chain.registers import Kind, Registers
from cordwood.log.format import (
    GRACE_S_DEFAULT,
    Ancestor,
    Fragment,
    Manifest,
    Node,
    NodePointer,
    decode,
    encode,
)
from cordwood.log.fragment import FOOTER_PEEK_BYTES, Link, read_footer_link
from cordwood.store.api import Buffer, LocalReads, Match, Meta, ObjectStore
from cordwood.store.url import Store

NODES_AHEAD = 8
"""Nodes fetched ahead of a walk: a level of the tree costs one round trip, not one per node."""


class Loaded(NamedTuple):
    """A manifest and the etag that proves which one it was."""

    manifest: Manifest
    etag: str


class LogObjects:
    """The objects under one log's prefix."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        ancestors: tuple[Ancestor, ...] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """No I/O; `name` is the prefix. Who reads without a manifest gives the ancestors."""
        self.store: ObjectStore = Registers(store, self, clock)
        """Where everything but manifests is kept."""
        self.name = name
        self.grace_s: float = GRACE_S_DEFAULT
        """As the manifest said that was loaded last."""
        self._plain = store
        self._clock = clock
        self._chain: chains.Chain | None = None
        self._is_cas = False
        """Whether it is known to be a cas log; if neither is known, the store is asked."""
        self._ancestors = ancestors
        """Whose files it shares; known, and final, once the manifest was loaded."""

    @property
    def ancestors(self) -> tuple[Ancestor, ...]:
        """Whose files the log shares, as the manifest said that was loaded last."""
        return self._ancestors

    @property
    def _place(self) -> str:
        """Which store it would be in, for messages, if that has a name."""
        return f" in {self._plain.url}" if isinstance(self._plain, Store) else ""

    def key(self, path: str) -> str:
        """The store's key of a path inside the log."""
        return f"{self.name}/{path}"

    def key_of(self, pointer: NodePointer | Fragment) -> str:
        """The store's key of what a pointer names: in a fork it may be an ancestor's."""
        for ancestor in self._ancestors:
            if pointer.limit <= ancestor.limit:
                return f"{self.name_of(ancestor)}/{pointer.path}"
        return self.key(pointer.path)

    def name_of(self, ancestor: Ancestor) -> str:
        """The name that an ancestor has in this store.

        Raises:
            StateError: it lies above the store's root.
        """
        name = paths.resolve_name(self.name, ancestor.log)
        if name is None:
            missing = paths.folders_missing(self.name, ancestor.log)
            raise StateError(
                f"the log {self.name!r} is a fork, and shares files of {ancestor.log}, which lies "
                "above the root of this store",
                hint=f"open the store at a higher root, by {missing} at least, and the log by its "
                "longer name; in a URL, // says where the store ends: file:///data//team/orders",
            )
        return name

    # The manifest.

    async def load(self) -> Loaded:
        """The manifest as it is now. One GET.

        Raises:
            NotFoundError: there is no such log.
            StateError: it is a fork that was not finished, or shares files of a log that lies above
                the root of the store.
            CorruptionError, UnsupportedError: there is one that cannot be used.
        """
        manifest, etag = await self.look()
        if manifest.is_destroyed and self._chain is not None:
            raise NotFoundError(
                f"there is no log named {self.name!r}{self._place}: it was destroyed",
                code=Code.NO_SUCH_LOG,
                hint="create it again, or check the name and the store's URL",
            )
        if manifest.is_unborn:
            raise StateError(
                f"the log {self.name!r} is a fork that was begun and not finished",
                hint="destroy it, and fork again",
            )
        for ancestor in manifest.ancestors:
            self.name_of(ancestor)
        self._ancestors = manifest.ancestors
        return Loaded(manifest, etag)

    async def look(self) -> Loaded:
        """The manifest, for who only asks what is there: perhaps a fork nobody can use. One GET.

        Raises:
            NotFoundError: there is no such log.
            CorruptionError, UnsupportedError: there is something that is not understood.
        """
        found = await self._look()
        self.grace_s = found.manifest.grace_s
        return found

    async def _look(self) -> Loaded:
        if self._chain is not None:
            try:
                head = await self._chain.head()
            except NotFoundError:
                # It was destroyed; perhaps another one has its name.
                self._chain = None
            else:
                return Loaded(head.manifest, head.etag)
        key = self.key(paths.MANIFEST)
        try:
            data, etag = await self._plain.get(key)
        except NotFoundError as error:
            self._is_cas = False
            raise NotFoundError(
                f"there is no log named {self.name!r}{self._place}: {key} does not exist",
                code=Code.NO_SUCH_LOG,
                hint="create it first (log.create() or `cordwood log create`), "
                "or check the name and the store's URL",
            ) from error
        manifest = decode(Manifest, data, key)
        self._is_cas = manifest.chain is None
        if self._is_cas:
            return Loaded(manifest, etag)
        chain = chains.Chain(self._plain, self.name, self._clock)
        head = await chain.head()
        self._chain = chain
        return Loaded(head.manifest, head.etag)

    @property
    def clock(self) -> Clock:
        """What time it is here."""
        return self._clock

    @property
    def plain(self) -> ObjectStore:
        """The store itself, where versions are objects like any other."""
        return self._plain

    @property
    def chain(self) -> chains.Chain | None:
        """Its chain of manifests, once it was loaded and found to be one."""
        return self._chain

    @property
    def kind(self) -> Kind | None:
        """Its protocol, as far as it is known."""
        if self._chain is not None:
            return "chain"
        return "cas" if self._is_cas else None

    def is_cas(self) -> None:
        """Something was found that only a cas log has."""
        self._is_cas = True

    def take_for_chain(self) -> None:
        """It is a chain, though nobody can read its manifests: for who makes them anew."""
        self._chain = chains.Chain(self._plain, self.name, self._clock)

    async def is_chain(self) -> bool:
        """Whether it is a chain log. One GET, if that is not known yet."""
        if self._chain is None and not self._is_cas:
            try:
                await self.look()
            except NotFoundError:
                return False
        return self._chain is not None

    async def has_passed(self, start: int, error: CordwoodError) -> bool:
        """Whether something that starts there is missing because it was collected. One GET."""
        if error.code is not Code.MISSING_OBJECT:
            return False
        return start < (await self.load()).manifest.oldest_offset

    async def create(self, manifest: Manifest, shards: Shards | None = None) -> str:
        """Write the first manifest. One PUT; of a chain log, whose fragments are in shards, two.

        Raises:
            AlreadyExistsError: the log exists.
        """
        self.grace_s = manifest.grace_s
        try:
            if shards is None:
                key = self.key(paths.MANIFEST)
                etag = await self._plain.put(key, encode(manifest), "create")
                self._is_cas, self._chain = True, None
                return etag
            return await self._create_chain(manifest, shards)
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                f"the log {self.name!r} exists already",
                hint="open it, or pass exist_ok=True",
            ) from error

    async def _create_chain(self, manifest: Manifest, shards: Shards) -> str:
        """Manifest 0, then the signpost: a log has both. Who made the first made the log.

        Behind what a destroyed log left, the next manifest: no name is ever used twice. Whoever
        finds manifests without the signpost completes what somebody was cut off from.
        """
        chain = chains.Chain(self._plain, self.name, self._clock)
        key = self.key(paths.MANIFEST)
        try:
            head = await chain.head()
        except NotFoundError:
            etag = await chain.create(manifest, shards)
        else:
            await self._put_signpost(key)
            if not head.manifest.is_destroyed:
                raise AlreadyExistsError(f"{key} exists")
            try:
                etag = await chain.swap(manifest, head.etag, shards)
            except ConflictError as error:
                raise AlreadyExistsError(f"{key} was just made anew") from error
        await self._put_signpost(key)
        self._chain = chain
        return etag

    async def _put_signpost(self, key: str) -> None:
        """Say that the log is a chain, if nobody has.

        Raises:
            AlreadyExistsError: something else has the name.
        """
        try:
            await self._plain.put(key, encode(chains.signpost(), key), "create")
        except AlreadyExistsError:
            data, _ = await self._plain.get(key)
            try:
                is_signpost = decode(Manifest, data, key).chain is not None
            except FormatError:
                is_signpost = False
            if not is_signpost:
                raise

    async def exists(self) -> bool:
        """Whether there is a log. One HEAD; of a chain, which may be destroyed, some more."""
        try:
            meta = await self._plain.head(self.key(paths.MANIFEST))
            if meta.size_bytes != chains.SIGNPOST_BYTES or not await self.is_chain():
                return True
            return not (await self.look()).manifest.is_destroyed
        except NotFoundError:
            return False

    async def swap(self, manifest: Manifest, etag: str) -> str:
        """Replace the manifest that `etag` named. One PUT.

        Raises:
            ContendedError: it has been replaced by another one; ours was not written.
            UncertainError: the answer was lost and the manifest has moved on since.
            StoreError: ours was not written.
        """
        if self._chain is not None:
            return await self._chain.swap(manifest, etag)
        return await self._plain.put(self.key(paths.MANIFEST), encode(manifest), Match(etag))

    async def manifest_etag(self) -> str:
        """Which manifest is current. One HEAD; of a chain log one LIST."""
        if self._chain is not None:
            return await self._chain.etag()
        return (await self._plain.head(self.key(paths.MANIFEST))).etag

    # Nodes.

    async def read_node(self, pointer: NodePointer) -> Node:
        """The node behind a pointer, checked against it. One GET.

        In a fork, a node over what it shares lies with whoever wrote it: the fork itself, its
        parent, or a log further up. The nearest counts, so that a fork reads the very node that its
        parent would: one GET more for each log in between.
        """
        above = [self.name_of(a) for a in reversed(self._ancestors) if pointer.limit <= a.limit]
        faults: list[CorruptionError] = []
        for name in (self.name, *above):
            try:
                return await self._read_node(f"{name}/{pointer.path}", pointer)
            except CorruptionError as error:
                faults.append(error)
        raise next((f for f in faults if f.code is not Code.MISSING_OBJECT), faults[-1])

    async def _read_node(self, key: str, pointer: NodePointer) -> Node:
        try:
            data, _ = await self.store.get(key)
        except NotFoundError as error:
            raise _missing(key, "node") from error
        node = decode(Node, data, key)
        actual = node.pointer()
        expected = (pointer.setsum_hex, pointer.depth, pointer.start, pointer.limit)
        got = (actual.setsum_hex, actual.depth, actual.start, actual.limit)
        if expected != got:
            raise CorruptionError(
                f"node {key} is not the one its parent names: expected {expected}, got {got}",
                where=key,
                expected=str(expected),
                got=str(got),
            )
        return node

    async def write_node(self, node: Node) -> None:
        """Make the node durable. One PUT; one GET more if an object of its name exists.

        A node's name is its setsum, so an object that has the name already covers the same records.
        It counts only after it was read and found to have the very same children.

        Raises:
            AlreadyExistsError: the name is taken by a node of another shape.
        """
        key = self.key(node.path)
        try:
            await self.store.put(key, encode(node), "create")
        except AlreadyExistsError:
            there = await self._read_node(key, node.pointer())
            if there.children != node.children:
                raise
            await self.store.sync([key])

    # Fragments.

    async def put_fragment(self, path: str, data: Buffer) -> None:
        """Create a fragment's object. One PUT.

        Raises:
            AlreadyExistsError: the name is taken.
        """
        await self._plain.put(self.key(path), data, "create")

    async def get_slot(self, seq_no: int) -> bytes | None:
        """What lies in a slot, named by a manifest or not; None if it is empty. One GET."""
        try:
            return (await self.store.get(self.key(paths.fragment(seq_no)))).data
        except NotFoundError:
            return None

    async def get_fragment(self, fragment: Fragment) -> Buffer:
        """The bytes of a fragment. One ranged GET.

        Raises:
            CorruptionError: the object is missing.
        """
        # One byte more than there should be: a longer object is noticed as well.
        return await self.get_part(fragment, 0, fragment.num_bytes + 1)

    async def get_part(self, fragment: Fragment, start: int, length: int) -> Buffer:
        """Part of a fragment's bytes. One ranged GET.

        Raises:
            CorruptionError: the object is missing.
        """
        key = self.key_of(fragment)
        try:
            return await self.store.get_range(key, start, length)
        except NotFoundError as error:
            raise _missing(key, "fragment") from error

    @contextmanager
    def located(self, fragment: Fragment) -> Iterator[None]:
        """Say of damage which object it is by its key: paths are alike in all logs."""
        try:
            yield
        except CorruptionError as error:
            if error.where != fragment.path:
                raise
            key = self.key_of(fragment)
            raise CorruptionError(
                error.message.replace(fragment.path, key, 1),
                where=key,
                expected=error.expected,
                got=error.got,
                code=error.code,
                retry=error.retry,
                hint=error.hint,
            ) from error

    @property
    def is_local(self) -> bool:
        """Whether the store lies on this machine, so that a thread may read from it directly."""
        return getattr(self.store, "local", None) is not None

    def read_fragment_now(self, fragment: Fragment) -> Buffer:
        """As `get_fragment`, in the calling thread; only where `is_local`."""
        key = self.key_of(fragment)
        local: LocalReads = getattr(self.store, "local")  # noqa: B009 - a store may have it or not
        try:
            return local.read_now(key, 0, fragment.num_bytes + 1)
        except NotFoundError as error:
            raise _missing(key, "fragment") from error

    async def get_link(self, fragment: Fragment) -> Link | None:
        """What a fragment says of itself; None if it is a foreign one. One ranged GET."""
        start = max(0, fragment.num_bytes - FOOTER_PEEK_BYTES)
        tail = await self.get_part(fragment, start, fragment.num_bytes - start)
        return read_footer_link(tail, fragment.path)

    async def sync(self, paths_seen: Iterable[str], fragments: Iterable[Fragment] = ()) -> None:
        """Return once these objects, seen by reading, would survive a power cut."""
        wanted = set(paths_seen)
        keys = [*map(self.key_of, fragments)]
        if self._chain is not None and paths.MANIFEST in wanted:
            wanted.discard(paths.MANIFEST)
            keys += self._chain.seen
        await self.store.sync([*map(self.key, sorted(wanted)), *keys])

    # Everything below a prefix of the log.

    async def list(self, prefix: str) -> AsyncIterator[Meta]:
        """Objects whose path inside the log starts with `prefix`; keys are those of the store."""
        async for meta in self.store.list(self.key(prefix)):
            yield meta

    async def list_in(self, folder: str) -> AsyncIterator[Meta]:
        """Objects right in this folder of the log (it ends in a slash); keys as those of `list`.

        What lies deeper is another log's: that of `orders/fork` lies among the holds on `orders`.
        """
        start = len(self.key(folder))
        async for meta in self.list(folder):
            if "/" not in meta.key[start:]:
                yield meta

    # Walking the tree.

    async def walk(
        self, pointers: Sequence[NodePointer | Fragment], start: int, limit: int
    ) -> AsyncGenerator[Fragment, None]:
        """Fragments that hold any offset of `[start, limit)`, in order.

        Only nodes that overlap the range are read, `NODES_AHEAD` at a time.
        """
        wanted = tree.overlapping(pointers, start, limit)
        ahead: dict[str, asyncio.Task[Node]] = {}
        try:
            for i, pointer in enumerate(wanted):
                if isinstance(pointer, Fragment):
                    yield pointer
                    continue
                for soon in wanted[i : i + NODES_AHEAD]:
                    if isinstance(soon, NodePointer) and soon.path not in ahead:
                        ahead[soon.path] = task = asyncio.ensure_future(self.read_node(soon))
                        task.add_done_callback(_retrieve)
                node = await ahead[pointer.path]
                async with aclosing(self.walk(node.children, start, limit)) as below:
                    async for fragment in below:
                        yield fragment
        finally:
            for task in ahead.values():
                task.cancel()

    async def find(
        self, pointers: Sequence[NodePointer | Fragment], offset: int
    ) -> Fragment | None:
        """The fragment below these pointers that holds `offset`, if one does."""
        async with aclosing(self.walk(pointers, offset, offset + 1)) as fragments:
            async for fragment in fragments:
                return fragment
        return None


def _retrieve(task: asyncio.Task[Node]) -> None:
    """A node fetched ahead and not needed may fail without a complaint from asyncio."""
    if not task.cancelled():
        task.exception()


def _missing(key: str, what: str) -> CorruptionError:
    return CorruptionError(
        f"the {what} {key} is named by the log and does not exist",
        where=key,
        expected=f"a {what}",
        got="nothing",
        code=Code.MISSING_OBJECT,
        hint="restore the object from a copy or a version of the bucket",
    )
