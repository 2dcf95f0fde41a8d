"""Cursors: named positions in a log, which hold back collection.

A cursor is one small object, `cursor/<name>.json`, byte for byte as wal3 writes it. Its position is
the first record not yet consumed. It is moved by compare-and-swap: who saves shows a `Witness` of
the cursor as last seen, so of two that move it at once one is told.

Collection frees what lies before every cursor. A cursor that is new, or moves back, could be too
late for that, so it counts only after this::

    write the cursor ─▶ read GARBAGE ─▶ read MANIFEST       (in this order; log/collect.py)
                        either past it: withdraw, CollectedError

Until then the object says `unproved`; then it is written once more, without the word, and only then
its maker is told that it holds. That matters: who finds an unproved one has to prove it again, and
may find a collection that will be cancelled just because of this cursor, and withdraw it. Nobody
was promised anything by then, and its maker, whose second write fails, never will be.

A cursor may say whose it is: a streaming query that moves it leaves a word of its own in the object
(spark/keeper.py), so that another one finds out. Whoever moves it without such a word makes it
nobody's.

To delete a cursor is to move it, by the same compare-and-swap, behind every record there can be: an
object that is really deleted could be one that somebody else just made under the same name.
"""

from __future__ import annotations

import re
from contextlib import suppress

from msgspec import Struct

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ContendedError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
)
from cordwood.base.given import given
from cordwood.base.limits import OFFSET_LIMIT
from cordwood.log import paths
from cordwood.log.format import Position, decode, encode
from cordwood.log.holds import collected, prove_not_collected
from cordwood.log.objects import LogObjects
from cordwood.store.api import Match, PutMode

DELETED = OFFSET_LIMIT - 1
"""The position of a deleted cursor: it holds nothing back, also not for wal3."""

UNPROVED = " unproved"

_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")
_OWNER = re.compile(r" owner=([A-Za-z0-9_]+)")


class CursorRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A cursor file: the first record not yet consumed."""

    position: Position
    epoch_us: int
    writer: str

    def check(self, where: str, *, writing: bool) -> None:
        """Raise unless the position can be one."""
        if not 0 <= self.position.offset < OFFSET_LIMIT:
            raise CorruptionError(f"{where}: offset {self.position.offset} is out of range")


class Witness(Struct, frozen=True):
    """A cursor as it was seen: what the next save must show."""

    name: str
    offset: int
    """The first record not yet consumed."""
    etag: str
    epoch_us: int
    """When it was written, by the clock of who wrote it."""
    writer: str

    @property
    def is_proved(self) -> bool:
        """Whether its position is known to hold back collection."""
        return not self.writer.endswith(UNPROVED)

    @property
    def owner(self) -> str:
        """Whose it is; empty if it is nobody's."""
        found = _OWNER.search(self.writer)
        return found[1] if found else ""


class Cursors:
    """The cursors of one log: `log.cursors`."""

    def __init__(self, objects: LogObjects, clock: Clock, entropy: Entropy) -> None:
        """No I/O."""
        self._objects = objects
        self._clock = clock
        self._entropy = entropy

    async def init(self, name: str, offset: int, *, owner: str = "") -> Witness:
        """Create a cursor. Two PUTs, three GETs.

        Args:
            name: of the cursor.
            offset: the first record not yet consumed.
            owner: whose it is, for others to see.

        Raises:
            AlreadyExistsError: there is one of this name.
            CollectedError: the offset has been collected, or is about to be.
            ContendedError: somebody moved it before it was proved.
            InvalidInputError: the name or the offset cannot be one.
        """
        # Before the first record is where the first record is.
        offset = 1 if offset == 0 else offset
        await self._check_offset(offset)
        try:
            witness = await self._write(name, offset, "create", owner, proved=False)
        except AlreadyExistsError:
            there = await self._look(name, self._key(name))
            if there is None or there.offset != DELETED:
                raise AlreadyExistsError(
                    f"the cursor {name!r} of log {self._objects.name!r} exists",
                    hint="load it, and save it with its witness",
                ) from None
            witness = await self._write(name, offset, Match(there.etag), owner, proved=False)
        return await self._prove(witness, DELETED)

    async def load(self, name: str) -> Witness:
        """The cursor as it is now. One GET.

        Raises:
            NotFoundError: there is none.
        """
        witness = await self._look(name, self._key(name))
        if witness is None or witness.offset == DELETED:
            raise NotFoundError(
                f"log {self._objects.name!r} has no cursor named {name!r}",
                hint="make it with cursors.init(name, offset)",
            )
        return witness

    async def save(self, name: str, offset: int, witness: Witness, *, owner: str = "") -> Witness:
        """Move a cursor. One PUT; a few requests more if it moves back, or is not proved yet.

        Args:
            name: of the cursor.
            offset: the first record not yet consumed.
            witness: the cursor as it was seen.
            owner: whose it is from now on.

        Raises:
            ContendedError: somebody else moved it since the witness was given: load it again.
            CollectedError: it moves back to what has been collected, or is about to be.
        """
        if given(witness, Witness, "a witness").name != name:
            raise InvalidInputError(f"the witness is one of cursor {witness.name!r}, not {name!r}")
        _check(offset)
        holds = witness.is_proved or await self._holds(witness)
        if holds and offset >= witness.offset:
            return await self._write(name, offset, Match(witness.etag), owner, proved=True)
        await self._check_offset(offset)
        saved = await self._write(name, offset, Match(witness.etag), owner, proved=False)
        return await self._prove(saved, witness.offset if holds else DELETED)

    async def delete(self, name: str, witness: Witness) -> None:
        """Delete a cursor: it holds nothing back any more. One PUT.

        Raises:
            ContendedError: somebody else moved it since the witness was given.
        """
        if given(witness, Witness, "a witness").name != name:
            raise InvalidInputError(f"the witness is one of cursor {witness.name!r}, not {name!r}")
        await self._write(name, DELETED, Match(witness.etag), "", proved=True)

    async def list(self, *, strict: bool = True) -> dict[str, Witness]:
        """Every cursor by its name. One LIST, one GET each.

        Raises:
            CorruptionError: there is something among the cursors that is none (if `strict`).
        """
        found: dict[str, Witness] = {}
        prefix = self._objects.key("")
        async for meta in self._objects.list_in(paths.CURSOR_PREFIX):
            name = paths.cursor_name(meta.key.removeprefix(prefix))
            if name is None and not strict:
                continue
            if name is None:
                raise CorruptionError(
                    f"{meta.key} lies among the cursors and is none",
                    where=meta.key,
                    hint="move it away: nobody can tell what it holds back",
                )
            witness = await self._look(name, meta.key)
            if witness is not None and witness.offset != DELETED:
                found[name] = witness
        return found

    # Below.

    def _key(self, name: str) -> str:
        if type(name) is not str or _NAME.fullmatch(name) is None:
            raise InvalidInputError(
                f"{name!r} cannot name a cursor", hint="use letters, digits and _, 128 at most"
            )
        return self._objects.key(paths.cursor(name))

    async def _look(self, name: str, key: str) -> Witness | None:
        try:
            data, etag = await self._objects.store.get(key)
        except NotFoundError:
            return None
        record = decode(CursorRecord, data, key)
        return Witness(name, record.position.offset, etag, record.epoch_us, record.writer)

    async def _write(
        self, name: str, offset: int, mode: PutMode, owner: str, *, proved: bool
    ) -> Witness:
        key = self._key(name)
        if owner and _NAME.fullmatch(owner) is None:
            raise InvalidInputError(
                f"{owner!r} cannot own a cursor", hint="use letters, digits and _, 128 at most"
            )
        # Unique, so that no two states of a cursor have the same bytes, and on S3 the same etag.
        owned = f" owner={owner}" if owner else ""
        writer = f"cordwood/1 write={self._entropy.token()}{owned}{'' if proved else UNPROVED}"
        record = CursorRecord(Position(offset), self._clock.now_us(), writer)
        try:
            etag = await self._objects.store.put(key, encode(record, key), mode)
        except ContendedError as error:
            raise ContendedError(
                f"the cursor {name!r} of log {self._objects.name!r} was moved since it was seen",
                hint="load it again, and decide again",
            ) from error
        return Witness(name, offset, etag, record.epoch_us, writer)

    async def _check_offset(self, offset: int) -> None:
        _check(offset)
        manifest, _ = await self._objects.load()
        if offset > manifest.next_offset:
            raise InvalidInputError(
                f"offset {offset} is behind the end of the log, {manifest.next_offset}"
            )
        if offset < manifest.oldest_offset:
            raise collected(self._objects.name, offset, manifest.oldest_offset)

    async def _holds(self, witness: Witness) -> bool:
        """Whether a position that nobody proved yet holds all the same."""
        try:
            await prove_not_collected(self._objects, witness.offset)
        except CollectedError:
            return False
        return True

    async def _prove(self, witness: Witness, fallback: int) -> Witness:
        """A new or backward position counts only if no collection is past it; else withdraw it."""
        name, offset, owner = witness.name, witness.offset, witness.owner
        try:
            await prove_not_collected(self._objects, offset)
        except CollectedError:
            # Whoever moved it meanwhile has to prove its own position.
            with suppress(ContendedError):
                await self._write(name, fallback, Match(witness.etag), owner, proved=True)
            raise
        return await self._write(name, offset, Match(witness.etag), owner, proved=True)


def _check(offset: int) -> None:
    if type(offset) is not int or not 0 <= offset < DELETED:
        raise InvalidInputError(f"a cursor stands at an offset, not at {offset!r}")
