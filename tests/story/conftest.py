"""What the stories share: a log in memory, ways to look into it, and to collect it."""

from __future__ import annotations

import asyncio
import json

import pytest

import cordwood
from cordwood.log import paths
from cordwood.log.chain import names
from cordwood.store.directory import DirectoryStore
from cordwood.store.memory import MemoryStore
from cordwood.testing.filling import settle
from cordwood.testing.handclock import HandClock
from cordwood.testing.hooked import Hooked


class Bucket:
    """What lies in a store, seen from outside the library."""

    def __init__(self, memory, name="orders"):
        """The objects under one log's name."""
        self.memory = memory
        self.name = name

    async def keys(self):
        """Paths inside the log, sorted."""
        prefix = f"{self.name}/"
        return [meta.key.removeprefix(prefix) async for meta in self.memory.list(prefix)]

    async def get(self, path):
        """An object's bytes."""
        return (await self.memory.get(f"{self.name}/{path}")).data

    async def put(self, path, data):
        """Replace an object by hand."""
        await self.memory.put(f"{self.name}/{path}", data)

    async def delete(self, path):
        """Delete an object by hand."""
        await self.memory.delete([f"{self.name}/{path}"])

    async def newest(self):
        """The path of the manifest; of a chain, of the newest there is."""
        keys = [key for key in await self.keys() if key.startswith(names.MANIFEST_PREFIX)]
        return min(keys, default=paths.MANIFEST)

    async def manifest(self):
        """The manifest as plain JSON; of a chain, the newest there is."""
        return json.loads(await self.get(await self.newest()))

    async def slot(self, number):
        """The path of the fragment with this number; of a chain, in its first shard."""
        named = filter(None, map(names.parse_fragment, await self.keys()))
        shards = {name.seq_no: names.fragment(*name) for name in named}
        return shards.get(number, paths.fragment(number))

    async def slots(self):
        """The numbers of the slots that are taken; of a chain, those in its first shard."""
        found = [paths.fragment_seq_no(key) for key in await self.keys()]
        shards = filter(None, map(names.parse_fragment, await self.keys()))
        return [number for number in found if number is not None] + [n.seq_no for n in shards]


URLS = {"cas": "custom:", "chain": "gs://bucket"}
"""By its URL a store says which protocol its logs get."""


CAS_STORIES = frozenset({"00", "04", "05", "06", "07", "08", "12", "15", "16", "17", "18"})
CAS_STORIES |= {"20", "24", "25", "26", "27", "28", "40", "47", "49"}
"""About slots and adoption, GARBAGE and MANIFEST as files, or what single requests cost."""


def pytest_generate_tests(metafunc):
    """A story is told on logs of both protocols, unless it is about what only a cas log has.

    That is so of whole files (CAS_STORIES), and of tests that are marked `cas`.
    """
    number = metafunc.module.__name__.rpartition(".")[2].split("_")[1]
    is_cas = metafunc.definition.get_closest_marker("cas") or number in {*CAS_STORIES, "60", "61"}
    if "protocol" in metafunc.fixturenames and not is_cas:
        metafunc.parametrize("protocol", ["cas", "chain"], indirect=True)


@pytest.fixture
def protocol(request):
    """The protocol of the logs that a story is about."""
    return getattr(request, "param", "cas")


@pytest.fixture
def over(protocol):
    """`over(store)`: as the library takes it, with logs of the protocol that is told about."""
    return lambda store: cordwood.Store.over(store, URLS[protocol])


@pytest.fixture
def memory():
    """A store of the test's own."""
    return MemoryStore()


@pytest.fixture
def log(memory, over):
    """A log that does not exist yet."""
    return cordwood.Log(over(memory), "orders")


@pytest.fixture
def bucket(memory):
    """The view from outside."""
    return Bucket(memory)


@pytest.fixture
def bucket_of():
    """The view from outside into any store."""
    return Bucket


@pytest.fixture
def hooked():
    """`hooked(store, put=…)`: a store with hooks."""
    return Hooked


@pytest.fixture
def read():
    """`await read(log, start, limits)`: every record, verified."""

    async def read_all(log, start=None, limits=None):
        async with log.reader() as reader:
            return [record async for record in reader.read(start, limits or cordwood.Limits())]

    return read_all


@pytest.fixture
def bodies(read):
    """`await bodies(log)`: every record's body."""

    async def read_bodies(log, start=None, limits=None):
        return [record.body for record in await read(log, start, limits)]

    return read_bodies


@pytest.fixture
def time():
    """What the store says, in `place`."""
    return HandClock()


@pytest.fixture(params=["memory", "directory"])
def place(request, time, tmp_path):
    """A store with a clock of its own, in memory and on a disk."""
    if request.param == "memory":
        return MemoryStore(clock=time)
    return DirectoryStore(tmp_path / "wood", clock=time)


@pytest.fixture
def numbers(over):
    """`await numbers(store, count)`: a log of so many fragments, with one numbered record each."""

    async def write(store, count, *, grace_s=60, name="orders"):
        log = cordwood.Log(over(store), name)
        await log.create(exist_ok=True, grace_s=grace_s)
        options = cordwood.Options(batch_bytes=1, in_flight=8)
        first = (await log.state()).next_offset
        async with log.writer(options=options) as writer:
            bodies = [b"%d" % n for n in range(first, first + count)]
            await asyncio.gather(*(writer.append(body) for body in bodies))
            await settle(writer)
        return log

    return write


@pytest.fixture
def collected(time):
    """`await collected(log)`: collect as far as it goes, however long that takes."""

    async def collect(log, **options):
        report = await log.collect(wait_s=0, **options)
        time.pass_s(report.due_s + 0.001)
        last = await log.collect(wait_s=0, **options)
        last.deleted += report.deleted
        last.records += report.records
        return last

    return collect


@pytest.fixture
def free(collected):
    """`await free(log, offset)`: collect everything before the offset, sweep and all."""

    async def collect(log, offset):
        cursors = await log.cursors.list()
        if "done" in cursors:
            await log.cursors.save("done", offset, cursors["done"])
        else:
            await log.cursors.init("done", offset)
        return await collected(log)

    return collect


@pytest.fixture
def live():
    """`await live(log)`: the paths of every fragment and node that the log names."""

    async def walk(log):
        found = set()

        async def below(pointers):
            for pointer in pointers:
                found.add(pointer.path)
                if pointer.path.startswith(paths.NODE_PREFIX):
                    await below((await log.objects.read_node(pointer)).children)

        manifest = await log.manifest()
        await below((*manifest.nodes, *manifest.fragments))
        return found

    return walk


@pytest.fixture
def stored():
    """`await stored(bucket)`: the fragments and nodes that lie in the store."""

    async def walk(bucket):
        return {key for key in await bucket.keys() if key.startswith(("log/", "snapshot/"))}

    return walk


@pytest.fixture
def leftovers(live, stored):
    """`await leftovers(log, bucket)`: what nobody needs and no collection took.

    A writer makes nodes ahead of the manifest that will name them; those are no leftovers.
    """

    async def find(log, bucket):
        named, oldest = await live(log), (await log.state()).oldest_offset
        there = await stored(bucket)
        assert named <= there
        found = []
        for key in sorted(there - named):
            if key.startswith(paths.NODE_PREFIX):
                node = json.loads(await bucket.get(key))
                if (node["snapshots"] or node["fragments"])[0]["start"]["offset"] >= oldest:
                    continue
            found.append(key)
        return found

    return find
