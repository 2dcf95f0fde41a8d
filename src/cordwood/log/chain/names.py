"""Names of a chain log, built and parsed here only. All are relative to the log's own prefix.

    manifest/MANIFEST.<2^64 - 1 - i>                     manifest i; the newest comes first
    shard<NN>/<seq>_<start>_<limit>_<setsum>.parquet     a fragment: enough to rebuild a manifest
    cursor/<name>/<2^64 - 1 - v>                         version v of a cursor; pins, forks,
                                                         producers and GARBAGE likewise

Numbers that count objects have sixteen hex digits, so that names sort as they count; shards have
two; offsets are written as people write them. Specified in docs/formats/chain.md.
"""

from __future__ import annotations

import re
from typing import NamedTuple

U64_MAX = 2**64 - 1

MANIFEST_PREFIX = "manifest/MANIFEST."
PREFIX_PREFIX = "snapshot/MANIFEST."
SHARD_PREFIX = "shard"

SHARDS_MAX = 12
"""More are never needed: twelve prefixes take more than one writer can send."""

_MANIFEST = re.compile(r"manifest/MANIFEST\.([0-9a-f]{16})")
_PREFIX = re.compile(r"snapshot/MANIFEST\.[0-9a-f]{64}")
_FRAGMENT = re.compile(
    r"shard([0-9a-f]{2})/([0-9a-f]{16})_(\d{1,19})_(\d{1,19})_([0-9a-f]{64})\.parquet"
)
_VERSION = re.compile(
    r"((?:cursor|pin)/[A-Za-z0-9_]+|(?:fork|producer)/[0-9a-f]{32}|gc/GARBAGE)/([0-9a-f]{16})"
)
_REGISTER = re.compile(
    r"(?:cursor|pin)/[A-Za-z0-9_]+\.json|(?:fork|producer)/[0-9a-f]{32}\.json|gc/GARBAGE"
)


def is_shards(shards: object) -> bool:
    """Whether a log can have so many shards."""
    return isinstance(shards, int) and not isinstance(shards, bool) and 0 < shards <= SHARDS_MAX


class ShardName(NamedTuple):
    """What a fragment's name says."""

    shard: int
    seq_no: int
    """Its place in the shard."""
    start: int
    limit: int
    setsum_hex: str


def manifest(index: int) -> str:
    """The path of manifest `index`."""
    return f"{MANIFEST_PREFIX}{U64_MAX - index:016x}"


def manifest_index(path: str) -> int | None:
    """Which manifest a path names, or None if it is not one's."""
    match = _MANIFEST.fullmatch(path)
    return U64_MAX - int(match[1], 16) if match else None


def prefix(setsum_hex: str) -> str:
    """The path of the new beginning that a collection offers: the sum of all before it."""
    return PREFIX_PREFIX + setsum_hex


def fragment(shard: int, seq_no: int, start: int, limit: int, setsum_hex: str) -> str:
    """The path of a fragment."""
    return f"{SHARD_PREFIX}{shard:02x}/{seq_no:016x}_{start}_{limit}_{setsum_hex}.parquet"


def parse_fragment(path: str) -> ShardName | None:
    """What a fragment's path says, or None if it is not one's."""
    match = _FRAGMENT.fullmatch(path)
    if match is None:
        return None
    name = ShardName(int(match[1], 16), int(match[2], 16), int(match[3]), int(match[4]), match[5])
    return name if 0 < name.shard <= SHARDS_MAX and fragment(*name) == path else None


def is_register(path: str) -> bool:
    """Whether a path names something that changes, and so is kept as versions."""
    return _REGISTER.fullmatch(path) is not None


def version(path: str, number: int) -> str:
    """The path of a version of what changes."""
    return f"{versions(path)}{U64_MAX - number:016x}"


def versions(path: str) -> str:
    """What the paths of all its versions begin with."""
    return path.removesuffix(".json") + "/"


def parse_version(path: str) -> tuple[str, int] | None:
    """What changes, and which version of it a path names; None if it is not one's."""
    match = _VERSION.fullmatch(path)
    if match is None:
        return None
    name = match[1] if match[1] == "gc/GARBAGE" else f"{match[1]}.json"
    return name, U64_MAX - int(match[2], 16)


def is_known(path: str) -> bool:
    """Whether the path is that of an object which only a chain log has."""
    return (
        _MANIFEST.fullmatch(path) is not None
        or _PREFIX.fullmatch(path) is not None
        or parse_fragment(path) is not None
        or _VERSION.fullmatch(path) is not None
    )
