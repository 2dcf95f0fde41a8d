"""Story 19: an append ended in UncertainError; asking for it later gives a final answer."""

from __future__ import annotations

import asyncio
import pickle

import pytest

import cordwood
from cordwood import InvalidInputError, Options, UncertainError
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate


class World:
    """A log on a store that can be broken, in simulated time."""

    def __init__(self, zombie_s=1_000.0):
        """Nothing is broken yet."""
        self.memory = MemoryStore(clock=LoopClock())
        self.faulty = FaultyStore(
            self.memory,
            SeededEntropy("faults"),
            LoopClock(),
            latency=Latency(0.01),
            zombie_delay=Latency(zombie_s),
        )

    def log(self, store=None, name="writer"):
        """The log as a process sees it."""
        if store is None:
            entropy = SeededEntropy(f"retry {name}")
            store = RetryingStore(self.faulty, LoopClock(), entropy, deadline_s=5, attempt_s=2)
        return cordwood.Log(
            cordwood.Store.over(store), "orders", clock=LoopClock(), entropy=SeededEntropy(name)
        )

    def break_store(self, *faults):
        """These faults for the next puts, and nothing can be read."""
        self.faulty.script("put", *faults, *[Fault.ERROR_BEFORE] * 100)
        self.faulty.script("get", *[Fault.ERROR_BEFORE] * 1000)

    async def uncertain(self, fault, *bodies, options=None):
        """Append where the store fails this way: the errors, and the writer, well again."""
        writer = await self.log().writer(create=True, options=options or Options()).open()
        await writer.append(b"first")
        self.break_store(*[fault] * len(bodies))
        answers = [writer.append(body) for body in bodies]
        errors = await asyncio.gather(*answers, return_exceptions=True)
        self.faulty.heal()
        assert {UncertainError} == {type(error) for error in errors}
        return errors, writer

    async def bodies(self):
        """What a reader finds."""
        async with self.log(self.memory, "reader").reader() as reader:
            return [record.body async for record in reader.read()]


def test_a_write_that_arrived_is_found():
    """Its answer was lost; asking adopts it and gives its offset."""

    async def main():
        world = World()
        (error,), writer = await world.uncertain(Fault.ERROR_AFTER, b"there")
        assert 2 == await world.log(name="asker").find_write(error)
        assert [b"first", b"there"] == await world.bodies()
        assert 3 == await writer.append(b"next")
        assert 2 == await world.log(name="asker").find_write(error)
        await writer.close()
        assert [b"first", b"there", b"next"] == await world.bodies()

    simulate(1, main)


def test_a_write_that_never_arrived_is_open_until_its_place_is_taken():
    """Before: nobody can know. After any later append: it is not there and never will be."""

    async def main():
        world = World()
        (error,), writer = await world.uncertain(Fault.ERROR_BEFORE, b"lost")
        with pytest.raises(UncertainError) as caught:
            await world.log(name="asker").find_write(error)
        assert error.write_id == caught.value.write_id
        assert 2 == await writer.append(b"marker")
        assert await world.log(name="asker").find_write(error) is None
        assert 3 == await writer.append(b"lost")
        await writer.close()
        assert [b"first", b"marker", b"lost"] == await world.bodies()

    simulate(1, main)


def test_a_write_that_arrives_late_does_not_change_the_answer():
    """None is final: the put that lands afterwards finds its slot taken."""

    async def main():
        world = World(zombie_s=100.0)
        (error,), writer = await world.uncertain(Fault.ZOMBIE, b"late")
        await writer.append(b"marker")
        assert await world.log(name="asker").find_write(error) is None
        await writer.close()
        await world.faulty.drain()
        async with world.log(name="other").writer() as other:
            await other.append(b"last")
        assert await world.log(name="asker").find_write(error) is None
        assert [b"first", b"marker", b"last"] == await world.bodies()

    simulate(1, main)


def test_a_write_that_arrives_before_anybody_asks_is_found():
    """A late put into a slot that is still free is adopted, and found."""

    async def main():
        world = World(zombie_s=100.0)
        (error,), writer = await world.uncertain(Fault.ZOMBIE, b"late")
        await writer.close()
        await world.faulty.drain()
        assert 2 == await world.log(name="asker").find_write(error)
        assert [b"first", b"late"] == await world.bodies()

    simulate(1, main)


def test_appends_that_share_a_fragment_are_found_each_at_its_own_offset():
    """The answer is where the record is, not where its fragment begins; also after pickling."""

    async def main():
        world = World()
        errors, writer = await world.uncertain(Fault.ERROR_AFTER, b"a", b"b", b"c")
        await writer.append(b"marker")
        asker = world.log(name="asker")
        found = [await asker.find_write(pickle.loads(pickle.dumps(e))) for e in errors]
        await writer.close()
        assert [2, 3, 4] == found
        assert [b"first", b"a", b"b", b"c", b"marker"] == await world.bodies()

    simulate(1, main)


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.ERROR_BEFORE])
def test_a_chain_is_decided_fragment_by_fragment(fault):
    """Several fragments in flight: each is found where it is, or all are gone for good."""

    async def main():
        world = World()
        options = Options(batch_bytes=1, in_flight=8)
        errors, writer = await world.uncertain(fault, b"a", b"b", b"c", options=options)
        await writer.append(b"marker")
        found = [await world.log(name="asker").find_write(error) for error in errors]
        await writer.close()
        there = fault is Fault.ERROR_AFTER
        assert ([2, 3, 4] if there else [None] * 3) == found
        chain = [b"a", b"b", b"c"] if there else []
        assert [b"first", *chain, b"marker"] == await world.bodies()

    simulate(1, main)


def test_an_atomic_batch_is_found_whole():
    """The offset is that of its first record."""

    async def main():
        world = World()
        writer = await world.log().writer(create=True).open()
        await writer.append(b"first")
        world.break_store(Fault.ERROR_AFTER)
        with pytest.raises(UncertainError) as caught:
            await writer.append_many([b"x", b"y", b"z"])
        world.faulty.heal()
        await writer.close()
        assert 2 == await world.log(name="asker").find_write(caught.value)
        assert [b"first", b"x", b"y", b"z"] == await world.bodies()

    simulate(1, main)


def test_an_error_can_be_asked_about_in_another_process():
    """It is pickled with everything that is needed."""

    async def main():
        world = World()
        (error,), writer = await world.uncertain(Fault.ERROR_AFTER, b"there")
        await writer.close()
        again = pickle.loads(pickle.dumps(error))
        assert (error.write_id, error.chain) == (again.write_id, again.chain)
        assert 2 == await world.log(name="asker").find_write(again)

    simulate(1, main)


async def test_an_error_about_something_else_cannot_be_asked_about(log):
    """Only an append has a place in the log."""
    await log.create()
    with pytest.raises(InvalidInputError):
        await log.find_write(UncertainError("create: the answer was lost"))
