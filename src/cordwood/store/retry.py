"""Repeat what may be repeated; find out what became of a write whose answer was lost.

A remote store fails for a moment all the time, and the nastiest failure is no failure: a put took
effect and its answer got lost. Sending a conditional put again then meets our own object and is
refused, so "refused" would be a lie, and "failed" would be one too. This module is the only place
that repeats requests (the client library's own retries are off), and it follows these rules:

* A read, a delete, an overwrite and a copy may simply be sent again. (A delete or overwrite that
  was given up on may still land: a deleted key is never used again, an overwritten one has one
  owner.)
* An error that says nothing happened (`applied` false) and may pass (`transient`) is sent again.
* An error that does not pass is raised as it is.
* Once an attempt of a conditional put is **in doubt** (`applied` true, or no answer in time),
  every later answer is read in that light. The object is read back:

  ============  ==============================================================================
  create        absent: the same bytes are sent again; they can take effect once at most
                our bytes: that was us, success with the etag found
                other bytes: AlreadyExistsError
  Match         our bytes: that was us, success with the etag found
                the expected etag: the same bytes are sent again, for the same etag
                anything else: UncertainError; ours may have been there in between, and only
                the caller's own history can tell
  ============  ==============================================================================

* Without doubt, a refused Match is a ContendedError; a refused create is looked at once, because
  S3 answers 409 ("try again") to concurrent creates, which reaches us as "exists": absent means
  send again; present means AlreadyExistsError, also where the bytes are equal, since they were
  there before us.
* Past the deadline: UncertainError with a doubt, StoreError(store_unreachable) without.

Two equal puts by two writers cannot be told apart by their bytes: a body that must be claimed by
one writer alone carries an id of its own. Every mutable object of Cordwood does.

Waiting is asyncio.sleep with exponential back-off and jitter; one attempt is bounded by
asyncio.timeout, so a store that never answers is treated as one whose answer was lost. A caller may
be cancelled at any time; whether its write happened is then open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TypeVar

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    CordwoodError,
    NotFoundError,
    StoreError,
    UncertainError,
    UnsupportedError,
)
from cordwood.store.api import (
    Buffer,
    Match,
    Meta,
    Object,
    ObjectStore,
    PutMode,
    ServerCopies,
)
from cordwood.store.streams import as_generator

DEADLINE_S = 120.0
"""One call, all its attempts: twice the longest single request of a remote store."""

ATTEMPT_S = 70.0
"""One attempt. A back stop above the remote store's own time limits, the longest of which is 60."""

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
"""Pauses double from the first to the longest; each is cut by a random part of up to one half."""

_T = TypeVar("_T")


class RetryingStore:
    """A store that repeats what may be repeated, and resolves lost answers."""

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        *,
        deadline_s: float = DEADLINE_S,
        attempt_s: float = ATTEMPT_S,
        backoff_first_s: float = BACKOFF_FIRST_S,
        backoff_max_s: float = BACKOFF_MAX_S,
    ) -> None:
        """Wrap a store that does not retry.

        Args:
            inner: the store; its own retries must be off.
            clock: measures the deadline; it must go with the event loop's time.
            entropy: the jitter of pauses.
            deadline_s: for one call with all its attempts; for a list, for one page of it.
            attempt_s: for one attempt.
            backoff_first_s: the first pause.
            backoff_max_s: the longest pause.
        """
        self._inner = inner
        self._clock = clock
        self._entropy = entropy
        self._deadline_s = deadline_s
        self._attempt_s = attempt_s
        self._backoff_first_s = backoff_first_s
        self._backoff_max_s = backoff_max_s

    def __repr__(self) -> str:
        """What is wrapped."""
        return f"RetryingStore({self._inner!r})"

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        return await self._repeat("get", key, lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        return await self._repeat(
            "get_range", key, lambda: self._inner.get_range(key, start, length)
        )

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        return await self._repeat("head", key, lambda: self._inner.head(key))

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object; what became of a lost answer is found out. See `ObjectStore.put`.

        One request where all goes well; one more per repetition or read-back.

        Raises:
            AlreadyExistsError: mode is `create`, and the object there is not ours.
            ContendedError: mode is `Match`, the object is another one, and ours never was there.
            UncertainError: ours may have been written, and cannot be proved or disproved here.
            StoreError: nothing was written, unless `.applied`.
        """
        attempts = self._attempts("put", key)
        while True:
            try:
                return await attempts.run(self._inner.put(key, data, mode))
            except ContendedError:
                if not attempts.doubt:
                    raise
            except AlreadyExistsError as refusal:
                if not attempts.doubt:
                    await self._look_once(attempts, key, refusal)
            except StoreError as error:
                attempts.note(error)
                attempts.doubt |= error.applied
            if attempts.doubt and mode != "overwrite":
                found = await self._read_back(attempts, key)
                if (etag := settle(key, data, mode, found)) is not None:
                    await attempts.ask(lambda: self._inner.sync([key]))
                    return etag
            await attempts.pause()

    async def copy(self, source: str, target: str) -> None:
        """Copy an object; after a lost answer its own copy may refuse it. See `ServerCopies.copy`.

        Raises:
            UnsupportedError: the store does not copy.
        """
        inner = self._inner
        if not isinstance(inner, ServerCopies):
            raise UnsupportedError(f"copy {source!r}: this store does not copy")
        await self._repeat("copy", target, lambda: inner.copy(source, target))

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. See `ObjectStore.delete`."""
        wanted = list(keys)
        key = wanted[0] if wanted else ""
        await self._repeat("delete", key, lambda: self._inner.delete(wanted))

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order; a failure goes on behind the last key. See `ObjectStore.list`."""
        attempts = self._attempts("list", prefix)
        while True:
            try:
                async with aclosing(as_generator(self._inner.list(prefix, start_after))) as metas:
                    while True:
                        meta = await attempts.run(anext(metas))
                        start_after = meta.key
                        attempts = self._attempts("list", prefix)
                        yield meta
            except StopAsyncIteration:
                return
            except StoreError as error:
                attempts.note(error)
                await attempts.pause()

    async def sync(self, keys: Iterable[str]) -> None:
        """Make what is visible durable. See `ObjectStore.sync`."""
        wanted = list(keys)
        key = wanted[0] if wanted else ""
        await self._repeat("sync", key, lambda: self._inner.sync(wanted))

    async def _repeat(self, operation: str, key: str, call: Callable[[], Awaitable[_T]]) -> _T:
        return await self._attempts(operation, key).ask(call)

    async def _look_once(self, attempts: _Attempts, key: str, refusal: AlreadyExistsError) -> None:
        """Raise a create's refusal if there is an object; return if the store meant "try again"."""
        try:
            await attempts.ask(lambda: self._inner.head(key))
        except NotFoundError:
            return
        except StoreError as error:
            raise refusal from error
        raise refusal

    async def _read_back(self, attempts: _Attempts, key: str) -> Object | None:
        try:
            return await attempts.ask(lambda: self._inner.get(key))
        except NotFoundError:
            return None

    def _attempts(self, operation: str, key: str) -> _Attempts:
        return _Attempts(
            operation,
            key,
            self._clock,
            self._entropy,
            deadline_s=self._deadline_s,
            attempt_s=self._attempt_s,
            backoff_first_s=self._backoff_first_s,
            backoff_max_s=self._backoff_max_s,
        )


def settle(key: str, data: Buffer, mode: PutMode, found: Object | None) -> str | None:
    """What became of a conditional put in doubt, given what is there now.

    Returns:
        The etag if the object is ours; None if the same put is to be sent again.

    Raises:
        AlreadyExistsError: another object took a create's key.
        UncertainError: the object of a Match moved on, perhaps by way of ours.
    """
    if found is not None and found.data == bytes(data):
        return found.etag
    if mode == "create":
        if found is None:
            return None
        raise AlreadyExistsError(f"put {key!r}: another object exists")
    if found is not None and isinstance(mode, Match) and found.etag == mode.etag:
        return None
    raise UncertainError(
        f"put {key!r}: the answer was lost, and the object has changed since",
        hint="look for the write's own id in the object's history before writing it again",
    )


class _Attempts:
    """The attempts of one call: how much time is left, what is in doubt, when to try again."""

    def __init__(
        self,
        operation: str,
        key: str,
        clock: Clock,
        entropy: Entropy,
        *,
        deadline_s: float,
        attempt_s: float,
        backoff_first_s: float,
        backoff_max_s: float,
    ) -> None:
        self._operation = operation
        self._key = key
        self._clock = clock
        self._entropy = entropy
        self._until_s = clock.monotonic_s() + deadline_s
        self._attempt_s = attempt_s
        self._pause_s = backoff_first_s
        self._pause_max_s = backoff_max_s
        self._last: StoreError | None = None
        self.doubt = False
        """Whether an attempt of a put may have taken effect, or may still."""

    async def run(self, request: Awaitable[_T]) -> _T:
        """Wait for one request, not longer than one attempt may take."""
        limit_s = min(self._attempt_s, self._until_s - self._clock.monotonic_s())
        try:
            async with asyncio.timeout(limit_s):
                return await request
        except TimeoutError as error:
            raise StoreError(
                f"{self._operation} {self._key!r}: no answer in {limit_s:.1f} s",
                operation=self._operation,
                key=self._key,
                applied=True,
                transient=True,
            ) from error

    async def ask(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Send a request that may be sent again until it is answered."""
        while True:
            try:
                return await self.run(call())
            except StoreError as error:
                self.note(error)
            await self.pause()

    def note(self, error: StoreError) -> None:
        """Remember an error that may pass; raise one that will not."""
        if not error.transient:
            if self.doubt:
                raise self._uncertain() from error
            raise error
        self._last = error

    async def pause(self) -> None:
        """Wait before the next attempt.

        Raises:
            UncertainError: the deadline is past, and there is a doubt.
            StoreError: the deadline is past; nothing was written.
        """
        pause_s = self._pause_s * (1.0 - 0.5 * self._entropy.uniform())
        self._pause_s = min(2.0 * self._pause_s, self._pause_max_s)
        if self._clock.monotonic_s() + pause_s >= self._until_s:
            raise self._give_up() from self._last
        await asyncio.sleep(pause_s)

    def _give_up(self) -> CordwoodError:
        if self.doubt:
            return self._uncertain()
        reason, hint = "", ""
        if self._last is not None:
            reason, hint = f"; the last failure: {self._last.message}", self._last.hint
        return StoreError(
            f"{self._operation} {self._key!r}: the store did not answer in time{reason}",
            code=Code.STORE_UNREACHABLE,
            operation=self._operation,
            key=self._key,
            # A repeated delete or copy may have had its effect: the caller repeats it anyway.
            applied=self._operation in {"copy", "delete"},
            transient=True,
            hint=hint or "check the network, the endpoint and the store's own health page",
        )

    def _uncertain(self) -> UncertainError:
        return UncertainError(
            f"{self._operation} {self._key!r}: the answer was lost, and the store cannot be asked",
            hint="look for the write's own id in the object's history before writing it again",
        )
