"""A small document as bytes: JSON with a checksum."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import xxhash

from cordwood.base.errors import CorruptionError, UnsupportedError

T = TypeVar("T", bound=msgspec.Struct)

FORMAT = 1


def encoded(name: str, document: msgspec.Struct) -> bytes:
    """What is written: an object with the document under its name, and `xxh3`, of its bytes."""
    body = msgspec.json.encode(document)
    return msgspec.json.encode({name: msgspec.Raw(body), "xxh3": xxhash.xxh3_64_hexdigest(body)})


def decoded(name: str, kind: type[T], data: bytes, where: str) -> T:
    """What was written.

    Raises:
        CorruptionError: it is damaged.
        UnsupportedError: it is of a newer kind.
    """
    why: object = "it does not match its checksum"
    try:
        kept = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        body = bytes(kept.get(name, b""))
        is_whole = set(kept) == {name, "xxh3"}
        if is_whole and msgspec.json.decode(kept["xxh3"]) == xxhash.xxh3_64_hexdigest(body):
            document = msgspec.json.decode(body, type=kind)
            found = getattr(document, "format", FORMAT)
            if found != FORMAT:
                raise UnsupportedError(f"{where} is of format {found}", hint="update cordwood")
            return document
    except (msgspec.MsgspecError, ValueError) as error:
        why = error
    raise CorruptionError(
        f"{where} is damaged: {why}", where=where, hint="bring it back from a copy"
    )
