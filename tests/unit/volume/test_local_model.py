"""The local half of a volume against plain dictionaries: two handles, any order of everything."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import ContendedError
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.volumemodel import PAGE_BYTES, Version, page_of, pushed, seen
from cordwood.volume.local import Local

NUMBERS = st.integers(1, 12)
HANDLES = st.integers(0, 1)


class Machine(RuleBasedStateMachine):
    """Two handles on one directory, snapshots that stay open, and a remote side that moves."""

    @initialize()
    def start(self):
        """An empty volume."""
        self.disk = CrashDisk()
        self.handles = [self.opened(), self.opened()]
        self.published = {0: Version()}
        self.now = Version()
        self.version = 0
        self.views = []

    def opened(self):
        """Another handle, with files that are soon full."""
        return Local.open(
            "/v/log", PAGE_BYTES, disk=self.disk, entropy=SeededEntropy(1), switch_pages=6
        )

    @rule(handle=HANDLES, numbers=st.sets(NUMBERS, max_size=4), count=st.integers(0, 12))
    def commit(self, handle, numbers, count):
        """Write some pages, and make the volume shorter or longer."""
        self.change(handle, numbers, count, None)

    @rule(handle=HANDLES, numbers=st.sets(NUMBERS, max_size=3), cut=st.integers(0, 12))
    def shrink_and_grow(self, handle, numbers, cut):
        """What was behind the shortest end is zeros, unless the transaction wrote it."""
        self.change(handle, numbers, 12, cut)

    @rule(handle=HANDLES, first=NUMBERS)
    def fill(self, handle, first):
        """So many commits that the file is left for the other one, unless a reader needs that."""
        for number in range(first, first + 5):
            self.change(handle, {number % 12 + 1}, 12, None)

    def change(self, handle, numbers, count, cut):
        self.version += 1
        pages = {n: page_of(n, self.version) for n in numbers if n <= count}
        local = self.handles[handle]
        with local.snapshot() as view:
            local.begin(view).commit(pages, count, cut)
        self.now = self.now.changed(pages, count, cut)

    @rule(handle=HANDLES)
    def snapshot(self, handle):
        """Stays open, and must stay as it is."""
        if len(self.views) < 4:
            self.views.append((self.handles[handle].snapshot(), self.now))

    @rule(which=st.integers(0, 3))
    def close_snapshot(self, which):
        """Whatever it held is free."""
        if which < len(self.views):
            self.views.pop(which)[0].close()

    @rule(handle=HANDLES)
    def drain(self, handle):
        """Whether or not a reader is in the way."""
        self.handles[handle].drain()

    @rule(handle=HANDLES)
    def reclaim(self, handle):
        """Only when everything is published, and nobody reads."""
        freed = self.handles[handle].reclaim()
        assert not (freed and self.views)

    @rule(handle=HANDLES)
    def push(self, handle):
        """The newest snapshot becomes a published version."""
        with self.handles[handle].snapshot() as view:
            self.publish(handle, view)

    @rule(handle=HANDLES)
    def push_late(self, handle):
        """An older snapshot becomes one; commits since then stay over it."""
        for view, _ in self.views:
            if view.lsn == max(self.published) and view.epoch == self.epoch(handle):
                self.publish(handle, view)
                return

    def epoch(self, handle):
        with self.handles[handle].snapshot() as view:
            return view.epoch

    def publish(self, handle, view):
        new = pushed(view, self.published)
        assert new.same_as(seen(view, self.published))
        lsn = max(self.published) + 1
        self.published[lsn] = new
        self.handles[handle].publish(lsn, bytes([lsn % 256] * 32), view.entry, new.count, own=True)

    @rule(handle=HANDLES, numbers=st.sets(NUMBERS, max_size=3), count=st.integers(0, 12))
    def take_theirs(self, handle, numbers, count):
        """Somebody else's version instead of what is here."""
        self.version += 1
        lsn = max(self.published) + 1
        pages = {n: page_of(n, self.version) for n in numbers if n <= count}
        self.published[lsn] = self.published[lsn - 1].changed(pages, count, None)
        self.now = self.published[lsn]
        self.handles[handle].discard(lsn, bytes(32), count)

    @rule(handle=HANDLES)
    def reopen(self, handle):
        """One handle closes and opens again; its snapshots go with it."""
        old = self.handles[handle]
        self.views = [(view, was) for view, was in self.views if view._local is not old]
        old.close()
        self.handles[handle] = self.opened()

    @rule()
    def recover(self):
        """All close, and what is shared is made anew."""
        self.views.clear()
        for local in self.handles:
            local.close()
        self.handles = [self.opened(), self.opened()]

    @rule(handle=HANDLES)
    def late_writer(self, handle):
        """Who has an older snapshot may not write upon it."""
        local = self.handles[handle]
        with local.snapshot() as newest:
            for view, _ in self.views:
                is_newest = (view.entry, view.epoch) == (newest.entry, newest.epoch)
                with suppress(ContendedError):
                    local.begin(view).rollback()
                    assert is_newest

    @invariant()
    def everything_is_as_it_was(self):
        """Every snapshot shows its own version, and a new one the newest."""
        for view, was in self.views:
            assert was.same_as(seen(view, self.published))
        for local in self.handles:
            with local.snapshot() as view:
                assert self.now.same_as(seen(view, self.published))
                assert self.now.same_as(pushed(view, self.published))


TestModel = Machine.TestCase
TestModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
