"""Rebuild: a manifest from a listing, when all manifests are lost or damaged.

The name of every fragment of a shard says which offsets it holds and their setsum, and the file
itself which fragment it follows (log/fragment.py). That is enough::

    list      the shards: fragments by the offset where they begin
    read      every one of them: what it says of itself, proved by its checksum and its setsum
    choose    from the oldest offset on, the fragment that follows the last one; where several do,
              the one that leads furthest (the others were never named, and are left out)
    write     nodes, then one manifest, beyond every name there is: an anchor, which needs no prev

What nobody named cannot be told from what was: a fragment behind the true end, whose append was
never acknowledged, comes in. What was collected stays outside; sums begin anew at the oldest
offset. Cursors, pins, forks and streams stay as they are. Uploads of bulk commits say nothing of
their offsets: a log that has them has holes here; but none of them is swept any more, however old
it is. What only manifests say is lost: a seal, the grace interval, who committed in bulk, and of
which log this is a fork.

For the worst day, when nobody writes: it refuses while the log can be opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import UNSET

from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    FormatError,
    NotFoundError,
    StateError,
)
from cordwood.base.setsum import Setsum
from cordwood.log import fragment as fragments
from cordwood.log import paths, tree
from cordwood.log.chain import names
from cordwood.log.chain.chain import Chain, linked, signpost
from cordwood.log.chain.document import ALPHA_MAX, ChainLink, Known
from cordwood.log.format import COLUMNS, Fragment, Manifest, Position, encode
from cordwood.log.garbage import empty, load_garbage
from cordwood.log.objects import LogObjects
from cordwood.log.roll import inherit
from cordwood.log.tag import WriterTag
from cordwood.log.uploads import keep_uploads
from cordwood.store.api import Match

AT_ONCE = 8

FOLD_AT_ONCE = 256

Progress = Callable[[int, int], None]
"""Called with how many fragments were read, and how many there are."""


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild found."""

    oldest_offset: int = 1
    next_offset: int = 1
    records: int = 0
    bytes: int = 0
    fragments: int = 0
    setsum: Setsum = field(default_factory=Setsum)
    left_out: list[str] = field(default_factory=list)
    """Fragments that are damaged, or do not follow the ones chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fragment that may be part of the log."""

    path: str
    name: names.ShardName
    link: fragments.Link
    num_bytes: int
    has_columns: bool


def choose(candidates: Sequence[Candidate], start: int | None = None) -> list[Candidate]:
    """The fragments of the log, in order: each follows the one before it. Pure.

    Of several that follow one fragment, the one is taken that leads furthest; the newest of equals.
    """
    by_start: dict[int, list[Candidate]] = {}
    for one in candidates:
        by_start.setdefault(one.name.start, []).append(one)
    reach: dict[str, tuple[int, int]] = {}
    for offset in sorted(by_start, reverse=True):
        for one in by_start[offset]:
            behind = _followers(one, by_start)
            furthest = max((reach[f.path][0] for f in behind), default=one.name.limit)
            reach[one.path] = (furthest, one.link.at)
    first = min((s for s in by_start if start is None or s >= start), default=None)
    chosen: list[Candidate] = []
    options = [] if first is None else by_start[first]
    while options:
        chosen.append(max(options, key=lambda one: reach[one.path]))
        options = _followers(chosen[-1], by_start)
    return chosen


def _followers(one: Candidate, by_start: Mapping[int, list[Candidate]]) -> list[Candidate]:
    """By its id; or by its setsum, for a copy's first own fragment has no id to follow."""
    there = by_start.get(one.name.limit, [])
    own, setsum = one.link.id, one.link.setsum
    return [f for f in there if f.link.prev_id == own or f.link.prev_setsum == setsum]


async def rebuild(
    objects: LogObjects,
    entropy: Entropy,
    *,
    start: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> RebuildReport:
    """Make a manifest from the fragments there are. A LIST and a GET for each fragment.

    Raises:
        StateError: the log can be opened; or offsets are missing in the middle.
        NotFoundError: there are no fragments.
    """
    await _check_lost(objects)
    found = await _list(objects, limit)
    if not found:
        raise NotFoundError(
            f"there are no fragments in the shards of {objects.name!r}",
            hint="check the name; a cas log cannot be rebuilt from a listing",
        )
    candidates, bad = await _read(objects, found, progress)
    chosen = choose(candidates, start)
    _check_whole(objects.name, chosen, candidates)
    await _write(objects, entropy, chosen)
    taken = {one.path for one in chosen}
    return RebuildReport(
        oldest_offset=chosen[0].name.start,
        next_offset=chosen[-1].name.limit,
        records=chosen[-1].name.limit - chosen[0].name.start,
        bytes=sum(one.num_bytes for one in chosen),
        fragments=len(chosen),
        setsum=Setsum.sum([one.link.setsum for one in chosen]),
        left_out=sorted([*bad, *(c.path for c in candidates if c.path not in taken)]),
    )


async def _check_lost(objects: LogObjects) -> None:
    try:
        await objects.load()
    except FormatError:
        return
    except NotFoundError:
        await _check_signpost(objects)
        return
    raise StateError(
        f"the log {objects.name!r} can be opened, so nothing was rebuilt",
        hint="rebuild is for a log whose manifests are lost; to see what is wrong, scrub it",
    )


async def _check_signpost(objects: LogObjects) -> None:
    """Raise if the manifests are whole, and only what says that there are some was missing."""
    chain = Chain(objects.plain, objects.name, objects.clock)
    try:
        if (await chain.head()).manifest.is_destroyed:
            return
    except (FormatError, NotFoundError):
        return
    await _put_signpost(objects)
    raise StateError(
        f"the manifests of log {objects.name!r} are whole, so nothing was rebuilt; its signpost, "
        f"{paths.MANIFEST}, was missing, and was put back",
        hint="open the log",
    )


async def _list(objects: LogObjects, limit: int | None) -> dict[str, names.ShardName]:
    found: dict[str, names.ShardName] = {}
    async for meta in objects.plain.list(objects.key(names.SHARD_PREFIX)):
        path = meta.key.removeprefix(objects.key(""))
        name = names.parse_fragment(path)
        if name is not None and (limit is None or name.limit <= limit):
            found[path] = name
    return found


async def _read(
    objects: LogObjects, found: Mapping[str, names.ShardName], progress: Progress | None
) -> tuple[list[Candidate], list[str]]:
    candidates: list[Candidate] = []
    bad: list[str] = []
    items = list(found.items())
    for i in range(0, len(items), AT_ONCE):
        some = items[i : i + AT_ONCE]
        data = await asyncio.gather(*(objects.plain.get(objects.key(path)) for path, _ in some))
        for (path, name), (body, _) in zip(some, data, strict=True):
            one = _candidate(path, name, body)
            if one is None:
                bad.append(path)
            else:
                candidates.append(one)
        if progress is not None:
            progress(min(len(items), i + AT_ONCE), len(items))
    return candidates, bad


def _candidate(path: str, name: names.ShardName, body: bytes) -> Candidate | None:
    """What a fragment is, if it is what its name says."""
    try:
        table, link = fragments.inspect(body, path)
    except CorruptionError:
        return None
    said = (name.start, name.limit, name.setsum_hex)
    if link is None or (link.start, link.limit, link.setsum) != said:
        return None
    return Candidate(path, name, link, len(body), table.num_columns > 3)


def _check_whole(log: str, chosen: Sequence[Candidate], candidates: Sequence[Candidate]) -> None:
    """Raise if something lies behind the end that was found: then a fragment is missing there."""
    end = chosen[-1].name.limit if chosen else 0
    beyond = [one for one in candidates if one.name.start >= end]
    if not chosen or beyond:
        next_start = min((one.name.start for one in beyond), default=end)
        raise StateError(
            f"log {log!r}: after offset {end} nothing follows, but there are records from "
            f"{next_start} on; nothing was written",
            hint="if a fragment is missing there, restore it from a version of the bucket, or "
            f"begin behind the hole with start={next_start}; if what lies behind was never "
            f"acknowledged, leave it out with limit={end}",
        )


async def _write(objects: LogObjects, entropy: Entropy, chosen: Sequence[Candidate]) -> None:
    pointers = [
        Fragment.of(one.path, i, one.name.start, one.name.limit, one.num_bytes, one.link.setsum)
        for i, one in enumerate(chosen, 1)
    ]
    first, last = chosen[0], chosen[-1]
    tag = WriterTag(entropy.token(), entropy.token(), last.link.id, last.link.at)
    manifest = Manifest(
        setsum_hex=Setsum.sum([p.setsum_hex for p in pointers]).hexdigest(),
        acc_bytes=sum(p.num_bytes for p in pointers),
        writer=str(tag),
        nodes=(),
        fragments=tuple(pointers),
        initial_offset_position=Position(first.name.start) if first.name.start != 1 else UNSET,
    )
    if any(one.has_columns for one in chosen):
        manifest = tree.with_features(manifest, [COLUMNS])
    manifest = await _fold(objects, manifest)
    await inherit(objects, tag.incarnation, entropy)
    await keep_uploads(objects, entropy, tag.incarnation)
    await _forget_garbage(objects, entropy)
    await _put(objects, manifest, tag, chosen)


async def _forget_garbage(objects: LogObjects, entropy: Entropy) -> None:
    """End what was being collected: before there is a manifest again, which it would not fit."""
    objects.take_for_chain()
    key = objects.key(paths.GARBAGE)
    while (seen := await load_garbage(objects)).garbage.is_pending:
        with suppress(ConflictError):
            await objects.store.put(key, encode(empty(entropy.token()), key), Match(seen.etag))


async def _fold(objects: LogObjects, manifest: Manifest) -> Manifest:
    taken: set[str] = set()
    while nodes := tree.fold(manifest, manifest.writer, taken=taken, most=FOLD_AT_ONCE):
        before = manifest
        for node in nodes:
            try:
                await objects.write_node(node)
            except (AlreadyExistsError, CorruptionError):
                taken.add(node.path)
            else:
                manifest = tree.substitute(manifest, node) or manifest
        if manifest is before and not taken:
            break
    return manifest


async def _put(
    objects: LogObjects, manifest: Manifest, tag: WriterTag, chosen: Sequence[Candidate]
) -> None:
    """Put it beyond every name there is, and every one that somebody may still put."""
    top = -1
    async for meta in objects.plain.list(objects.key(names.MANIFEST_PREFIX)):
        top = names.manifest_index(meta.key.removeprefix(objects.key(""))) or 0
        break
    index = 0 if top < 0 else top + ALPHA_MAX + 1
    counters = [1] * max(one.name.shard for one in chosen)
    for one in chosen:
        counters[one.name.shard - 1] = max(counters[one.name.shard - 1], one.name.seq_no + 1)
    link = ChainLink(
        index=index,
        next=names.manifest(index + 1),
        known=Known(index, tag.write_id, index + 1),
        alpha=1,
        shards=tuple(counters),
        width=len(counters),
    )
    chain = Chain(objects.plain, objects.name, objects.clock)
    made = linked(manifest, link)
    if not await chain.put(made):
        raise StateError(f"somebody else writes manifests of {objects.name!r}", hint="try again")
    await _put_signpost(objects)


async def _put_signpost(objects: LogObjects) -> None:
    key = objects.key(paths.MANIFEST)
    with suppress(AlreadyExistsError):
        await objects.plain.put(key, encode(signpost(), key), "create")
