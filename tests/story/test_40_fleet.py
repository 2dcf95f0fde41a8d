"""Story 40: many logs, a member that dies on the way, a roll-up elsewhere that finds them all."""

from __future__ import annotations

import asyncio

import cordwood
from cordwood import Fleet, Policy, owners, select, survey
from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.fleet.dirty import COMPACTION, dirty_name
from cordwood.fleet.share import share

WORKERS = ["w1", "w2", "w3"]


async def compact(store, dirty):
    """What a worker does with a log: read it from its cursor on, and move the cursor."""
    log = cordwood.Log(store, dirty.log)
    async with log.reader() as reader:
        bodies = [record.body async for record in reader.read(dirty.start)]
    witness = await log.cursors.init(COMPACTION, dirty.start)
    await log.cursors.save(COMPACTION, dirty.start + len(bodies), witness)
    return bodies


async def killed_half_way(memory, hooked, num_logs):
    """A member writes to many logs and is killed: its store never answers again."""
    is_dead = asyncio.Event()
    puts = 0

    async def put(call, *args):
        nonlocal puts
        puts += 1
        if puts > 2 * num_logs:
            is_dead.set()
            await asyncio.Event().wait()
        return await call()

    before = asyncio.all_tasks()
    store = cordwood.Store.over(hooked(memory, put=put))
    fleet = Fleet(store, "node-1", create=True, max_open=10)
    told = []

    async def write(name):
        await fleet.append(name, b"hello")
        told.append(name)

    work = [asyncio.ensure_future(write(f"tenants/{n}/events")) for n in range(num_logs)]
    await is_dead.wait()
    for _ in range(200):
        await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - before
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert 20 < len(told) < num_logs == len(work)
    return told


async def test_a_roll_up_elsewhere_finds_every_log(memory, hooked):
    """From the first append to a dirty log without marks, through the death of a member."""
    # EVIDENCE-OF: G-51, G-52, G-54, G-55, G-56
    num_logs = 100
    told = await killed_half_way(memory, hooked, num_logs)
    store = cordwood.Store.over(memory)

    # Another member goes on with some of the logs, and adopts what the dead one left in them.
    async with Fleet(store, "node-2", create=True, max_open=5) as fleet:
        for n in range(0, num_logs, 3):
            await fleet.append(f"tenants/{n}/events", b"again")

    # What really needs compaction, by asking every log: the costly way.
    names = [f"tenants/{n}/events" for n in range(num_logs)]
    needed = set()
    for name in names:
        try:
            if (await cordwood.Log(store, name).state()).records:
                needed.add(name)
        except cordwood.NotFoundError:
            assert name not in told
    assert set(told) <= needed
    assert {one.log for one in (await survey(store)).dirty} == needed

    # Three workers on other machines roll up and compact, each its share.
    policy = Policy(min_records=1)
    done = {}
    for worker in WORKERS:
        async with Fleet(store, worker) as fleet:
            for member in await cordwood.members(store):
                if worker in owners(dirty_name(member), WORKERS):
                    await fleet.roll_up(member, quiet_s=0.0)
            found = select((await survey(store)).dirty, SYSTEM_CLOCK.now_us(), policy)
            by_name = {one.dirty.log: one.dirty for one in found}
            for name in share(worker, by_name, WORKERS):
                assert name not in done
                done[name] = await compact(store, by_name[name])
    assert needed == set(done)
    for name in told:
        assert b"hello" in done[name]

    # Nothing is left: neither to compact nor of the marks.
    async with Fleet(store, "w1") as fleet:
        for member in ("node-1", "node-2"):
            await fleet.roll_up(member, quiet_s=0.0)
            assert 0 == (await fleet.roll_up(member, quiet_s=0.0)).marks
    assert [] == (await survey(store)).dirty
