"""How a compaction is cut into units. Pure functions.

Sources are numbered for the question which rows lose (pipeline/keys.py): first the fragments, in
the order of the ranges, then the files of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.log.format import Fragment
from cordwood.pipeline.columns import DataFile
from cordwood.pipeline.divide import divide
from cordwood.pipeline.engine import Drops
from cordwood.pipeline.keys import FileKeys, FragmentKeys, KeysUnit
from cordwood.pipeline.ranges import Range
from cordwood.pipeline.rewrite import FilePart, FragmentPart, RewriteUnit
from cordwood.pipeline.target import Seen
from cordwood.pipeline.tiers import crowded

Found = Sequence[tuple[Range, Fragment]]
"""What is new: fragments, each with the range it belongs to."""


def questions(found: Found, seen: Seen, unit_bytes: int) -> tuple[list[KeysUnit], list[KeysUnit]]:
    """The units that give the keys of what is new, and of what is in the table."""
    logs = {name: i for i, name in enumerate(dict.fromkeys(ranged.log for ranged, _ in found))}
    fragments = [
        FragmentKeys(source, logs[r.log], fragment, r.start, r.ancestors)
        for source, (r, fragment) in enumerate(found)
    ]
    files = [FileKeys(len(found) + place, file) for place, file in enumerate(seen.files)]
    fresh = [
        KeysUnit(fragments=group, num_bytes=sum(part.fragment.num_bytes for part in group))
        for group in divide(fragments, lambda part: part.fragment.num_bytes, unit_bytes)
    ]
    old = [
        KeysUnit(files=group, num_bytes=sum(part.file.bytes for part in group))
        for group in divide(files, lambda part: part.file.bytes, unit_bytes)
    ]
    return fresh, old


def new_units(found: Found, seen: Seen, drops: Drops, unit_bytes: int) -> list[RewriteUnit]:
    """What is new, neighbours together; each unit becomes a file."""
    parts = [
        FragmentPart(r.log, fragment, r.start, drops.get(source, b""), r.ancestors)
        for source, (r, fragment) in enumerate(found)
    ]
    return [
        RewriteUnit(
            mode=seen.mode,
            keyless=seen.keyless,
            fragments=group,
            num_bytes=sum(part.fragment.num_bytes for part in group),
        )
        for group in divide(parts, lambda part: part.fragment.num_bytes, unit_bytes)
    ]


def old_units(num_fragments: int, seen: Seen, drops: Drops, unit_bytes: int) -> list[RewriteUnit]:
    """Files of the table that lose rows, each by itself; and small ones, several together."""
    of_file = {
        file.path: drops.get(num_fragments + place, b"") for place, file in enumerate(seen.files)
    }
    small = crowded(seen.files, unit_bytes) if seen.is_tidied else []
    losing = [file for file in seen.files if of_file[file.path] and file not in small]
    together = divide(small, lambda file: file.bytes, unit_bytes)
    groups: list[tuple[DataFile, ...]] = [*((file,) for file in losing), *together]
    return [
        RewriteUnit(
            mode=seen.mode,
            keyless=seen.keyless,
            files=tuple(FilePart(file, of_file[file.path]) for file in group),
            num_bytes=sum(file.bytes for file in group),
        )
        for group in groups
    ]
