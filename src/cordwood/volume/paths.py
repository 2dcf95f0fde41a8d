"""Every key of volumes in a store, and every name in a volume's directory that the store has too.

::

    tags/{name}                          which log a name means
    logs/{log}/manifest                  checkpoints, parent, what is collected
    logs/{log}/commits/{lsn}             one version: which pages changed, and where they are
    logs/{log}/checkpoints/{lsn}         the same, of every page
    logs/{log}/pushes/{nonce}            a push that may take long is under way
    segments/{pack}                      the pages themselves
    volume.clock                         asks the store what time it is

An LSN is written as sixteen hex digits, so that a listing is in order and `start_after` gives
exactly what is new. The directory has the same below `{directory}/{log}/`, where `segments` holds
what was read of the packs that were made for that log, and besides:

    commit-filter/{start}-{end}          which pages a range of commits touches
"""

from __future__ import annotations

import re

from cordwood.base.errors import InvalidInputError

TAGS = "tags/"
LOGS = "logs/"
PACKS = "segments/"
CLOCK = "volume.clock"

LSN_MAX = 2**63 - 1
"""Spark and most databases have no unsigned 64-bit integer."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LSN = re.compile(r"[0-9a-f]{16}")


def check_name(name: object) -> str:
    """The name of a volume, a branch or a tag, if it can be one.

    Raises:
        InvalidInputError: it cannot; a path never can.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            f"{name!r} cannot name a volume",
            hint="use up to 128 letters, digits, '.', '_' and '-', a letter or digit first",
        )
    return name


def tag(name: str) -> str:
    """The key of a tag."""
    return TAGS + check_name(name)


def manifest(log: str) -> str:
    """The key of a log's manifest."""
    return f"{LOGS}{log}/manifest"


def commits(log: str) -> str:
    """What the keys of a log's commits begin with."""
    return f"{LOGS}{log}/commits/"


def checkpoints(log: str) -> str:
    """What the keys of a log's checkpoints begin with."""
    return f"{LOGS}{log}/checkpoints/"


def commit(log: str, lsn: int) -> str:
    """The key of a commit."""
    return commits(log) + lsn_text(lsn)


def checkpoint(log: str, lsn: int) -> str:
    """The key of a checkpoint."""
    return checkpoints(log) + lsn_text(lsn)


def notes(log: str) -> str:
    """What the keys of the notes of pushes to a log begin with."""
    return f"{LOGS}{log}/pushes/"


def note(log: str, nonce: str) -> str:
    """The key of the note of a push."""
    return notes(log) + nonce


def pack(pack_id: str) -> str:
    """The key of a pack."""
    return PACKS + pack_id


def lsn_text(lsn: int) -> str:
    """An LSN as names have it."""
    return f"{lsn:016x}"


def lsn_of(text: str) -> int | None:
    """The LSN that a name says; None if it says none."""
    if _LSN.fullmatch(text) is None:
        return None
    lsn = int(text, 16)
    return lsn if 1 <= lsn <= LSN_MAX else None
