"""Which files of a table are worth making one of. A pure function.

A table that is compacted often gets many small files. Those of about one size are put together when
there are enough of them, so that a row is written anew once for every step in size, not each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cordwood.pipeline.columns import DataFile

STEP = 8
"""Files of a size that make one of the next, and how much larger the next size is."""


def crowded(files: Iterable[DataFile], full_bytes: int, step: int = STEP) -> list[DataFile]:
    """The files to be put together: all of those sizes that have `step` files or more.

    Files of `full_bytes / 2` or more stay as they are.
    """
    tiers: defaultdict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        tier, size = 0, file.bytes
        while size < full_bytes // 2:
            tier, size = tier + 1, max(1, size) * step
        if tier:
            tiers[tier].append(file)
    return [file for _, tier in sorted(tiers.items()) if len(tier) >= step for file in tier]
