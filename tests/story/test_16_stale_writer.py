"""Story 16: a stale writer puts into a slot that was collected, and a naive one calls it success.

This is hazard (b) of wal3: writer A sleeps with slot N in mind; B writes N and more; N is collected
and deleted; A wakes and its create-only put of N succeeds, because nothing is there any more. Its
manifest is refused, and a naive writer says "contended, but durable". The record is below the first
slot of the log: nobody will ever read it. Ours reads the manifest again when it has not seen it for
half the grace interval; and where that was not enough it says that it does not know.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import cordwood
from cordwood import ContendedError, Options, Setsum, UncertainError
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.log import format as log_format
from cordwood.log import paths, tree
from cordwood.log.batch import Batch
from cordwood.log.flight import build
from cordwood.log.format import Position
from cordwood.log.objects import LogObjects
from cordwood.log.records import content_of_bodies
from cordwood.log.recovery import find_ground, next_tag
from cordwood.store.memory import MemoryStore
from cordwood.testing.simloop import simulate

GRACE_S = 600


def log_over(memory, name):
    """The log as one process sees it, in simulated time."""
    entropy = SeededEntropy(name)
    return cordwood.Log(cordwood.Store.over(memory), "orders", clock=LoopClock(), entropy=entropy)


async def unlink_by_hand(memory, keep):
    """Half a collection: all but the newest `keep` fragments leave the manifest; their keys.

    Nothing waits between reading and writing the manifest, so nobody comes in between.
    """
    manifest = await log_over(memory, "collector").manifest()
    gone = manifest.fragments[: len(manifest.fragments) - keep]
    kept = manifest.fragments[len(gone) :]
    removed = [pointer.setsum_hex for pointer in (*manifest.nodes, *gone)]
    unlinked = msgspec.structs.replace(
        manifest,
        collected_hex=Setsum.sum([manifest.collected_hex, *removed]).hexdigest(),
        nodes=(),
        fragments=kept,
        initial_offset_position=Position(kept[0].start if kept else manifest.next_offset),
        initial_seq_no=kept[0].seq_no if kept else manifest.next_seq_no,
    )
    await memory.put("orders/manifest/MANIFEST", log_format.encode(unlinked))
    return [f"orders/{paths.fragment(number)}" for number in range(1, unlinked.first_seq_no)]


async def collect_by_hand(memory, keep):
    """A whole collection that does not wait for the grace."""
    await memory.delete(await unlink_by_hand(memory, keep))


class World:
    """A log, a stale writer A, and a busy writer B."""

    def __init__(self, name):
        """Nothing yet."""
        self.memory = MemoryStore(clock=LoopClock())
        self.stale_log = log_over(self.memory, f"stale {name}")

    async def prepare(self, keep, options=None):
        """A opens and appends once; B appends three; all but `keep` are collected and deleted."""
        await self.stale_log.create()
        self.writer = await self.stale_log.writer(options=options or Options()).open()
        await self.writer.append(b"first")
        async with log_over(self.memory, "busy").writer() as busy:
            for n in range(3):
                await busy.append(b"busy %d" % n)
        await collect_by_hand(self.memory, keep)

    async def readable(self):
        """Every body that a reader finds, and a clean scrub."""
        log = log_over(self.memory, "reader")
        assert (await log.scrub()).ok
        async with log.reader() as reader:
            return [record.body async for record in reader.read()]


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_naive_writer_acknowledges_a_record_that_nobody_can_read(keep):
    """Put into the deleted slot succeeds, the swap is refused, "durable" is a lie."""

    async def main():
        world = World("naive")
        objects, entropy = LogObjects(world.memory, "orders"), SeededEntropy("naive")
        await world.stale_log.create()
        async with world.stale_log.writer() as writer:
            await writer.append(b"first")
        ground = await find_ground(objects, entropy, {})
        async with log_over(world.memory, "busy").writer() as busy:
            for n in range(3):
                await busy.append(b"busy %d" % n)
        await collect_by_hand(world.memory, keep)

        batch = Batch()
        batch.add_block(content_of_bodies([b"stale"]), None)
        flight, data = build(batch, ground.tail, 1, entropy.token(), "none")
        await objects.put_fragment(flight.fragment.path, data)
        tag = next_tag(ground.manifest, ground.tail.after(flight.link, flight.seq_no), entropy)
        manifest = tree.append(ground.manifest, [flight.fragment], tag)
        with pytest.raises(ContendedError):
            await objects.swap(manifest, ground.etag)
        acknowledged_as_durable = b"stale"

        assert acknowledged_as_durable not in await world.readable()
        async with log_over(world.memory, "later").writer() as writer:
            await writer.append(b"later")
        assert acknowledged_as_durable not in await world.readable()

    simulate(1, main)


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_ours_says_that_it_does_not_know(keep):
    """A writer that did not get to look again gets UncertainError, never success."""

    async def main():
        world = World("uncertain")
        await world.prepare(keep)
        with pytest.raises(UncertainError) as caught:
            await world.writer.append(b"stale")
        assert 32 == len(caught.value.write_id)
        assert b"stale" not in await world.readable()
        offset = await world.writer.append(b"again")
        await world.writer.close()
        found = await world.readable()
        assert b"again" == found[-1]
        assert 5 == offset
        assert 1 == found.count(b"again")

    simulate(1, main)


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_ours_looks_again_after_half_the_grace(keep):
    """A writer that was idle for longer reads the manifest before it takes a slot."""

    async def main():
        world = World("idle")
        await world.prepare(keep)
        await asyncio.sleep(GRACE_S / 2 + 1)
        assert 5 == await world.writer.append(b"stale")
        await world.writer.close()
        assert b"stale" == (await world.readable())[-1]
        keys = [meta.key async for meta in world.memory.list()]
        assert f"orders/{paths.fragment(2)}" not in keys

    simulate(1, main)


def test_the_grace_is_the_logs_own(bucket_of):
    """A log with a short grace makes its writers look sooner; a fresh writer does not look."""

    async def main():
        memory = MemoryStore(clock=LoopClock())
        log = log_over(memory, "short")
        await log.create(grace_s=10)
        async with log.writer() as writer:
            await writer.append(b"first")
            async with log_over(memory, "other").writer() as other:
                await other.append(b"second")
            await collect_by_hand(memory, 0)
            await asyncio.sleep(6)
            assert 3 == await writer.append(b"third")
        assert [3] == await bucket_of(memory).slots()

    simulate(1, main)


@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_chain_of_stale_fragments_is_never_acknowledged(in_flight):
    """Several fragments at once into deleted slots: none is called durable that cannot be read."""

    async def main():
        world = World("chain")
        options = Options(batch_bytes=1, in_flight=in_flight)
        await world.prepare(1, options)
        answers = [world.writer.append(b"stale %d" % n) for n in range(8)]
        results = await asyncio.gather(*answers, return_exceptions=True)
        await world.writer.close()
        found = await world.readable()
        for n, result in enumerate(results):
            body = b"stale %d" % n
            if isinstance(result, int):
                assert 1 == found.count(body)
            else:
                assert isinstance(result, UncertainError)
        acknowledged = [n for n, result in enumerate(results) if isinstance(result, int)]
        assert len(found) == len(set(found))
        assert len(acknowledged) == len([b for b in found if b.startswith(b"stale")])

    simulate(1, main)


@pytest.mark.parametrize("seed", range(10))
def test_acknowledged_means_readable_while_a_collector_works(seed):
    """Writers come and go beside a collector that keeps the grace: acknowledged is readable."""
    # EVIDENCE-OF: G-5, G-10
    # EVIDENCE-OF: G-10
    # EVIDENCE-OF: G-16

    async def main():
        memory = MemoryStore(clock=LoopClock())
        await log_over(memory, "creator").create()
        chance = SeededEntropy(f"chance {seed}")
        told = {}

        async def work(number):
            async with log_over(memory, f"writer {number} {seed}").writer() as writer:
                for n in range(10):
                    await asyncio.sleep(chance.uniform() * GRACE_S)
                    body = b"%d %d" % (number, n)
                    told[body] = await writer.append(body)

        async def collect():
            for _ in range(10):
                await asyncio.sleep(chance.uniform() * GRACE_S)
                keys = await unlink_by_hand(memory, keep=1)
                await asyncio.sleep(GRACE_S)
                await memory.delete(keys)

        await asyncio.gather(work(0), work(1), collect())
        log = log_over(memory, "reader")
        async with log.reader() as reader:
            found = {record.body: record.offset async for record in reader.read()}
        oldest = (await log.state()).oldest_offset
        assert {b: o for b, o in told.items() if o >= oldest} == found
        assert 20 == len(set(told.values()))

    simulate(seed, main)
