"""Splits: which part of which logs one task reads, and how logs are cut into them.

A split is a run of neighbouring pointers, fragments or nodes above them, with about as many bytes
as every other. It holds all that a task needs, so that a task reads no manifest: it sees the log as
it was when the read was planned. Splits lie in the order of the log; small logs share one.

What travels is small: some two hundred bytes for a fragment, and one node stands for many.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import msgspec
from pyspark.sql.datasource import InputPartition

from cordwood.log.format import Ancestor, Fragment, NodePointer
from cordwood.log.objects import LogObjects
from cordwood.store.url import Store

SPLIT_BYTES_MIN = 32 * 2**20
"""A read that keeps not even one core busy is not cut finer than this: a task costs 10 ms."""

Pointer = NodePointer | Fragment


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """The pin that keeps a read's files."""

    name: str
    ttl_s: int
    planned_us: int
    """When the driver made it, by its clock."""
    by_tasks: bool
    """Whether the tasks are to renew it. What the driver renews, or the user's own, they leave."""


class Work(msgspec.Struct, frozen=True, array_like=True):
    """A part of one log."""

    store: str
    log: str
    ancestors: tuple[Ancestor, ...]
    begin: int
    end: int
    """Only records of `[begin, end)` count."""
    nodes: tuple[NodePointer, ...]
    fragments: tuple[Fragment, ...]
    hold: Hold | None = None
    is_sifted: bool = False
    """Whether one stream is read, and what cannot hold it was left out, and is to be."""

    @property
    def pointers(self) -> list[Pointer]:
        """Where the records lie, in the order of the log."""
        return sorted((*self.nodes, *self.fragments), key=lambda pointer: pointer.start)

    def only(self, pointers: Iterable[Pointer]) -> Work:
        """The same with some of its pointers."""
        chosen = list(pointers)
        return msgspec.structs.replace(
            self,
            nodes=tuple(p for p in chosen if isinstance(p, NodePointer)),
            fragments=tuple(p for p in chosen if isinstance(p, Fragment)),
        )

    def objects(self, store: Store) -> LogObjects:
        """The log's objects, by a store that is open."""
        return LogObjects(store, self.log, self.ancestors)


class Split(InputPartition):
    """What Spark carries to a task."""

    def __init__(self, works: Sequence[Work]) -> None:
        """Packed at once: it is pickled for every task."""
        super().__init__(msgspec.msgpack.encode(works))

    @property
    def works(self) -> list[Work]:
        """What is to be read, in order."""
        return msgspec.msgpack.decode(self.value, type=list[Work])


def cut(works: Sequence[Work], split_bytes: int) -> list[Split]:
    """All of it, cut for tasks."""
    units = [(work, pointer) for work in works for pointer in work.pointers]
    runs = pack([pointer.num_bytes for _, pointer in units], split_bytes)
    return [
        Split([w.only(p for _, p in part) for w, part in groupby(units[run], key=itemgetter(0))])
        for run in runs
    ]


def pack(sizes: Sequence[int], split_bytes: int) -> list[slice]:
    """Runs of neighbours of about the same size, as few as `split_bytes` allows.

    Little data gives every core of this machine something to do, if that is worth a task.
    """
    total = sum(sizes)
    fewest = -(-total // split_bytes)
    worthwhile = min(os.cpu_count() or 1, -(-total // min(SPLIT_BYTES_MIN, split_bytes)))
    count = max(1, fewest, worthwhile)
    starts: list[int] = []
    done = 0
    for i, size in enumerate(sizes):
        # The middle of what is next decides: a run ends where it is nearest to its share.
        if not starts or done + size / 2 > total * len(starts) / count:
            starts.append(i)
        done += size
    return [slice(a, b) for a, b in pairwise([*starts, len(sizes)])]
