"""What a caller gave, if it is what the call takes: else one clear error, before anything is done.

Without it a `None` goes on until somebody asks it for an attribute, and the error is about that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from cordwood.base.errors import InvalidInputError

T = TypeVar("T")


def given(value: Any, kind: type[T], what: str) -> T:
    """The value, if it is one of this kind.

    Raises:
        InvalidInputError: it is something else.
    """
    if isinstance(value, kind):
        return value
    hint = ""
    if type(value).__name__ == kind.__name__:
        hint = "do not mix the classes of `cordwood` with their blocking twins in `cordwood.sync`"
    raise InvalidInputError(f"{what} is a {kind.__name__}, not {_shown(value)}", hint=hint)


def given_all(values: Any, kind: type[T], what: str) -> list[T]:
    """The values, if they are several, and each is one of this kind.

    Raises:
        InvalidInputError: one is something else; or this is a text, whose letters are no values.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        hint = "pass a list"
        raise InvalidInputError(f"expected several, not {_shown(values)}", hint=hint)
    return [given(value, kind, what) for value in values]


def given_number(value: Any, what: str, *, least: float = 0, most: float = math.inf) -> None:
    """Raise unless it is a number, at least so large and at most so large.

    Raises:
        InvalidInputError: it is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or math.isinf(value):
        bounds = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"
        raise InvalidInputError(f"{what} is a number {bounds}, not {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"
