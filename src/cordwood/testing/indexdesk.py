"""An index in a process of its own, driven from another by calls through a pipe.

What is open there (transactions, snapshots, merges) stays there and is named by numbers. So a test
holds several handles in several processes, and may kill one in the middle of a call.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from cordwood.index.draft import Draft
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder
from cordwood.index.home import Files
from cordwood.index.query import Query
from cordwood.index.snapshot import Snapshot

Answers = tuple[list[set[bytes]], list[list[tuple[bytes, float]]], int]


def asked(snapshot: Snapshot, queries: Sequence[Query], ranked: int) -> Answers:
    """What a snapshot answers: to the first `ranked` queries also in order."""
    hits = [snapshot.search(query, 3) for query in queries[:ranked]]
    return (
        [set(snapshot.match(query)) for query in queries],
        [[(one, round(score, 4)) for one, score in found] for found in hits],
        snapshot.documents,
    )


class Desk:
    """An engine, and what is open in it."""

    def __init__(self, root: str) -> None:
        """Open an index in a folder."""
        self.engine = Engine(Folder(root))
        self._open: list[Any] = []

    def _keep(self, one: Any) -> int:
        self._open.append(one)
        return len(self._open) - 1

    def create(self) -> None:
        """Make it."""
        self.engine.create("whitespace", frequencies=True, exist_ok=False)

    def begin(self) -> int:
        """A transaction."""
        return self._keep(Writing(self.engine))

    def add(self, work: int, user_id: bytes, text: str) -> None:
        """A document more in it."""
        self._open[work].add([user_id], [text])

    def delete(self, work: int, user_id: bytes) -> None:
        """All documents of an id less."""
        self._open[work].delete([user_id])

    def commit(self, work: int) -> None:
        """It counts."""
        self._open[work].commit()

    def roll_back(self, work: int) -> None:
        """It does not."""
        self._open[work].roll_back()

    def take(self) -> int:
        """A snapshot that stays open."""
        opened = self.engine.visiting()
        return self._keep((opened, opened.__enter__()[1]))

    def ask(self, taken: int, queries: Sequence[Query], ranked: int) -> Answers:
        """What it answers."""
        return asked(self._open[taken][1], queries, ranked)

    def drop(self, taken: int) -> None:
        """Close it."""
        self._open[taken][0].__exit__(None, None, None)

    def newest(self, queries: Sequence[Query], ranked: int) -> Answers:
        """What the index answers now."""
        return asked(self.engine.newest(), queries, ranked)

    def start_merge(self) -> int | None:
        """Permission to merge up to three segments; None if there are none."""
        opened = self.engine.visiting()
        visit, snapshot = opened.__enter__()
        busy = visit.state.merging()
        views = [view for view in snapshot.views if view.segment.number not in busy][:3]
        if not views:
            opened.__exit__(None, None, None)
            return None
        numbers = tuple(view.segment.number for view in views)
        started = self.engine.home.commit(visit, Draft(start=numbers), Files({}, {}))
        return self._keep((opened, visit, views, started))

    def end_merge(self, merge: int) -> None:
        """Do it."""
        opened, visit, views, started = self._open[merge]
        self.engine._merge(visit, views, started)  # noqa: SLF001 - its second half
        opened.__exit__(None, None, None)

    def merge(self) -> int:
        """All that nobody is merging."""
        return self.engine.merge(tiered=False)

    def compact(self) -> None:
        """What no handle needs goes."""
        self.engine.compact()

    def check(self) -> tuple[str, ...]:
        """What is wrong."""
        return self.engine.check().errors


def serve(pipe: Connection) -> None:
    """Do what is asked through the pipe, until it is closed. The first thing asked is the index."""
    desk: Any = None
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        try:
            if name == "open":
                desk, found = Desk(*args), None
            else:
                found = getattr(desk, name)(*args)
            pipe.send((True, found))
        except Exception as error:  # noqa: BLE001 - it is told to who asked
            pipe.send((False, error))


class Worker:
    """A process with a desk, seen from outside."""

    def __init__(self) -> None:
        """Start it: quickly, from a process that has loaded everything already."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, name: str, *args: Any) -> Any:
        """Ask for something, and wait for the answer; its error is raised here."""
        self.send(name, *args)
        is_done, found = self._pipe.recv()
        if not is_done:
            raise found
        return found

    def send(self, name: str, *args: Any) -> None:
        """Ask, without waiting."""
        self._pipe.send((name, args))

    def kill(self) -> None:
        """SIGKILL, at whatever it is doing."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
