"""Half-open byte ranges of an object: what every store must make of the same three numbers."""

from __future__ import annotations

from cordwood.base.errors import InvalidInputError


def check_range(key: str, start: object, length: object) -> None:
    """Refuse what is no number or negative, before anything is asked of a store.

    Raises:
        InvalidInputError: one of them is.
    """
    if not (isinstance(start, int) and isinstance(length, int) and start >= 0 and length >= 0):
        raise InvalidInputError(
            f"get_range {key!r}: start {start!r} and length {length!r} are numbers of at least 0"
        )


def check_start(key: str, start: int, size_bytes: int) -> None:
    """Refuse a range that starts past the end. One that starts exactly there is empty.

    Raises:
        InvalidInputError: `start` is greater than the object is long.
    """
    if start > size_bytes:
        raise InvalidInputError(
            f"get_range {key!r}: start {start} lies past the end, the object has {size_bytes} bytes"
        )
