"""Who committed in bulk: the last batch of each producer, so that none is committed twice.

The manifest keeps the latest `PRODUCERS_MAX`: what a swap makes visible and what it makes known are
one thing. An older one is written down in an object of its own *before* it leaves the manifest, so
whoever looks into the manifest first and there afterwards finds it, in one or the other.

That object is replaced by compare-and-swap, and only by a later batch. A put that arrives late
therefore changes nothing. It names the log's incarnation: what an earlier log of the name left
means nothing to a new one.
"""

from __future__ import annotations

from cordwood.base.errors import AlreadyExistsError, ConflictError, NotFoundError
from cordwood.log import paths
from cordwood.log.format import Manifest, Producer, Remembered, decode, encode
from cordwood.log.objects import LogObjects
from cordwood.store.api import Match, PutMode

PRODUCERS_MAX = 16
"""Producers that the manifest itself keeps: it is written with every append."""


async def find_producer(objects: LogObjects, manifest: Manifest, name: str) -> Producer | None:
    """What is known of a producer. One GET if the manifest does not have it."""
    for producer in manifest.producers:
        if producer.id == name:
            return producer
    there, _ = await _load(objects, manifest.incarnation, name)
    return there


async def remember(objects: LogObjects, incarnation: str, producer: Producer) -> None:
    """Write a producer down: it is about to leave the manifest. One GET, one PUT."""
    key = objects.key(paths.producer(producer.id))
    data = encode(Remembered(incarnation, producer), key)
    while True:
        there, etag = await _load(objects, incarnation, producer.id)
        if there is not None and there.batch >= producer.batch:
            # Seen by reading: it must survive a power cut before the manifest forgets it.
            await objects.store.sync([key])
            return
        mode: PutMode = Match(etag) if etag else "create"
        try:
            await objects.store.put(key, data, mode)
        except (ConflictError, AlreadyExistsError):
            continue
        return


async def _load(objects: LogObjects, incarnation: str, name: str) -> tuple[Producer | None, str]:
    key = objects.key(paths.producer(name))
    try:
        data, etag = await objects.store.get(key)
    except NotFoundError:
        return None, ""
    found = decode(Remembered, data, key)
    is_ours = (found.log, found.producer.id) == (incarnation, name)
    return found.producer if is_ours else None, etag
