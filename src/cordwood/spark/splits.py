"""Splits: which part of a log one task reads, and how a log is cut into them.

A split is a run of neighbouring pointers, fragments or nodes above them, with about as many bytes
as every other. It holds all that a task needs, so that a task reads no manifest: it sees the log as
it was when the read was planned. Splits lie in the order of the log.

What travels is small: some two hundred bytes for a fragment, and one node stands for many.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from pyspark.sql.datasource import InputPartition

from cordwood.log.format import Ancestor, Fragment, NodePointer
from cordwood.log.objects import LogObjects
from cordwood.store.url import Store

SPLIT_BYTES_MIN = 32 * 2**20
"""A read that keeps not even one core busy is not cut finer than this: a task costs 10 ms."""

Pointer = NodePointer | Fragment


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """The pin that keeps a read's files, for the tasks that renew it."""

    name: str
    ttl_s: int
    planned_us: int
    """When the driver last renewed it, by its clock."""


class Work(msgspec.Struct, frozen=True, array_like=True):
    """One task's part of a log."""

    store: str
    log: str
    ancestors: tuple[Ancestor, ...]
    begin: int
    end: int
    """Only records of `[begin, end)` count."""
    nodes: tuple[NodePointer, ...]
    fragments: tuple[Fragment, ...]
    hold: Hold | None

    @property
    def pointers(self) -> list[Pointer]:
        """Where the records lie, in the order of the log."""
        return sorted((*self.nodes, *self.fragments), key=lambda pointer: pointer.start)

    def objects(self, store: Store) -> LogObjects:
        """The log's objects, by a store that is open."""
        return LogObjects(store, self.log, self.ancestors)


class Split(InputPartition):
    """What Spark carries to a task."""

    def __init__(self, work: Work) -> None:
        """Packed at once: it is pickled for every task."""
        super().__init__(msgspec.msgpack.encode(work))

    @property
    def work(self) -> Work:
        """What is to be read."""
        return msgspec.msgpack.decode(self.value, type=Work)


def pack(pointers: Sequence[Pointer], split_bytes: int) -> list[list[Pointer]]:
    """Runs of neighbours of about the same size, as few as `split_bytes` allows.

    A small log gives every core of this machine something to do, if that is worth a task.
    """
    total = sum(pointer.num_bytes for pointer in pointers)
    fewest = -(-total // split_bytes)
    worthwhile = min(os.cpu_count() or 1, -(-total // min(SPLIT_BYTES_MIN, split_bytes)))
    count = max(1, fewest, worthwhile)
    runs: list[list[Pointer]] = [[]]
    done = 0
    for pointer in pointers:
        # The middle of what is next decides: a run ends where it is nearest to its share.
        if runs[-1] and done + pointer.num_bytes / 2 > total * len(runs) / count:
            runs.append([])
        runs[-1].append(pointer)
        done += pointer.num_bytes
    return [run for run in runs if run]
