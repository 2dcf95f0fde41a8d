"""The writer tag: how our manifests tell themselves, their log and its newest fragment apart."""

from __future__ import annotations

import re
from typing import NamedTuple, Self


class WriterTag(NamedTuple):
    """What our writers keep in the manifest's free-text `writer` field.

    As text: `cordwood/1 log=<id> write=<id> tail=<id> at=<microseconds>`.
    """

    incarnation: str
    """Made once at creation: tells a log from one that had its name before."""
    write_id: str
    """Unique per manifest: no two ever have the same bytes, and on S3 the same etag."""
    tail_id: str
    """The newest fragment's write id; before there is one the incarnation; empty if unknown."""
    tail_us: int
    """The newest fragment's timestamp: the next one is never older."""

    def __str__(self) -> str:
        """The text form."""
        return (
            f"cordwood/1 log={self.incarnation} write={self.write_id} "
            f"tail={self.tail_id} at={self.tail_us}"
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The tag in a manifest's `writer` field, or None if another program wrote it."""
        match = _TAG.fullmatch(text)
        return cls(match[1], match[2], match[3], int(match[4])) if match else None


_TAG = re.compile(
    r"cordwood/1 log=([0-9a-f]{32}) write=([0-9a-f]{32}) tail=([0-9a-f]{32}|) at=([0-9]{1,19})"
)
