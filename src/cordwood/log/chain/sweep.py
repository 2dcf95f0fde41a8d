"""What a chain log leaves behind: old manifests, old versions, fragments that nobody named.

Nothing is replaced in a chain log, so what is out of date lies beside what counts, until it is
swept. When something may go:

1. A manifest, if the newest one *knew* a later one when it was sent, and the grace interval has
   passed since it was written. No successor that anybody may still send leads back before what its
   predecessor knew; so recovery never looks for it. And if another, itself older than the grace
   interval, knew a later one, too: whoever is reading manifests at this moment, and began less than
   that ago, has seen that one, and does not take the name for one that was never used. Manifest 0
   stays.
2. A version of something that changes, if there is a newer one, and the grace interval has passed.
3. A fragment that begins before the log does, that no collection has on its list, and that nobody
   holds, a grace interval after it was written: offsets are given once, so no manifest can name it.
   One that lies above stays, however old it is: its writer may be asleep.
4. A new beginning that GARBAGE does not name: what it was offered for was given up, or is done.

Names become free again by that. Whoever creates one has looked less than half the grace interval
before the answer came, or does not believe the answer (log/chain/chain.py, log/chain/registers.py).
So nobody ever takes a name for new that was used before. Ages are measured by the store's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cordwood.base.clock import Entropy
from cordwood.base.errors import StateError
from cordwood.log.chain import names
from cordwood.log.chain.registers import FOLDERS
from cordwood.log.deletion import Progress
from cordwood.log.format import Manifest
from cordwood.log.garbage import load_garbage
from cordwood.log.holds import live_holds, store_time_us
from cordwood.log.objects import LogObjects
from cordwood.log.uploads import collected_uploads
from cordwood.store.timekeeping import age_us

DELETES_AT_ONCE = 500

SECOND_US = 1_000_000


class ChainSweeper:
    """Deletes what a chain log has left behind, at a pace."""

    def __init__(
        self,
        objects: LogObjects,
        entropy: Entropy,
        *,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """No I/O. `rate`: objects per second at most."""
        self._objects = objects
        self._entropy = entropy
        self._rate = rate
        self._progress = progress
        self.count = 0

    async def sweep(self) -> None:
        """Delete what is old enough. Nothing for a cas log; a LIST of each kind otherwise.

        Raises:
            StateError: the log was replaced by another one meanwhile.
        """
        chain = self._objects.chain
        if chain is None:
            return
        head = await chain.head()
        # What is deleted must not be needed again after a power cut.
        await self._objects.plain.sync(head.seen)
        now_us = await store_time_us(self._objects, self._entropy, surely=True)
        link = head.manifest.chain
        assert link is not None
        old = self._is_old(head.manifest, now_us)
        keys = await self._manifests(link.known.index, old)
        keys += await self._versions(old)
        keys += await self._orphans(head.manifest, old)
        keys += await self._beginnings(old)
        await self._delete(keys, head.manifest.incarnation)

    def _is_old(self, manifest: Manifest, now_us: int) -> Callable[[int], bool]:
        grace_us = manifest.grace_s * SECOND_US
        return lambda modified_us: age_us(modified_us, now_us) > grace_us

    async def _manifests(self, known: int, is_old: Callable[[int], bool]) -> list[str]:
        """Rule 1. In order of their age: what is left of a sweep that was cut off is a suffix."""
        objects, chain = self._objects, self._objects.chain
        assert chain is not None
        indices: list[int] = []
        async for meta in objects.plain.list(objects.key(names.MANIFEST_PREFIX)):
            index = names.manifest_index(meta.key.removeprefix(objects.key("")))
            if index and is_old(meta.modified_us):
                indices.append(index)
        newest = await chain.get(indices[0]) if indices else None
        if newest is None or newest.chain is None:
            return []
        first_kept = min(known, newest.chain.known.index)
        return [chain.key(index) for index in reversed(indices) if index < first_kept]

    async def _versions(self, is_old: Callable[[int], bool]) -> list[str]:
        """Rule 2."""
        objects = self._objects
        found: list[str] = []
        for folder in (*FOLDERS, "gc/GARBAGE/"):
            newest = ""
            async for meta in objects.plain.list(objects.key(folder)):
                parsed = names.parse_version(meta.key.removeprefix(objects.key("")))
                if parsed is None:
                    continue
                if parsed[0] != newest:
                    newest = parsed[0]
                elif is_old(meta.modified_us):
                    found.append(meta.key)
        return found

    async def _orphans(self, manifest: Manifest, is_old: Callable[[int], bool]) -> list[str]:
        """Rule 3."""
        objects, oldest = self._objects, manifest.oldest_offset
        assert manifest.shards is not None
        found: dict[str, names.ShardName] = {}
        for shard in range(1, len(manifest.shards.counters) + 1):
            prefix = objects.key(f"{names.SHARD_PREFIX}{shard:02x}/")
            async for meta in objects.plain.list(prefix):
                name = names.parse_fragment(meta.key.removeprefix(objects.key("")))
                if name is None:
                    continue
                if name.start >= oldest:
                    # Names count up; what lies behind this one begins later, or can wait.
                    break
                if is_old(meta.modified_us):
                    found[meta.key] = name
        if not found:
            return []
        # After the manifest, and in this order: log/uploads.py, rule 4.
        listed = await collected_uploads(objects)
        holds = await live_holds(objects, self._entropy)
        return [
            key
            for key, name in found.items()
            if key not in listed
            and not any(max(name.start, h.start) < min(name.limit, h.limit) for h in holds)
        ]

    async def _beginnings(self, is_old: Callable[[int], bool]) -> list[str]:
        """Rule 4. GARBAGE is read last: what it names by then stays."""
        objects, prefix = self._objects, self._objects.key(names.PREFIX_PREFIX)
        found = [m.key async for m in objects.plain.list(prefix) if is_old(m.modified_us)]
        offered = (await load_garbage(objects)).garbage.prefix if found else ""
        return [key for key in found if key != objects.key(names.prefix(offered))]

    async def _delete(self, keys: list[str], incarnation: str) -> None:
        rate = self._rate
        step = DELETES_AT_ONCE if rate is None else max(1, min(DELETES_AT_ONCE, int(rate)))
        for i in range(0, len(keys), step):
            batch = keys[i : i + step]
            if (await self._objects.load()).manifest.incarnation != incarnation:
                raise StateError(
                    f"the log {self._objects.name!r} was replaced by another one while it was swept"
                )
            await self._objects.plain.delete(batch)
            self.count += len(batch)
            if self._progress is not None:
                self._progress(i + len(batch), len(keys))
            if rate is not None and i + len(batch) < len(keys):
                await asyncio.sleep(len(batch) / rate)
