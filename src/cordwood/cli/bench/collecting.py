"""What a collection costs: requests, by kind, and how large the tree is that it works on."""

from __future__ import annotations

from typing import Any

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.format import Fragment
from cordwood.log.log import Log
from cordwood.log.objects import LogObjects
from cordwood.log.tag import WriterTag
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore
from cordwood.store.url import Store

NAME = "log"
RUN = 64
"""Fragments added at a time."""


async def collecting(fragments: int, garbage: int) -> dict[str, Any]:
    """Collect the oldest `garbage` fragments of a log of `fragments`, and count the requests."""
    store = MeteredStore(MemoryStore())
    log = Log(Store.over(store), NAME)
    await _make(LogObjects(store, NAME), fragments)
    manifest = await log.manifest()
    depths = [pointer.depth for pointer in manifest.nodes]
    await log.cursors.init("c", garbage + 1)
    store.reset()
    await log.mark(max_fragments=fragments)
    marked = _requests(store)
    store.reset()
    await log.unlink()
    unlinked = _requests(store)
    store.reset()
    report = await log.collect(wait_s=2.0)
    swept = _requests(store)
    return {
        "fragments": fragments,
        "levels": max(depths, default=0),
        "collected": report.oldest_offset - 1,
        "deleted": report.deleted,
        "mark": marked,
        "unlink": unlinked,
        "sweep": swept,
        "beyond_deletes": sum(
            count
            for step in (marked, unlinked, swept)
            for kind, count in step.items()
            if kind != "delete"
        ),
    }


def _requests(store: MeteredStore) -> dict[str, int]:
    operations = store.snapshot().operations
    return {name: made.requests for name, made in operations.items() if made.requests}


async def _make(objects: LogObjects, count: int) -> None:
    """A log of so many fragments, as its metadata alone: collection never reads a fragment."""
    incarnation = SYSTEM_ENTROPY.token()
    manifest = tree.empty(WriterTag(incarnation, incarnation, incarnation, 0), grace_s=1)
    etag = await objects.create(manifest)
    for begin in range(1, count + 1, RUN):
        run = [_fragment(n) for n in range(begin, min(begin + RUN, count + 1))]
        tag = WriterTag(incarnation, SYSTEM_ENTROPY.token(), SYSTEM_ENTROPY.token(), 1)
        manifest = tree.append(manifest, run, tag)
        while nodes := tree.fold(manifest, manifest.writer):
            for node in nodes:
                await objects.write_node(node)
                manifest = tree.substitute(manifest, node) or manifest
    await objects.swap(manifest, etag)


def _fragment(number: int) -> Fragment:
    setsum = Setsum().insert(b"%d" % number).hexdigest()
    return Fragment.of(paths.fragment(number), number, number, number + 1, 1_000, setsum)
