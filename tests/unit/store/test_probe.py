"""The probe passes stores that keep their promises and finds those that do not."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import AlreadyExistsError, Code, ContendedError, StoreError
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore
from cordwood.store.probe import probe, verify_conditional_puts
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.stores import keys_of


class IgnoresCreate(MemoryStore):
    """Overwrites where it was to create."""

    async def put(self, key, data, mode="overwrite"):
        return await super().put(key, data, "overwrite" if mode == "create" else mode)


class IgnoresMatch(MemoryStore):
    """Overwrites where it was to compare."""

    async def put(self, key, data, mode="overwrite"):
        return await super().put(key, data, "overwrite" if isinstance(mode, Match) else mode)


class ChecksWithoutLock(MemoryStore):
    """Compares first and writes later, as a server without a lock does."""

    def __init__(self):
        super().__init__()
        self.slow = FaultyStore(
            MemoryStore(), SeededEntropy(1), SYSTEM_CLOCK, latency={"put": Latency(0.001)}
        )

    async def put(self, key, data, mode="overwrite"):
        present = self._objects.get(key)
        if isinstance(mode, Match) and (present is None or present.etag != mode.etag):
            raise ContendedError("another one")
        if mode == "create" and present is not None:
            raise AlreadyExistsError("exists")
        await self.slow.put("anything", b"")
        return await super().put(key, data, "overwrite")


class StaleReads(MemoryStore):
    """Gives the object before the last one."""

    def __init__(self):
        super().__init__()
        self.before = {}

    async def put(self, key, data, mode="overwrite"):
        before = self._objects.get(key)
        etag = await super().put(key, data, mode)
        if before is not None:
            self.before[key] = before
        return etag

    async def get(self, key):
        found = await super().get(key)
        before = self.before.get(key)
        return found if before is None else type(found)(before.data, before.etag)


class UnorderedLists(MemoryStore):
    """Lists backwards."""

    async def list(self, prefix="", start_after=""):
        for meta in reversed([meta async for meta in super().list(prefix, start_after)]):
            yield meta


class LateLists(MemoryStore):
    """Does not list the newest object."""

    async def list(self, prefix="", start_after=""):
        newest = f"m{self._puts:x}"
        async for meta in super().list(prefix, start_after):
            if meta.etag != newest:
                yield meta


async def test_good_stores(tmp_path):
    """A sound store passes every check, with latencies, and is left as it was."""
    for store in (Store("memory:"), Store(tmp_path)):
        await store.put("mine", b"")
        report = await probe(store)
        assert report.ok, report.checks
        assert 0 <= report.put_median_s <= report.put_max_s
        assert 0 <= report.get_median_s <= report.get_max_s
        assert ["mine"] == await keys_of(store)


async def test_a_directory_is_left_as_it_was(tmp_path):
    """Without the folders and locks of the probe; one that was not there is not there."""
    store = Store(tmp_path / "wood")
    assert (await probe(store)).ok
    assert [] == list(tmp_path.iterdir())
    await store.put("orders/mine", b"")
    before = sorted(tmp_path.rglob("*"))
    assert (await probe(store)).ok
    assert before == sorted(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (IgnoresCreate, {"create once", "create race"}),
        (IgnoresMatch, {"swap by etag", "swap of an absent object", "swap race"}),
        (ChecksWithoutLock, {"create race", "swap race"}),
        (StaleReads, {"read after write"}),
        (UnorderedLists, {"list after write", "list order"}),
        (LateLists, {"list after write"}),
    ],
)
async def test_bad_stores(kind, broken):
    """A store that breaks a promise fails the check on it, and is cleaned up all the same."""
    store = kind()
    report = await probe(store)
    failed = {check.name for check in report.checks if not check.ok}
    assert not report.ok
    assert broken <= failed
    assert {} == store._objects


async def test_verify():
    """The short check refuses a store that ignores conditions, with advice."""
    # EVIDENCE-OF: G-33
    for kind in (IgnoresCreate, IgnoresMatch):
        ground = kind()
        with pytest.raises(StoreError) as caught:
            await verify_conditional_puts(Store.over(ground, f"s3://bad/{kind.__name__}"))
        assert Code.STORE_UNSAFE == caught.value.code
        assert caught.value.hint
        assert [] == await keys_of(ground)


async def test_verify_once():
    """The short check of a URL is made once per process, and not at all for local stores."""
    faulty = FaultyStore(MemoryStore(), SeededEntropy(1), SYSTEM_CLOCK)
    store = Store.over(faulty, "s3://good/verified-once")
    await verify_conditional_puts(store)
    sent = faulty.counts.total()
    assert 0 < sent <= 6
    await verify_conditional_puts(store)
    await verify_conditional_puts(Store.over(faulty, "custom:"))
    assert sent == faulty.counts.total()


async def test_verify_of_a_failing_store():
    """A store that fails is not taken for an unsafe one, and is asked again next time."""
    faulty = FaultyStore(MemoryStore(), SeededEntropy(1), SYSTEM_CLOCK)
    faulty.script("put", Fault.ERROR_BEFORE)
    store = Store.over(faulty, "s3://good/fails-at-first")
    with pytest.raises(StoreError) as caught:
        await verify_conditional_puts(store)
    assert Code.STORE_FAILED == caught.value.code
    await verify_conditional_puts(store)


async def test_verify_tells_endpoints_apart():
    """A store that passed does not vouch for another one of the same name."""
    url = "s3://same/name"
    await verify_conditional_puts(Store.over(MemoryStore(), url))
    with pytest.raises(StoreError) as caught:
        await verify_conditional_puts(Store.over(IgnoresCreate(), url))
    assert Code.STORE_UNSAFE == caught.value.code
