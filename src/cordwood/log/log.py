"""A log, named: everything one can do with it starts here.

`Log(store, "orders")` does no I/O and holds no connection; it can be pickled and shared. A log is
the set of objects under its name in the store (docs/formats/log.md), and the manifest among them is
the log's whole state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    InvalidInputError,
    StateError,
    UncertainError,
)
from cordwood.base.given import given
from cordwood.base.limits import LOG_NAME_BYTES_MAX
from cordwood.base.setsum import Setsum
from cordwood.log import paths, scrub, tree
from cordwood.log.bulk import Committed, Committer, Staged, Token, stage
from cordwood.log.chain.document import Shards
from cordwood.log.chain.options import Protocol, check_protocol
from cordwood.log.chain.rebuild import Progress as RebuildProgress
from cordwood.log.chain.rebuild import RebuildReport, rebuild
from cordwood.log.collect import FRAGMENTS_MAX, Collector, CollectReport
from cordwood.log.copy import CopyReport, copy
from cordwood.log.copy import Progress as CopyProgress
from cordwood.log.cursors import Cursors
from cordwood.log.deletion import Progress as CollectProgress
from cordwood.log.destroy import Destroyer
from cordwood.log.destroy import Progress as DestroyProgress
from cordwood.log.fork import fork
from cordwood.log.format import GRACE_S_DEFAULT, Manifest, Seal, is_grace
from cordwood.log.fragment import Compression
from cordwood.log.kinds import refuse_others
from cordwood.log.objects import LogObjects
from cordwood.log.options import Options
from cordwood.log.pins import Pin, list_pins, make_pin, open_pin
from cordwood.log.reader import NO_LIMITS, Limits, Reader
from cordwood.log.recovery import BeforeNaming, find_write
from cordwood.log.scrub import Progress, ScrubReport
from cordwood.log.seal import Sealer
from cordwood.log.streams import Streams
from cordwood.log.tag import WriterTag
from cordwood.log.watch import RollWatch
from cordwood.log.writer import Writer
from cordwood.store.api import check_key
from cordwood.store.probe import verify_conditional_puts
from cordwood.store.url import Store

DEFAULT_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class LogState:
    """Where a log stands."""

    name: str
    oldest_offset: int
    """The first record still there; where it would be if there is none."""
    next_offset: int
    """The offset the next record will get."""
    bytes: int
    """Of the fragments in the log, as stored."""
    setsum: Setsum
    """Over every record ever appended, collected ones included."""
    collected: Setsum
    """Over the records that were collected."""
    sealed: bool
    seal: Seal | None
    """Why and when it ended, and where it goes on, if it is sealed."""
    cursors: dict[str, int]
    pins: tuple[str, ...]
    features: frozenset[str]
    protocol: str
    grace_s: int

    @property
    def records(self) -> int:
        """How many records can be read."""
        return self.next_offset - self.oldest_offset


class Log:
    """One linearizable log in a store."""

    def __init__(
        self,
        store: Store | str,
        name: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name a log; no I/O. `store` is a Store or a store's URL."""
        if not paths.is_log_name(name):
            raise InvalidInputError(
                f"{name!r} cannot name a log",
                hint="use letters, digits and . _ = + @ -, with / between segments",
            )
        check_key(name)
        if len(name) > LOG_NAME_BYTES_MAX:
            raise InvalidInputError(f"a log's name has at most {LOG_NAME_BYTES_MAX} characters")
        self.store = store if isinstance(store, Store) else Store(store)
        self.name = name
        self._clock = clock
        self._entropy = entropy
        self._objects = LogObjects(self.store, name, clock=clock)
        self.cursors = Cursors(self._objects, clock, entropy)
        """Named positions, which hold back collection."""
        self._watch = RollWatch(self._objects, clock)
        self.streams = Streams(self._objects, clock, entropy, self._watch)
        """Which streams records may belong to."""

    @classmethod
    def from_url(cls, url: str | os.PathLike[str], **options: Any) -> Self:
        """The log that a single URL names: the last segment is the log, the rest is the store.

        A double slash says that the store ends earlier. Only a fork that shares files with a log of
        another folder needs it: the store must hold both.

        >>> Log.from_url("memory:wood/orders").name
        'orders'
        >>> Log.from_url("memory:wood//team/orders").name
        'team/orders'
        """
        url = given(os.fspath(url) if isinstance(url, os.PathLike) else url, str, "a log's URL")
        head, slash, name = url.rstrip("/").rpartition("//")
        if head.rstrip("/").endswith(":") or not head.rstrip("/"):
            # These were the slashes of a scheme, or there are none.
            head, slash, name = url.rstrip("/").rpartition("/")
        if not slash or not name or head.endswith((":", ":/")):
            raise InvalidInputError(
                f"{url!r} does not name a log",
                hint="a log's URL is its store's URL, a slash, and its name: file:///data/wood/orders",
            )
        return cls(Store(head, **options), name)

    @property
    def url(self) -> str:
        """The URL that `from_url` takes."""
        slash = "//" if "/" in self.name else "/"
        return f"{self.store.url.rstrip('/')}{slash}{self.name}"

    def __repr__(self) -> str:
        return f"Log({self.url!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Log):
            return NotImplemented
        return (self.store, self.name) == (other.store, other.name)

    def __hash__(self) -> int:
        return hash((self.store, self.name))

    async def create(
        self,
        *,
        exist_ok: bool = False,
        protocol: Protocol | None = None,
        grace_s: int = GRACE_S_DEFAULT,
        shards: int = 1,
    ) -> None:
        """Create the log. Three requests; of several callers exactly one creates it.

        Args:
            exist_ok: an existing log is left as it is.
            protocol: how appends are agreed on; `cas` swaps one manifest, `chain` only creates
                objects (docs/formats/chain.md). By default `chain` on `gs://`, where one object
                takes about one write a second, and `cas` elsewhere.
            grace_s: seconds between unlinking and deleting in a collection, fixed for ever.
            shards: over how many prefixes a chain log spreads its fragments, 12 at most.

        Raises:
            AlreadyExistsError: it exists; or a table of its name does.
            StateError: a chain log of this name was destroyed, and a cas log is wanted.
        """
        wanted = check_protocol(self.store, protocol, shards)
        if not is_grace(grace_s):
            raise InvalidInputError(f"grace_s is a whole number of seconds, not {grace_s!r}")
        await verify_conditional_puts(self.store, swaps=wanted is None)
        if exist_ok and await self._objects.exists():
            return
        await refuse_others(self.store, self.name, "log")
        incarnation = self._entropy.token()
        tag = WriterTag(incarnation, self._entropy.token(), incarnation, 0)
        empty = tree.empty(tag, grace_s=grace_s)
        try:
            await self._create(empty, wanted, protocol)
        except AlreadyExistsError:
            if not exist_ok:
                raise

    async def _create(
        self, empty: Manifest, shards: Shards | None, protocol: Protocol | None
    ) -> None:
        """Create it; behind what a destroyed chain log left as a chain, unless that is refused."""
        try:
            await self._objects.create(empty, shards)
        except AlreadyExistsError:
            if shards is not None or await self._objects.exists():
                raise
            if protocol is not None:
                raise StateError(
                    f"a chain log named {self.name!r} was destroyed, and its last manifests still "
                    "stand, so that slow writers are refused",
                    hint="create it with protocol='chain'; or destroy it once more, a grace "
                    "interval after it was destroyed",
                ) from None
            await self._objects.create(empty, Shards())

    def writer(
        self,
        *,
        create: bool = False,
        options: Options = DEFAULT_OPTIONS,
        before_naming: BeforeNaming | None = None,
    ) -> Writer:
        """A writer, to be opened with `async with`. `create=True` makes a missing log first.

        `before_naming` is awaited with the next offset before the writer adds to what others wrote:
        if it raises, the records are not written. See `cordwood.fleet`.
        """
        given(options, Options, "what sets up a writer")

        async def prepare() -> None:
            if create:
                await self.create(exist_ok=True)
            else:
                await self._verify(self.store)

        clock, entropy = self._clock, self._entropy
        watch = self._watch
        return Writer(self._objects, options, clock, entropy, prepare, watch, before_naming)

    # Many who write at once.

    async def stage(
        self,
        data: pa.Table | pa.RecordBatch,
        token: Token,
        *,
        compression: Compression = DEFAULT_OPTIONS.compression,
    ) -> Staged:
        """Upload records for a bulk commit: nobody sees them until then. See log/bulk.py.

        Any number of processes may stage for one token, at once. Columns, and memory that stays as
        it is, as for `append_arrow`.
        """
        clock, entropy, check = self._clock, self._entropy, self._watch.check
        return await stage(self._objects, clock, entropy, data, token, compression, check)

    async def commit(
        self,
        staged: Sequence[Staged],
        token: Token,
        *,
        before_naming: BeforeNaming | None = None,
    ) -> Committed:
        """Make uploads visible, in this order: all of them, once, however often it is called.

        Args:
            staged: what was staged for this token.
            token: who commits, and which of its batches.
            before_naming: as for a writer.

        Raises:
            StateError: the log is sealed; or the token was committed with another number of
                records, or is older than what its producer committed last; or an upload is gone.
            InvalidInputError: an upload was staged for another token.
        """
        committer = Committer(self._objects, self._clock, self._entropy, before_naming)
        return await committer.commit(staged, token)

    def reader(self, *, verify: bool = True, pin: str | None = None) -> Reader:
        """A reader, to be opened with `async with`. With `pin`, of what that pin holds."""
        return Reader(self._objects, verify=verify, pin=pin)

    async def state(self) -> LogState:
        """Where the log stands. One GET, two LISTs, one GET per cursor and per pin."""
        manifest, _ = await self._objects.load()
        cursors = await self.cursors.list(strict=False)
        return LogState(
            name=self.name,
            oldest_offset=manifest.oldest_offset,
            next_offset=manifest.next_offset,
            bytes=sum(p.num_bytes for p in tree.roots(manifest)),
            setsum=Setsum.from_hex(manifest.setsum_hex),
            collected=Setsum.from_hex(manifest.collected_hex),
            sealed=manifest.seal is not None,
            seal=manifest.seal,
            cursors={name: witness.offset for name, witness in cursors.items()},
            pins=tuple(await list_pins(self._objects)),
            features=manifest.features,
            protocol="cas" if manifest.chain is None else "chain",
            grace_s=manifest.grace_s,
        )

    async def find_write(self, error: UncertainError) -> int | None:
        """What became of an append that ended in UncertainError.

        Adopts what a writer left behind, then looks. The answer is final.

        Returns:
            The offset of the append's first record, if it is in the log; None if it is not and
            never will be, so that its records may be appended again.

        Raises:
            UncertainError: nobody can know yet; the place is still empty, and the write may still
                arrive. Append something else (that closes the place) and ask again. Or nobody can
                know any more: the place has been collected.
        """
        return await find_write(self._objects, self._entropy, error)

    async def manifest(self) -> Manifest:
        """The manifest itself, for those who draw it. One GET."""
        return (await self._objects.load()).manifest

    @property
    def objects(self) -> LogObjects:
        """The log's objects, for tools that walk the tree themselves."""
        return self._objects

    async def scrub(
        self,
        *,
        deep: bool = False,
        start: int | None = None,
        limits: Limits = NO_LIMITS,
        sample: int | None = None,
        progress: Progress | None = None,
    ) -> ScrubReport:
        """Prove that the log is whole: its metadata, or down to every record. See log/scrub.py.

        Args:
            deep: read every fragment and recompute its sums.
            start: begin at this offset: the `next_offset` of the piece before.
            limits: end early; the report says where to go on.
            sample: check only the fragments at so many random offsets.
            progress: called after every fragment.
        """
        return await scrub.scrub(
            self._objects,
            deep=deep,
            start=start,
            limits=limits,
            sample=sample,
            entropy=self._entropy,
            progress=progress,
        )

    async def rebuild(
        self,
        start: int | None = None,
        limit: int | None = None,
        progress: RebuildProgress | None = None,
    ) -> RebuildReport:
        """Make a chain log's manifest anew from its fragments. See log/chain/rebuild.py.

        For a log whose manifests are lost: it refuses while the log can be opened. Records that
        were never acknowledged may come in at the end.

        Args:
            start: begin at this offset, behind a hole.
            limit: take nothing from this offset on, which was never acknowledged.
            progress: called with how many fragments were read, and how many there are.

        Raises:
            StateError: the log can be opened; or offsets are missing in the middle.
            NotFoundError: there are no fragments.
        """
        await verify_conditional_puts(self.store, swaps=False)
        return await rebuild(
            self._objects, self._entropy, start=start, limit=limit, progress=progress
        )

    # Another log with the same past.

    async def fork(self, other: Log, start: int | None = None) -> None:
        """Make `other` a log that begins as this one is now, and shares its files. See log/fork.py.

        Both go on from here, each by itself; collecting one never harms the other. With `start`,
        the fork begins at the fragment that holds this offset, or a fragment earlier. Cursors, pins
        and the seal stay behind.

        Raises:
            AlreadyExistsError: `other` exists.
            CollectedError: `start` has been collected, or is about to be.
            ContendedError: somebody else forks onto `other`.
            InvalidInputError: `other` lies in another store, or there is no such offset.
            StateError: this log is being destroyed.
        """
        given(other, Log, "the other log")
        if not self.store.is_same_as(other.store):
            raise InvalidInputError(
                f"{other!r} lies in another store than {self!r}: a fork shares its parent's files",
                hint="name both through one store, whose root is above them, or use copy, which "
                "moves the files",
            )
        await self._verify(other.store)
        await refuse_others(other.store, other.name, "log")
        await fork(self._objects, other._objects, self._entropy, start)

    async def copy(
        self, other: Log, start: int | None = None, progress: CopyProgress | None = None
    ) -> CopyReport:
        """Copy the log as it is now to `other`, in this store or another. See log/copy.py.

        Offsets stay the same. With `start`, the copy begins at the fragment that holds this offset,
        or a fragment earlier. There is no log at `other` until everything is there; a copy that was
        cut off goes on when it is called again. Cursors, pins and the seal stay behind.

        Raises:
            AlreadyExistsError: `other` exists, or something else lies in its place.
            CollectedError: `start` has been collected, or something was while it was copied.
            CorruptionError: this log is damaged.
            InvalidInputError: there is no such offset.
        """
        given(other, Log, "the other log")
        await self._verify(other.store)
        await refuse_others(other.store, other.name, "log")
        return await copy(
            self._objects,
            other._objects,
            self._entropy,
            start,
            copies=self.store.copies if self.store.is_same_as(other.store) else None,
            progress=progress,
        )

    # What keeps a log small.

    async def pin(self, name: str, start: int, limit: int, *, ttl_s: int = 3_600) -> Pin:
        """Keep the files of `[start, limit)` for `ttl_s` seconds, while collection goes on.

        Raises:
            AlreadyExistsError: there is a pin of this name that has not ended.
            CollectedError: the range has been collected, or is about to be.
        """
        return await make_pin(self._objects, self._entropy, name, start, limit, ttl_s)

    async def pinned(self, name: str) -> Pin:
        """A pin made before, to renew or release it.

        Raises:
            NotFoundError: there is none of this name.
            CollectedError: it has ended.
        """
        return await open_pin(self._objects, self._entropy, name)

    async def mark(
        self,
        *,
        keep_from: int | None = None,
        max_fragments: int = FRAGMENTS_MAX,
        max_share: float = 1.0,
    ) -> CollectReport:
        """First step of a collection: write down what goes."""
        return await self._collector().step_mark(keep_from, max_fragments, max_share)

    async def unlink(self) -> CollectReport:
        """Second step: take what was marked out of the manifest."""
        return await self._collector().step_unlink()

    async def sweep(self, *, grace_s: float = 0.0, rate: float | None = None) -> CollectReport:
        """Third step: delete what was unlinked, once the grace interval has passed."""
        return await self._collector().step_sweep(grace_s, rate)

    async def collect(
        self,
        keep_from: int | None = None,
        *,
        max_fragments: int = FRAGMENTS_MAX,
        max_share: float = 1.0,
        grace_s: float = 0.0,
        rate: float | None = None,
        wait_s: float = 5.0,
        take_over: bool = False,
        progress: CollectProgress | None = None,
    ) -> CollectReport:
        """Free what lies before every cursor: mark, unlink, sweep. See log/collect.py.

        Args:
            keep_from: keep everything from this offset on, whatever the cursors say.
            max_fragments: free about so many at most; the next collection goes on.
            max_share: refuse to free more than this share of the log's bytes.
            grace_s: wait longer than the log's grace interval before deleting.
            rate: objects deleted per second at most.
            wait_s: wait so long for the grace interval; else the next collection deletes.
            take_over: first end a collection that another program (wal3) abandoned. Make sure that
                it does not run any more: nothing can stop it from unlinking and deleting.
            progress: called while it deletes.

        Raises:
            StateError: there is no cursor, too much would go, or another program collects.
        """
        return await self._collector(progress).collect(
            keep_from=keep_from,
            max_fragments=max_fragments,
            max_share=max_share,
            grace_s=grace_s,
            rate=rate,
            wait_s=wait_s,
            take_over=take_over,
        )

    # How a log ends.

    async def seal(self, reason: str = "", moved_to: str = "") -> Seal:
        """End the log for ever: nothing is appended any more. See log/seal.py.

        What was acknowledged stays and can be read; appends under way are acknowledged, or fail for
        certain. Beside a busy writer it asks for a turn, which takes some seconds. To seal a log
        that is sealed changes nothing.

        Args:
            reason: for people; whoever wants to append is told.
            moved_to: the log that goes on: a name in the same store, or a URL.

        Returns:
            The seal that the log has.
        """
        manifest = await self._sealer().seal(reason, moved_to)
        assert manifest.seal is not None
        return manifest.seal

    async def migrate(self, other: Log, reason: str = "moved") -> None:
        """Seal the log, then create `other`, empty, with its first offset where this one ends.

        Both together are one order: nothing is appended here once something may be appended there.
        Where it was cut off, call it again; to repeat it changes nothing.

        Raises:
            AlreadyExistsError: `other` exists, and is not this log's continuation. If it existed
                before, nothing was changed.
            StateError: the log was sealed before, and did not go there.
        """
        if given(other, Log, "the other log") == self:
            raise InvalidInputError("a log cannot be moved to itself")
        await self._verify(other.store)
        await refuse_others(other.store, other.name, "log")
        moved_to = other.name if other.store == self.store else other.url
        await self._sealer().migrate(other.objects, reason, moved_to)

    async def destroy(self, progress: DestroyProgress | None = None) -> int:
        """Delete the log and everything of it; the number of objects deleted. See log/destroy.py.

        Where it was cut off, call it again. Cursors and pins do not hold it up.

        Args:
            progress: called with how many objects were deleted, and how many there are.

        Raises:
            NotFoundError: there is no such log.
            StateError: a fork shares its files, or something under its name is not the log's.
        """
        destroyer = Destroyer(self._objects, self._clock, self._entropy, progress=progress)
        return await destroyer.destroy()

    async def _verify(self, store: Store) -> None:
        """Refuse a store that ignores the conditions which this log's protocol relies on."""
        if store.is_remote:
            await verify_conditional_puts(store, swaps=not await self._objects.is_chain())

    def _sealer(self) -> Sealer:
        return Sealer(self._objects, self._clock, self._entropy)

    def _collector(self, progress: CollectProgress | None = None) -> Collector:
        return Collector(self._objects, self._clock, self._entropy, progress=progress)
