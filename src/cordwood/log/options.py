"""How a writer behaves: a frozen value, the same for the async and the blocking twins."""

from __future__ import annotations

import msgspec

from cordwood.base.errors import InvalidInputError
from cordwood.base.limits import BATCH_BYTES_MAX
from cordwood.log.chain.document import ALPHA_MAX
from cordwood.log.chain.names import SHARDS_MAX, is_shards
from cordwood.log.fragment import Compression


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a writer. The defaults suit an object store with 20 to 200 ms per request."""

    batch_bytes: int = 8_000_000
    """A batch this large is written without waiting for more."""

    batch_interval_s: float = 0.02
    """The longest a record waits for company while a slot is free; an idle writer does not wait."""

    in_flight: int = 8
    """Fragment puts in the air at once. wal3 may go on with a log written with 1."""

    throttle: float | None = None
    """Puts per second at most, fragments and manifests together; None for no limit."""

    queue_bytes: int = 256 * 2**20
    """Bytes appended and not yet durable, at most; beyond it `append` raises LimitError."""

    compression: Compression = "snappy"
    """Of the Parquet files: none, snappy, lz4 or zstd."""

    alpha: int = 4
    """Manifests in the air at once, for a log of the chain protocol; 256 at most."""

    shards: int | None = None
    """Prefixes that a chain log's fragments are spread over from now on; None for as many as so
    far."""

    intent_interval_s: float = 2.0
    """How often a busy writer looks whether somebody else wants a turn."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("batch_bytes", "queue_bytes", "in_flight", "alpha"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidInputError(f"{name} is a whole number of at least 1, not {value!r}")
        if self.alpha > ALPHA_MAX:
            raise InvalidInputError(f"alpha is at most {ALPHA_MAX}")
        if self.shards is not None and not is_shards(self.shards):
            raise InvalidInputError(f"shards is a number from 1 to {SHARDS_MAX}, or None")
        if self.batch_bytes > BATCH_BYTES_MAX:
            raise InvalidInputError(f"batch_bytes is at most {BATCH_BYTES_MAX}")
        if not _is_number(self.batch_interval_s) or self.batch_interval_s < 0:
            raise InvalidInputError(
                f"batch_interval_s is in seconds, not {self.batch_interval_s!r}"
            )
        if not _is_number(self.intent_interval_s) or self.intent_interval_s <= 0:
            raise InvalidInputError(
                f"intent_interval_s is in seconds, not {self.intent_interval_s!r}"
            )
        if self.throttle is not None and (not _is_number(self.throttle) or self.throttle <= 0):
            raise InvalidInputError(f"throttle is puts per second, or None, not {self.throttle!r}")
        if self.compression not in {"none", "snappy", "lz4", "zstd"}:
            raise InvalidInputError(
                f"compression {self.compression!r} is not one of none, snappy, lz4, zstd"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - not NaN
