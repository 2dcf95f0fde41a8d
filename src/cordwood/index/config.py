"""The config of an index as bytes: a document with a checksum."""

from __future__ import annotations

from cordwood.index.home import Config
from cordwood.journal import document


def encoded(config: Config) -> bytes:
    """What is written."""
    return document.encoded("index", config)


def decoded(data: bytes, where: str) -> Config:
    """What was written.

    Raises:
        CorruptionError: it is damaged.
        UnsupportedError: it is of a newer kind.
    """
    return document.decoded("index", Config, data, where)
