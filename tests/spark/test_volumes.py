"""Volumes through the data source, and tended by Spark."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import InvalidInputError, sync
from cordwood.pipeline.volumes import tend_volumes
from cordwood.spark.volume_reader import parse

PAGE = 512


def page_of(number: int) -> bytes:
    """A page that says which it is."""
    return b"%08d" % number + bytes([number % 251]) * (PAGE - 8)


@pytest.fixture
def volume(tmp_path):
    """Four versions, and a branch of the second."""
    store = cordwood.Store(f"file://{tmp_path}/store")
    made = sync.Volume(store, "app", directory=tmp_path / "here")
    made.create(page_size=PAGE, grace_s=0.1)
    for version in range(1, 5):
        with made.begin() as txn:
            for page in range(1, 40):
                if page % version == 0:
                    txn.write(page, page_of(100 * version + page))
        made.push(f"version {version}")
    with made.begin() as txn:
        txn.truncate(30)
    made.push("shorter")
    with made.branch("side", at=2) as side:
        with side.begin() as txn:
            txn.write(7, page_of(7))
        side.push("aside")
    with made:
        yield made


def frame_of(spark, volume, name="app", **options):
    """The volume as a DataFrame."""
    asked = spark.read.format("cordwood").option("volume", name)
    return asked.options(**options).load(volume.store.url)


def test_versions_are_rows(spark, volume):
    """As `log` lists them, on a branch with the versions of its parent below."""
    rows = frame_of(spark, volume).orderBy("lsn").collect()
    wanted = sorted(volume.log(), key=lambda version: version.lsn)
    assert [row.message for row in rows] == [version.message for version in wanted]
    assert [row.hash for row in rows] == [version.hash for version in wanted]
    assert [row.pages_changed for row in rows] == [39, 19, 13, 9, 0]
    side = frame_of(spark, volume, "side").orderBy("lsn").select("message").collect()
    assert [row.message for row in side] == ["version 1", "version 2", "aside"]
    some = frame_of(spark, volume, **{"from": 2, "to": 3}).select("lsn").collect()
    assert sorted(row.lsn for row in some) == [2, 3]


def test_a_diff_has_both_sides(spark, volume):
    """Exactly the pages that differ, whatever the splits; null where a version has no such page."""
    asked = {"view": "diff", "from": 3, "to": 5, "splitPages": 7}
    rows = {row.page: row for row in frame_of(spark, volume, **asked).collect()}
    assert sorted(rows) == volume.diff(3, 5)
    with volume.snapshot(at=3) as before, volume.snapshot(at=5) as after:
        for page, row in rows.items():
            assert bytes(row.before) == before.read(page)
            assert (row.after is None) == (page > 30)
            assert row.after is None or bytes(row.after) == after.read(page)


def test_pages_are_rows(spark, volume):
    """Every page that is not zeros, of any version."""
    rows = frame_of(spark, volume, view="pages", at=1, splitPages=5).collect()
    assert {row.page: bytes(row.data) for row in rows} == {
        page: page_of(100 + page) for page in range(1, 40)
    }


@pytest.mark.parametrize(
    "options",
    [
        {"volume": "app"},
        {"volume": "app", "path": "memory:x"},
        {"volume": "app", "path": "/x", "view": "all"},
        {"volume": "app", "path": "/x", "view": "diff"},
        {"volume": "app", "path": "/x", "view": "pages", "from": "1"},
        {"volume": "app", "path": "/x", "splitPages": "0"},
        {"volume": "app", "path": "/x", "lsn": "3"},
    ],
)
def test_options_that_mean_nothing_are_refused(options):
    """One clear error each."""
    with pytest.raises(InvalidInputError):
        parse(options)


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_many_volumes_are_tended(spark, volume, engine, tmp_path):
    """Checkpoints, pages, collection; one that is not there does not hold up the others."""
    names = ["app", "side", "nobody"]
    done = asyncio.run(tend_volumes(volume.store, "checkpoint", names, engine=engine))
    assert [(row.volume, row.lsn, bool(row.error)) for row in done] == [
        ("app", 5, False),
        ("side", 3, False),
        ("nobody", 0, True),
    ]
    there = tmp_path / "pages"
    done = asyncio.run(tend_volumes(volume.store, "hydrate", directory=there, engine=engine))
    assert [row.error for row in done] == ["", ""]
    with sync.Volume(volume.store, "app", directory=there) as copy:
        assert copy.status().cached_share == 1.0


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_store_is_collected(spark, volume, engine):
    """Marked first, deleted a grace later, packs and all; what is kept is as it was."""
    with volume.snapshot() as before:
        pages = [before.read(page) for page in range(1, 31)]
    sync.Volume(volume.store, "side", directory=volume.directory).delete()
    volume.checkpoint()
    deleted = []
    while sum(deleted) < 10:  # as its grace goes by, each time a little more may go
        [done] = asyncio.run(tend_volumes(volume.store, "collect", keep_s=0, engine=engine))
        assert done.error == ""
        deleted.append(done.deleted)
    assert deleted[0] == 0
    with pytest.raises(cordwood.CollectedError):
        sync.Volume(volume.store, "app", directory=volume.directory + "2").snapshot(at=2)
    with sync.Volume(volume.store, "app", directory=volume.directory + "3") as copy:
        assert [copy.snapshot().read(page) for page in range(1, 31)] == pages
