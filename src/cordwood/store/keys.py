"""Which texts can be keys: names found in a folder or a bucket that cannot are not objects."""

from __future__ import annotations

from cordwood.base.errors import InvalidInputError
from cordwood.store.api import check_key


def is_key(text: str) -> bool:
    """Whether the text could be the key of an object."""
    try:
        check_key(text)
    except InvalidInputError:
        return False
    return True
