"""Numbers that are handed out once, from an object on a store.

The object is text: where the next block begins, chance, and the XXH3 of both in hex. A block is
taken by a conditional put of the next beginning, which names another object every time, thanks to
the chance; so two who take at once do not both succeed. If an answer is lost, the block is passed
over.
"""

from __future__ import annotations

from typing import Any

import xxhash

from cordwood.base import portal
from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    LimitError,
    NotFoundError,
    UncertainError,
)
from cordwood.index.idgen import BLOCK, Numbers
from cordwood.store.api import Buffer, Match
from cordwood.store.url import Store

TRIES_MAX = 100
"""How often a block is tried for that others take first."""


class StoreIds:
    """Numbers from one object, from 1 on; any number of machines share it."""

    def __init__(self, store: Store, key: str, entropy: Entropy, *, block: int = BLOCK) -> None:
        """The object is made when the first number is asked for."""
        self._store = store
        self._key = key
        self._entropy = entropy
        self._block = block
        self._numbers = Numbers(lambda: portal.current().run(self._take()), block)

    def next(self) -> int:
        """A number that nobody has had."""
        return self._numbers.next()

    async def _take(self) -> int:
        for _ in range(TRIES_MAX):
            try:
                there = await self._store.get(self._key)
                begin = self._read(there.data)
                mode: Any = Match(there.etag)
            except NotFoundError:
                begin, mode = 1, "create"
            text = f"{begin + self._block} {self._entropy.token()}".encode()
            try:
                await self._store.put(self._key, text + _digest(text), mode)
            except UncertainError:
                continue  # Numbers may be passed over, but none is handed out twice.
            except (AlreadyExistsError, ConflictError):
                continue
            return begin
        raise LimitError(f"{self._key}: others take numbers all the time")

    def _read(self, data: Buffer) -> int:
        text, digest = bytes(data)[:-_DIGEST_BYTES], bytes(data)[-_DIGEST_BYTES:]
        if _digest(text) != digest:
            raise CorruptionError(
                f"{self._key} is damaged: it does not match its checksum",
                where=self._key,
                hint="bring it back from a copy: numbers must not be handed out twice",
            )
        return int(text.split()[0])


_DIGEST_BYTES = 17


def _digest(text: bytes) -> bytes:
    return b" " + xxhash.xxh3_64_hexdigest(text).encode()
