"""Ids of logs and packs: 32 hex digits, the first twelve of which say when they were made.

48 bits of milliseconds since the epoch, then 80 random bits. So a listing is in the order of
making, more or less, and no two are alike even where clocks are.
"""

from __future__ import annotations

import re

from cordwood.base.clock import Clock, Entropy

ID_CHARS = 32
_TIME_CHARS = 12
_ID = re.compile(r"[0-9a-f]{32}")


def new_id(clock: Clock, entropy: Entropy) -> str:
    """A fresh id, for a log or a pack."""
    moment_ms = max(0, clock.now_us() // 1_000) & (2**48 - 1)
    return f"{moment_ms:0{_TIME_CHARS}x}{entropy.token()[_TIME_CHARS:]}"


def is_id(text: object) -> bool:
    """Whether this is how ids look."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None
