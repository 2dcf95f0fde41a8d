"""Uploads that nobody committed: the one thing that is swept by its age.

A task that died, a stage that was tried twice, a driver that never came to its commit: each leaves
uploads that no manifest names (log/bulk.py). They are deleted when they are old, and this is why
one that is needed never is:

1. A commit takes only uploads that are younger than *half* that age. It loads the manifest, asks
   the store what time it is, looks at them, and swaps.
2. A sweep asks the store what time it is, lists the old ones, has the manifest replaced, and loads
   the new one. What that names stays. A commit that had loaded an earlier manifest loses its swap;
   one that loads a later one finds them twice too old.
   (That needs a clock that does not go back by half the age meanwhile. The store is asked again
   before anything is deleted: if it did, the sweep refuses.)
3. A put may be repeated until it is answered, and a delete may arrive late. So an upload counts as
   staged only if that took less than a quarter of the age: then none of its attempts was swept.
4. What a manifest named once and names no more is being collected, or held: GARBAGE or a HELD
   object has it. They are read after the manifest, GARBAGE first (it is emptied only after HELD was
   written), and what they have stays.

To know what a manifest names its whole tree is walked. That is done a few times in the age of an
upload at most, and only where there are uploads that were not judged before: a sweep leaves a mark,
up to which time they were. The mark spares work, and but for a log that was rebuilt, whose older
uploads must stay (`keep_uploads`), nothing depends on it. (That an upload is young says nothing
about where it is named: somebody may have restored it, or copied the bucket.)
"""

from __future__ import annotations

from contextlib import aclosing, suppress

from msgspec import Struct

from cordwood.base.clock import Entropy
from cordwood.base.errors import CorruptionError, NotFoundError, StateError
from cordwood.log import paths, tree
from cordwood.log.deletion import Held
from cordwood.log.format import FORMAT, Remembered, decode, encode
from cordwood.log.garbage import load_garbage
from cordwood.log.holds import store_time_us
from cordwood.log.objects import Loaded, LogObjects
from cordwood.log.recovery import have_replaced
from cordwood.store.streams import as_generator

DELETES_AT_ONCE = 500

SECOND_US = 1_000_000


class Mark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object gc/UPLOADS."""

    format: int = FORMAT
    log: str
    """The log's incarnation."""
    until_us: int
    """Uploads made up to this time were judged."""

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be one."""
        if self.format != FORMAT:
            raise CorruptionError(f"{where}: not a mark of this version", where=where)


async def sweep_uploads(objects: LogObjects, entropy: Entropy) -> int:
    """Delete uploads that can never be committed; how many.

    A LIST; if there are uploads a few requests more. Only a few times in the age of an upload all
    of them are listed, and the part of the log where the old ones may be is walked.

    Raises:
        StateError: the store's clock went back meanwhile; the rest was not deleted.
    """
    if not await _has_any(objects):
        return 0
    seen = await objects.load()
    incarnation = seen.manifest.incarnation
    mark = await _load_mark(objects, incarnation)
    age_us = seen.manifest.staged_s * SECOND_US
    now_us = until_us = judged_us = 0
    for surely in (False, True):
        now_us = await store_time_us(objects, entropy, surely=surely)
        # Some stores keep whole seconds.
        until_us = now_us - age_us - SECOND_US
        # A mark in the future was left when the clock was ahead: it means nothing.
        judged_us = mark.until_us if mark.until_us < now_us else 0
        if until_us < judged_us + age_us // 4:
            return 0
    old = {
        meta.key
        async for meta in objects.list(paths.UPLOAD_PREFIX)
        if judged_us < meta.modified_us <= until_us
    }
    orphans = sorted(await _unneeded(objects, entropy, seen, old)) if old else []
    for i in range(0, len(orphans), DELETES_AT_ONCE):
        # A copy keeps the names of uploads: another log that was restored here may have them.
        if (await objects.load()).manifest.incarnation != incarnation:
            return i
        await _check_clock(objects, entropy, now_us - age_us // 4)
        await objects.store.delete(orphans[i : i + DELETES_AT_ONCE])
    await _forget_producers(objects, until_us)
    key = objects.key(paths.UPLOADS)
    judged = Mark(log=incarnation, until_us=until_us)
    await objects.store.put(key, encode(judged, key), "overwrite")
    return len(orphans)


async def keep_uploads(objects: LogObjects, entropy: Entropy, incarnation: str) -> None:
    """Never sweep what is there now: nobody knows any more what of it was committed.

    A LIST; a few requests more if there are any. Before the manifest of this incarnation.
    """
    if await _has_any(objects):
        now_us = await store_time_us(objects, entropy, surely=True)
        key = objects.key(paths.UPLOADS)
        mark = Mark(log=incarnation, until_us=now_us)
        await objects.store.put(key, encode(mark, key), "overwrite")


async def _check_clock(objects: LogObjects, entropy: Entropy, least_us: int) -> None:
    """Raise if it is earlier now than it can be."""
    now_us = await store_time_us(objects, entropy, surely=True)
    if now_us < least_us:
        raise StateError(
            f"log {objects.name!r}: the store's clock went back by "
            f"{(least_us - now_us) // SECOND_US} s and more during a sweep",
            hint="the other uploads were not deleted; set the clock right and collect again",
        )


async def _unneeded(objects: LogObjects, entropy: Entropy, seen: Loaded, old: set[str]) -> set[str]:
    """Those of the old uploads that nobody needs, and nobody ever will."""
    manifest = await have_replaced(objects, entropy, seen)
    # Somebody else's may be seen before it is durable; a power cut must not bring back the old one.
    await objects.sync([paths.MANIFEST])
    walk = objects.walk(tree.roots(manifest), manifest.oldest_offset, manifest.next_offset)
    async with aclosing(walk) as fragments:
        async for fragment in fragments:
            old.discard(objects.key_of(fragment))
    return old - await collected_uploads(objects)


async def _forget_producers(objects: LogObjects, until_us: int) -> None:
    """Forget the jobs that nobody will ask for any more."""
    found = objects.list_in(paths.PRODUCER_PREFIX)
    old = [meta.key async for meta in found if meta.modified_us <= until_us]
    for key in old:
        with suppress(NotFoundError):
            # Another collection may have forgotten it meanwhile.
            data, _ = await objects.store.get(key)
            if decode(Remembered, data, key).producer.once:
                await objects.store.delete([key])


async def _has_any(objects: LogObjects) -> bool:
    async with aclosing(as_generator(objects.list(paths.UPLOAD_PREFIX))) as uploads:
        return await anext(uploads, None) is not None


async def _load_mark(objects: LogObjects, incarnation: str) -> Mark:
    """What the last sweep of this very log left, or what stands for nothing."""
    key = objects.key(paths.UPLOADS)
    try:
        data, _ = await objects.store.get(key)
        mark = decode(Mark, data, key)
    except (NotFoundError, CorruptionError):
        return Mark(log=incarnation, until_us=0)
    return mark if mark.log == incarnation else Mark(log=incarnation, until_us=0)


async def collected_uploads(objects: LogObjects, incarnation: str = "") -> set[str]:
    """Keys of files with names of their own that are being collected, or are kept for somebody.

    With an `incarnation`, not what another one kept: its collections will not come back to it.
    """
    found = {upload.path for upload in (await load_garbage(objects)).garbage.uploads}
    keys = [meta.key async for meta in objects.list(paths.HELD_PREFIX)]
    for key in keys:
        try:
            data, _ = await objects.store.get(key)
        except NotFoundError:
            continue
        held = decode(Held, data, key)
        if incarnation in {"", held.log}:
            found |= {upload.path for upload in held.uploads}
    return {objects.key(path) for path in found}
