"""Where a store begins is up to who opens it: a fork is one log, whatever its name is there."""

from __future__ import annotations

import functools

import pytest

import cordwood
from cordwood import sync
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.log import paths
from cordwood.log.seal import Sealer
from cordwood.store.memory import MemoryStore
from cordwood.store.prefix import PrefixStore
from cordwood.testing.filling import fill, names


@pytest.fixture
def log_at(time):
    """`log_at(root, name)`: a log of the store that begins at this folder."""
    everything = MemoryStore(clock=time)

    @functools.cache
    def store_at(root):
        view = PrefixStore(everything, root) if root else everything
        return cordwood.Store.over(view, f"at:{root}")

    return lambda root, name: cordwood.Log(store_at(root), name)


ROOTS = [("", "data/wood/"), ("data", "wood/"), ("data/wood", "")]
"""One folder, seen through three roots."""


@pytest.mark.parametrize("made", ROOTS)
async def test_a_fork_within_one_folder_is_read_through_any_root(log_at, bodies, made):
    """Also forked again, appended to and destroyed there."""
    # EVIDENCE-OF: G-47
    root, folder = made
    orders, trial = log_at(root, f"{folder}orders"), log_at(root, f"{folder}trial")
    await fill(orders, 20)
    await orders.fork(trial, 5)
    expected = await bodies(trial)
    for number, (root, folder) in enumerate(ROOTS):
        seen = log_at(root, f"{folder}trial")
        assert expected == await bodies(seen)
        assert (await seen.scrub(deep=True)).ok
        again = log_at(root, f"{folder}again{number}")
        await seen.fork(again)
        await fill(again, 2, "own")
        for elsewhere, path in ROOTS:
            same = log_at(elsewhere, f"{path}again{number}")
            assert expected + names(2, "own") == await bodies(same)
        await log_at("data", f"wood/again{number}").destroy()
    await seen.destroy()
    assert [] == [key async for key in orders.objects.list(paths.FORK_PREFIX)]
    await orders.destroy()


@pytest.mark.parametrize("made", ROOTS)
@pytest.mark.parametrize("collector", ROOTS)
async def test_a_collection_through_another_root_sees_the_fork(
    log_at, free, bodies, made, collector
):
    """What the fork shares stays, and goes when the fork is gone, whoever looks."""
    # EVIDENCE-OF: G-47
    root, folder = made
    orders, trial = log_at(root, f"{folder}orders"), log_at(root, f"{folder}trial")
    await fill(orders, 20)
    await orders.fork(trial)
    root, folder = collector
    same = log_at(root, f"{folder}orders")
    assert [f"fork '{folder}trial'"] == (await free(same, 15)).held
    assert 15 == (await orders.state()).oldest_offset
    assert names(20) == await bodies(trial)
    with pytest.raises(cordwood.StateError, match="shared by fork"):
        await same.destroy()
    await log_at(root, f"{folder}trial").destroy()
    await same.destroy()
    assert [] == [meta.key async for meta in orders.store.list()]


async def test_a_fork_across_folders(log_at, free, bodies):
    """It is read from any root above both, and through a chain of three folders."""
    # EVIDENCE-OF: G-47
    orders, trial = log_at("", "data/wood/orders"), log_at("", "data/lab/a/trial")
    last = log_at("data", "last")
    await fill(orders, 10)
    await orders.fork(trial)
    await fill(trial, 3, "t")
    await log_at("data", "lab/a/trial").fork(last)
    await free(log_at("data", "wood/orders"), 11)
    await free(log_at("", "data/lab/a/trial"), 14)
    assert ["../wood/orders", "../lab/a/trial"] == [
        a.log for a in (await last.manifest()).ancestors
    ]
    assert names(10) + names(3, "t") == await bodies(last)
    assert names(10) + names(3, "t") == await bodies(log_at("", "data/last"))


@pytest.mark.parametrize(
    "attempt",
    [
        lambda log, _: log.state(),
        lambda log, _: log.reader().scan(1),
        lambda log, _: log.writer().open(),
        lambda log, _: log.collect(),
        lambda log, other: log.fork(other),
        lambda log, other: log.copy(other),
        lambda log, _: log.scrub(),
        lambda log, _: log.seal(),
        lambda log, _: log.destroy(),
    ],
)
async def test_a_parent_above_the_root_is_one_clear_error(log_at, bodies, attempt):
    """Whatever is tried, nothing is changed, and it is said what to do."""
    orders, trial = log_at("", "data/wood/orders"), log_at("", "data/lab/trial")
    await fill(orders, 5)
    await orders.fork(trial)
    before = [(meta.key, meta.etag) async for meta in orders.store.list()]
    narrow = log_at("data/lab", "trial")
    with pytest.raises(cordwood.StateError, match="above the root of this store") as caught:
        await attempt(narrow, log_at("data/lab", "other"))
    assert "at a higher root, by 1 at least" in caught.value.hint
    assert before == [(meta.key, meta.etag) async for meta in orders.store.list()]
    assert names(5) == await bodies(log_at("data", "lab/trial"))


async def test_a_fork_above_the_root_counts(log_at, free, bodies):
    """Who cannot look it up must not free what it holds, nor let the parent be destroyed."""
    # EVIDENCE-OF: G-47, G-44
    orders, trial = log_at("", "data/wood/orders"), log_at("", "data/trial")
    await fill(orders, 20)
    await orders.fork(trial)
    narrow = log_at("data/wood", "orders")
    assert ["fork '../../trial' above the root of this store"] == (await free(narrow, 21)).held
    assert names(20) == await bodies(trial)
    with pytest.raises(cordwood.StateError, match="shared by fork") as caught:
        await narrow.destroy()
    assert "whose root is above them all" in caught.value.hint
    await trial.destroy()
    await narrow.collect(wait_s=0)
    assert [] == [meta.key async for meta in orders.objects.list("log/")]


@pytest.mark.parametrize("data", [b"", b"rubbish", b'{"newer":1}'])
async def test_a_fork_whose_manifest_is_damaged_counts(log_at, free, bodies, data):
    """It may be restored; until then its files stay."""
    # EVIDENCE-OF: G-47
    orders, trial = log_at("data", "orders"), log_at("data", "trial")
    await fill(orders, 10)
    await orders.fork(trial)
    key = f"trial/{paths.MANIFEST}"
    good = (await orders.store.get(key)).data
    await orders.store.put(key, data)
    assert ["fork 'trial'"] == (await free(orders, 11)).held
    await orders.store.put(key, good)
    assert names(10) == await bodies(trial)


async def test_logs_that_are_moved_together_stay_together(log_at, bodies):
    """A folder with a parent and its fork may get another name, and lie elsewhere."""
    orders, trial = log_at("data/wood", "orders"), log_at("data/wood", "trial")
    await fill(orders, 5)
    await orders.fork(trial)
    async for meta in orders.store.list():
        data = (await orders.store.get(meta.key)).data
        await log_at("data", "x").store.put(f"archive/old/{meta.key}", data)
    await orders.store.delete([meta.key async for meta in orders.store.list()])
    assert names(5) == await bodies(log_at("data/archive/old", "trial"))
    assert names(5) == await bodies(log_at("data", "archive/old/trial"))


def test_by_url(tmp_path):
    """A URL names a fork like any log; a double slash where it shares files of another folder."""
    url = f"file://{tmp_path}/data"

    def read(log):
        with log.reader() as reader:
            return [record.body for record in reader.read()]

    orders = sync.Log(sync.Store(url), "wood/orders")
    with orders.writer(create=True) as writer:
        writer.append_many([b"oak", b"elm"])
    orders.fork(sync.Log(orders.store, "wood/beside"))
    orders.fork(sync.Log(orders.store, "lab/trial"))
    assert [b"oak", b"elm"] == read(sync.Log.from_url(f"{url}/wood/beside"))
    with pytest.raises(cordwood.StateError, match="higher root"):
        read(sync.Log.from_url(f"{url}/lab/trial"))
    assert [b"oak", b"elm"] == read(sync.Log.from_url(f"{url}//lab/trial"))
    assert sync.Log.from_url(f"{url}//lab/trial").url == f"{url}//lab/trial"
    with pytest.raises(cordwood.InvalidInputError, match="through one store"):
        sync.Log.from_url(f"{url}/wood/orders").fork(sync.Log.from_url(f"{url}/lab/late"))
    sync.Log.from_url(f"{url}//wood/orders").fork(sync.Log.from_url(f"{url}//lab/late"))
    assert [b"oak", b"elm"] == read(sync.Log.from_url(f"{url}//lab/late"))


@pytest.mark.parametrize(
    ("url", "store", "name"),
    [
        ("memory:wood/orders", "memory:wood", "orders"),
        ("memory:wood//a/b/", "memory:wood", "a/b"),
        ("s3://bucket/orders", "s3://bucket", "orders"),
        ("s3://bucket//a/b", "s3://bucket", "a/b"),
        ("s3://bucket/wood//a/b", "s3://bucket/wood", "a/b"),
        ("file:///data/orders", "file:///data", "orders"),
        ("file:///data//a/orders", "file:///data", "a/orders"),
        ("/data//orders", "file:///data", "orders"),
    ],
)
def test_where_the_store_of_a_url_ends(url, store, name):
    """At the last slash, or at a double one."""
    log = cordwood.Log.from_url(url)
    assert (store, name) == (log.store.url, log.name)
    assert cordwood.Log.from_url(log.url) == log


# A parent that comes to its end.


async def doom(memory):
    """A destruction of the log begins, and sleeps."""
    objects = cordwood.Log(cordwood.Store.over(memory), "orders").objects
    await Sealer(objects, SYSTEM_CLOCK, SYSTEM_ENTROPY).doom()


async def test_a_log_that_is_being_destroyed_cannot_be_forked(log, memory):
    """It says so, before anything is written."""
    await fill(log, 1)
    await doom(memory)
    before = [meta.key async for meta in memory.list()]
    for start in (None, 1):
        with pytest.raises(cordwood.StateError, match="is being destroyed, so it cannot be forked"):
            await log.fork(cordwood.Log(log.store, "trial"), start)
    assert before == [meta.key async for meta in memory.list()]


@pytest.mark.parametrize("start", [None, 1])
async def test_a_destruction_that_begins_while_it_is_forked(log, memory, hooked, start):
    """The fork withdraws its hold and says why; it does not try again and again."""
    await fill(log, 1)

    async def put(call, key, *_):
        answer = await call()
        if key.startswith("orders/fork/"):
            await doom(memory)
        return answer

    store = cordwood.Store.over(hooked(memory, put=put))
    with pytest.raises((cordwood.StateError, cordwood.CollectedError), match="is being destroyed"):
        await cordwood.Log(store, "orders").fork(cordwood.Log(store, "trial"), start)
    assert [] == [meta.key async for meta in memory.list("orders/fork/")]
    await log.destroy()
