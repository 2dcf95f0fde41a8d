"""Bulk commits: many processes upload fragments, one swap makes all of them visible, once.

::

    task 1   stage ─▶ log/Uuid=a.parquet ─┐
    task 2   stage ─▶ log/Uuid=b.parquet ─┼─▶ commit: offsets, slots, one swap of MANIFEST
    task 3   stage ─▶ log/Uuid=c.parquet ─┘

An upload counts its offsets from 0: where it will lie is known only at the commit. Nothing names it
until then, and what is never committed is swept by age (log/uploads.py).

1. A commit has a **token**: who produces (an id) and which of its batches this is. The manifest
   keeps the last batch of each producer (log/producers.py), so the swap that makes records visible
   also makes their token known. A commit whose answer was lost, or that is made again by somebody
   who does not know, finds its token and gives the answer that the first one would have given.
2. An upload belongs to the token it was staged for. A token is committed once, so no file is ever
   named twice, and collection may delete it when its place is collected.
3. The run that waits above the manifest is adopted first (log/recovery.py). Uploads then get the
   next slots as their numbers and keep their paths; whatever else lies in those slots is void.
4. Uploads are looked at once: each must be there, and be what it is said to be. Before every swap
   the store is asked what time it is: all of them must be younger than half the age at which they
   are swept. (They are immutable, so that is enough.) Staging takes a quarter of it at most.
5. A relative fragment's setsum does not know its place. So nodes over uploads are written only when
   the commit has given them one: the root is long for a moment, then folded.

Crash before the swap, and nothing is visible; after it, and everything is. Two commits at once go
one after the other. Beside a busy writer a commit asks for a turn.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import get_args

import msgspec
import pyarrow as pa
from msgspec import UNSET, Struct

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ConflictError,
    CordwoodError,
    CorruptionError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.base.limits import FRAGMENT_BYTES_MAX, MANIFEST_BYTES_MAX, OFFSET_LIMIT
from cordwood.base.workers import in_worker
from cordwood.log import filters, paths, tree
from cordwood.log import fragment as fragments
from cordwood.log.filters import EMPTY, StreamSet, footer_text, streams_of
from cordwood.log.format import (
    BULK,
    COLUMNS,
    PRODUCERS,
    STAGED_GRACES,
    STREAMS,
    Extension,
    Fragment,
    Manifest,
    Node,
    Producer,
    encode,
)
from cordwood.log.holds import store_time_us
from cordwood.log.intents import Asker
from cordwood.log.objects import LogObjects
from cordwood.log.producers import PRODUCERS_MAX, find_producer, remember
from cordwood.log.records import Content, content_of_arrow, stream_names
from cordwood.log.recovery import BeforeNaming, Ground, Tail, find_ground, next_tag
from cordwood.log.seal import sealed
from cordwood.log.sieve import FilterWriter, with_filters
from cordwood.store.api import Buffer

UPLOADS_MAX = 50_000
"""Uploads of one commit: each is a pointer of 220 bytes in the root until it is folded."""

COMPRESSIONS = get_args(fragments.Compression)

INLINE_BYTES_MAX = 256 * 1024
"""Uploads up to this are built on the event loop; larger ones in a thread, not to hold it up."""

LOOKS_AT_ONCE = 32

STAGED_STREAMS_MAX = 1_024
"""Streams of which an upload tells its commit; of more, its footer does. A commit has thousands."""

FOLD_AT_ONCE = 256
"""Nodes put before a manifest names them: a large commit is folded in a few swaps."""

ROOT_BYTES_MAX = MANIFEST_BYTES_MAX // 4
"""A commit makes no larger root: something keeps it from being folded, and writers need room."""

ID_BYTES_MAX = 256


class Token(Struct, frozen=True, forbid_unknown_fields=True):
    """What a commit is: it takes effect once, however often it is made."""

    id: str
    """The producer: a streaming query, or one batch job."""
    batch: int = 0
    """Which batch of the producer's; they rise."""
    nonce: str = ""
    """Which run of the producer, for people."""
    once: bool = False
    """Whether it is made for one job and asked for by that alone: it may be forgotten in time."""
    chained: bool = False
    """Whether its producer's batches, from 0 on, must all go to one log. Another log, such as one
    that was made anew under the name, knows nothing of the producer and refuses a later batch."""

    def __post_init__(self) -> None:
        """Refuse what cannot be one."""
        for text in (self.id, self.nonce):
            if not _is_text(text):
                raise InvalidInputError(
                    f"{text!r} cannot be part of a token",
                    hint=f"use printable text of up to {ID_BYTES_MAX} bytes, such as a uuid",
                )
        if not self.id:
            raise InvalidInputError("a token names its producer", hint="use a uuid")
        if type(self.batch) is not int or not 0 <= self.batch < OFFSET_LIMIT:
            raise InvalidInputError(f"a batch is a number from 0 on, not {self.batch!r}")

    @property
    def key(self) -> str:
        """What its uploads say they belong to."""
        return hashlib.sha256(f"{self.batch} {self.id}".encode()).hexdigest()[:32]


class Staged(Struct, frozen=True, forbid_unknown_fields=True):
    """One upload, on its way to its commit. It travels as JSON."""

    id: str
    token: str
    """The key of the token it was staged for."""
    records: int
    bytes: int
    setsum: str
    at_us: int
    has_columns: bool
    streams: str | None = ""
    """Its filter; None if it has too many streams: then its footer may tell."""

    @property
    def path(self) -> str:
        """Where it lies in the log."""
        return paths.upload(self.id)

    def set_of(self) -> StreamSet | None:
        """Which streams it holds, if that is known."""
        if self.streams:
            found = filters.decode(self.streams, self.setsum)
            return found if isinstance(found, StreamSet) else None
        return None if self.streams is None else EMPTY


class Committed(Struct, frozen=True):
    """Where a commit's records are."""

    offset: int
    """Of the first one."""
    records: int
    is_new: bool
    """False if an earlier commit with the same token had put them there."""


async def stage(
    objects: LogObjects,
    clock: Clock,
    entropy: Entropy,
    data: pa.Table | pa.RecordBatch,
    token: Token,
    compression: fragments.Compression,
    check_streams: Callable[[Collection[str]], Awaitable[None]],
) -> Staged:
    """Upload records that a commit with this token will make visible. One GET, one PUT.

    `check_streams` raises unless streams are open; whether they are is asked here, not at the
    commit.

    Raises:
        InvalidInputError, LimitError: as for an append.
        NotFoundError: there is no such log.
        StateError: it is sealed, or a stream is not open.
        StoreError: the store took so long that a sweep may have met the upload half way.
    """
    _check_token(token)
    if compression not in COMPRESSIONS:
        raise InvalidInputError(
            f"there is no compression {compression!r}", hint=f"use {', '.join(COMPRESSIONS)}"
        )
    manifest = (await objects.load()).manifest
    if manifest.seal is not None:
        raise sealed(objects.name, manifest.seal)
    content = content_of_arrow(data)
    await check_streams(stream_names(content))
    given = (content, token, entropy.token(), clock.now_us(), compression)
    is_small = given[0].num_bytes <= INLINE_BYTES_MAX
    staged, body = _build(*given) if is_small else await in_worker(_build, *given)
    started_s, started_us = clock.monotonic_s(), clock.now_us()
    try:
        await objects.store.put(objects.key(staged.path), body, "create")
    except AlreadyExistsError as error:
        raise ConflictError(
            f"the upload {staged.path} exists already", hint="stage the records again"
        ) from error
    # By both clocks: while a machine is suspended the one stands still, and the other may be set.
    # The store is not asked, since thousands that stage at once would all write one object.
    took_s = max(clock.monotonic_s() - started_s, (clock.now_us() - started_us) / 1_000_000)
    if took_s > manifest.staged_s / 4:
        # Its first attempt may be old enough to be swept although the object is young.
        raise StoreError(
            f"the upload {staged.path} took {took_s:.0f} s", hint="stage the records again"
        )
    return staged


def _build(
    content: Content, token: Token, upload_id: str, at_us: int, compression: fragments.Compression
) -> tuple[Staged, Buffer]:
    table = fragments.build_table(content, 0, at_us, relative=True)
    streams = streams_of(content.extra.get("stream"))

    def vouch(setsum_hex: str) -> tuple[fragments.Link, str]:
        link = fragments.Link(upload_id, 0, len(content), at_us, setsum_hex, token.key, "")
        return link, footer_text(streams, setsum_hex)

    link, data = fragments.encode(table, compression, vouch)
    if len(data) > FRAGMENT_BYTES_MAX:
        raise LimitError(
            f"an upload has {len(data)} bytes, the limit is {FRAGMENT_BYTES_MAX}",
            code=Code.TOO_LARGE,
            hint="stage it in smaller parts",
        )
    is_told = streams is not None and len(streams) <= STAGED_STREAMS_MAX
    told = footer_text(streams, link.setsum) if is_told else None
    staged = Staged(
        upload_id, token.key, len(content), len(data), link.setsum, at_us, bool(content.extra), told
    )
    return staged, data


class Committer:
    """Commits uploads to one log. Holds no state: everything is in the store."""

    def __init__(
        self,
        objects: LogObjects,
        clock: Clock,
        entropy: Entropy,
        before_naming: BeforeNaming | None = None,
    ) -> None:
        """No I/O. `before_naming` is awaited before records become visible, as by a writer."""
        self._objects = objects
        self._clock = clock
        self._entropy = entropy
        self._before_naming = before_naming

    async def commit(self, staged: Sequence[Staged], token: Token) -> Committed:
        """Make the uploads visible, in this order, all or none of them.

        On a log at rest three GETs and two PUTs, and for each upload a HEAD and a GET; then the
        folding.

        Raises:
            StateError: the log is sealed; or the token was committed with other records, or is
                older than what its producer committed last; or an upload is too old; or the batches
                before a chained one went to another log.
            InvalidInputError: an upload belongs to another token.
            UncertainError: it may have taken effect, and the store does not answer any more.
        """
        _check(staged, token)
        asker = Asker(self._objects, self._clock, self._entropy)
        doubt: UncertainError | None = None
        tried = ""
        try:
            oldest_us = await self._look_at(staged)
            while True:
                told = self._before_naming
                ground = await find_ground(self._objects, self._entropy, {}, before_naming=told)
                known = await self._find(ground.manifest, token)
                if known is not None:
                    return _answer(known, staged, token)
                # Where another manifest stands than it was to follow, it was certainly not made.
                doubt = doubt if ground.etag == tried else None
                if ground.manifest.seal is not None:
                    raise sealed(self._objects.name, ground.manifest.seal)
                if not staged:
                    await self._begin_chain(ground.manifest, token)
                    return Committed(ground.manifest.next_offset, 0, is_new=True)
                if ground.named:
                    await self._check_age(oldest_us, ground.manifest)
                    try:
                        return await self._swap(ground, staged, token)
                    except UncertainError as error:
                        doubt, tried = error, ground.etag
                    except ConflictError:
                        pass
                await asker.ask()
        except StoreError as error:
            if doubt is None:
                raise
            raise _in_doubt(token, error) from error
        except _GoneError as error:
            manifest, _ = await self._objects.load()
            known = await self._find(manifest, token)
            if known is None:
                denied = StateError(error.message, hint=error.hint)
                raise (_in_doubt(token, error) if doubt else denied) from None
            return _answer(known, staged, token)
        finally:
            await asker.release()

    async def _swap(self, ground: Ground, staged: Sequence[Staged], token: Token) -> Committed:
        manifest = ground.manifest
        count = sum(one.records for one in staged)
        producer = self._producer(manifest, token, count)
        producers = (*(p for p in manifest.producers if p.id != token.id), producer)
        for left in producers[:-PRODUCERS_MAX]:
            await remember(self._objects, manifest.incarnation, left)
        wanted = committed(ground, staged, producers[-PRODUCERS_MAX:], self._entropy)
        if len(encode(wanted)) > ROOT_BYTES_MAX:
            raise LimitError(
                f"the manifest would have more than {ROOT_BYTES_MAX} bytes",
                hint="something keeps it from being folded: may snapshot/ be written?",
            )
        if self._before_naming is not None and not ground.is_announced:
            await self._before_naming(manifest.next_offset)
        etag = await self._objects.swap(wanted, ground.etag)
        with suppress(CordwoodError):
            # The records are in the log. Should this fail, the next writer folds.
            writer = FilterWriter(self._objects, most=4 * len(wanted.fragments) + 64)
            named = zip(wanted.fragments[-len(staged) :], staged, strict=True)
            sets = [(fragment, one.set_of()) for fragment, one in named]
            writer.learn(pair for pair in sets if pair[1] is not None)
            await self._fold(wanted, etag, writer)
        return Committed(producer.offset, count, is_new=True)

    def _producer(self, manifest: Manifest, token: Token, count: int) -> Producer:
        """What will be known of the token: so many records at the end of the log."""
        now_us, offset = self._clock.now_us(), manifest.next_offset
        return Producer(token.id, token.batch, token.nonce, count, offset, now_us, token.once)

    async def _begin_chain(self, manifest: Manifest, token: Token) -> None:
        """An empty first batch leaves no record: note that the chain begins in this log."""
        if token.chained and token.batch == 0:
            first = self._producer(manifest, token, 0)
            await remember(self._objects, manifest.incarnation, first)

    async def _look_at(self, staged: Sequence[Staged]) -> int:
        """Raise unless every upload is what it is said to be; when the oldest was made."""
        oldest_us = OFFSET_LIMIT
        for i in range(0, len(staged), LOOKS_AT_ONCE):
            some = staged[i : i + LOOKS_AT_ONCE]
            oldest_us = min(oldest_us, *await asyncio.gather(*map(self._look, some)))
        return oldest_us

    async def _look(self, one: Staged) -> int:
        key, store = self._objects.key(one.path), self._objects.store
        try:
            meta = await store.head(key)
            start = max(0, meta.size_bytes - fragments.FOOTER_PEEK_BYTES)
            footer = await store.get_range(key, start, meta.size_bytes - start)
        except NotFoundError:
            raise _gone(one, "it is not there") from None
        link = fragments.read_footer_link(footer, one.path)
        said = (one.id, 0, one.records, one.at_us, one.setsum, one.token)
        found = link and (link.id, link.start, link.limit, link.at, link.setsum, link.prev_id)
        if meta.size_bytes != one.bytes or said != found:
            raise CorruptionError(
                f"the upload {one.path} is not the one that was staged: expected {one.bytes} bytes "
                f"with {said}, got {meta.size_bytes} with {found}",
                where=key,
                hint="nothing was written; stage the records again",
            )
        return meta.modified_us

    async def _check_age(self, oldest_us: int, manifest: Manifest) -> None:
        """Rule 4. The clock is asked after the manifest was loaded: see log/uploads.py."""
        now_us = oldest_us
        for surely in (False, True):
            now_us = await store_time_us(self._objects, self._entropy, surely=surely)
            if now_us - oldest_us <= manifest.staged_s * 1_000_000 // 2:
                return
        raise _GoneError(
            f"uploads made {(now_us - oldest_us) // 1_000_000} s ago, by the store's clock, "
            "cannot be committed any more",
            hint="nothing was written; write the records again. A commit has to come within "
            f"{manifest.staged_s // 2} s, which is {STAGED_GRACES // 2} times the log's grace",
        )

    async def _find(self, manifest: Manifest, token: Token) -> Producer | None:
        """What is known of the token's producer, if the token must not be committed any more."""
        known = await find_producer(self._objects, manifest, token.id)
        if known is None and token.chained and token.batch:
            raise StateError(
                f"log {self._objects.name!r} knows nothing of producer {token.id!r}, whose batch "
                f"{token.batch} this is; nothing was written",
                hint="its batches before went to another log, which was destroyed since, or has "
                "another name: start the producer anew (a query: with a checkpoint of its own)",
            )
        if known is None or known.batch < token.batch:
            return None
        # Seen by reading: it must survive a power cut before anybody relies on it.
        await self._objects.sync([paths.MANIFEST])
        return known

    async def _fold(self, manifest: Manifest, etag: str, sieve: FilterWriter) -> None:
        """Make the root small again. Whoever swaps meanwhile goes on with it."""
        taken: set[str] = set()
        sieve.learn_root(manifest)
        has_streams = STREAMS in manifest.features
        while nodes := tree.fold(manifest, manifest.writer, taken=taken, most=FOLD_AT_ONCE):
            outcomes: list[bool] = []
            writers = [sieve if has_streams else None] * LOOKS_AT_ONCE
            for node in nodes if has_streams else ():
                sieve.expect(node)
            for i in range(0, len(nodes), LOOKS_AT_ONCE):
                # Children come before their parents, whose filters are made of theirs.
                some = nodes[i : i + LOOKS_AT_ONCE]
                outcomes += await asyncio.gather(*map(self._put_node, some, writers))
            smaller = manifest
            for node, is_put in zip(nodes, outcomes, strict=True):
                if is_put:
                    smaller = tree.substitute(smaller, node) or smaller
                else:
                    taken.add(node.path)
            if smaller is not manifest:
                tag = next_tag(manifest, Tail.of(manifest), self._entropy)
                smaller = msgspec.structs.replace(smaller, writer=str(tag))
                manifest = with_filters(smaller, sieve.sets_of(smaller))
                etag = await self._objects.swap(manifest, etag)
            elif all(outcomes):
                return

    async def _put_node(self, node: Node, sieve: FilterWriter | None) -> bool:
        filters = None if sieve is None else await sieve.prepare(node)
        try:
            await self._objects.write_node(node)
        except (AlreadyExistsError, CorruptionError):
            return False
        if sieve is not None:
            await sieve.put(node, filters)
        return True


def committed(
    ground: Ground, staged: Sequence[Staged], producers: tuple[Producer, ...], entropy: Entropy
) -> Manifest:
    """The manifest that names the uploads behind its tail."""
    manifest = ground.manifest
    offset, seq_no = manifest.next_offset, ground.tail.next_seq_no
    pointers = []
    for one in staged:
        limit = offset + one.records
        if limit >= OFFSET_LIMIT:
            raise LimitError("the log has no offsets left", hint="go on in another log")
        pointers.append(Fragment.of(one.path, seq_no, offset, limit, one.bytes, one.setsum))
        offset, seq_no = limit, seq_no + 1
    last = staged[-1]
    at_us = max(ground.tail.at_us, *(one.at_us for one in staged))
    tail = Tail(last.id, last.setsum, offset, seq_no, at_us)
    features = {BULK, PRODUCERS, *((COLUMNS,) if any(one.has_columns for one in staged) else ())}
    named = tree.append(manifest, pointers, next_tag(manifest, tail, entropy), features)
    sets = {p.seq_no: one.set_of() for p, one in zip(pointers, staged, strict=True)}
    named = with_filters(named, sets)
    extension = Extension() if named.cordwood is UNSET else named.cordwood
    extension = msgspec.structs.replace(extension, producers=producers)
    return msgspec.structs.replace(named, cordwood=extension)


class _GoneError(CordwoodError):
    """An upload cannot be committed any more; unless it was, by somebody else."""


def _check_token(token: object) -> None:
    if not isinstance(token, Token):
        raise InvalidInputError(f"a token is a cordwood.Token, not {token!r}")


def _check(staged: Sequence[Staged], token: Token) -> None:
    _check_token(token)
    if isinstance(staged, Staged) or any(not isinstance(one, Staged) for one in staged):
        raise InvalidInputError("a commit takes a list of what `stage` gave")
    if len(staged) > UPLOADS_MAX:
        raise LimitError(
            f"a commit of {len(staged)} uploads, the limit is {UPLOADS_MAX}",
            hint="stage larger uploads, or commit them in several batches",
        )
    strangers = [one.path for one in staged if one.token != token.key]
    if strangers or len({one.id for one in staged}) != len(staged):
        raise InvalidInputError(
            f"a commit names each upload of its own token once; {strangers[:3] or 'one is twice'}",
            hint="commit with the token that the uploads were staged for",
        )


def _answer(known: Producer, staged: Sequence[Staged], token: Token) -> Committed:
    """What the commit of a token gives that cannot be committed any more."""
    count = sum(one.records for one in staged)
    if known.batch > token.batch:
        raise StateError(
            f"batch {token.batch} of producer {token.id!r} comes after its batch {known.batch} was "
            "committed; nothing was written",
            hint="its checkpoint is older than the log, or two run from one: start the producer "
            "anew, with another id",
        )
    if known.records != count:
        raise StateError(
            f"batch {token.batch} of producer {token.id!r} was committed with {known.records} "
            f"records, not {count}; nothing was written",
            hint="the batch is in the log as it was first written. Its source gave other records "
            "this time (were some collected meanwhile?), or two producers have one id: start the "
            "producer anew behind this batch (a query: with a checkpoint of its own)",
        )
    return Committed(known.offset, count, is_new=False)


def _in_doubt(token: Token, error: CordwoodError) -> UncertainError:
    return UncertainError(
        f"the commit of batch {token.batch} of {token.id!r} may have taken effect: {error.message}",
        write_id=token.key,
        hint="commit again with the same token",
    )


def _is_text(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text.encode()) <= ID_BYTES_MAX


def _gone(one: Staged, why: str) -> _GoneError:
    return _GoneError(
        f"the upload {one.path} cannot be committed: {why}",
        hint="nothing was written; write the records again",
    )
