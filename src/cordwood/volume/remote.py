"""The objects of volumes in a store: the only place where volumes meet it.

Each document goes through the one encoder and the one decoder of volume/format.py. What becomes of
a write whose answer was lost:

* A **commit** or **checkpoint** that is refused is read: with our hash it is ours. With another one
  somebody else was there first, and that one is handed out.
* A **pack** has an id that nobody else can have made: one that exists is ours.
* A **manifest** or **tag** has a nonce, new for each put. A swap whose fate is unknown is decided
  by reading: with our nonce it was ours; else the change is made again on what is there now. So a
  change must be one that may be made twice.

Costs are in requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import msgspec

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CollectedError,
    ConflictError,
    ContendedError,
    CorruptionError,
    NotFoundError,
    UncertainError,
)
from cordwood.store.api import Buffer, Match, Meta, ObjectStore
from cordwood.store.streams import as_generator
from cordwood.store.timekeeping import store_time_us
from cordwood.volume import paths
from cordwood.volume.format import (
    Commit,
    Manifest,
    Sealed,
    Tag,
    decode_document,
    encode_document,
    open_commit,
)
from cordwood.volume.ids import new_id
from cordwood.volume.pack import Built

AT_ONCE = 16
"""Requests under way at a time."""
TRIES_MAX = 100
"""Swaps of one manifest before giving up: others succeed meanwhile, or it would have."""

T = TypeVar("T")
R = TypeVar("R")
Change = Callable[[Manifest], Manifest | None]
"""What a manifest is to become; None if it may stay. It may be asked more than once."""


class Loaded(NamedTuple):
    """A manifest and the etag that proves which one it was."""

    manifest: Manifest
    etag: str


class LoadedTag(NamedTuple):
    """A tag and the etag that proves which one it was."""

    tag: Tag
    etag: str


class Fetched(NamedTuple):
    """A commit, and its bytes as they are stored."""

    commit: Commit
    data: bytes


class Remote:
    """The volumes of one store."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy) -> None:
        """No I/O."""
        self.store = store
        self.clock = clock
        self.entropy = entropy

    def new_id(self) -> str:
        """An id for a log or a pack."""
        return new_id(self.clock, self.entropy)

    async def now_us(self) -> int:
        """What time it is by the store's own clock. Three requests."""
        return await store_time_us(self.store, paths.CLOCK, self.entropy, surely=True)

    # Manifests.

    async def load(self, log: str) -> Loaded:
        """A log's manifest as it is now. One GET.

        Raises:
            NotFoundError: there is no such log, or no longer.
        """
        key = paths.manifest(log)
        try:
            data, etag = await self.store.get(key)
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no log {log} of a volume: {key} does not exist",
                code=Code.NO_SUCH_LOG,
                hint="it was deleted, or the store is another one; check the tag and the URL",
            ) from error
        manifest = decode_document(Manifest, data, key)
        if manifest.log != log:
            raise CorruptionError(f"{key} is the manifest of log {manifest.log}", where=key)
        return Loaded(manifest, etag)

    async def load_if_there(self, log: str) -> Loaded | None:
        """A log's manifest, or None. One GET."""
        try:
            return await self.load(log)
        except NotFoundError:
            return None

    async def create(self, manifest: Manifest) -> None:
        """Write the first manifest of a log that has a fresh id. One PUT."""
        await self._create(paths.manifest(manifest.log), encode_document(manifest))

    async def swap(self, log: str, change: Change) -> Manifest:
        """Change a manifest, whoever else does. A GET and a PUT, more if others do.

        Raises:
            NotFoundError: there is no such log.
            ContendedError: others were quicker a great many times.
        """
        for _ in range(TRIES_MAX):
            seen = await self.load(log)
            changed = await self.swap_once(seen, change(seen.manifest))
            if changed is not None:
                return changed
        raise ContendedError(
            f"log {log}: its manifest changed {TRIES_MAX} times under us", hint="try again later"
        )

    async def swap_once(self, seen: Loaded, changed: Manifest | None) -> Manifest | None:
        """Replace the manifest that was seen, and no other; None if it was another one by then."""
        if changed is None or changed == seen.manifest:
            return seen.manifest
        fresh = msgspec.structs.replace(changed, nonce=self.entropy.token())
        key = paths.manifest(fresh.log)
        try:
            await self.store.put(key, encode_document(fresh), Match(seen.etag))
        except UncertainError:
            now = (await self.load(fresh.log)).manifest
            return now if now.nonce == fresh.nonce else None
        except ContendedError:
            return None
        return fresh

    async def claim(self, log: str) -> Manifest:
        """Make sure that a log is not being deleted: who writes to it asks first. A GET or more.

        Raises:
            CollectedError: it is being deleted.
            NotFoundError: it is gone.
        """

        def pardon(manifest: Manifest) -> Manifest | None:
            if manifest.swept:
                raise CollectedError(
                    f"log {log} is being deleted: no tag named it for too long",
                    hint="push what you have to a new volume",
                )
            if manifest.condemned_us is None:
                return None
            return msgspec.structs.replace(manifest, condemned_us=None)

        return await self.swap(log, pardon)

    # Commits and checkpoints.

    async def get_commit(self, log: str, lsn: int) -> Fetched:
        """One GET.

        Raises:
            NotFoundError: there is no such commit.
            CorruptionError: it is damaged, or is not that commit.
        """
        return await self._get(paths.commit(log, lsn), log, lsn)

    async def get_checkpoint(self, log: str, lsn: int) -> Fetched:
        """One GET. As `get_commit`."""
        return await self._get(paths.checkpoint(log, lsn), log, lsn)

    async def put_commit(self, sealed: Sealed) -> None:
        """Make a commit the one of its LSN, for ever. A PUT and a GET; a GET more if it is refused.

        Sending the same bytes again is no harm: they are the same commit. That nobody else had the
        LSN is not enough: theirs may have been collected, and its place be free again. So the
        manifest is read afterwards, and says whether the place was still one of the log's.

        Raises:
            ConflictError: another commit is or was there; ours is not one of the log's.
            CollectedError, NotFoundError: the log is being deleted, or gone.
            UncertainError, StoreError: it may be there now or later; send the same bytes again.
        """
        commit = sealed.commit
        refused: AlreadyExistsError | None = None
        try:
            await self._create(paths.commit(commit.log, commit.lsn), sealed.data)
        except AlreadyExistsError as error:
            refused = error
        if refused is not None or commit.lsn < (await self.claim(commit.log)).collected:
            raise ConflictError(
                f"LSN {commit.lsn} of log {commit.log} is another commit",
                hint="pull, then branch what you have, take theirs, or rebase",
            ) from refused

    async def put_checkpoint(self, sealed: Sealed) -> Commit:
        """The checkpoint of its LSN: ours, or the one somebody else put first."""
        commit = sealed.commit
        try:
            await self._create(paths.checkpoint(commit.log, commit.lsn), sealed.data)
        except AlreadyExistsError:
            return (await self.get_checkpoint(commit.log, commit.lsn)).commit
        return commit

    def list_commits(self, log: str, after: int = 0) -> AsyncGenerator[tuple[int, Meta], None]:
        """The commits of a log behind an LSN, in order. One LIST for each thousand."""
        return self._numbered(paths.commits(log), after)

    def list_checkpoints(self, log: str, after: int = 0) -> AsyncGenerator[tuple[int, Meta], None]:
        """The checkpoints of a log behind an LSN, in order, those of its manifest and others."""
        return self._numbered(paths.checkpoints(log), after)

    # Packs.

    async def put_pack(self, built: Built) -> None:
        """Store a pack. One PUT."""
        await self._create(paths.pack(built.pack.id), built.data)

    async def missing_packs(self, ids: Iterable[str]) -> list[str]:
        """Those of the packs that are not there. One HEAD each."""

        async def missing(pack_id: str) -> str | None:
            try:
                await self.store.head(paths.pack(pack_id))
            except NotFoundError:
                return pack_id
            return None

        return [found for found in await gather_some(missing, ids) if found is not None]

    async def get_range(self, pack_id: str, start: int, length: int) -> Buffer:
        """Some bytes of a pack. One GET.

        Raises:
            CorruptionError: the pack is not there; code `missing_object`.
        """
        try:
            return await self.store.get_range(paths.pack(pack_id), start, length)
        except NotFoundError as error:
            raise CorruptionError(
                f"pack {pack_id} is missing",
                code=Code.MISSING_OBJECT,
                where=paths.pack(pack_id),
                hint="pull: the version may have been collected; else bring the pack back "
                "from a copy of the store",
            ) from error

    # Tags.

    async def get_tag(self, name: str) -> LoadedTag:
        """Which log a name means. One GET.

        Raises:
            NotFoundError: nothing has that name.
        """
        key = paths.tag(name)
        try:
            data, etag = await self.store.get(key)
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no volume named {name!r}: {key} does not exist",
                hint="create it first, or check the name and the store's URL",
            ) from error
        return LoadedTag(decode_document(Tag, data, key), etag)

    async def put_tag(self, name: str, log: str, seen: LoadedTag | None, *, force: bool) -> None:
        """Let a name mean a log: only if nothing has it, if it is what was seen, or by force.

        Raises:
            AlreadyExistsError: something else has the name, and nothing was seen.
            ContendedError: it is not what was seen any more.
        """
        key = paths.tag(name)
        tag = Tag(log, self.entropy.token())
        data = encode_document(tag)
        if force:
            await self.store.put(key, data, "overwrite")
        elif seen is None:
            await self._create(key, data)
        else:
            try:
                await self.store.put(key, data, Match(seen.etag))
            except UncertainError:
                now = await self.get_tag(name)
                if now.tag != tag:
                    raise

    async def list_tags(self) -> dict[str, Tag]:
        """All names, and what they mean. One LIST, a GET for each."""
        names = [meta.key.removeprefix(paths.TAGS) async for meta in self.store.list(paths.TAGS)]

        async def load(name: str) -> tuple[str, Tag] | None:
            try:
                return name, (await self.get_tag(name)).tag
            except NotFoundError:
                return None

        found = await gather_some(load, names)
        return dict(row for row in found if row is not None)

    # What these are made of.

    async def _create(self, key: str, data: bytes) -> None:
        """Put what only we can have made; what is there already with our bytes is ours."""
        try:
            await self.store.put(key, data, "create")
        except AlreadyExistsError:
            if (await self.store.get(key)).data != data:
                raise
            await self.store.sync([key])

    async def _get(self, key: str, log: str, lsn: int) -> Fetched:
        data, _ = await self.store.get(key)
        commit = open_commit(data, key)
        if (commit.log, commit.lsn) != (log, lsn):
            raise CorruptionError(
                f"{key} is LSN {commit.lsn} of log {commit.log}",
                where=key,
                hint="somebody moved objects by hand; bring the right one back from a copy",
            )
        return Fetched(commit, data)

    async def _numbered(self, prefix: str, after: int) -> AsyncGenerator[tuple[int, Meta], None]:
        start = prefix + paths.lsn_text(after)
        async with aclosing(as_generator(self.store.list(prefix, start))) as metas:
            async for meta in metas:
                lsn = paths.lsn_of(meta.key.removeprefix(prefix))
                if lsn is not None:
                    yield lsn, meta


async def gather_some(
    call: Callable[[T], Awaitable[R]], values: Iterable[T], at_once: int = AT_ONCE
) -> list[R]:
    """The results of a call for each value, in order; the first error ends all of them."""
    room = asyncio.Semaphore(at_once)

    async def one(value: T) -> R:
        async with room:
            return await call(value)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(value)) for value in values]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
