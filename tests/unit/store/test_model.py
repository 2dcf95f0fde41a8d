"""Any sequence of calls has the same outcome on a directory, on a view of one, and in memory."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.base.errors import CordwoodError
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore
from cordwood.store.memory import MemoryStore
from cordwood.store.prefix import PrefixStore
from cordwood.testing.crashdisk import CrashDisk

KEYS = ["a-b", "a/x", "a/y", "a/z/1", "a0", "b/c-", "b/c/d", "b/c0/e", "b/é", "日"]

keys = st.sampled_from(KEYS)
texts = st.one_of(keys, st.sampled_from(["", "a", "a/", "b/c", "b/c/", "b/c/d/e", "x", "/", "//"]))
bodies = st.binary(max_size=8)
numbers = st.integers(min_value=0, max_value=10)

calls = st.lists(
    st.one_of(
        st.tuples(st.just("create"), keys, bodies),
        st.tuples(st.just("overwrite"), keys, bodies),
        st.tuples(st.just("match"), keys, bodies, st.integers(0, 5)),
        st.tuples(st.just("get"), keys),
        st.tuples(st.just("get_range"), keys, numbers, numbers),
        st.tuples(st.just("head"), keys),
        st.tuples(st.just("delete"), st.lists(keys, max_size=3)),
        st.tuples(st.just("list"), texts, texts),
        st.tuples(st.just("sync"), keys),
    ),
    max_size=40,
)


class Player:
    """Makes calls on a store and tells what came of them, with etags by the order they came in."""

    def __init__(self, store):
        self.store = store
        self.etags = ["never"]

    async def play(self, call):
        try:
            return await getattr(self, call[0])(*call[1:])
        except CordwoodError as error:
            return type(error)

    async def put(self, key, data, mode):
        self.etags.append(await self.store.put(key, data, mode))

    async def create(self, key, data):
        await self.put(key, data, "create")

    async def overwrite(self, key, data):
        await self.put(key, data, "overwrite")

    async def match(self, key, data, back):
        await self.put(key, data, Match(self.etags[max(0, len(self.etags) - 1 - back)]))

    async def get(self, key):
        found = await self.store.get(key)
        return found.data, self.etags.index(found.etag)

    async def get_range(self, key, start, length):
        return await self.store.get_range(key, start, length)

    async def head(self, key):
        found = await self.store.head(key)
        return found.key, found.size_bytes, self.etags.index(found.etag)

    async def delete(self, keys):
        await self.store.delete(keys)

    async def list(self, prefix, start_after):
        return [
            (meta.key, meta.size_bytes, self.etags.index(meta.etag))
            async for meta in self.store.list(prefix, start_after)
        ]

    async def sync(self, key):
        await self.store.sync([key])


@settings(max_examples=150)
@given(calls)
def test_stores_agree(calls):
    """Every call has the same outcome on each store, whatever came before it."""

    async def main():
        reference = Player(MemoryStore())
        others = [
            Player(DirectoryStore("/wood", disk=CrashDisk("posix"))),
            Player(PrefixStore(DirectoryStore("/wood", disk=CrashDisk("ext4")), "in/a/folder")),
        ]
        for call in calls:
            expected = await reference.play(call)
            for other in others:
                assert expected == await other.play(call), (call, other.store)

    asyncio.run(main())
