"""Which protocol a log gets, and over how many shards it spreads."""

from __future__ import annotations

from typing import Literal

from cordwood.base.errors import InvalidInputError
from cordwood.log.chain.document import Shards
from cordwood.log.chain.names import SHARDS_MAX, is_shards
from cordwood.store.url import Store

Protocol = Literal["cas", "chain"]

CREATE_ONLY = "gs:"
"""Where one name takes about one write a second, so that a manifest cannot be replaced often."""


def check_protocol(store: Store, protocol: Protocol | None, shards: int) -> Shards | None:
    """How the fragments of a new log are spread; None for a cas log.

    Raises:
        InvalidInputError: there is no such protocol, or there cannot be so many shards.
    """
    if protocol not in (None, "cas", "chain"):
        raise InvalidInputError(
            f"protocol {protocol!r} is not known", hint="use 'cas' or 'chain', or leave it out"
        )
    if not is_shards(shards):
        raise InvalidInputError(f"shards is a number from 1 to {SHARDS_MAX}, not {shards!r}")
    is_chain = protocol == "chain" or (protocol is None and store.url.startswith(CREATE_ONLY))
    if shards > 1 and not is_chain:
        raise InvalidInputError("a cas log has no shards", hint="create it with protocol='chain'")
    return Shards((1,) * shards, shards) if is_chain else None
