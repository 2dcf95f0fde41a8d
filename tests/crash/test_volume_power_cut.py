"""A volume's directory that loses power, or a process, or room, at every step of what it does."""

from __future__ import annotations

import errno

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import CordwoodError, StateError, UncertainError
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.volumemodel import commit
from cordwood.testing.volumeplay import FOLDER, Play, opened

# EVIDENCE-OF: G-106, G-107, G-108, G-109


def count_steps():
    """How many steps the whole play takes."""
    disk = CrashDisk()
    disk.mkdir("/v")
    Play(disk).run()
    return disk.steps


STEPS = count_steps()
PARTS = 8


def stopped(model, step):
    """A play that met a power cut."""
    disk = CrashDisk(model)
    disk.mkdir("/v")
    disk.fsync_dir("/")
    disk.cut_after(step)
    play = Play(disk)
    try:
        play.run()
    except PowerCut:
        return play
    return None


@pytest.mark.parametrize("part", range(PARTS))
def test_power_cut_at_every_step(part):
    """What was acknowledged is there; of what was about to be, all or nothing; work goes on."""
    for step in range(part, STEPS - 1, PARTS):
        for seed, model in enumerate(("posix", "ext4", "posix")):
            play = stopped(model, step)
            found = play.disk.power_cut(SeededEntropy(f"{step} {seed}"))
            local = opened(found)
            play.check(local)
            play.disk = found
            play.go_on(local)
            again = opened_after(found, step)
            play.check(again)


def opened_after(disk, seed):
    """The directory after one more power cut."""
    return opened(disk.power_cut(SeededEntropy(seed)))


@pytest.mark.parametrize("part", range(PARTS))
def test_power_cut_within_recovery(part):
    """A recovery that is cut off, at any step, costs nothing."""
    for step in range(part, STEPS - 1, 2 * PARTS):
        play = stopped("posix", step)
        found = play.disk.power_cut(SeededEntropy(f"{step}"))
        for within in range(40):
            found.cut_after(within)
            try:
                local = opened(found)
            except PowerCut:
                found = found.power_cut(SeededEntropy(f"{step} {within}"))
            else:
                break
        play.check(local)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_process_that_dies_leaves_the_rest_to_another(part):
    """Another process, which has the directory open, goes on at once with what was acknowledged."""
    for step in range(part, STEPS - 1, PARTS):
        disk = CrashDisk()
        disk.mkdir("/v")
        disk.fsync_dir("/")
        other = opened(disk)
        play = Play(disk)
        disk.cut_after(step)
        try:
            play.run()
        except PowerCut:
            pass
        else:
            continue
        disk.revive(keep_locks=True)
        if play.local is not None:
            play.local.locks.close()
        play.check(other)
        play.local = other
        if step % 3 == 0:
            play.go_on(other)
        else:
            # Its head is still the one of before, whatever the dead one was about to make of it.
            play.commit({2, 8}, 8)
        if step % 3 == 2:
            other.locks.close()
            play.check(opened(disk))
        else:
            play.check(opened_after(disk, step))


@pytest.mark.parametrize("part", range(2))
def test_what_a_recovery_showed_stays(part):
    """A commit that a dead process had not synced, and that was seen since, is not lost."""
    for step in range(part, STEPS - 1, 2):
        play = stopped("posix", step)
        play.disk.revive()
        local = opened(play.disk)
        play.check(local)
        play.check(opened_after(play.disk, step))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_step_that_fails(part, number):
    """What failed is not there, and can be done again; a sync that failed stops all who write."""
    for step in range(part + 1, STEPS, PARTS):
        disk = CrashDisk()
        disk.mkdir("/v")
        disk.fsync_dir("/")
        play = Play(disk)
        disk.fail(step, number)
        for act in play.steps():
            try:
                act()
            except UncertainError:
                with pytest.raises(StateError, match="a sync failed"):
                    commit(play.local, {}, 1)
                play.local.close()
                play.local = opened(disk)
                play.check(play.local)
                act()
            except CordwoodError:
                if play.local is not None and play.local.control.is_poisoned:
                    play.local.close()
                    play.local = opened(disk)
                play.then = play.now
                act()
        play.check(play.local)
        play.go_on(play.local)
        play.check(opened_after(disk, step))


def test_the_play_does_everything():
    """It switches, drains and reclaims, else the tests above mean little."""
    disk = CrashDisk()
    disk.mkdir("/v")
    play = Play(disk)
    drains, freed = set(), []
    for act in play.steps():
        before = play.local.base.file.stat().size_bytes if play.local is not None else 0
        act()
        drains.add(play.local.control.drained)
        freed.append(before > 0 == play.local.base.file.stat().size_bytes)
    assert any(freed)
    assert len(drains) > 2
    assert disk.stat(f"{FOLDER}/head").size_bytes > 0
