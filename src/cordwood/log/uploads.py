"""Uploads that nobody committed: the one thing that is swept by its age.

A task that died, a stage that was tried twice, a driver that never came to its commit: each leaves
uploads that no manifest names (log/bulk.py). They are deleted when they are old, and this is why
one that is needed never is:

1. A commit takes only uploads that are younger than *half* that age. It loads the manifest, asks
   the store what time it is, looks at them, and swaps.
2. A sweep asks the store what time it is, lists the old ones, has the manifest replaced, and loads
   the new one. What that names stays. A commit that had loaded an earlier manifest loses its swap;
   one that loads a later one finds them twice too old.
3. A put may be repeated until it is answered, and a delete may arrive late. So an upload counts as
   staged only if that took less than a quarter of the age: then none of its attempts was swept.
4. What a manifest named once and names no more is being collected, or held: GARBAGE or a HELD
   object has it. They are read after the manifest, GARBAGE first (it is emptied only after HELD was
   written), and what they have stays.

So that it does not cost the whole log each time, a sweep leaves a mark: up to which time uploads
were judged, and where the log ended at which times. An upload is judged once. And one that was made
after the log had ended somewhere is not named before that place, however late its commit was.
"""

from __future__ import annotations

from contextlib import aclosing

from msgspec import Struct

from cordwood.base.clock import Entropy
from cordwood.base.errors import CorruptionError, NotFoundError
from cordwood.log import paths, tree
from cordwood.log.deletion import Held
from cordwood.log.format import FORMAT, decode, encode
from cordwood.log.garbage import load_garbage
from cordwood.log.holds import store_time_us
from cordwood.log.objects import LogObjects
from cordwood.log.recovery import have_replaced
from cordwood.store.streams import as_generator

DELETES_AT_ONCE = 500

ENDS_MAX = 8
"""Places where the log ended that a mark remembers: they are a quarter of the age apart, at least,
and the oldest needed is older than the age."""

SECOND_US = 1_000_000


class End(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the log ended, at a time of the store's clock or earlier."""

    at_us: int
    next_offset: int


class Mark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object gc/UPLOADS."""

    format: int = FORMAT
    log: str
    """The log's incarnation."""
    until_us: int
    """Uploads made up to this time were judged."""
    ends: tuple[End, ...]

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless it can be one."""
        if self.format != FORMAT:
            raise CorruptionError(f"{where}: not a mark of this version", where=where)


async def sweep_uploads(objects: LogObjects, entropy: Entropy) -> int:
    """Delete uploads that can never be committed; how many.

    A LIST; if there are uploads a few requests more. Only a few times in the age of an upload all
    of them are listed, and the part of the log where the old ones may be is walked.
    """
    if not await _has_any(objects):
        return 0
    seen = await objects.load()
    incarnation = seen.manifest.incarnation
    mark = await _load_mark(objects, incarnation)
    age_us = seen.manifest.staged_s * SECOND_US
    # Asked after the manifest was loaded: what is younger than this is not named before its end.
    now_us = await store_time_us(objects, entropy)
    # Some stores keep whole seconds.
    until_us = now_us - age_us - SECOND_US
    if until_us < mark.until_us + age_us // 4:
        return 0
    old = {
        meta.key
        async for meta in objects.list(paths.UPLOAD_PREFIX)
        if mark.until_us < meta.modified_us <= until_us
    }
    if old:
        start = max((e.next_offset for e in mark.ends if e.at_us < mark.until_us), default=0)
        manifest = await have_replaced(objects, entropy, seen)
        walk = objects.walk(tree.roots(manifest), start, manifest.next_offset)
        async with aclosing(walk) as fragments:
            async for fragment in fragments:
                old.discard(objects.key_of(fragment))
        old -= await _collected(objects)
    keys = sorted(old)
    for i in range(0, len(keys), DELETES_AT_ONCE):
        # Their names come once in the life of the world: no other log can have them.
        await objects.store.delete(keys[i : i + DELETES_AT_ONCE])
    end = End(now_us, seen.manifest.next_offset)
    ends = (*mark.ends, end)[-ENDS_MAX:]
    key = objects.key(paths.UPLOADS)
    judged = Mark(log=incarnation, until_us=until_us, ends=ends)
    await objects.store.put(key, encode(judged, key), "overwrite")
    return len(keys)


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
        return Mark(log=incarnation, until_us=0, ends=())
    return mark if mark.log == incarnation else Mark(log=incarnation, until_us=0, ends=())


async def _collected(objects: LogObjects) -> set[str]:
    """Uploads that are being collected, or are kept for somebody."""
    found = {upload.path for upload in (await load_garbage(objects)).garbage.uploads}
    keys = [meta.key async for meta in objects.list(paths.HELD_PREFIX)]
    for key in keys:
        try:
            data, _ = await objects.store.get(key)
        except NotFoundError:
            continue
        found |= {upload.path for upload in decode(Held, data, key).uploads}
    return {objects.key(path) for path in found}
