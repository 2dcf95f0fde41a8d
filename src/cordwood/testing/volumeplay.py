"""A short life of a volume's directory, to be stopped at any step.

It commits, switches, drains, publishes, discards and reclaims, and knows at each moment which
version was acknowledged, and which one it was about to make.
"""

from __future__ import annotations

from collections.abc import Callable

from cordwood.base.clock import SeededEntropy
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.volumemodel import PAGE_BYTES, Version, commit, page_of, pushed, seen
from cordwood.volume.local import Local

FOLDER = "/v/log"


def opened(disk: CrashDisk, seed: int = 7) -> Local:
    """A handle whose files are soon full."""
    entropy = SeededEntropy(seed)
    return Local.open(FOLDER, PAGE_BYTES, disk=disk, entropy=entropy, switch_pages=5)


class Play:
    """One life, as far as it came."""

    def __init__(self, disk: CrashDisk) -> None:
        """Nothing happened yet."""
        self.disk = disk
        self.local: Local | None = None
        self.published = {0: Version()}
        self.now = Version()
        """What was acknowledged."""
        self.then = Version()
        """What was about to be, or the same."""
        self.version = 0

    def steps(self) -> list[Callable[[], object]]:
        """What is done, one after the other; a step that fails may be done again."""
        first: list[Callable[[], object]] = [self.open]
        filled = [lambda n=n: self.commit({n % 7 + 1, 3}, 8) for n in range(7)]
        return [
            *first,
            *filled,
            self.drain,
            lambda: self.commit({2, 9}, 9, cut=1),
            self.push,
            lambda: self.commit(set(), 4),
            *filled[:4],
            self.drain,
            self.take_theirs,
            self.reclaim,
            *filled[:3],
            self.push,
            self.reclaim,
            lambda: self.commit({5}, 8),
        ]

    def run(self) -> None:
        """All of it."""
        for step in self.steps():
            step()

    def open(self) -> None:
        """Open the directory."""
        self.local = opened(self.disk)

    def handle(self) -> Local:
        """The one that is open."""
        assert self.local is not None
        return self.local

    def commit(self, numbers: set[int], count: int, cut: int | None = None) -> None:
        """One transaction."""
        self.version += 1
        pages = {number: page_of(number, self.version) for number in numbers}
        self.then = self.now.changed(pages, count, cut)
        commit(self.handle(), pages, count, cut)
        self.now = self.then

    def push(self) -> None:
        """Publish what is there."""
        local = self.handle()
        with local.snapshot() as view:
            lsn = max(self.published) + 1
            self.published[lsn] = pushed(view, self.published)
            local.publish(lsn, bytes(32), view.entry, view.page_count, own=True)

    def take_theirs(self) -> None:
        """Somebody else's version instead of what is here."""
        lsn = max(self.published) + 1
        self.version += 1
        theirs = {4: page_of(4, self.version), 11: page_of(11, self.version)}
        self.published[lsn] = self.then = Version(theirs, 11)
        self.handle().discard(lsn, bytes(32), 11)
        self.now = self.then

    def drain(self) -> None:
        """Bring the idle file into the base."""
        self.handle().drain()

    def reclaim(self) -> None:
        """Give back the room of what is published."""
        self.handle().reclaim()

    def check(self, local: Local) -> None:
        """What a handle shows was acknowledged, or was about to be: wholly one of them."""
        with local.snapshot() as view:
            shown = seen(view, self.published)
            assert shown.same_as(pushed(view, self.published))
            assert shown.same_as(self.now) or shown.same_as(self.then)
            self.now = self.then = shown

    def go_on(self, local: Local) -> None:
        """The handle works: several commits, and switches, and all is as it should be."""
        self.local = local
        for number in range(1, 9):
            self.commit({number, 1}, 9)
        self.push()
        local.drain()
        self.commit({3}, 3)
        self.check(local)
        assert self.now.same_as(self.then)
