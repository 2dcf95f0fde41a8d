"""The seal: the end of a log, for ever; and how another log goes on from there.

A seal is one field of the manifest, put there by one swap::

    find ground: adopt what waits ─▶ swap a manifest with the seal ─▶ every later slot is void
         ▲                                │ lost
         └──────── ask for a turn ◀───────┘

Rules:

1. Whoever appends swaps the manifest that it knows. After the seal that is refused, it loads the
   sealed one, and learns which of its fragments are named there. All others were not written and
   never will be (log/recovery.py, rule 6), so it says so for certain (log/pipeline.py).
2. A seal stays. Readers, cursors, pins and collection go on, and every later manifest keeps it. A
   second seal changes nothing; only a destruction puts its own reason in the place of another.
3. **Migration** is a seal that names another log, and then that log, created empty with its first
   offset where this one ends: one order, in two logs. The seal comes first, so nothing can be
   appended here once something may be appended there. After a crash in between, migrate again.
4. A continuation is known by its incarnation, which is computed from the incarnation of the log
   before it. Its tail id is a fresh one all the same: should it be destroyed and made again,
   nothing that was left behind can be adopted.

Crash before the swap and nothing happened; after it, and the log is sealed. A lost answer is looked
up by trying again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import UNSET

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StateError,
)
from cordwood.log import tree
from cordwood.log.chain.document import Shards
from cordwood.log.format import DESTROYED, PRODUCERS, SEAL, Extension, Manifest, Position, Seal
from cordwood.log.intents import Asker
from cordwood.log.objects import LogObjects
from cordwood.log.recovery import Ground, Tail, find_ground, next_tag
from cordwood.log.roll import bequeath
from cordwood.log.tag import WriterTag

TEXT_BYTES_MAX = 1024
"""Of a reason, and of where a log went: they are in every later manifest."""


class Sealer:
    """Seals one log. Holds no state: everything is in the store."""

    def __init__(self, objects: LogObjects, clock: Clock, entropy: Entropy) -> None:
        """No I/O."""
        self._objects = objects
        self._clock = clock
        self._entropy = entropy

    async def seal(self, reason: str, moved_to: str) -> Manifest:
        """The sealed manifest; a seal that was there before is left as it is.

        Two GETs and a PUT on a log at rest.
        """
        for text in (reason, moved_to):
            _check_text(text)
        if reason == DESTROYED:
            raise InvalidInputError(
                f"the reason {DESTROYED!r} is that of a destruction", hint="use log.destroy()"
            )
        wanted = Seal(reason, self._clock.now_us(), moved_to)
        return await self._put(lambda there: there or wanted, unborn=False)

    async def doom(self) -> Manifest:
        """The manifest, sealed for destruction. An unfinished fork can be doomed as well."""
        now_us = self._clock.now_us()

        def decide(there: Seal | None) -> Seal:
            if there is not None and there.is_destruction:
                return there
            return Seal(DESTROYED, now_us, there.moved_to if there else "")

        return await self._put(decide, unborn=True)

    async def migrate(self, other: LogObjects, reason: str, moved_to: str) -> Manifest:
        """Seal the log, then create `other` where it ends; what was done before counts.

        Raises:
            AlreadyExistsError: `other` exists, and is not this log's continuation.
            StateError: the log is sealed and went elsewhere.
        """
        # Looked at first, so that a name that is taken does not cost the log its end.
        there = await _look(other)
        if there is not None:
            _check_continues(other.name, there, (await self._objects.load()).manifest)
        here = await self.seal(reason, moved_to)
        if here.seal is not None and here.seal.moved_to != moved_to:
            raise StateError(
                f"log {self._objects.name!r} cannot be moved to {moved_to!r}: {_told(here.seal)}",
                code=Code.SEALED,
                hint="a seal does not change; copy the log instead",
            )
        await bequeath(self._objects, other, continuation_of(here), self._entropy)
        try:
            await other.create(self._continuation(here), _anew(here.shards))
        except AlreadyExistsError:
            there = await _look(other)
            if there is None:
                raise
            _check_continues(other.name, there, here)
        return here

    async def _put(self, decide: Callable[[Seal | None], Seal], *, unborn: bool) -> Manifest:
        """Swap in the seal decided on, unless it is there. Beside a busy writer, in our turn."""
        asker = Asker(self._objects, self._clock, self._entropy)
        try:
            while True:
                manifest, etag, tail, named = await self._ground(unborn=unborn)
                seal = decide(manifest.seal)
                if seal == manifest.seal:
                    return manifest
                if named:
                    sealed_one = with_seal(manifest, seal, next_tag(manifest, tail, self._entropy))
                    with suppress(ConflictError):
                        await self._objects.swap(sealed_one, etag)
                        return sealed_one
                await asker.ask()
        finally:
            await asker.release()

    async def _ground(self, *, unborn: bool) -> tuple[Manifest, str, Tail, bool]:
        if unborn:
            manifest, etag = await self._objects.look()
            if manifest.is_blank:
                return manifest, etag, Tail.of(manifest), True
        ground: Ground = await find_ground(self._objects, self._entropy, {})
        return ground.manifest, ground.etag, ground.tail, ground.named

    def _continuation(self, before: Manifest) -> Manifest:
        """An empty log that begins where `before` ends, not earlier in time either."""
        write_id, tail_id = self._entropy.token(), self._entropy.token()
        tag = WriterTag(continuation_of(before), write_id, tail_id, Tail.of(before).at_us)
        empty = tree.empty(tag, grace_s=before.grace_s)
        if before.producers:
            # What was committed there must not be committed here again.
            empty = tree.with_features(empty, [PRODUCERS])
            assert empty.cordwood is not UNSET
            extension = msgspec.structs.replace(empty.cordwood, producers=before.producers)
            empty = msgspec.structs.replace(empty, cordwood=extension)
        return msgspec.structs.replace(empty, initial_offset_position=Position(before.next_offset))


def _anew(shards: Shards | None) -> Shards | None:
    """The same shards, with nothing in them."""
    return shards and Shards((1,) * shards.width, shards.width)


def with_seal(manifest: Manifest, seal: Seal, tag: WriterTag) -> Manifest:
    """The manifest, sealed."""
    extension = Extension() if manifest.cordwood is UNSET else manifest.cordwood
    features = tuple(sorted({*extension.features, SEAL}))
    extension = msgspec.structs.replace(extension, features=features, seal=seal)
    return msgspec.structs.replace(manifest, writer=str(tag), cordwood=extension)


def sealed(name: str, seal: Seal) -> StateError:
    """What who wants to append to a sealed log is told."""
    return StateError(
        f"nothing was written: log {name!r} takes no more records, {_told(seal)}",
        code=Code.SEALED,
        hint=f"append to {seal.moved_to!r}" if seal.moved_to else "append to another log",
    )


def replaced(name: str) -> StateError:
    """What the writer of a cas log is told when a chain log has its name."""
    return StateError(
        f"nothing was written: log {name!r} was destroyed, and a log of the chain protocol has its "
        "name now",
        hint="open a new writer",
    )


def continuation_of(manifest: Manifest) -> str:
    """The incarnation of the log that goes on from this one."""
    tag = WriterTag.parse(manifest.writer)
    text = f"cordwood/1 after={tag.incarnation if tag else ''}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _told(seal: Seal) -> str:
    reason = f" ({seal.reason})" if seal.reason else ""
    return f"it was sealed{reason}" + (f" and moved to {seal.moved_to!r}" if seal.moved_to else "")


async def _look(objects: LogObjects) -> Manifest | None:
    try:
        manifest = (await objects.look()).manifest
    except NotFoundError:
        return None
    # What a destroyed chain log leaves for a while is no log.
    return None if manifest.chain is not None and manifest.is_destroyed else manifest


def _check_continues(name: str, there: Manifest, before: Manifest) -> None:
    tag = WriterTag.parse(there.writer)
    # A log that wal3 wrote last has no incarnation, so nothing continues it yet.
    is_known = WriterTag.parse(before.writer) is not None and tag is not None
    if not is_known or tag is None or tag.incarnation != continuation_of(before):
        raise AlreadyExistsError(
            f"the log {name!r} exists already, and does not continue this one",
            hint="move to a log that does not exist yet",
        )


def _check_text(text: object) -> None:
    is_text = isinstance(text, str) and text.isprintable()
    if not is_text or len(str(text).encode()) > TEXT_BYTES_MAX:
        raise InvalidInputError(
            f"a seal's reason and place are printable text of up to {TEXT_BYTES_MAX} bytes, "
            f"not {str(text)[:80]!r}"
        )
