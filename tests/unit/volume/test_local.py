"""The local half of a volume: what snapshots, transactions, publishing and draining promise."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import (
    ContendedError,
    InvalidInputError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.journal import pair
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.volumemodel import (
    PAGE_BYTES,
    ZEROS,
    Version,
    commit,
    page_of,
    seen,
    version_of,
)
from cordwood.volume import writing
from cordwood.volume.local import Local

# EVIDENCE-OF: G-106, G-107, G-108, G-109


@pytest.fixture
def disk():
    """A disk in memory."""
    made = CrashDisk()
    made.mkdir("/v")
    made.fsync_dir("/")
    return made


def opened(disk, **options):
    """A handle."""
    return Local.open(
        "/v/log", PAGE_BYTES, disk=disk, entropy=SeededEntropy(3), **{"switch_pages": 6} | options
    )


def pages_of(version, *numbers):
    """Some pages."""
    return {number: page_of(number, version) for number in numbers}


def test_what_is_not_local_is_asked_of_the_published_version(disk):
    """None below, the page where it was written, zeros behind the end."""
    local = opened(disk)
    local.publish(4, b"h" * 32, 0, 10)
    commit(local, pages_of(1, 2), 10)
    with local.snapshot() as view:
        assert (4, b"h" * 32, 10, 0, 1) == (
            view.lsn,
            view.hash,
            view.page_count,
            view.watermark,
            view.unpushed,
        )
        assert [None, page_of(2, 1), ZEROS] == [view.read(1), view.read(2), view.read(11)]
        with pytest.raises(InvalidInputError, match="counted from 1"):
            view.read(0)


def test_a_snapshot_follows_the_commit_that_was_made_upon_it(disk):
    """Only if that is all: not over another's, one that cut, a switch, a drain, or a version."""
    local, other = opened(disk, switch_pages=20), opened(disk, switch_pages=20)
    commit(local, pages_of(1, 1, 2, 3), 3)
    view = local.snapshot()
    view.close()
    assert view.reopen()
    view.close()
    entry = commit(local, pages_of(2, 2, 4), 4)
    assert not view.reopen()
    assert not view.advance(entry + 1)
    assert view.advance(entry)
    with local.snapshot() as fresh:
        assert (fresh.state, fresh.page_count) == (view.state, view.page_count)
        assert [fresh.read(page) for page in range(1, 6)] == [view.read(p) for p in range(1, 6)]
    view.close()
    for change in (
        lambda: commit(local, pages_of(3, 1), 4, cut=2),
        lambda: local.begin(local.snapshot()).commit(pages_of(3, 2), 4, anew=True),
        lambda: (commit(other, pages_of(4, 1), 4), commit(local, pages_of(5, 1), 4))[1],
        lambda: (local.publish(1, bytes(32), 0, 2), commit(local, pages_of(6, 1), 4))[1],
        lambda: [commit(local, pages_of(n, 1, 2), 4) for n in range(7, 19)][-1],
    ):
        with local.snapshot() as view:
            pass
        assert not view.advance(change())
        assert not view.is_open


def test_shrink_then_grow_reads_zeros(disk):
    """Neither an older local page nor the published one comes back."""
    local = opened(disk)
    local.publish(1, bytes(32), 0, 9)
    commit(local, pages_of(1, 5), 9)
    commit(local, {}, 3)
    commit(local, pages_of(2, 7), 9)
    with local.snapshot() as view:
        assert [None, ZEROS, ZEROS, page_of(7, 2), ZEROS] == [
            view.read(number) for number in (3, 4, 5, 7, 9)
        ]
        assert 3 == view.cut
        assert [7] == view.overlay()[0].tolist()


def test_a_deeper_cut_hides_an_earlier_one(disk):
    """However many there are, and after they have been packed together."""
    local = opened(disk, switch_pages=1000)
    version = Version()
    for number in range(1, 300):
        count = 20 + number * 7 % 13
        pages = pages_of(number, count)
        commit(local, pages, count, number % 5 + 8)
        version = version.changed(pages, count, number % 5 + 8)
    state = local.control.read()
    assert state.cuts_limit - state.cuts_start < 140
    for handle in (local, opened(disk)):
        with handle.snapshot() as view:
            assert version.same_as(seen(view, {0: Version()}))


def test_the_place_of_cuts_is_used_again(disk):
    """When all are published, the next ones begin in front; older snapshots keep theirs."""
    local = opened(disk, switch_pages=1 << 20)
    commit(local, pages_of(1, 1, 9), 9)
    state = local.control.read()
    local.control.publish(state._replace(cuts_start=5000, cuts_limit=5000))
    commit(local, {}, 4)
    old = local.snapshot()
    local.publish(1, bytes(32), old.entry, 4, own=True)
    state = local.control.read()
    assert (0, 0, 1) == (state.cuts_start, state.cuts_limit, state.cuts_round)
    commit(local, {}, 2)
    commit(local, {}, 9)
    assert (4, 9, 2) == (old.cut, local.snapshot().page_count, local.snapshot().cut)


def test_a_reader_that_stays_keeps_the_writer_in_one_file(disk):
    """The writer goes on appending; when the reader is gone, the files take turns again."""
    local, other = opened(disk), opened(disk)
    for version in range(8):
        commit(local, pages_of(version, 1, 2), 9)
    view = other.snapshot()
    was = seen(view, {0: Version()})
    for version in range(8, 40):
        commit(local, pages_of(version, 1, version % 9 + 1), 9)
        assert was.same_as(seen(view, {0: Version()}))
    stuck = local.control.read()
    assert stuck.sequence <= view.state.sequence + 1
    assert local.wal_bytes() > 24 * 2 * PAGE_BYTES
    view.close()
    for version in range(40, 60):
        commit(local, pages_of(version, 1), 9)
    assert local.control.read().sequence > stuck.sequence + 1
    assert local.wal_bytes() < 24 * 2 * PAGE_BYTES


def test_one_writes_at_a_time(disk):
    """The second is refused at once, in the same handle or another; so is an old snapshot."""
    local, other = opened(disk), opened(disk)
    mine, theirs = local.snapshot(), other.snapshot()
    transaction = local.begin(mine)
    for handle, view in ((local, mine), (other, theirs)):
        with pytest.raises(ContendedError, match="another transaction writes"):
            handle.begin(view)
    assert 1 == transaction.commit(pages_of(1, 1), 1)
    with pytest.raises(ContendedError, match="has changed since the snapshot"):
        other.begin(theirs)
    with pytest.raises(StateError, match="is over"):
        transaction.commit({}, 3)
    assert 2 == commit(other, pages_of(2, 1), 1)


def test_a_rollback_leaves_nothing(disk):
    """Nor does a transaction that is dropped, or that may not be committed."""
    local = opened(disk)
    with local.snapshot() as view:
        local.begin(view).rollback()
        local.begin(view)
        with pytest.raises(InvalidInputError, match="page 1 has 3 bytes"):
            local.begin(view).commit({1: b"abc"}, 1)
        with pytest.raises(InvalidInputError, match="not among the 2"):
            local.begin(view).commit(pages_of(1, 3), 2)
        with pytest.raises(InvalidInputError, match="too many"):
            local.begin(view).commit({}, 1 << 32)
        assert 0 == local.begin(view).commit({}, 0)
    with local.snapshot() as view:
        assert (0, 0) == (view.entry, view.page_count)


def test_a_head_that_moves_makes_old_snapshots_unfit_to_write_upon(disk):
    """Unless it only moved by a push of what was there."""
    local = opened(disk)
    commit(local, pages_of(1, 1), 1)
    view = local.snapshot()
    local.publish(1, bytes(32), 1, 1, own=True)
    local.begin(view).rollback()
    local.publish(2, bytes(32), 1, 5)
    with pytest.raises(ContendedError):
        local.begin(view)
    assert (5, 0) == (local.snapshot().page_count, local.snapshot().unpushed)
    assert page_of(1, 1) == view.read(1)


def test_what_may_be_published(disk):
    """The watermark never goes back, nor behind the last entry."""
    local = opened(disk)
    commit(local, pages_of(1, 1, 2), 2)
    local.publish(1, bytes(32), 2, 2)
    for watermark in (1, 3):
        with pytest.raises(InvalidInputError, match="watermark cannot be"):
            local.publish(2, bytes(32), watermark, 2)


def test_a_count_of_its_own_over_another_version(disk):
    """Local commits moved onto another version keep the count that is given, also when reopened."""
    local = opened(disk)
    commit(local, pages_of(1, 1), 4)
    local.publish(3, bytes(32), 0, 20, local_page_count=20)
    local.close()
    with opened(disk) as local, local.snapshot() as view:
        assert (3, 20, 1) == (view.lsn, view.page_count, view.unpushed)


def test_a_commit_that_nobody_was_told_of_does_not_come_back_over_another_version(disk):
    """A writer dies after its sync. The head moves. Its commit was made on what is gone."""
    local, other = opened(disk), opened(disk)
    commit(local, pages_of(1, 1), 3)
    publish = local.control.publish
    local.control.publish = lambda state: (_ for _ in ()).throw(PowerCut)
    with pytest.raises(PowerCut):
        commit(local, pages_of(2, 1, 2), 3)
    local.control.publish = publish
    local.locks.close()
    with other.snapshot() as view:
        assert page_of(1, 1) == view.read(1)
    other.discard(7, bytes(32), 3)
    found = disk.power_cut(SeededEntropy(1))
    with opened(found) as local, local.snapshot() as view:
        assert (7, 0, None) == (view.lsn, view.unpushed, view.read(1))


def test_a_full_disk(disk):
    """The transaction fails, nothing has changed, and with room it goes on."""
    local = opened(disk)
    commit(local, pages_of(1, 1), 3)
    for step in range(1, 8):
        disk.fail(step, errno.ENOSPC)
        with pytest.raises((StoreError, UncertainError)) as refused:
            commit(local, pages_of(9, 1, 2), 3)
        if isinstance(refused.value, UncertainError):
            break
        assert "store_full" == refused.value.code
        with local.snapshot() as view:
            assert [page_of(1, 1), None] == [view.read(1), view.read(2)]
    assert 1 < step
    local.close()
    local = opened(disk)
    commit(local, pages_of(3, 2), 3)
    with local.snapshot() as view:
        assert page_of(2, 3) == view.read(2)


def test_a_commit_that_failed_is_not_there_later(disk):
    """Its frame may have been whole already, and only the zeros ahead of it did not fit."""
    local = opened(disk)
    disk.fail(3, errno.ENOSPC)
    with pytest.raises(StoreError):
        commit(local, pages_of(1, 1), 1)
    assert 64 == disk.stat("/v/log/wal/wal0.wal").size_bytes
    local.close()
    with opened(disk) as local, local.snapshot() as view:
        assert 0 == view.entry


def test_a_snapshot_that_is_overtaken_starts_over(disk):
    """The files are exchanged between its first look and its lock: it must not hold the old one."""
    local, other = opened(disk), opened(disk)
    for version in range(3):
        commit(other, pages_of(version, 1, 2, 3), 9)
    share, calls = local.locks.try_share, []

    def overtaken(name):
        calls.append(name)
        if len(calls) == 1:
            for version in range(3, 12):
                commit(other, pages_of(version, 1, 2, 3), 9)
        return share(name)

    local.locks.try_share = overtaken
    view = local.snapshot()
    assert len(calls) > 1
    for version in range(12, 30):
        commit(other, pages_of(version, 1, 2, 3), 9)
        assert [page_of(number, 11) for number in (1, 2, 3)] == [view.read(n) for n in (1, 2, 3)]


def test_threads_that_share_a_handle(tmp_path):
    """One writes at a time, all see whole versions, and no commit is lost."""
    local = Local.open(str(tmp_path / "v"), PAGE_BYTES, switch_pages=16)
    wrong, made = [], []

    def work(_):
        while len(made) < 60:
            with local.snapshot() as view:
                pages = [view.read(number) for number in (1, 2, 3)]
                version = version_of(pages[0])
                expected = [page_of(n, version) if version else ZEROS for n in (1, 2, 3)]
                if pages != expected:
                    wrong.append(version)
                try:
                    local.begin(view).commit(pages_of(version + 1, 1, 2, 3), 3)
                    made.append(version + 1)
                except ContendedError:
                    local.drain()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert [] == wrong
    assert sorted(set(made)) == sorted(made) == list(range(1, len(made) + 1))
    local.close()


def test_a_sync_that_failed_stops_all_who_write(disk):
    """In every handle, until all are closed; readers go on."""
    local, other = opened(disk), opened(disk)
    commit(local, pages_of(1, 1), 1)
    local.control.poison()
    with other.snapshot() as view:
        assert page_of(1, 1) == view.read(1)
        with pytest.raises(StateError, match="close the volume everywhere"):
            other.begin(view)
    with pytest.raises(StateError):
        other.publish(1, bytes(32), 1, 1)
    local.close()
    with pytest.raises(StateError):
        commit(opened(disk), {}, 2)
    other.close()


def test_a_sync_that_failed_is_remembered_by_the_recovery(disk):
    """It writes the last frame once more, and then all may write."""
    local = opened(disk)
    commit(local, pages_of(1, 1), 1)
    local.control.poison()
    local.close()
    seen_by = []
    with pytest.MonkeyPatch.context() as patch:
        recover = pair.recover
        patch.setattr(pair, "recover", lambda *a, **k: (seen_by.append(k), recover(*a, **k))[1])
        local = opened(disk)
        commit(local, pages_of(2, 1), 1)
        local.close()
        opened(disk).close()
    assert [{"suspect": True}, {"suspect": False}] == seen_by


def test_pages_of_another_size_are_refused(disk):
    """By who recovers, and by who joins."""
    local = opened(disk)
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="keeps pages of 512 bytes, not of 1024"):
            Local.open("/v/log", 1024, disk=disk)
        local.close()
    for size in (0, 100, 256, 1 << 17):
        with pytest.raises(InvalidInputError, match="a power of two"):
            Local.open("/v/log", size, disk=disk)


def test_what_is_closed(disk):
    """Handles, snapshots and transactions say so."""
    local = opened(disk)
    view = local.snapshot()
    view.close()
    view.close()
    for use in (lambda: view.read(1), view.overlay, lambda: local.begin(view)):
        with pytest.raises(StateError, match="is closed"):
            use()
    view = local.snapshot()
    local.close()
    local.close()
    for use in (local.snapshot, local.drain, local.reclaim, local.wal_bytes, lambda: view.read(1)):
        with pytest.raises(StateError, match="is closed"):
            use()


def test_a_forked_child_opens_its_own(tmp_path):
    """What it inherited refuses, and takes no lock from its parent, nor keeps one."""
    local = Local.open(str(tmp_path / "v"), PAGE_BYTES)
    commit(local, pages_of(1, 1), 1)
    view = local.snapshot()
    transaction = local.begin(view)
    child = os.fork()
    if not child:
        refused = 0
        for use in (local.snapshot, lambda: view.read(1), lambda: transaction.commit({}, 2)):
            try:
                use()
            except StateError as error:
                refused += "fork" in str(error)
        local.close()
        os._exit(refused)
    assert 3 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    other = Local.open(str(tmp_path / "v"), PAGE_BYTES)
    with other.snapshot() as theirs, pytest.raises(ContendedError):
        other.begin(theirs)
    assert 2 == transaction.commit(pages_of(2, 1), 1)
    assert page_of(1, 1) == view.read(1)
    local.close()
    other.close()


def test_on_a_real_disk(tmp_path):
    """Two handles, many commits, drains and reopenings; what is drained and published is freed."""
    chance = np.random.default_rng(5)
    folder = str(tmp_path / "a" / "v")
    first = Local.open(folder, PAGE_BYTES, switch_pages=8)
    second = Local.open(folder, PAGE_BYTES, switch_pages=8)
    version = Version()
    for number in range(60):
        count = int(chance.integers(1, 5000))
        pages = pages_of(number, *set(chance.integers(1, count + 1, 3).tolist()))
        commit((first, second)[number % 2], pages, count)
        version = version.changed(pages, count, None)
    for local in (first, second):
        with local.snapshot() as view:
            for page in version.pages:
                assert version.read(page) == (view.read(page) or ZEROS)
    with first.snapshot() as view:
        first.publish(1, bytes(32), view.entry, view.page_count, own=True)
        assert 0 == second.reclaim()
    assert second.reclaim() > 0
    commit(first, pages_of(99, 1), 3)
    with second.snapshot() as view:
        assert [page_of(1, 99), None] == [view.read(1), view.read(2)]
    first.close()
    second.close()


def test_a_base_with_a_page_that_is_not_published_is_kept(disk):
    """Reclaiming waits for the last one; then nothing is left, and nothing is missed."""
    local = opened(disk)
    for version in range(8):
        commit(local, pages_of(version, 1, version + 2), 9)
    while local.control.drained < local.control.read().sequence:
        assert local.drain()
    drained = local.control.read().idle_entry
    local.publish(1, bytes(32), drained - 1, 9, own=True)
    assert 0 == local.reclaim()
    with local.snapshot() as view:
        assert drained in view.overlay()[1].tolist() or view.read(1) is not None
    local.publish(2, bytes(32), drained, 9, own=True)
    assert local.reclaim() > 0
    assert 0 == local.reclaim()


def test_a_head_that_a_dead_process_had_begun_to_move(disk):
    """Others commit upon the old one; it is put back before, or pages of both would be mixed."""
    local, other = opened(disk), opened(disk)
    commit(local, pages_of(1, 1, 2), 3)
    save = local.save_head
    local.save_head = lambda head: (save(head), (_ for _ in ()).throw(PowerCut))
    with pytest.raises(PowerCut):
        local.discard(5, bytes(32), 3)
    local.locks.close()
    commit(other, pages_of(2, 3), 3)
    other.close()
    with opened(disk) as local, local.snapshot() as view:
        assert (0, [page_of(1, 1), page_of(2, 1), page_of(3, 2)]) == (
            view.lsn,
            [view.read(number) for number in (1, 2, 3)],
        )


def test_numbers_of_a_published_commit_are_not_used_again(disk):
    """Its frame is damaged, and looks torn; what comes next is still newer than the watermark."""
    local = opened(disk)
    commit(local, pages_of(1, 1, 2), 2)
    local.publish(1, bytes(32), 2, 2, own=True)
    local.close()
    disk.overwrite("/v/log/wal/wal0.wal", b"rot", 200)
    local = opened(disk)
    assert 3 == commit(local, pages_of(2, 1), 2)
    for handle in (local, opened(disk)):
        with handle.snapshot() as view:
            assert [page_of(1, 2), None] == [view.read(1), view.read(2)]


def test_a_dead_writers_entries_are_taken_back(disk):
    """They are in the table, and nobody sees them; the next commit has their numbers."""
    local, other = opened(disk), opened(disk)
    commit(local, pages_of(1, 1, 2), 2)
    state = local.control.read()
    table = local.tables[0]
    table.add(4, [1, 3], 7, 7, [7, 7])
    local.control.begin_writing(state)
    with other.snapshot() as view:
        assert page_of(1, 1) == view.read(1)
    assert 3 == commit(other, pages_of(2, 2), 2)
    assert [0, 1, 3, 0] == table.cells[:4].tolist()
    assert 0 == table.entries["page"][4]


def test_a_transaction_that_is_too_large(disk, monkeypatch):
    """Is refused before anything is written."""
    monkeypatch.setattr(writing, "TRANSACTION_BYTES_MAX", 1024)
    local = opened(disk)
    with pytest.raises(Exception, match="at most 2 pages"):
        commit(local, pages_of(1, 1, 2, 3), 3)
