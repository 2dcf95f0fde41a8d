"""What a partition in a directory takes, and what about it does not look right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from cordwood.base.errors import CorruptionError
from cordwood.journal.extent import base_of, open_whatever
from cordwood.journal.journal import Journal
from cordwood.topics.home import Partition
from cordwood.topics.keyindex import SUFFIX
from cordwood.topics.partition import LocalPartition

INDEX_SHARE = 0.5
"""A key index larger than this share of its extent is a sign of misuse."""


class Usage(NamedTuple):
    """What a partition takes."""

    bytes: int = 0
    extents: int = 0
    warnings: tuple[str, ...] = ()


def usage_of(partition: Partition, number: int) -> Usage:
    """What a partition takes; nothing is known of one that is not in a directory."""
    if not isinstance(partition, LocalPartition):
        return Usage()
    journal = partition.journal
    mark = journal.newest()
    sizes: dict[str, int] = {}
    with journal.told("read"):
        for name, kind in journal.disk.scan(journal.folder):
            with suppress(FileNotFoundError):  # It was deleted meanwhile.
                if kind == "file":
                    sizes[name] = journal.disk.stat(f"{journal.folder}/{name}").size_bytes
    troubles = (partition.trouble, journal.damage)
    warnings = [f"partition {number}: {trouble}" for trouble in troubles if trouble]
    extents = {name: base for name in sizes if (base := base_of(name)) is not None}
    warnings += [f"partition {number}: {one}" for one in _damaged(journal, extents.values())]
    for name, base in extents.items():
        used = mark.end if base == mark.base else sizes[name]
        index = sizes.get(name + SUFFIX, 0)
        if index > INDEX_SHARE * used:
            warnings.append(
                f"partition {number}: {name}{SUFFIX} has {index} bytes, its extent {used}: "
                "the records are hardly larger than their keys, or hardly any key comes twice; "
                "a topic without compaction may serve better"
            )
    return Usage(sum(sizes.values()), len(extents), tuple(warnings))


def _damaged(journal: Journal, bases: Iterable[int]) -> Iterator[CorruptionError]:
    """What is wrong with the heads of extents, but for one that is told already."""
    told = "" if journal.damage is None else journal.damage.where
    for base in sorted(bases):
        with journal.told("read"), suppress(FileNotFoundError):
            extent, damage = open_whatever(journal.disk, journal.folder, base)
            extent.close()
            if damage is not None and damage.where != told:
                yield damage
