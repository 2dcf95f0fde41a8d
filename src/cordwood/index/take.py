"""Taking a census: a tree that was just walked, beside the index that was just read (census.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from cordwood.index import stamps
from cordwood.index.census import (
    A_FILE,
    A_FOLDER,
    A_RULE,
    HEAD,
    MAGIC,
    NO_ROW,
    SUMMED_AT,
    About,
)
from cordwood.index.segment import View
from cordwood.index.walk import STAMP, Tree, is_settled, path_of

MOUNTS = "/proc/self/mountinfo"

PLAIN = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
"""File systems of this machine's own, on which a folder's times tell whether names came or went."""


def taken(about: About, tree: Tree, views: Sequence[View], began_us: int) -> bytes:
    """The census of a tree and its index.

    Args:
        about: what it is of.
        tree: what was found.
        views: the segments of the index.
        began_us: when it was begun to look at the tree.
    """
    names = pa.array(tree.names, pa.large_binary())
    places = [_places(view, names) for view in views]
    has = np.zeros(len(tree.names), np.bool_)
    for some in places:
        has[some[some >= 0]] = True
    rows = [(name, A_FILE, known) for name, known in zip(tree.names, has.tolist(), strict=True)]
    plain = has_telling_folders(about.root)
    rows += [(one, A_FOLDER, plain and is_settled(one, began_us)) for one in tree.folders]
    rows += [(one, A_RULE, is_settled(one, began_us)) for one in tree.rules]
    # By path, which its NUL ends; those that are vouched for first.
    order = sorted(range(len(rows)), key=lambda row: (not rows[row][2], path_of(rows[row][0])))
    row_of = np.full(len(rows) + 1, NO_ROW, np.uint32)
    row_of[order] = np.arange(len(rows), dtype=np.uint32)
    body = _Body()
    ordered = [rows[row] for row in order]
    vouched = sum(row[2] for row in ordered)
    parts = body.parts(ordered, vouched)
    kinds = body.add(bytes(kind for _, kind, _ in ordered))
    segments = [
        # What has no place takes the last one, which is nobody's.
        [view.segment.number, body.add(row_of[some].astype("<u4").tobytes())]
        for view, some in zip(views, places, strict=True)
    ]
    return body.sealed(
        {
            "about": about._asdict(),
            "vouched": vouched,
            "segments": segments,
            "parts": parts,
            "kinds": kinds,
        }
    )


def _places(view: View, names: pa.Array) -> npt.NDArray[np.int64]:
    """Where among the names that of each document is, that of document d at d; else -1."""
    ids = view.segment.ids
    found = pc.index_in(ids.table().cast(pa.large_binary()), names)
    of_ids = np.asarray(found.fill_null(-1)).astype(np.int64)
    docs = np.arange(1, view.segment.documents + 1)
    places = np.full(len(docs) + 1, -1, np.int64)
    places[1:] = of_ids[ids.ordinals(docs)]
    if view.is_gone is not None:
        places[view.is_gone] = -1
    return places


class _Body:
    """The body of a census, piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> int:
        """One piece; where it begins, which is a multiple of 8."""
        at = self._size
        self._pieces.append(data + bytes(-len(data) % 8))
        self._size += len(self._pieces[-1])
        return at

    def parts(self, rows: Sequence[tuple[bytes, int, bool]], vouched: int) -> list[list[int]]:
        """Paths and words, some at a time; for each where they are."""
        found = []
        starts = [
            *range(0, vouched, stamps.FILES_MAX),
            *range(vouched, len(rows), stamps.FILES_MAX),
        ]
        for start, limit in zip(starts, [*starts[1:], len(rows)], strict=True):
            some = [name for name, _, _ in rows[start:limit]]
            paths = b"".join(path_of(name) + b"\0" for name in some)
            at = self.add(paths)
            self.add(_columns(some))
            found.append([start, at, len(paths), len(some)])
        return found

    def sealed(self, head: dict[str, Any]) -> bytes:
        """All of it."""
        text = json.dumps(head, separators=(",", ":")).encode()
        zeros = bytes(-(HEAD.size + len(text)) % 8)
        rest = HEAD.pack(MAGIC, 0, len(text))[SUMMED_AT:] + text + zeros + b"".join(self._pieces)
        return HEAD.pack(MAGIC, xxhash.xxh3_64_intdigest(rest), 0)[:SUMMED_AT] + rest


def _columns(names: Sequence[bytes]) -> bytes:
    """The words of files, column by column, from their names."""
    raw = b"".join(name[-STAMP.size :] for name in names)
    size, written_ns, changed_ns, inode = np.frombuffer(raw, "<i8").reshape(-1, 4).T
    changed, written = divmod(changed_ns, stamps.SECOND_NS), divmod(written_ns, stamps.SECOND_NS)
    return np.stack([inode, size, *changed, *written]).astype("<i8").tobytes()


def has_telling_folders(root: str) -> bool:
    """Whether a tree lies, whole, on a file system whose folders tell that their names changed.

    Those of the network, and others that may answer from memory, are not asked to.
    """
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return False
    kind, best = "", ""
    for line in lines:
        # The place where it is mounted is the fifth field; the kind follows a lone dash.
        place = line[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n")
        place = place.replace("\\134", "\\")
        if os.path.commonpath([root, place]) == root and place != root:
            return False  # Something else is mounted within the tree.
        if os.path.commonpath([root, place]) == place and len(place) >= len(best):
            kind, best = line[line.index("-") + 1], place
    return kind in PLAIN
