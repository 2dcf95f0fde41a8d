"""Every error Cordwood raises.

Handlers choose by class, programs by `code`, people by the message and its hint::

    CordwoodError                  .code  .retry  .hint
    ├── ConflictError              someone else won
    │   ├── ContendedError         nothing of ours was written: reload and try again
    │   ├── DivergedError          a volume was written here and elsewhere: choose
    │   └── UncertainError         may or may not be durable: look for .write_id before trying again
    ├── NotFoundError              (a LookupError) no such log, object, cursor
    ├── AlreadyExistsError
    ├── CollectedError             the range asked for is gone
    ├── StateError                 closed, sealed, forked, out of date
    ├── LimitError                 too large, too many, slow down
    ├── InvalidInputError          (a ValueError) the call was wrong
    ├── FormatError                the bytes are not what they should be
    │   ├── CorruptionError        checksum, setsum or invariant broken
    │   └── UnsupportedError       written by something newer
    ├── StoreError                 the store failed; .applied says whether a write may have happened
    └── InternalError              our bug: an invariant of the code itself broke

A message names the operation, the object, what was expected and what was found; the hint says what
to do. Codes are append-only: a program may match on them for ever.
"""

from __future__ import annotations

from copy import copy
from enum import StrEnum
from typing import Any, ClassVar


class Code(StrEnum):
    """Stable machine-readable names of what went wrong."""

    CONTENDED = "contended"
    UNCERTAIN = "uncertain"
    NOT_FOUND = "not_found"
    NO_SUCH_LOG = "no_such_log"
    ALREADY_EXISTS = "already_exists"
    COLLECTED = "collected"
    CLOSED = "closed"
    SEALED = "sealed"
    NO_CURSOR = "no_cursor"
    FORKED = "forked"
    STREAM_NOT_OPEN = "stream_not_open"
    STATE = "state"
    TOO_LARGE = "too_large"
    QUEUE_FULL = "queue_full"
    LIMIT = "limit"
    INVALID_INPUT = "invalid_input"
    NOT_A_LOG = "not_a_log"
    CORRUPT = "corrupt"
    MISSING_OBJECT = "missing_object"
    SETSUM_MISMATCH = "setsum_mismatch"
    UNSUPPORTED = "unsupported"
    STORE_FAILED = "store_failed"
    STORE_UNREACHABLE = "store_unreachable"
    STORE_DENIED = "store_denied"
    STORE_FULL = "store_full"
    STORE_UNSAFE = "store_unsafe"
    INTERNAL = "internal"


class Retry(StrEnum):
    """What a caller may do next."""

    NEVER = "never"
    """The same call will fail the same way."""
    NOW = "now"
    """Nothing was written; the same call may succeed."""
    AFTER_RELOAD = "after_reload"
    """Read the current state first, then decide."""


class CordwoodError(Exception):
    """The root of everything Cordwood raises.

    Attributes:
        code: the stable name of the failure.
        retry: what may be done next.
        hint: one sentence that says what to do, or an empty string.
    """

    default_code: ClassVar[Code] = Code.INTERNAL
    default_retry: ClassVar[Retry] = Retry.NEVER

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        retry: Retry | None = None,
        hint: str = "",
    ) -> None:
        """Keep the parts; the text shown is the message followed by the hint."""
        super().__init__(message)
        self.message = message
        self.code = self.default_code if code is None else code
        self.retry = self.default_retry if retry is None else retry
        self.hint = hint

    def __str__(self) -> str:
        """The message, then the hint."""
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state: errors cross process borders in Spark and in multiprocessing."""
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(
    kind: type[CordwoodError], args: tuple[Any, ...], state: dict[str, Any]
) -> CordwoodError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ConflictError(CordwoodError):
    """Someone else won."""

    default_code = Code.CONTENDED
    default_retry = Retry.AFTER_RELOAD


class ContendedError(ConflictError):
    """Nothing of ours was written: reload and try again."""


class UncertainError(ConflictError):
    """The write may or may not be durable, and the store could not be asked.

    Attributes:
        write_id: the id the write carries; look for it before writing the same data again.
        chain: for an append, the offset and the write id of its fragment, after those of the
            fragments that it follows and that are as uncertain. `Log.find_write` reads it.
        index: where in its fragment the append's first record is.
    """

    default_code = Code.UNCERTAIN

    def __init__(
        self,
        message: str,
        *,
        write_id: str = "",
        chain: tuple[tuple[int, str], ...] = (),
        **rest: Any,
    ) -> None:
        """As CordwoodError, with the write id to look for and where."""
        super().__init__(message, **rest)
        self.write_id = write_id
        self.chain = chain
        self.index = 0

    def at(self, index: int) -> UncertainError:
        """The same of another append in the fragment."""
        twin = copy(self)
        twin.index = index
        twin.__cause__ = self.__cause__
        return twin


class DivergedError(ConflictError):
    """A volume has local commits, and somebody else published others: one has to give way."""


class NotFoundError(CordwoodError, LookupError):
    """No such log, object or name."""

    default_code = Code.NOT_FOUND


class AlreadyExistsError(CordwoodError):
    """What was to be created is there already."""

    default_code = Code.ALREADY_EXISTS


class CollectedError(CordwoodError):
    """The range asked for has been collected."""

    default_code = Code.COLLECTED


class StateError(CordwoodError):
    """The object is closed, sealed, or was opened before a fork."""

    default_code = Code.STATE


class LimitError(CordwoodError):
    """Too large, too many, or too fast."""

    default_code = Code.LIMIT


class InvalidInputError(CordwoodError, ValueError):
    """The call was wrong: nothing was done."""

    default_code = Code.INVALID_INPUT


class FormatError(CordwoodError):
    """Bytes in the store are not what they should be."""

    default_code = Code.CORRUPT


class CorruptionError(FormatError):
    """A checksum, a setsum or an invariant does not hold.

    Attributes:
        where: the object.
        expected: what should have been there, as text.
        got: what was there, as text.
    """

    def __init__(
        self, message: str, *, where: str = "", expected: str = "", got: str = "", **rest: Any
    ) -> None:
        """As CordwoodError, with the place and both values."""
        super().__init__(message, **rest)
        self.where = where
        self.expected = expected
        self.got = got


class UnsupportedError(FormatError):
    """Written by something newer than this version."""

    default_code = Code.UNSUPPORTED


class StoreError(CordwoodError):
    """The store failed.

    Attributes:
        operation: get, put, …
        key: the object.
        applied: for a write, whether it may have taken effect all the same.
        transient: whether the same request may succeed later.
    """

    default_code = Code.STORE_FAILED

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        key: str = "",
        applied: bool = False,
        transient: bool = False,
        **rest: Any,
    ) -> None:
        """As CordwoodError, with what was asked of the store and what is known of its effect."""
        super().__init__(message, **rest)
        self.operation = operation
        self.key = key
        self.applied = applied
        self.transient = transient
        if transient and not applied and "retry" not in rest:
            self.retry = Retry.NOW


class InternalError(CordwoodError):
    """A bug in Cordwood: please report it with the message."""


class CordwoodWarning(UserWarning):
    """Something is not as it should be, and nothing was held up by it."""
