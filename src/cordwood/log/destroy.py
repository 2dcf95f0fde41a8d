"""Destruction: delete a log and everything of it, and nothing else.

::

    look     nothing under the name that is not understood, no fork that shares files
    fence    a seal with the reason "destroyed": no writer gets in, nothing new can rely on the log
    look     again: what came in before the fence is seen now
    delete   fragments, nodes, cursors, garbage, pins, intents, producers, holds of forks gone
    release  its own holds on the logs it was forked from
    delete   MANIFEST; then what slow writers put meanwhile

Rules:

1. Only what has the name of something of ours is deleted. Anything else under the name (another log
   may lie below it: `orders/eu` below `orders`) makes it refuse, before anything is changed.
2. A fork writes its hold and then reads the manifest (log/holds.py); we write the seal and then
   read the holds. So a fork that comes in at this moment is seen by us, or sees the seal and
   withdraws.
3. MANIFEST goes last, so a destruction that was cut off is finished by the next one. Without a
   MANIFEST it refuses: nothing tells what a destruction left from a log that lost its manifest.
   What slow writers put after the very end does no harm: to a new log of this name it is void, and
   is deleted with it. (Create the log again and destroy it, to be rid of it.)
4. Before each batch of deletions we look whether it is still the log that we sealed: another
   destruction may have finished, and a new log may have the name. There is no conditional delete,
   so the name should not be used again while somebody may still be at work on the old log.
5. A chain log leaves the signpost and its manifests of the last grace interval, the doomed one on
   top. To destroy it again later removes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import Code, NotFoundError, StateError
from cordwood.log import paths
from cordwood.log.chain import names
from cordwood.log.format import Manifest
from cordwood.log.holds import live_holds, store_time_us
from cordwood.log.objects import LogObjects
from cordwood.log.seal import Sealer
from cordwood.store.timekeeping import age_us

DELETES_AT_ONCE = 500

ROUNDS_MAX = 3
"""Times we look for what slow writers put, once the log is gone."""

SHOWN_MAX = 3
"""Objects that a refusal names."""

ORDER = (
    "log/",
    names.SHARD_PREFIX,
    paths.NODE_PREFIX,
    paths.FILTER_PREFIX,
    paths.STREAM_PREFIX,
    names.PREFIX_PREFIX,
    paths.CURSOR_PREFIX,
    "gc/",
    paths.PIN_PREFIX,
    paths.INTENT_PREFIX,
    paths.PRODUCER_PREFIX,
    paths.FORK_PREFIX,
)

Progress = Callable[[int, int], None]
"""Called with how many objects were deleted, and how many there were."""


class Destroyer:
    """Destroys one log."""

    def __init__(
        self,
        objects: LogObjects,
        clock: Clock,
        entropy: Entropy,
        *,
        progress: Progress | None = None,
    ) -> None:
        """No I/O."""
        self._objects = objects
        self._entropy = entropy
        self._sealer = Sealer(objects, clock, entropy)
        self._progress = progress
        self._deleted = 0
        self._total = 0

    async def destroy(self) -> int:
        """Delete everything; how many objects that was.

        Two LISTs of everything, one more of each kind, and one DELETE for each object; in batches
        where the store can. A GET for each batch.

        Raises:
            NotFoundError: there is no such log.
            StateError: a fork shares its files, or there is something that is not the log's.
        """
        if await self._is_signpost_alone():
            await self._delete([self._objects.key(paths.MANIFEST)])
            return self._deleted
        await self._check_exists()
        await self._check()
        doomed = await self._sealer.doom()
        self._total = await self._check()
        for prefix in ORDER:
            if not await self._delete_all(prefix, doomed):
                return self._deleted
        await self._release_holds(doomed)
        if await self._is_still(doomed) and await self._delete_manifests():
            await self._delete_leftovers()
        return self._deleted

    # Looking.

    async def _is_signpost_alone(self) -> bool:
        """Whether a destruction of a chain log was cut off before its very last delete."""
        try:
            await self._objects.look()
        except NotFoundError:
            keys = [meta.key async for meta in self._objects.list("")]
            return keys == [self._objects.key(paths.MANIFEST)]
        return False

    async def _check_exists(self) -> None:
        try:
            await self._objects.look()
        except NotFoundError as error:
            async for meta in self._objects.list(""):
                raise NotFoundError(
                    f"there is no log named {self._objects.name!r}, but objects lie under its "
                    f"name, such as {meta.key}",
                    code=Code.NO_SUCH_LOG,
                    hint="if its manifest was lost, restore it; to be rid of what an earlier "
                    "destruction left, create the log again and destroy it",
                ) from error
            raise

    async def _check(self) -> int:
        """How many objects the log has, if all are its own and nobody else needs them. No change.

        Raises:
            StateError: it must stay.
        """
        count = 0
        strange: list[str] = []
        below: list[str] = []
        prefix = self._objects.key("")
        async for meta in self._objects.list(""):
            path = meta.key.removeprefix(prefix)
            count += 1
            if not paths.is_known(path):
                strange.append(meta.key)
                if path.endswith(f"/{paths.MANIFEST}"):
                    below.append(meta.key.removesuffix(f"/{paths.MANIFEST}"))
        if below:
            raise self._refusal(
                f"other logs lie below its name: {_some(below)}",
                "a log is destroyed only when its name is free of others: destroy those first",
            )
        if strange:
            raise self._refusal(
                f"there are objects under its name that are not a log's: {_some(strange)}",
                "move them away",
            )
        holds = await live_holds(self._objects, self._entropy)
        forks = [hold.what for hold in holds if hold.what.startswith("fork")]
        if forks:
            raise self._refusal(
                f"its files are shared by {_some(forks)}",
                "destroy the forks first, through a store whose root is above them all",
            )
        return count

    def _refusal(self, why: str, hint: str) -> StateError:
        name = self._objects.name
        return StateError(f"log {name!r} was not destroyed, nothing was deleted: {why}", hint=hint)

    async def _is_still(self, doomed: Manifest) -> bool:
        """Rule 4: whether the log that we sealed is still there."""
        try:
            manifest, _ = await self._objects.look()
        except NotFoundError:
            return False
        is_doomed = manifest.seal is not None and manifest.seal.is_destruction
        return is_doomed and manifest.incarnation == doomed.incarnation

    # Deleting.

    async def _delete_all(self, prefix: str, doomed: Manifest) -> bool:
        """Delete what begins with the prefix; whether it is still ours to go on."""
        keys: list[str] = []
        async for key in self._known(prefix):
            keys.append(key)
            if len(keys) == DELETES_AT_ONCE:
                if not await self._is_still(doomed):
                    return False
                await self._delete(keys)
                keys = []
        if keys and not await self._is_still(doomed):
            return False
        await self._delete(keys)
        return True

    async def _known(self, prefix: str) -> AsyncIterator[str]:
        """Keys of what is understood; what came in since we looked stays where it is."""
        async for meta in self._objects.list(prefix):
            if paths.is_known(meta.key.removeprefix(self._objects.key(""))):
                yield meta.key

    async def _delete(self, keys: Sequence[str]) -> None:
        if keys:
            await self._objects.store.delete(keys)
            self._deleted += len(keys)
            if self._progress is not None:
                self._progress(self._deleted, max(self._deleted, self._total))

    async def _delete_manifests(self) -> bool:
        """Delete what says that there is a log; whether nothing of it is left.

        Of a chain, manifests stay with the signpost for a grace interval, the doomed one on top: a
        writer that has not looked yet must find its name taken (docs/formats/chain.md). A new log
        of the name goes on behind it.
        """
        chain = self._objects.chain
        if chain is not None:
            head = await chain.head()
            last = self._objects.key(names.manifest(head.index))
            metas = [meta async for meta in self._objects.list(names.MANIFEST_PREFIX)]
            now_us = await store_time_us(self._objects, self._entropy, surely=True)
            await self._delete([self._objects.key(paths.CLOCK)])
            grace_us = head.manifest.grace_s * 1_000_000
            old = [m.key for m in metas if age_us(m.modified_us, now_us) > grace_us]
            await self._delete([key for key in old if key != last])
            if len(old) < len(metas):
                return False
            await self._delete([last])
        await self._delete([self._objects.key(paths.MANIFEST)])
        return True

    async def _release_holds(self, doomed: Manifest) -> None:
        """Let the ancestors of a fork go: it needs nothing of theirs any more."""
        path = paths.fork(doomed.incarnation)
        holds = [f"{self._objects.name_of(a)}/{path}" for a in doomed.ancestors]
        if holds:
            await self._objects.store.delete(holds)

    async def _delete_leftovers(self) -> None:
        for _ in range(ROUNDS_MAX):
            keys = [key async for key in self._known("")]
            # Asked after the list: what it gave is the old log's, unless a new one is there now.
            if not keys or await self._exists():
                return
            await self._delete(keys)

    async def _exists(self) -> bool:
        """Whether somebody has made a log of the name since, of whichever protocol."""
        for path in (paths.MANIFEST, names.manifest(0)):
            with suppress(NotFoundError):
                await self._objects.plain.head(self._objects.key(path))
                return True
        return False


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
