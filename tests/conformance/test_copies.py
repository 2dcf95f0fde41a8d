"""Stores that copy objects by themselves do it atomically, and never over another object."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import NotFoundError, UnsupportedError
from cordwood.store.directory import DirectoryStore
from cordwood.store.disk import Disk
from cordwood.store.hedged import HedgedStore
from cordwood.store.memory import MemoryStore
from cordwood.store.remote import RemoteStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.faults import FaultyStore
from cordwood.testing.stores import CopyTests

_number = itertools.count()


class TestMemory(CopyTests):
    """In memory."""

    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestDirectory(CopyTests):
    """By a second name for the same file."""

    @pytest.fixture
    def store(self, tmp_path):
        return DirectoryStore(str(tmp_path))


class TestUrl(CopyTests):
    """What a store by URL says it copies with."""

    @pytest.fixture
    def store(self, tmp_path):
        return Store(tmp_path).copies


@pytest.mark.s3
class TestS3(CopyTests):
    """A real S3 server, as users open it."""

    @pytest.fixture
    def store(self, s3):
        return Store(f"{s3.url}/copies-{next(_number)}", hedge=True, **s3.options).copies


@pytest.mark.s3
class TestS3Bare(CopyTests):
    """The remote store alone."""

    @pytest.fixture
    def store(self, s3):
        return RemoteStore(f"{s3.url}/bare-copies-{next(_number)}", **s3.options)


async def test_a_store_that_does_not_copy_says_so():
    """A wrapper over one refuses, so that the bytes are moved instead."""
    faulty = FaultyStore(MemoryStore(), SeededEntropy(1), SYSTEM_CLOCK)
    assert Store.over(faulty).copies is None
    for store in (RetryingStore(faulty), HedgedStore(faulty), HedgedStore(RetryingStore(faulty))):
        with pytest.raises(UnsupportedError):
            await store.copy("a", "b")
    azure = RemoteStore("az://container", account_name="a", account_key="aGVsbG8=")
    with pytest.raises(UnsupportedError, match="Azure"):
        await azure.copy("a", "b")


async def test_no_link_can_be_made(tmp_path):
    """Where the file system refuses a second name, that is not a failure of the store."""

    class OtherDisk(Disk):
        def link(self, source, target):
            if not source.rpartition("/")[2].startswith("."):
                raise OSError(18, os.strerror(18), target)
            super().link(source, target)

    store = DirectoryStore(str(tmp_path), disk=OtherDisk())
    await store.put("a", b"1", "create")
    with pytest.raises(UnsupportedError, match="no link can be made"):
        await store.copy("a", "b")


@pytest.mark.parametrize("model", ["posix", "ext4"])
async def test_a_power_cut_at_every_step_of_a_copy(model):
    """A copy that returned is there and whole; one that did not is absent or whole."""

    async def work(store, told):
        await store.put("log/a/1", b"bytes", "create")
        told.append("log/a/1")
        await store.copy("log/a/1", "copy/b/c/1")
        told.append("copy/b/c/1")
        await store.delete(["log/a/1"])
        told.remove("log/a/1")

    disk = CrashDisk(model)
    await work(DirectoryStore("/wood", disk=disk), [])
    for step, seed in itertools.product(range(disk.steps + 1), range(8)):
        told: list[str] = []
        disk = CrashDisk(model)
        disk.cut_after(step)
        with suppress(PowerCut):
            await work(DirectoryStore("/wood", disk=disk), told)
        found = DirectoryStore("/wood", disk=disk.power_cut(SeededEntropy(f"{step} {seed}")))
        for key in ("log/a/1", "copy/b/c/1"):
            try:
                assert b"bytes" == (await found.get(key)).data, (step, seed)
            except NotFoundError:
                # A source may be on its way out: told holds it until its deletion returned.
                assert key not in told or key == "log/a/1", (step, seed)
