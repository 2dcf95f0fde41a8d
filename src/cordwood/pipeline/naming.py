"""How tables of every kind are named: by the rules of logs, by a store and a name or by one URL."""

from __future__ import annotations

from cordwood.base.errors import InvalidInputError
from cordwood.base.limits import LOG_NAME_BYTES_MAX
from cordwood.log import paths
from cordwood.store.api import check_key


def check_name(name: str) -> str:
    """The name, if it can name a table.

    Raises:
        InvalidInputError: it cannot.
    """
    if not paths.is_log_name(name) or len(name) > LOG_NAME_BYTES_MAX:
        raise InvalidInputError(
            f"{name!r} cannot name a table",
            hint="use letters, digits and . _ = + @ -, with / between segments, "
            f"{LOG_NAME_BYTES_MAX} characters at most",
        )
    return check_key(name)


def split_url(url: str) -> tuple[str, str]:
    """The store's URL and the name in it: the last segment is the name.

    Raises:
        InvalidInputError: the URL does not name a table.
    """
    head, slash, name = url.rstrip("/").rpartition("/")
    if not slash or not name or head.endswith((":", ":/")):
        raise InvalidInputError(
            f"{url!r} does not name a table",
            hint="a table's URL is its store's URL, a slash, and its name: "
            "file:///data/tables/orders",
        )
    return head, name
