"""A directory store and the power switch: what returned is there afterwards, whenever it was cut.

A workload runs on the crash model's disk. It is run once to count its steps, then once per step and
seed with the power cut right there; what is found must be what was acknowledged, or, for the one
call on its way, what it was about to write.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import AlreadyExistsError, Code, ContendedError, NotFoundError, StoreError
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore
from cordwood.store.files import TEMP_PREFIX
from cordwood.testing.crashdisk import CrashDisk, PowerCut

SEEDS = range(10)
MODELS = ["posix", "ext4"]


def open_store(disk, root="/data/wood", seed="ids"):
    return DirectoryStore(root, disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(seed))


@dataclass
class Recorder:
    """A client that remembers what it was told, and what it had asked for when it was cut off."""

    store: DirectoryStore
    told: dict[str, tuple[bytes, str] | None] = field(default_factory=dict)
    asked: dict[str, bytes | None] = field(default_factory=dict)
    bodies: set[bytes] = field(default_factory=set)

    async def put(self, key, data, mode="overwrite"):
        self.asked = {key: data}
        self.bodies.add(data)
        etag = await self.store.put(key, data, mode)
        self.told[key] = (data, etag)
        self.asked = {}
        return etag

    async def delete(self, *keys):
        self.asked = dict.fromkeys(keys)
        await self.store.delete(keys)
        self.told.update(dict.fromkeys(keys))
        self.asked = {}

    async def check(self, store, case):
        """What is found in `store` is what this client may rely on."""
        listed = {meta.key: meta.etag async for meta in store.list()}
        for key, expected in self.told.items():
            found = None
            with suppress(NotFoundError):
                found = tuple(await store.get(key))
            assert (None if found is None else found[1]) == listed.get(key), case
            if found == expected:
                continue
            assert key in self.asked, (case, key, expected, found)
            assert self.asked[key] == (None if found is None else found[0]), (case, key, found)
        for key in listed:
            assert (await store.get(key)).data in self.bodies, (case, key)
        # And it can be written to again.
        await store.put("after/the/cut", b"new", "create")
        for key, etag in listed.items():
            await store.put(key, b"new", Match(etag))


async def workload(client):
    """Every kind of put and delete, in new and in old folders."""
    await client.put("orders/MANIFEST", b"manifest 1", "create")
    etag = await client.put("orders/log/0001", b"fragment " * 50, "create")
    etag = await client.put("orders/log/0001", b"swapped", Match(etag))
    await client.put("orders/log/0001", b"swapped again", Match(etag))
    await client.put("orders/MANIFEST", b"manifest 2")
    await client.put("deep/er/and/deeper", b"", "create")
    await client.put("top", b"top", "overwrite")
    await client.delete("orders/log/0001", "orders/absent", "top")
    await client.put("orders/log/0001", b"made again", "create")
    with pytest.raises(AlreadyExistsError):
        await client.store.put("orders/log/0001", b"refused", "create")
    with pytest.raises(ContendedError):
        await client.store.put("orders/log/0001", b"refused", Match(etag))
    await client.put("orders/MANIFEST", b"manifest 3")


async def steps_of(model):
    disk = CrashDisk(model)
    await workload(Recorder(open_store(disk)))
    return disk.steps


@pytest.mark.parametrize("model", MODELS)
async def test_power_cut_at_every_step(model):
    """Nothing that returned is lost or changed by a power cut, after whichever step it comes."""
    for step in range(await steps_of(model) + 1):
        for seed in SEEDS:
            disk = CrashDisk(model)
            client = Recorder(open_store(disk))
            disk.cut_after(step)
            with suppress(PowerCut):
                await workload(client)
            found = disk.power_cut(SeededEntropy(f"{step} {seed}"))
            await client.check(open_store(found, seed="after"), (model, step, seed))


async def killed_at(model, step):
    """The disk as a process killed after this step leaves it, and the bodies it may have put."""
    disk = CrashDisk(model)
    first = Recorder(open_store(disk))
    disk.cut_after(step)
    with suppress(PowerCut):
        await workload(first)
    disk.revive()
    return disk, first.bodies


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("root", ["/data/wood", "/data/wood/orders", "/data/wood/orders/log"])
async def test_kill_then_put_then_power_cut(model, root):
    """What a second process is told survives, whatever folders and files a killed one had left."""
    key = "/data/wood/orders/log/0001".removeprefix(f"{root}/")
    for step in range(await steps_of(model) + 1):
        disk, bodies = await killed_at(model, step)
        second = Recorder(open_store(disk, root, seed="second"), bodies=bodies)
        try:
            await second.put(key, b"second", "create")
        except AlreadyExistsError:
            second.told[key] = tuple(await second.store.get(key))
            second.asked = {}
        for seed in SEEDS:
            found = disk.power_cut(SeededEntropy(f"{step} {seed}"))
            await second.check(open_store(found, root, seed="after"), (model, root, step, seed))


@pytest.mark.parametrize("model", MODELS)
async def test_kill_then_sync_then_power_cut(model):
    """What a second process has seen and synced survives, whatever killed the one that wrote it."""
    for step in range(await steps_of(model) + 1):
        disk, bodies = await killed_at(model, step)
        second = Recorder(open_store(disk, seed="second"), bodies=bodies)
        async for meta in second.store.list():
            second.told[meta.key] = tuple(await second.store.get(meta.key))
        await second.store.sync(second.told)
        for seed in SEEDS:
            found = disk.power_cut(SeededEntropy(f"{step} {seed}"))
            await second.check(open_store(found, seed="after"), (model, step, seed))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_failure_at_every_step(model, number):
    """A step that fails is reported, truthfully, and takes nothing with it that had returned."""
    for step in range(1, await steps_of(model) + 1):
        disk = CrashDisk(model)
        client = Recorder(open_store(disk))
        disk.fail(step, number)
        raised = None
        try:
            await workload(client)
        except StoreError as error:
            raised = error
        if raised is not None:
            expected = Code.STORE_FULL if number == errno.ENOSPC else Code.STORE_FAILED
            assert expected == raised.code
            if raised.operation == "put" and not raised.applied:
                client.asked = {}  # it said that nothing happened
        await client.check(open_store(disk, seed="same"), (model, number, step, "before"))


@pytest.mark.parametrize("model", MODELS)
async def test_failure_then_power_cut(model):
    """After a failed step, a power cut loses nothing that had returned."""
    for step in range(1, await steps_of(model) + 1):
        disk = CrashDisk(model)
        client = Recorder(open_store(disk))
        disk.fail(step, errno.EIO)
        with suppress(StoreError):
            await workload(client)
        found = disk.power_cut(SeededEntropy(step))
        await client.check(open_store(found, seed="after"), (model, step))


class Interrupted(CrashDisk):
    """A disk on which others get their turn just before a folder is synced."""

    def __init__(self, model):
        super().__init__(model)
        self.turns = []

    def fsync_dir(self, path):
        if self.turns and path == "/data/wood/shared":
            self.turns.pop(0)()
        super().fsync_dir(path)


class Chain:
    """One object's life by several clients: what it was in turn, and what its clients were told."""

    def __init__(self, disk):
        self.disk = disk
        self.life = [None]
        self.told = 0
        self.clients = 0

    def now(self, call):
        """Run a call of a fresh client to its end: on this disk none ever waits."""
        with pytest.raises(StopIteration) as done:
            call.send(None)
        return done.value.value

    def step(self, body, *, by="swap"):
        """Put or delete the object, from whatever can be seen; others may come before the sync."""
        self.clients += 1
        store = open_store(self.disk, seed=self.clients)
        self.life.append(body)
        place = len(self.life) - 1
        if by == "swap":
            self.now(store.put("shared/key", body, Match(self.now(store.get("shared/key")).etag)))
        elif by == "delete":
            self.now(store.delete(["shared/key"]))
        else:
            self.now(store.put("shared/key", body, by))
        self.told = max(self.told, place)

    def run(self):
        """Each turn begins when the one before has changed the name and not yet synced it."""
        self.step(b"1", by="create")
        steps = self.disk.turns
        # 3 comes before 2 is durable, and 4 before 3 is: their syncs end in the opposite order.
        steps.append(lambda: self.step(b"3"))
        steps.append(lambda: self.step(b"4"))
        self.step(b"2")
        steps.append(lambda: self.step(b"6", by="create"))
        self.step(None, by="delete")
        steps.append(lambda: self.step(None, by="delete"))
        steps.append(lambda: self.step(b"9", by="overwrite"))
        self.step(b"7", by="overwrite")
        steps.append(lambda: self.step(b"11", by="overwrite"))
        self.step(b"10")

    async def check(self, found, case):
        """The object is one that it has been, and none from before what a client was told."""
        store, body = open_store(found, seed="after"), None
        with suppress(NotFoundError):
            body, etag = await store.get("shared/key")
        assert body in self.life[self.told :], (case, self.life, self.told, body)
        if body is not None:
            await store.put("shared/key", b"after", Match(etag))
        assert ["shared/key"][: body is not None] == [meta.key async for meta in store.list()]


@pytest.mark.parametrize("model", MODELS)
async def test_power_cut_while_others_build_on_what_is_not_yet_synced(model):
    """A put that replaced one not yet synced survives with it, and no power cut goes behind it."""
    # EVIDENCE-OF: G-29
    whole = Chain(Interrupted(model))
    whole.run()
    assert (len(whole.life) - 1, 11) == (whole.told, len(whole.life) - 1)
    for step in range(whole.disk.steps + 1):
        for seed in SEEDS:
            chain = Chain(Interrupted(model))
            chain.disk.cut_after(step)
            with suppress(PowerCut):
                chain.run()
            found = chain.disk.power_cut(SeededEntropy(f"{step} {seed}"))
            await chain.check(found, (model, step, seed))


@pytest.mark.parametrize("model", MODELS)
async def test_failed_sync_while_others_build_on_it(model):
    """A put whose folder sync failed says so; the one built on it meanwhile stays acknowledged."""
    for seed in SEEDS:
        disk = Interrupted(model)
        chain = Chain(disk)
        chain.step(b"1", by="create")

        def other(disk=disk, chain=chain):
            chain.step(b"3")
            disk.fail(1, errno.EIO)

        disk.turns.append(other)
        store = open_store(disk, seed="failing")
        chain.life.append(b"2")
        with pytest.raises(StoreError) as caught:
            await store.put("shared/key", b"2", Match((await store.get("shared/key")).etag))
        assert caught.value.applied
        assert 3 == chain.told
        await chain.check(disk.power_cut(SeededEntropy(seed)), (model, seed))


class FolderSyncForgotten(CrashDisk):
    """A disk for a store that does not sync its folders."""

    def fsync_dir(self, path):
        """Nothing."""


class FileSyncForgotten(CrashDisk):
    """A disk for a store that does not sync its files."""

    def sync_file(self, inode, path):
        """Nothing."""


@pytest.mark.parametrize("kind", [FolderSyncForgotten, FileSyncForgotten])
@pytest.mark.parametrize("model", MODELS)
async def test_the_model_finds_what_is_forgotten(kind, model):
    """A store that leaves out one kind of sync is found out: the model is worth something."""
    lost = 0
    for seed in range(20):
        disk = kind(model)
        client = Recorder(open_store(disk))
        await workload(client)
        found = disk.power_cut(SeededEntropy(seed))
        try:
            await client.check(open_store(found), (model, seed))
        except AssertionError:
            lost += 1
    # On ext4 the fsync of any later file commits the names before it: only the last are at risk.
    assert lost > 0


async def test_old_temporary_files_are_swept():
    """What killed puts left is removed by a later process, once it is an hour old."""

    class Clock:
        now = 1_700_000_000_000_000

        def now_us(self):
            return self.now

        def monotonic_s(self):
            return self.now / 1e6

    clock, disk = Clock(), CrashDisk()
    store = DirectoryStore("/wood", disk=disk, clock=clock, entropy=SeededEntropy(1))
    await store.put("folder/a", b"", "create")
    disk.cut_after(2)  # the temporary file's name and bytes
    with pytest.raises(PowerCut):
        await store.put("folder/b", b"bytes", "create")
    disk.revive()

    def temporary():
        return [name for name, _ in disk.scan("/wood/folder") if name.startswith(TEMP_PREFIX)]

    assert 1 == len(temporary())
    left = f"/wood/folder/{temporary()[0]}"
    disk.touch(left, clock.now * 1_000)
    await DirectoryStore("/wood", disk=disk, clock=clock).put("folder/c", b"")
    assert 1 == len(temporary())
    clock.now += 3_601 * 1_000_000
    await DirectoryStore("/wood", disk=disk, clock=clock).put("folder/d", b"")
    assert [] == temporary()
    assert ["folder/a", "folder/c", "folder/d"] == [meta.key async for meta in store.list()]
