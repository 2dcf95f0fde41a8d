"""A journal: what was acknowledged is there, through power cuts, failures, damage and rivals."""

from __future__ import annotations

import errno
from itertools import count

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import CollectedError, CorruptionError, LimitError, StoreError
from cordwood.journal.extent import FRAMES_AT, Extent
from cordwood.journal.journal import WAITS_AT, Journal
from cordwood.journal.reading import Reading
from cordwood.testing.crashdisk import CrashDisk, PowerCut

FOLDER = "/j"
SIZE = 600
"""Of an extent: six or seven small entries fit."""


def made(disk, *, size=SIZE, seed=1):
    """A journal as a process has it that comes to it."""
    return Journal(FOLDER, disk, SYSTEM_CLOCK, SeededEntropy(seed), extent_bytes=size)


def disk_with_folder(model="posix"):
    """A disk with an empty folder."""
    disk = CrashDisk(model)
    disk.mkdir(FOLDER)
    disk.fsync_dir("/")
    return disk


def append(journal, *payloads):
    """All in one turn; the number of the first."""
    with journal.turn() as turn:
        numbers = [turn.append([payload], time_us=5) for payload in payloads]
        turn.sync()
    return numbers[0]


def shortly(journal, payload):
    """The shortest way, where that can be gone; its number."""
    with journal.told("append to"):
        found = journal.append_alone(payload, 5, 0)
    return append(journal, payload) if found is None else found


WAYS = pytest.mark.parametrize("way", [append, shortly])


def read(journal, number=0):
    """All payloads from a number on."""
    reading, found = Reading(journal, number), []
    while frames := reading.take(100):
        found += [bytes(frame.payload) for frame in frames]
    return found


def entries(count):
    """Payloads that differ."""
    return [b"entry %d" % number for number in range(count)]


def test_what_is_appended_is_read_from_any_number_on_over_many_extents():
    """By the one who wrote it, and by one who comes later."""
    disk = disk_with_folder()
    journal = made(disk)
    for place, payload in enumerate(entries(40)):
        assert place == append(journal, payload)
    assert len(journal.bases()) > 4
    for number in range(41):
        assert entries(40)[number:] == read(journal, number)
        assert entries(40)[number:] == read(made(disk), number)


def test_rivals_take_turns():
    """Each sees what the other appended, and nothing is doubled."""
    disk = disk_with_folder()
    one, other = made(disk, seed=1), made(disk, seed=2)
    for place, payload in enumerate(entries(40)):
        assert place == append((one, other)[place % 3 == 0], payload)
    assert entries(40) == read(one) == read(other) == read(made(disk))


def test_what_was_not_synced_is_not_seen():
    """And the next turn takes its place."""
    disk = disk_with_folder()
    journal = made(disk)
    append(journal, b"a")
    with journal.turn() as turn:
        turn.append([b"never"])
    assert [b"a"] == read(journal) == read(made(disk))[:1]
    rival = made(disk_with_folder())
    append(rival, b"a")
    with rival.turn() as turn:
        turn.append([b"never"])
    assert 1 == append(rival, b"b")
    assert [b"a", b"b"] == read(rival)


def test_what_is_not_yet_synced_is_read_only_then_and_survives_who_wrote_it():
    """Also if another one goes on behind it, and if nobody is left who knows of it."""
    disk = disk_with_folder()
    journal, other = made(disk), made(disk, seed=2)
    append(journal, b"a")
    assert [b"a"] == read(other)
    with journal.turn() as turn:
        turn.append([b"b"])
        turn.say()
    assert [b"a"] == read(journal)
    with other.turn() as turn:
        assert 2 == turn.append([b"c"])
        turn.say()
    assert [b"a"] == read(journal)
    with journal.turn() as turn:
        turn.sync()
    assert [b"a", b"b", b"c"] == read(journal) == read(other)
    with other.turn() as turn:
        turn.append([b"d"])
        turn.say()
    assert [b"a", b"b", b"c", b"d"] == read(made(disk, seed=3)) == read(journal)


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_a_power_cut_takes_only_what_was_not_synced(model):
    """And no damage is seen where there is none, whatever of it came through."""
    for seed in range(40):
        disk = disk_with_folder(model)
        journal = made(disk, size=4096)
        append(journal, *entries(3))
        for payload in entries(8)[3:]:
            with journal.turn() as turn:
                turn.append([payload])
                turn.say()
        later = made(disk.power_cut(SeededEntropy(seed)), size=4096, seed=9)
        found = read(later)
        assert found == entries(len(found))
        assert len(found) >= 3
        assert later.damage is None
        assert len(found) == append(later, b"more")


def test_the_shortest_way_is_gone_by_who_meets_nobody():
    """Not the first time, nor when somebody else has appended, waits, or the extent is full."""
    disk = disk_with_folder()
    mine, other = made(disk, size=4096), made(disk, size=4096, seed=2)
    assert mine.append_alone(b"0", 5, 0) is None
    assert 0 == append(mine, b"0")
    assert 1 == mine.append_alone(b"1", 5, 0)
    assert 2 == append(other, b"2")
    assert mine.append_alone(b"3", 5, 0) is None
    assert 3 == append(mine, b"3")
    disk.overwrite(f"{FOLDER}/tail", b"\1", 192)
    assert mine.append_alone(b"4", 5, 0) is None
    disk.overwrite(f"{FOLDER}/tail", b"\0", 192)
    with other.alone():
        assert mine.append_alone(b"4", 5, 0) is None
    assert mine.append_alone(bytes(4000), 5, 0) is None
    with mine.turn() as turn:
        turn.append([b"4"])
        turn.say()  # And does not sync.
    assert mine.append_alone(b"5", 5, 0) is None
    assert 5 == append(mine, b"5")
    assert 6 == mine.append_alone(b"6", 5, 0)
    assert [b"%d" % number for number in range(7)] == read(other) == read(made(disk))


@pytest.mark.parametrize("seed", range(20))
def test_what_failed_stays_away_however_many_come_before_a_power_cut(seed):
    """That it is void was synced, and nobody says it again without a sync."""
    disk = disk_with_folder()
    journal = made(disk)
    append(journal, b"0")
    disk.fail(2, errno.EIO)
    with pytest.raises(StoreError):
        append(journal, b"failed")
    for _ in range(3):
        assert 1 == made(disk).newest().number
    assert [b"0"] == read(made(disk.power_cut(SeededEntropy(seed))))


def test_an_entry_larger_than_an_extent_is_refused():
    """Before anything is written."""
    journal = made(disk_with_folder())
    with journal.turn() as turn, pytest.raises(LimitError, match="does not fit"):
        turn.append([bytes(SIZE)])
    assert 0 == append(journal, bytes(SIZE - FRAMES_AT - 120))


@WAYS
@pytest.mark.parametrize("model", ["posix", "ext4"])
@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_every_step_loses_nothing_acknowledged(model, seed, way):
    """Whatever came through of the rest is a beginning of it."""
    # EVIDENCE-OF: G-88
    disk = disk_with_folder(model)
    before, journal = disk.steps, made(disk)
    for payload in entries(14):
        way(journal, payload)
    for cut in range(disk.steps - before):
        disk = disk_with_folder(model)
        disk.cut_after(cut)
        journal, acknowledged = made(disk), 0
        try:
            for payload in entries(14):
                way(journal, payload)
                acknowledged += 1
        except PowerCut:
            pass
        found_disk = disk.power_cut(SeededEntropy(f"{seed}-{cut}"))
        found = read(made(found_disk, seed=cut))
        assert found == entries(len(found))
        assert acknowledged <= len(found) <= acknowledged + 1
        again = made(found_disk, seed=cut + 1)
        assert len(found) == append(again, b"more")
        assert [*found, b"more"] == read(again) == read(made(found_disk))


@WAYS
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_every_step_loses_nothing_and_is_overcome(number, way):
    """Who was told that it failed appends again, and nothing is doubled that was acknowledged."""
    # EVIDENCE-OF: G-88, G-90
    disk = disk_with_folder()
    before, journal = disk.steps, made(disk)
    for payload in entries(14):
        way(journal, payload)
    steps = disk.steps - before
    for step in range(1, steps + 1):
        disk = disk_with_folder()
        disk.fail(step, number)
        journal, acknowledged = made(disk), []
        for payload in entries(14):
            try:
                at = way(journal, payload)
            except StoreError:
                at = way(journal, payload)
            acknowledged.append((at, payload))
        found = read(made(disk))
        assert [found[at] for at, _ in acknowledged] == entries(14)
        assert found == read(journal)


@WAYS
def test_an_append_that_failed_is_not_there_later(way):
    """Not even if its bytes came through: whoever was told may append it again."""
    # EVIDENCE-OF: G-90
    disk = disk_with_folder()
    journal = made(disk)
    append(journal, b"a")
    disk.fail(2, errno.EIO)
    with pytest.raises(StoreError):
        way(journal, b"b")
    assert [b"a"] == read(journal) == read(made(disk))
    assert 1 == append(journal, b"c")
    assert [b"a", b"c"] == read(journal) == read(made(disk))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("size", [SIZE, 1 << 20])
def test_of_several_in_a_turn_that_failed_none_is_there_later(number, size):
    """Not even those that were written before it failed: nobody was told where they are."""
    # EVIDENCE-OF: G-90
    for step in range(1, 5):  # Three entries, or one and the zeros behind it; and the sync.
        disk = disk_with_folder()
        journal = made(disk, size=size)
        append(journal, b"a")
        disk.fail(step, number)
        with pytest.raises(StoreError):
            append(journal, b"b", b"c", b"d" * 100)
        assert [b"a"] == read(made(disk, seed=2)) == read(journal)
        disk = disk.power_cut(SeededEntropy(step))
        assert [b"a"] == read(made(disk, seed=3))


@WAYS
@pytest.mark.parametrize("failures", [1, 2])
def test_what_a_sync_failed_for_is_not_taken_for_durable(way, failures):
    """The system forgets what it could not write, and the next sync succeeds."""
    # EVIDENCE-OF: G-88
    for step in range(1, 60):
        disk = disk_with_folder()
        for more in range(failures):
            disk.fail(step + more, errno.EIO)
        rivals = [made(disk, seed=seed) for seed in (1, 2)]
        for number, payload in enumerate(entries(14)):
            while True:
                try:
                    assert number == way(rivals[number % 2], payload)
                except StoreError:
                    continue
                break
        disk.revive(keep_locks=True)
        found = disk.power_cut(SeededEntropy(step))
        assert entries(14) == read(made(found, seed=3))


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_whoever_fails_while_it_takes_its_turn_lets_others_have_theirs(monkeypatch, calls):
    """It holds no lock afterwards: in reading the tail, or in saying that it waits."""
    disk = disk_with_folder()
    journal, other = made(disk), made(disk, seed=2)
    append(journal, b"a")
    append(other, b"b")
    tail = journal._tail()

    def failing(call, after):
        made_calls = count(1)

        def called(*args):
            if next(made_calls) >= after:
                raise OSError(errno.EIO, "it failed")
            return call(*args)

        return called

    with monkeypatch.context() as patched:
        if calls == 1:
            patched.setattr(tail, "read", failing(tail.read, 1))
        else:
            patched.setattr(tail, "read", lambda *_: bytes(WAITS_AT) + b"\1")
            patched.setattr(tail, "write", failing(tail.write, calls - 1))
        with pytest.raises(StoreError):
            append(journal, b"c")
    assert other._tail().try_lock()
    other._tail().unlock()
    assert 2 == append(other, b"c") == append(journal, b"d") - 1


def test_one_who_may_only_read_does_not_read_all_of_an_extent_to_find_its_end(monkeypatch):
    """It follows what others append, and reads what is new."""
    disk = disk_with_folder()
    journal = made(disk, size=1 << 20)
    append(journal, *[bytes(1000)] * 500)
    reader = made(disk, size=1 << 20)
    opened = disk.open

    def refused(path, *, create=False, write=True):
        if create or write:
            raise PermissionError(errno.EACCES, "no", path)
        return opened(path, write=write)

    starts = []
    whole_from = Extent.whole_from

    def noted(extent, tail):
        starts.append(tail.end)
        return whole_from(extent, tail)

    monkeypatch.setattr(Extent, "whole_from", noted)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "open", refused)
        assert 500 == reader.newest().synced_number
    append(journal, b"more")
    with monkeypatch.context() as patched:
        patched.setattr(disk, "open", refused)
        assert 501 == reader.newest().synced_number
        assert min(starts) > 400_000
        assert [b"more"] == read(reader, 500)


def test_damage_at_every_byte_is_named_and_never_gives_wrong_entries():
    """Reading stops there; appending goes on behind it; nothing is deleted."""
    # EVIDENCE-OF: G-91
    disk = disk_with_folder()
    journal, ends = made(disk, size=4096), []
    for payload in entries(4):
        append(journal, payload)
        ends.append(journal.newest().end)
    *_, last, end = ends
    path = f"{FOLDER}/0.wal"
    whole = bytes(disk.read(path)[1])
    for place in range(end):
        damaged = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
        for tail in (True, False):
            copy = disk_with_folder()
            copy.write(path, damaged, 0)
            if tail:
                copy.write(f"{FOLDER}/tail", bytes(disk.read(f"{FOLDER}/tail")[1]), 0)
            later = made(copy, size=4096, seed=7)
            reading, found, told = Reading(later), [], ""
            try:
                while frames := reading.take(1):
                    found += [bytes(frame.payload) for frame in frames]
            except CorruptionError as error:
                told = str(error)
            assert found == entries(len(found))
            # Of the last frame, with nothing to say that it was synced, nobody can tell.
            is_torn = not tail and place >= last
            assert (3 if is_torn else len(found), is_torn) == (len(found), "0.wal" not in told)
            at = append(later, b"new")
            assert at == 3 if is_torn else at >= 4
            assert [b"new"] == read(made(copy, size=4096), at)
            if not is_torn:
                assert damaged[:end] == bytes(copy.read(path)[1])[:end]


def test_after_damage_appending_goes_on_and_reading_can_skip():
    """Behind all that is there, so that no number is used twice."""
    # EVIDENCE-OF: G-91
    disk = disk_with_folder()
    journal = made(disk, size=4096)
    for payload in entries(4):
        append(journal, payload)
    disk.overwrite(f"{FOLDER}/0.wal", b"\xff", FRAMES_AT + 100)
    disk.unlink(f"{FOLDER}/tail")
    later = made(disk, size=4096, seed=7)
    assert 4 == append(later, b"new")
    assert later.damage is not None
    reading = Reading(later)
    with pytest.raises(CorruptionError, match="missing"):
        while reading.take(1):
            pass
    behind = reading.skip()
    assert 1 < behind <= 4
    found = [bytes(frame.payload) for frame in reading.take()]
    found += [bytes(frame.payload) for frame in reading.take()]
    assert [*entries(4)[behind:], b"new"] == found


def test_what_is_whole_before_and_behind_damage_is_read():
    """At once, as much as there is before it; then it is told; then what is behind it."""
    # EVIDENCE-OF: G-91
    for number in range(5):
        disk = disk_with_folder()
        journal, begins = made(disk, size=4096), [FRAMES_AT]
        for payload in entries(5):
            append(journal, payload)
            begins.append(journal.newest().end)
        disk.overwrite(f"{FOLDER}/0.wal", b"\xff", begins[number] + 50)
        for later in (journal, made(disk, size=4096, seed=2)):
            reading = Reading(later)
            if number:
                assert entries(number) == [bytes(one.payload) for one in reading.take()]
            with pytest.raises(CorruptionError, match=r"0\.wal is damaged"):
                reading.take()
            assert number + 1 == reading.skip()
            assert entries(5)[number + 1 :] == [bytes(one.payload) for one in reading.take()]
            assert entries(5)[number + 1 :] == read(later, number + 1)


def test_an_extent_that_is_missing_in_the_middle_is_told():
    """Not passed over in silence."""
    disk = disk_with_folder()
    journal = made(disk)
    for payload in entries(30):
        append(journal, payload)
    first, gone, after, *_ = journal.bases()
    disk.unlink(f"{FOLDER}/{gone}.wal")
    reading = Reading(journal)
    assert entries(30)[first:gone] == [bytes(one.payload) for one in reading.take()]
    with pytest.raises(CorruptionError, match=f"entries {gone} to {after - 1} are missing"):
        reading.take()
    assert after == reading.skip()
    assert entries(30)[after:] == read(journal, after)


def test_an_extent_that_is_gone_is_told():
    """A reader that is too late learns where it can go on."""
    journal = made(disk_with_folder())
    for payload in entries(20):
        append(journal, payload)
    first = journal.bases()[1]
    journal.disk.unlink(f"{FOLDER}/0.wal")
    with pytest.raises(CollectedError, match=f"begins with {first}"):
        read(journal, 0)
    assert entries(20)[first:] == read(journal, first)


def test_extents_that_are_deleted_under_a_reader_are_no_damage():
    """Neither its own nor those behind it: the oldest go first, and it is told what is left."""
    disk = disk_with_folder()
    journal = made(disk)
    for payload in entries(30):
        append(journal, payload)
    first, gone, after, *_ = journal.bases()
    reading = Reading(journal)
    assert entries(30)[first:gone] == [bytes(one.payload) for one in reading.take()]
    disk.unlink(f"{FOLDER}/{first}.wal")
    disk.unlink(f"{FOLDER}/{gone}.wal")
    with pytest.raises(CollectedError, match=f"begins with {after}: {gone} is gone"):
        reading.take()


@pytest.mark.parametrize("seed", range(40))
def test_a_spare_extent_that_the_dead_have_taken_has_one_name(seed, monkeypatch):
    """A power cut may bring its old one back: whoever used that would write over entries."""
    disk = disk_with_folder()
    journal, other = made(disk), made(disk, seed=2)
    for payload in entries(12):
        append(journal, payload)
    disk.rename(f"{FOLDER}/0.wal", f"{FOLDER}/spare")
    disk.fsync_dir(FOLDER)
    other.newest()
    taken = disk.rename

    def dying(source, target):
        taken(source, target)
        disk.cut_after(0)

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(disk, "rename", dying)
        while True:
            append(journal, b"more")
    disk.revive()
    disk.cut_after(seed % 8)
    with pytest.raises(PowerCut):
        while True:
            append(other, b"more")
    found = disk.power_cut(SeededEntropy(seed))
    names = [name for name, _ in found.scan(FOLDER) if name == "spare" or name.endswith(".wal")]
    assert len(names) == len({found.inode(f"{FOLDER}/{name}") for name in names})


def test_an_extent_put_to_another_use_under_a_reader():
    """What it still gives is right, and then it says that the rest is gone."""
    journal = made(disk_with_folder())
    for payload in entries(12):
        append(journal, payload)
    reading = Reading(journal)
    assert [b"entry 0"] == [bytes(frame.payload) for frame in reading.take(1)]
    journal.disk.rename(f"{FOLDER}/0.wal", f"{FOLDER}/spare")
    newest = journal.newest().base
    while journal.newest().base == newest or journal.newest().end < 400:
        append(journal, b"later")
    with pytest.raises(CollectedError):
        while reading.take(1):
            pass
