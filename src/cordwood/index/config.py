"""The config of an index as bytes: JSON with a checksum."""

from __future__ import annotations

import msgspec
import xxhash

from cordwood.base.errors import CorruptionError, UnsupportedError
from cordwood.index.home import Config

FORMAT = 1


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    index: msgspec.Raw
    xxh3: str


def encoded(config: Config) -> bytes:
    """What is written."""
    body = msgspec.json.encode(config)
    return msgspec.json.encode(_Kept(msgspec.Raw(body), xxhash.xxh3_64_hexdigest(body)))


def decoded(data: bytes, where: str) -> Config:
    """What was written.

    Raises:
        CorruptionError: it is damaged.
        UnsupportedError: it is of a newer kind.
    """
    why: object = "it does not match its checksum"
    try:
        kept = msgspec.json.decode(data, type=_Kept)
        if xxhash.xxh3_64_hexdigest(bytes(kept.index)) == kept.xxh3:
            config = msgspec.json.decode(kept.index, type=Config)
            if config.format != FORMAT:
                raise UnsupportedError(
                    f"{where} is of format {config.format}", hint="update cordwood"
                )
            return config
    except (msgspec.MsgspecError, ValueError) as error:
        why = error
    raise CorruptionError(
        f"{where} is damaged: {why}", where=where, hint="bring it back from a copy"
    )
