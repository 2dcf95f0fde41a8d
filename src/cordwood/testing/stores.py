"""The contract of `store/api.py` as tests: every store, and every wrapper of one, passes them.

Derive from `StoreTests`, give it a `store` fixture, and pytest (with pytest-asyncio in its auto
mode) does the rest::

    class TestMemoryStore(StoreTests):
        @pytest.fixture
        def store(self):
            return MemoryStore()

The class attributes say how much of each thing to do, and the two points in which stores may
differ. A store that cannot pass is not a store: there are no other switches.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cordwood.base.errors import (
    AlreadyExistsError,
    ContendedError,
    InvalidInputError,
    NotFoundError,
)
from cordwood.store.api import Match, Object, ObjectStore, ServerCopies
from cordwood.store.streams import as_generator

BAD_KEYS = (
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/./b",
    "a\\b",
    "a\nb",
    "a\0b",
    "\ud800",
    "x" * 201,
    ".cordwood-lock",
    "a/.cordwood-tmp-1",
)
"""Keys that some store could not hold, or that would name something else there."""

ODD_KEYS = (
    "plain",
    "with space/and more",
    "ünï/cödé/日本語",
    "emoji/🪵",
    "percent%20and+plus",
    "signs/!$&'()*,;=:@~^`{}|<>\"[]?#",
    "trailing.dot.",
    "-dash",
    "_under",
    "x" * 200,
    "/".join(["deep"] * 12),
)
"""Keys that every store holds, although some would like to treat them specially."""

ORDERED_KEYS = (
    "a",
    "a-b",
    "a-c/z",
    "a.b",
    "b/a",
    "b/a-",
    "b/a0",
    "b/c/d",
    "b/c/d-e",
    "b/c0",
    "b0",
    "é",
    "日",
    "🪵",
)
"""Keys in order; around the slash, a wrong idea of order puts folders before or after all else."""


class StoreTests:
    """What every `ObjectStore` does."""

    writers = 16
    swaps_per_writer = 6
    create_rounds = 5
    many_keys = 1_100
    """More than one page of a list."""
    large_bytes = 8 * 2**20
    etag_is_content = False
    """Whether equal bytes give equal etags, as on S3."""
    list_has_etags = True
    """Whether a list's etag equals that of head, as everywhere but on Google."""

    # One object.

    async def test_absent(self, store: ObjectStore) -> None:
        """Every way to read an object that is not there says so."""
        with pytest.raises(NotFoundError):
            await store.get("absent")
        with pytest.raises(NotFoundError):
            await store.get_range("absent", 0, 1)
        with pytest.raises(NotFoundError):
            await store.get_range("absent", 0, 0)
        with pytest.raises(NotFoundError):
            await store.head("folder/absent")
        assert [] == await keys_of(store)

    async def test_create(self, store: ObjectStore) -> None:
        """A created object has the bytes, size and etag that its put gave it."""
        etag = await store.put("folder/object", b"bytes", "create")
        assert (b"bytes", etag) == await store.get("folder/object")
        meta = await store.head("folder/object")
        assert ("folder/object", 5, etag) == (meta.key, meta.size_bytes, meta.etag)
        assert meta.modified_us > 0

    async def test_create_refused(self, store: ObjectStore) -> None:
        """A second create of a key is refused and leaves the first object as it is."""
        etag = await store.put("object", b"first", "create")
        with pytest.raises(AlreadyExistsError):
            await store.put("object", b"second", "create")
        with pytest.raises(AlreadyExistsError):
            await store.put("object", b"first", "create")
        assert (b"first", etag) == await store.get("object")

    async def test_overwrite(self, store: ObjectStore) -> None:
        """An overwrite replaces what is there and makes what is not."""
        first = await store.put("object", b"first")
        second = await store.put("object", b"second, longer", "overwrite")
        assert first != second
        assert (b"second, longer", second) == await store.get("object")

    async def test_match(self, store: ObjectStore) -> None:
        """A match put swaps the object its etag names and refuses every other."""
        first = await store.put("object", b"1", "create")
        second = await store.put("object", b"2", Match(first))
        with pytest.raises(ContendedError):
            await store.put("object", b"3", Match(first))
        assert (b"2", second) == await store.get("object")
        third = await store.put("object", b"3", Match(second))
        assert 3 == len({first, second, third})

    async def test_match_absent(self, store: ObjectStore) -> None:
        """A match put never creates: not on a key that never was, nor on a deleted one."""
        etag = await store.put("object", b"1", "create")
        with pytest.raises(ContendedError):
            await store.put("never", b"2", Match(etag))
        await store.delete(["object"])
        with pytest.raises(ContendedError):
            await store.put("object", b"2", Match(etag))
        assert [] == await keys_of(store)

    async def test_etags_are_new(self, store: ObjectStore) -> None:
        """An etag does not come back, also after a delete; on S3 as long as the bytes do not."""
        bodies = [f"same {num * self.etag_is_content}".encode() for num in range(7)]
        etags = [await store.put("object", body) for body in bodies[:5]]
        etags.append(await store.put("object", bodies[5], Match(etags[-1])))
        await store.delete(["object"])
        etags.append(await store.put("object", bodies[6], "create"))
        assert len(etags) == len(set(etags))

    async def test_etag_survives_reading(self, store: ObjectStore) -> None:
        """The etag that head or get gives can be matched on."""
        await store.put("object", b"1", "create")
        await store.put("object", b"2", Match((await store.head("object")).etag))
        await store.put("object", b"3", Match((await store.get("object")).etag))
        assert b"3" == (await store.get("object")).data

    async def test_etag_from_list(self, store: ObjectStore) -> None:
        """The etag that a list gives can be matched on."""
        etag = await store.put("object", b"1", "create")
        listed = [meta async for meta in store.list()]
        if self.list_has_etags:
            assert [etag] == [meta.etag for meta in listed]
        await store.put("object", b"2", Match(listed[0].etag))
        with pytest.raises(ContendedError):
            await store.put("object", b"3", Match(listed[0].etag))

    @pytest.mark.parametrize("mode", ["create", "overwrite"])
    async def test_empty_object(self, store: ObjectStore, mode: str) -> None:
        """An object may be empty."""
        etag = await store.put("empty", b"", "create" if mode == "create" else "overwrite")
        assert (b"", etag) == await store.get("empty")
        assert 0 == (await store.head("empty")).size_bytes
        assert b"" == await store.get_range("empty", 0, 10)

    async def test_views(self, store: ObjectStore) -> None:
        """Bytes may be put where they lie."""
        room = bytearray(b"before " + bytes(range(256)) * 300 + b" behind")
        shown = memoryview(room)[7:-7]
        expected = bytes(shown)
        await store.put("open", shown, "create")
        await store.put("read-only", shown.toreadonly(), "create")
        await store.put("wide", memoryview(expected).cast("I"), "create")
        await store.put("signed", memoryview(expected).cast("b"), "create")
        await store.put("square", memoryview(expected).cast("B", (300, 256)), "create")
        room[7:] = bytes(len(room) - 7)
        for key in ("open", "read-only", "wide", "signed", "square"):
            assert (await store.get(key)).data == expected

    async def test_large_object(self, store: ObjectStore) -> None:
        """An object of several megabytes goes and comes back in one piece, in every mode."""
        data = bytes(range(256)) * (self.large_bytes // 256)
        etag = await store.put("large", data, "create")
        assert data == (await store.get("large")).data
        other = data[::-1]
        etag = await store.put("large", other, Match(etag))
        assert (other, etag) == await store.get("large")
        await store.put("large", data, "overwrite")
        assert data[-5:] == await store.get_range("large", len(data) - 5, 100)
        assert len(data) == (await store.head("large")).size_bytes

    # Ranges.

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 10, b"0123456789"),
            (0, 1, b"0"),
            (3, 4, b"3456"),
            (9, 1, b"9"),
            (7, 100, b"789"),
            (0, 0, b""),
            (4, 0, b""),
            (10, 5, b""),
            (10, 0, b""),
        ],
    )
    async def test_range(
        self, store: ObjectStore, start: int, length: int, expected: bytes
    ) -> None:
        """A range is cut off where the object ends."""
        await store.put("object", b"0123456789")
        assert expected == await store.get_range("object", start, length)

    @pytest.mark.parametrize(
        ("start", "length"), [(11, 1), (11, 0), (1 << 40, 5), (-1, 2), (0, -1)]
    )
    async def test_range_refused(self, store: ObjectStore, start: int, length: int) -> None:
        """A range that starts past the end, or has a negative number, is refused."""
        await store.put("object", b"0123456789")
        with pytest.raises(InvalidInputError):
            await store.get_range("object", start, length)

    # Keys.

    @pytest.mark.parametrize("key", BAD_KEYS, ids=ascii)
    async def test_bad_key(self, store: ObjectStore, key: str) -> None:
        """A key that some store could not hold is refused by all, in every call."""
        with pytest.raises(InvalidInputError):
            await store.put(key, b"")
        with pytest.raises(InvalidInputError):
            await store.get(key)
        with pytest.raises(InvalidInputError):
            await store.get_range(key, 0, 1)
        with pytest.raises(InvalidInputError):
            await store.head(key)
        with pytest.raises(InvalidInputError):
            await store.delete(["fine", key])
        with pytest.raises(InvalidInputError):
            await store.sync([key])

    async def test_odd_keys(self, store: ObjectStore) -> None:
        """A key with spaces, signs or letters of any script is kept as it is."""
        for key in ODD_KEYS:
            await store.put(key, key.encode(), "create")
        assert sorted(ODD_KEYS) == await keys_of(store)
        for key in ODD_KEYS:
            assert key.encode() == (await store.get(key)).data
        await store.delete(ODD_KEYS)
        assert [] == await keys_of(store)

    # Deletes.

    async def test_delete(self, store: ObjectStore) -> None:
        """Deleting is done when it returns; what was not there counts as deleted."""
        await store.put("a/1", b"")
        await store.put("a/2", b"")
        await store.put("b", b"")
        await store.delete(["a/1", "never", "nor/this", "b", "b"])
        assert ["a/2"] == await keys_of(store)
        with pytest.raises(NotFoundError):
            await store.get("a/1")
        await store.delete(["a/1"])
        await store.delete([])
        await store.put("a/1", b"again", "create")
        assert b"again" == (await store.get("a/1")).data

    # Lists.

    async def test_list_order(self, store: ObjectStore) -> None:
        """A list is in the order of the keys' bytes, whatever the folders."""
        for key in reversed(ORDERED_KEYS):
            await store.put(key, b"")
        assert list(ORDERED_KEYS) == await keys_of(store)
        assert list(ORDERED_KEYS) == sorted(ORDERED_KEYS, key=str.encode)

    async def test_list_prefix_and_start(self, store: ObjectStore) -> None:
        """Prefix and start are plain text, each alone and both together."""
        for key in ORDERED_KEYS:
            await store.put(key, b"")
        starts = ["", *ORDERED_KEYS, "a-", "b/", "b/c/", "b/c/z", "b/c/d/e", "zz", "\U0010ffff"]
        prefixes = ["", "a", "a-", "b", "b/", "b/a", "b/c", "b/c/", "b/c/d", "é", "b//", "/", "x"]
        for prefix in prefixes:
            for start in starts:
                expected = [key for key in ORDERED_KEYS if key.startswith(prefix) and key > start]
                assert expected == await keys_of(store, prefix, start), (prefix, start)

    async def test_list_many(self, store: ObjectStore) -> None:
        """A list is complete over more keys than fit a page, also from the middle."""
        expected = [f"many/{num // 500}/{num:06}" for num in range(self.many_keys)]
        await put_all(store, [*expected, "other", "manz"])
        assert expected == await keys_of(store, "many/")
        middle = self.many_keys // 2
        assert expected[middle + 1 :] == await keys_of(store, "many/", expected[middle])
        assert expected[500:1_000] == await keys_of(store, "many/1")
        await store.delete(expected)
        assert ["manz", "other"] == await keys_of(store)

    async def test_list_left_early(self, store: ObjectStore) -> None:
        """A list may be left before its end."""
        for num in range(5):
            await store.put(f"key/{num}", b"")
        async with aclosing(as_generator(store.list())) as metas:
            async for meta in metas:
                assert "key/0" == meta.key
                break
        assert 5 == len(await keys_of(store))

    async def test_list_while_changing(self, store: ObjectStore) -> None:
        """A list gives what stays throughout, once and in order, whatever changes around it."""
        stay = [f"folder/{num:03}-stay" for num in range(0, 60, 2)]
        come = [f"folder/{num:03}-go" for num in range(1, 60, 2)]
        await put_all(store, stay)

        async def churn() -> None:
            for key in come:
                await store.put(key, b"")
                await store.put(stay[0], key.encode())
            await store.delete(come)

        churning = asyncio.ensure_future(churn())
        lists = 0
        while not churning.done() or not lists:
            keys = await keys_of(store, "folder/")
            assert sorted(set(keys)) == keys
            assert stay == [key for key in keys if key.endswith("stay")]
            lists += 1
            await asyncio.sleep(0)
        await churning
        assert stay == await keys_of(store, "folder/")

    async def test_read_after_write(self, store: ObjectStore) -> None:
        """Each put is seen by the next get, head and list, and each delete too."""
        for num in range(5):
            etag = await store.put("object", str(num).encode(), "overwrite")
            assert (str(num).encode(), etag) == await store.get("object")
            assert etag == (await store.head("object")).etag
            assert ["object"] == await keys_of(store)
            await store.delete(["object"])
            assert [] == await keys_of(store)

    async def test_modified(self, store: ObjectStore) -> None:
        """A later put is not older by the store's own clock."""
        await store.put("first", b"")
        await store.put("second", b"")
        listed = {meta.key: meta.modified_us async for meta in store.list()}
        assert listed["first"] <= listed["second"]
        assert listed["first"] // 1_000_000 == (await store.head("first")).modified_us // 1_000_000

    async def test_sync(self, store: ObjectStore) -> None:
        """Syncing is allowed for any key, there or not, and changes nothing."""
        await store.put("folder/object", b"bytes")
        await store.sync(["folder/object", "folder/absent", "absent/absent", "top"])
        await store.sync([])
        assert ["folder/object"] == await keys_of(store)

    # Races.

    async def test_create_race(self, store: ObjectStore) -> None:
        """Of many concurrent creates of one key exactly one succeeds, and its bytes stay."""
        for number in range(self.create_rounds):
            key = f"race/{number}"
            outcomes = await asyncio.gather(
                *(store.put(key, str(num).encode(), "create") for num in range(self.writers)),
                return_exceptions=True,
            )
            won = [num for num, outcome in enumerate(outcomes) if isinstance(outcome, str)]
            lost = [outcome for outcome in outcomes if isinstance(outcome, AlreadyExistsError)]
            assert (1, self.writers - 1) == (len(won), len(lost)), outcomes
            assert str(won[0]).encode() == (await store.get(key)).data

    async def test_swap_race(self, store: ObjectStore) -> None:
        """Concurrent read-and-swap loses no update."""
        await store.put("counter", b"0 start", "create")

        async def add(writer: int) -> None:
            for num in range(self.swaps_per_writer):
                while True:
                    found = await store.get("counter")
                    count = int(found.data.split()[0]) + 1
                    try:
                        # The writer and its turn make each body one of a kind.
                        body = f"{count} {writer}.{num}".encode()
                        await store.put("counter", body, Match(found.etag))
                        break
                    except ContendedError:
                        continue

        await asyncio.gather(*(add(writer) for writer in range(self.writers)))
        expected = self.writers * self.swaps_per_writer
        assert expected == int((await store.get("counter")).data.split()[0])

    async def test_no_torn_reads(self, store: ObjectStore) -> None:
        """A get during overwrites returns the bytes and the etag of one of them."""
        sizes = [100_000, 10, 65_536, 3]
        bodies = [bytes([65 + num]) * size for num, size in enumerate(sizes)]
        etags = {await store.put("object", bodies[0]): bodies[0]}

        async def overwrite() -> None:
            for num in range(20):
                body = bodies[num % len(bodies)]
                etags[await store.put("object", body)] = body

        writing = asyncio.ensure_future(overwrite())
        seen: list[Object] = []
        while not writing.done() or not seen:
            seen.append(await store.get("object"))
            await asyncio.sleep(0)
        await writing
        for found in seen:
            assert found.data == etags[found.etag]


class CopyTests:
    """What every store does that is one of `ServerCopies`."""

    async def test_copy(self, store: ObjectStore) -> None:
        """A copy has the bytes of its source, and does not depend on it."""
        assert isinstance(store, ServerCopies)
        await store.put("from/object", b"bytes", "create")
        await store.copy("from/object", "to/a/new/folder/object")
        assert b"bytes" == (await store.get("to/a/new/folder/object")).data
        assert 5 == (await store.head("to/a/new/folder/object")).size_bytes
        await store.delete(["from/object"])
        assert b"bytes" == (await store.get("to/a/new/folder/object")).data
        assert ["to/a/new/folder/object"] == await keys_of(store)

    async def test_copy_refused(self, store: ObjectStore) -> None:
        """A copy never replaces anything, also not by an equal object."""
        assert isinstance(store, ServerCopies)
        for key, data in (("object", b"1"), ("other", b"2"), ("equal", b"1")):
            await store.put(key, data, "create")
        for key in ("other", "equal", "object"):
            with pytest.raises(AlreadyExistsError):
                await store.copy("object", key)
        assert b"2" == (await store.get("other")).data

    async def test_copy_absent(self, store: ObjectStore) -> None:
        """A source that is not there makes nothing."""
        assert isinstance(store, ServerCopies)
        for key in ("absent", "folder/absent"):
            with pytest.raises(NotFoundError):
                await store.copy(key, "target")
        assert [] == await keys_of(store)

    async def test_copies_at_once(self, store: ObjectStore) -> None:
        """Of many copies to one key exactly one succeeds, and the key has its bytes."""
        assert isinstance(store, ServerCopies)
        sources = [f"source/{number}" for number in range(8)]
        for key in sources:
            await store.put(key, key.encode(), "create")
        copies = (store.copy(key, "target") for key in sources)
        outcomes = await asyncio.gather(*copies, return_exceptions=True)
        won = [key for key, outcome in zip(sources, outcomes, strict=True) if outcome is None]
        assert 1 == len(won)
        assert won[0].encode() == (await store.get("target")).data
        refused = [outcome for outcome in outcomes if outcome is not None]
        assert all(isinstance(outcome, AlreadyExistsError) for outcome in refused)

    async def test_copy_bad_keys(self, store: ObjectStore) -> None:
        """Keys that cannot be are refused on either side."""
        assert isinstance(store, ServerCopies)
        await store.put("object", b"1", "create")
        for key in BAD_KEYS:
            with pytest.raises(InvalidInputError):
                await store.copy("object", key)
            with pytest.raises(InvalidInputError):
                await store.copy(key, "target")


async def keys_of(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    """The keys that a list gives."""
    return [meta.key async for meta in store.list(prefix, start_after)]


async def put_all(store: ObjectStore, keys: list[str], at_once: int = 16) -> None:
    """Put an empty object under each of these keys."""
    todo = iter(keys)

    async def work() -> None:
        for key in todo:
            await store.put(key, b"")

    await asyncio.gather(*(work() for _ in range(at_once)))
