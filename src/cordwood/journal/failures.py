"""What the operating system says, as errors of ours."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cordwood.base.errors import Code, CordwoodError, NotFoundError, StoreError

READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""Errors of who may not write."""

_CODES = {
    errno.ENOSPC: Code.STORE_FULL,
    errno.EDQUOT: Code.STORE_FULL,
    **dict.fromkeys(READ_ONLY, Code.STORE_DENIED),
}


@contextmanager
def told(
    what: str, where: str, missing: Callable[[str], CordwoodError] = NotFoundError
) -> Iterator[None]:
    """Say what was being done, and where; `missing` makes the error for a file that is not there.

    Raises:
        StoreError: the disk failed, is full, or may not be written.
    """
    try:
        yield
    except OSError as error:
        raise error_of(what, where, error, missing) from error


def error_of(
    what: str,
    where: str,
    error: OSError,
    missing: Callable[[str], CordwoodError] = NotFoundError,
) -> CordwoodError:
    """What the system says, as an error of ours."""
    if isinstance(error, FileNotFoundError):
        return missing(f"{what} {where}: {error.filename or 'a file'} is missing")
    return StoreError(
        f"{what} {where}: {error.strerror or error}",
        code=_CODES.get(error.errno or 0, Code.STORE_FAILED),
        operation=what,
        key=str(error.filename or where),
    )
