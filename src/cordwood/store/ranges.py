"""Half-open byte ranges of an object: what every store must make of the same three numbers."""

from __future__ import annotations

from cordwood.base.errors import InvalidInputError


def check_range(key: str, start: int, length: int) -> None:
    """Refuse negative numbers, before anything is asked of a store.

    Raises:
        InvalidInputError: one of them is negative.
    """
    if start < 0 or length < 0:
        raise InvalidInputError(f"get_range {key!r}: start {start} or length {length} is negative")


def check_start(key: str, start: int, size_bytes: int) -> None:
    """Refuse a range that starts past the end. One that starts exactly there is empty.

    Raises:
        InvalidInputError: `start` is greater than the object is long.
    """
    if start > size_bytes:
        raise InvalidInputError(
            f"get_range {key!r}: start {start} lies past the end, the object has {size_bytes} bytes"
        )
