"""Tables that another process made longer: who clears or takes back must see all of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from cordwood.testing.crashdisk import PowerCut
from cordwood.testing.volumemodel import PAGE_BYTES, commit, page_of
from cordwood.volume.local import Local
from cordwood.volume.locks import need

# EVIDENCE-OF: G-107, G-108

MANY = 3000
"""Entries of a file that are more than a table has room for when it is made."""


@pytest.fixture
def handles(tmp_path):
    """Two handles, as of two processes, on one directory."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(Local.open(str(tmp_path / "v"), PAGE_BYTES, switch_pages=6))
            for _ in range(2)
        ]


def pages_from(first, version, count=MANY):
    """Pages that follow one another."""
    return {number: page_of(number, version) for number in range(first, first + count)}


def leave_drained(local, other):
    """Drain the idle file by one handle, and leave its reuse to the other: somebody reads it."""
    with other.snapshot():
        commit(local, pages_from(1, 2, 8), local.control.read().page_count)
    state = local.control.read()
    assert (1, 1) == (state.sequence, local.control.drained)


def test_who_uses_a_file_again_forgets_all_of_it(handles):
    """The table was made longer, and the file drained, by the other one."""
    local, other = handles
    commit(local, pages_from(1, 1), 3 * MANY)
    leave_drained(local, other)
    commit(other, {1: page_of(1, 3)}, 3 * MANY)
    assert 2 == other.control.read().sequence
    commit(local, pages_from(MANY + 1, 4), 3 * MANY)
    for handle in handles:
        with handle.snapshot() as view:
            assert [page_of(n, 1) for n in (9, MANY)] == [view.read(n) for n in (9, MANY)]
            assert page_of(2 * MANY, 4) == view.read(2 * MANY)


def test_who_uses_a_file_again_forgets_pages_behind_the_end(handles):
    """The volume was longer than the other one ever saw, and is short again."""
    local, other = handles
    commit(local, {20_000: page_of(20_000, 1)} | pages_from(1, 1, 8), 20_000)
    commit(local, {}, 10)
    leave_drained(local, other)
    commit(other, {1: page_of(1, 3)}, 10)
    assert 2 == other.control.read().sequence
    assert 0 == local.tables[0].cells[20_000]


def test_who_takes_back_a_dead_writers_entries_sees_all_of_them(handles):
    """There are more than the table had room for."""
    local, other = handles
    commit(local, {1: page_of(1, 1)}, 3 * MANY)
    local.control.publish = lambda state: (_ for _ in ()).throw(PowerCut)
    with pytest.raises(PowerCut):
        commit(local, pages_from(1, 2), 3 * MANY)
    local.locks.close()
    commit(other, {2: page_of(2, 3)}, 3 * MANY)
    commit(other, pages_from(MANY + 1, 4), 3 * MANY)
    with other.snapshot() as view:
        assert [page_of(1, 1), page_of(2, 3)] == [view.read(1), view.read(2)]
        assert [None, None] == [view.read(MANY - 1), view.read(MANY)]


def test_a_reader_that_comes_while_a_switch_is_cut_off(handles):
    """It was about to need the idle file, which was drained, cut short, and not yet in use."""
    local, other = handles
    commit(local, pages_from(1, 1, 40), 50)
    share, begun = other.locks.try_share, []

    def late(name):
        other.locks.try_share = share
        assert local.drain()
        local.tables[0].clear = lambda last: (_ for _ in ()).throw(PowerCut)
        with pytest.raises(PowerCut):
            commit(local, pages_from(1, 2, 10), 50)
        local.locks.close()
        begun.append(name)
        return share(name)

    other.locks.try_share = late
    with other.snapshot() as view:
        assert page_of(40, 1) == view.read(40)
        assert page_of(1, 2) == view.read(1)
    assert [need(1, full=True)] == begun


def test_pages_of_the_highest_numbers(handles, monkeypatch):
    """All between them are holes, and are passed over: the map alone would be 64 GiB long."""
    local, other = handles
    last = (1 << 32) - 1
    for version in range(1, 4):
        commit(local, {n: page_of(n, version) for n in (1, 1 << 31, last)}, last)
        commit(local, pages_from(2, version, 8), last)
    while local.control.drained < local.control.read().sequence:
        assert local.drain()
    looks, file = [], other.base._map_file
    found = file.written_from
    monkeypatch.setattr(file, "written_from", lambda at: looks.append(at) or found(at))
    with other.snapshot() as view:
        assert [*range(1, 10), 1 << 31, last] == view.overlay()[0].tolist()
        assert [page_of(n, 3) for n in (1, 1 << 31, last)] == [
            view.read(n) for n in (1, 1 << 31, last)
        ]
        assert view.read(7) == page_of(7, 3)
        assert view.read(10) is None
    assert 3 <= len(looks) <= 5
