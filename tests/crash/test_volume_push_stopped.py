"""Push, pull and the ways out of a divergence, stopped at every request and step of a disk.

A process dies in its k-th request (which took effect, or not), dies or loses power at the n-th step
of its disk, or finds the disk full there. The next one does the same again, and what is in the
store and in the directory then is what it had been without.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    DivergedError,
    InvalidInputError,
    StoreError,
    UncertainError,
)
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.dying import DeadError, dying
from cordwood.testing.handclock import HandClock
from cordwood.volume.desk import open_desk
from cordwood.volume.volume import Volume

PAGE = 512
HOME = "/wood"
STEPS_MAX = 400


def page(text):
    """A page that says something."""
    return text.encode().ljust(PAGE, b".")


class Story:
    """A volume of two versions. Ours has `mine` on page 2; others may have published `theirs`."""

    def __init__(self, model="posix"):
        self.clock = HandClock()
        self.memory = MemoryStore(self.clock)
        self.disk = CrashDisk(model)
        self.lives = 0
        self.desks = []

    async def open(self, disk=None, store=None, name="app"):
        """A process with a volume."""
        self.lives += 1
        backend = Store.over(store or self.memory, f"life{self.lives}:")
        entropy = SeededEntropy(f"life {self.lives}")
        volume = Volume(backend, name, directory=HOME, clock=self.clock, entropy=entropy)
        volume._desk = await open_desk(
            backend, name, HOME, clock=self.clock, entropy=entropy, disk=disk or self.disk
        )
        self.desks.append(volume._desk)
        return volume

    async def begin(self, theirs, mine):
        """The ground that every test stands on."""
        entropy = SeededEntropy("maker")
        store = Store.over(self.memory, "maker:")
        maker = Volume(store, "app", directory=HOME, clock=self.clock, entropy=entropy)
        await maker.create(PAGE)
        self.other = await self.open(CrashDisk())
        for number, text in ((1, "v1"), (2, "v2")):
            await self.write(self.other, {number: text})
            await self.other.push()
        ours = await self.open()
        if mine:
            await self.write(ours, {2: "mine"})
        if theirs:
            await self.write(self.other, {1: "theirs"})
            await self.other.push()
        self.die()

    def die(self):
        """What the system does for a process that is gone: its locks are free."""
        for desk in self.desks[1:]:
            desk.local.locks.close()
        del self.desks[1:]

    @staticmethod
    async def write(volume, pages):
        """One transaction."""
        async with volume.begin() as transaction:
            for number, text in pages.items():
                transaction.write(number, page(text))

    @staticmethod
    async def seen(volume, at=None):
        """The pages."""
        snapshot = await volume.snapshot(at)
        pages = [await snapshot.read(n) for n in range(1, snapshot.num_pages + 1)]
        await snapshot.close()
        return [text.rstrip(b".").decode() for text in pages]

    async def stranger(self, name="app"):
        """What somebody sees who was never there, and how many versions there are."""
        volume = await self.open(CrashDisk(), name=name)
        return await self.seen(volume), len(await volume.log())


class Push:
    """One commit, whatever happens."""

    ground = (False, True)

    async def act(self, volume):
        await volume.push("mine")

    async def check(self, story, volume):
        assert ["v1", "mine"] == await story.seen(volume)
        await volume.push()
        assert (["v1", "mine"], 3) == await story.stranger()
        assert 0 == (await volume.status()).ahead


class Pull:
    """Theirs, whole."""

    ground = (True, False)

    async def act(self, volume):
        await volume.pull()

    async def check(self, story, volume):
        assert await story.seen(volume) in (["v1", "v2"], ["theirs", "v2"])
        await volume.pull()
        assert ["theirs", "v2"] == await story.seen(volume)
        assert (["theirs", "v2"], 3) == await story.stranger()


class Diverged:
    """Push and pull refuse, and nothing is changed by that."""

    ground = (True, True)

    async def act(self, volume):
        for verb in (volume.push, volume.pull):
            with suppress(DivergedError):
                await verb()

    async def check(self, story, volume):
        assert ["v1", "mine"] == await story.seen(volume)
        for verb in (volume.push, volume.pull):
            with pytest.raises(DivergedError):
                await verb()
        assert (["theirs", "v2"], 3) == await story.stranger()


class Reset:
    """Ours, or theirs."""

    ground = (True, True)

    async def act(self, volume):
        await volume.reset()

    async def check(self, story, volume):
        assert await story.seen(volume) in (["v1", "mine"], ["theirs", "v2"])
        await volume.reset()
        assert ["theirs", "v2"] == await story.seen(volume)
        assert (["theirs", "v2"], 3) == await story.stranger()


class Rebase:
    """Both, once."""

    ground = (True, True)

    async def act(self, volume):
        await volume.rebase()
        await volume.push()

    async def check(self, story, volume):
        assert await story.seen(volume) in (["v1", "mine"], ["theirs", "mine"])
        await volume.rebase()
        await volume.push()
        assert (["theirs", "mine"], 4) == await story.stranger()


class Branch:
    """Ours is here, or on the branch, or both; then this is theirs."""

    ground = (True, True)

    async def act(self, volume):
        await volume.branch("kept", unpushed=True)

    async def check(self, story, volume):
        here = await story.seen(volume)
        is_kept = "kept" in await volume.tags()
        assert ["v1", "mine"] == here or (is_kept and ["theirs", "v2"] == here)
        name = "again" if is_kept else "kept"
        with suppress(InvalidInputError):
            await volume.branch(name, unpushed=True)
        assert ["theirs", "v2"] == await story.seen(volume)
        for made in {"kept", "again"} & set(await volume.tags()):
            assert (["v1", "mine"], 3) == await story.stranger(made)
        assert (["theirs", "v2"], 3) == await story.stranger()


class Restore:
    """The old version, or what was before, and never a mixture."""

    ground = (False, True)

    async def act(self, volume):
        await volume.restore(1)
        await volume.push()

    async def check(self, story, volume):
        assert await story.seen(volume) in (["v1", "mine"], ["v1"])
        await volume.restore(1)
        await volume.push()
        assert (["v1"], 3) == await story.stranger()


class Old:
    """A branch of an old version is there, whole, or is not."""

    ground = (False, True)

    async def act(self, volume):
        await volume.branch("old", at=1)

    async def check(self, story, volume):
        with suppress(AlreadyExistsError):
            await volume.branch("old", at=1)
        assert (["v1"], 1) == await story.stranger("old")
        assert ["v1", "mine"] == await story.seen(volume)


OPERATIONS = {
    kind.__name__: kind() for kind in (Push, Pull, Diverged, Reset, Rebase, Branch, Restore, Old)
}


@pytest.mark.parametrize("takes_effect", [True, False], ids=["took effect", "never arrived"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_dead_in_every_request(name, takes_effect):
    """The next process finds everything, and goes on; nothing is lost or made twice."""
    # EVIDENCE-OF: G-111, G-112
    operation = OPERATIONS[name]

    async def life(last):
        story = Story()
        await story.begin(*operation.ground)
        store = dying(story.memory, last, takes_effect=takes_effect)
        dead = True
        try:
            await operation.act(await story.open(store=store))
            dead = False
        except DeadError:
            pass
        story.die()
        await operation.check(story, await story.open())
        return dead

    deaths = next(last for last in range(1, STEPS_MAX) if not asyncio.run(life(last)))
    assert 2 <= deaths


@pytest.mark.parametrize("kind", ["dies", "loses power"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_stopped_at_every_step_of_the_disk(name, kind):
    """A process that dies, or a power cut, at any change of the disk."""
    # EVIDENCE-OF: G-111, G-112
    operation = OPERATIONS[name]

    async def life(steps):
        story = Story(["posix", "ext4"][steps % 2])
        await story.begin(*operation.ground)
        story.disk.cut_after(steps)
        with suppress(PowerCut):
            await operation.act(await story.open())
        is_done = story.disk.has_power
        story.die()
        if kind == "dies":
            story.disk.revive()
        else:
            story.disk = story.disk.power_cut(SeededEntropy(f"cut {steps}"))
        await operation.check(story, await story.open())
        return is_done

    steps = next(steps for steps in range(STEPS_MAX) if asyncio.run(life(steps)))
    assert 3 < steps


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_full_disk_at_every_step(name):
    """An error that says so, or none; with room again everything goes on, in the same process."""
    operation = OPERATIONS[name]

    async def life(step):
        story = Story()
        await story.begin(*operation.ground)
        volume = await story.open()
        before, said = story.disk.steps, "No space left"
        story.disk.fail(step, errno.ENOSPC)
        try:
            await operation.act(volume)
        except StoreError as error:
            said = str(error)
        except UncertainError:
            # Of a sync that failed nothing is known: who opens it next finds out.
            story.die()
            volume = await story.open()
        is_met = story.disk.steps - before >= step
        story.disk._failures.clear()
        assert "No space left" in said
        await operation.check(story, volume)
        return is_met

    steps = next(step for step in range(1, STEPS_MAX) if not asyncio.run(life(step)))
    assert 1 <= steps


def test_every_operation_does_what_it_is_for():
    """Without any fault, so that the others prove something."""

    async def run(operation):
        story = Story()
        await story.begin(*operation.ground)
        volume = await story.open()
        await operation.act(volume)
        await operation.check(story, volume)

    for operation in OPERATIONS.values():
        asyncio.run(run(operation))
