"""A directory passes the suite: on the real disk, by URL, and on the crash model's disk."""

from __future__ import annotations

import pytest

from cordwood.store.directory import DirectoryStore
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.stores import StoreTests


class TestDirectoryStore(StoreTests):
    """On the operating system's files."""

    @pytest.fixture
    def store(self, tmp_path):
        return DirectoryStore(str(tmp_path / "made" / "by the first put"))


class TestDirectoryUrl(StoreTests):
    """By URL, through a symbolic link to the root."""

    many_keys = 1_001

    @pytest.fixture
    def store(self, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        return Store(tmp_path / "link" / "x")


class TestCrashDisk(StoreTests):
    """On the model, which nothing interrupts here."""

    @pytest.fixture(params=["posix", "ext4"])
    def store(self, request):
        return DirectoryStore("/wood", disk=CrashDisk(request.param))
