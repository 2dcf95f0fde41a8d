"""Which segments are worth merging: few enough to search quickly, without rewriting all the time.

Segments of about the same size form a tier, each tier eight times as large as the one before it. A
tier of eight is merged into one, which belongs to the next; so a document is rewritten about once
for each tier. A segment of which a third is deleted is rewritten by itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

WIDTH = 8
SMALLEST = 1_000
"""Segments of fewer documents are all of the first tier."""
GONE_MAX = 1 / 3


class Sized(NamedTuple):
    """A segment that may be merged."""

    number: int
    documents: int
    """Without the deleted ones."""
    deleted: int


def worth_merging(segments: Sequence[Sized]) -> set[int]:
    """The numbers of segments to merge into one next; none if it is not worth it."""
    tiers: dict[int, list[Sized]] = defaultdict(list)
    for segment in segments:
        size = max(segment.documents, SMALLEST) / SMALLEST
        tiers[int(math.log(size, WIDTH))].append(segment)
    for tier in sorted(tiers):
        if len(tiers[tier]) >= WIDTH:
            smallest = sorted(tiers[tier], key=lambda segment: segment.documents)
            return {segment.number for segment in smallest[: 2 * WIDTH]}
    for segment in segments:
        if segment.deleted > GONE_MAX * (segment.documents + segment.deleted):
            return {segment.number}
    return set()
