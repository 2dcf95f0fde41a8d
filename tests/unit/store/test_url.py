"""`Store`: named by a URL, compared and pickled by it, opened late."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import subprocess
import sys

import pytest

from cordwood.base.errors import InvalidInputError, NotFoundError, StateError
from cordwood.store.api import Match
from cordwood.store.hedged import HEDGES_PER_S
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.stores import keys_of


async def test_memory_is_shared_by_name():
    """Stores of one name share their objects; nameless ones share with nobody."""
    await Store("memory:shared-by-name").put("object", b"1")
    assert b"1" == (await Store("memory:shared-by-name").get("object")).data
    first, second = Store("memory:"), Store("memory:")
    await first.put("object", b"1")
    with pytest.raises(NotFoundError):
        await second.get("object")
    assert first != second
    assert b"1" == (await Store(first.url).get("object")).data


async def test_directory(tmp_path):
    """A path and a file URL name the same objects."""
    await Store(tmp_path / "wood").put("object", b"1")
    assert b"1" == (await Store(f"file://{tmp_path}/wood").get("object")).data
    assert Store(str(tmp_path)) == Store(tmp_path)


def test_nothing_happens_at_first(tmp_path):
    """Naming a store makes no directory, reads no credentials and loads no client library."""
    Store(tmp_path / "wood")
    assert [] == list(tmp_path.iterdir())
    code = "import sys, cordwood; cordwood.Store('s3://bucket/x'); print('obstore' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "False\n" == answer.stdout


def test_properties():
    """A store tells its scheme, its URL, and whether requests leave the machine."""
    store = Store("s3://bucket/a/", access_key_id="id", secret_access_key="hidden")
    assert ("s3", "s3://bucket/a", True) == (store.scheme, store.url, store.is_remote)
    assert not Store("memory:").is_remote
    assert "Store('s3://bucket/a')" == repr(store)


def test_equality():
    """Stores are equal, and hash alike, if they name the same place."""
    assert Store("memory:a") == Store("memory:a")
    assert hash(Store("memory:a")) == hash(Store("memory:a"))
    assert Store("memory:a") != Store("memory:b")
    assert Store("memory:a") != "memory:a"


def test_options_are_for_remote_stores(tmp_path):
    """An option that means nothing is refused instead of ignored."""
    with pytest.raises(InvalidInputError, match="endpoint"):
        Store(tmp_path, endpoint="http://localhost")
    with pytest.raises(InvalidInputError, match="hedge"):
        Store("memory:", hedge=True)


async def test_unknown_option():
    """A misspelt option is refused by the first call, by name."""
    with pytest.raises(InvalidInputError, match="endpont"):
        await Store("s3://bucket", endpont="http://localhost").get("object")


async def test_keys_are_checked():
    """A bad key is refused before the back end sees it."""
    store = Store.over(MemoryStore())
    with pytest.raises(InvalidInputError):
        await store.get("../etc/passwd")


async def test_over():
    """A back end of one's own is used as it is, under the name given."""
    ground = MemoryStore()
    store = Store.over(ground, "s3://pretended/x")
    await store.put("object", b"1")
    assert b"1" == (await ground.get("object")).data
    assert ("s3", True) == (store.scheme, store.is_remote)
    assert store == Store.over(ground, "s3://pretended/x")
    assert store != Store.over(MemoryStore(), "s3://pretended/x")


async def test_child():
    """A child sees its folder alone, and children have children."""
    store = Store("memory:")
    orders = store.child("shop").child("orders")
    etag = await orders.put("a/1", b"1", "create")
    await store.put("shop/orders0", b"a neighbour")
    assert ["a/1"] == await keys_of(orders)
    assert ["shop/orders/a/1", "shop/orders0"] == await keys_of(store)
    assert "a/1" == (await orders.head("a/1")).key
    await orders.put("a/1", b"2", Match(etag))
    await orders.sync(["a/1"])
    assert b"2" == await orders.get_range("a/1", 0, 1)
    await orders.delete(["a/1"])
    assert ["shop/orders0"] == await keys_of(store)
    with pytest.raises(InvalidInputError):
        store.child("../up")
    with pytest.raises(InvalidInputError):
        await orders.get("../orders0")


async def test_pickle(tmp_path):
    """A store survives pickling with its URL and its options."""
    for store in (Store("memory:pickled"), Store("memory:"), Store(tmp_path)):
        again = pickle.loads(pickle.dumps(store))
        assert store == again
        await store.put("object", b"1")
        assert b"1" == (await again.get("object")).data
    remote = Store("s3://bucket/x", region="here", hedge=True)
    assert remote._options == pickle.loads(pickle.dumps(remote))._options


def test_a_remote_store_asks_twice_unless_told_not_to():
    """Hedging is on by default, over what repeats."""
    remote = Store("s3://bucket/x", region="here", access_key_id="a", secret_access_key="b")
    assert "HedgedStore(RetryingStore(" in repr(remote._store())
    assert 10.0 == HEDGES_PER_S
    options = {"region": "here", "access_key_id": "a", "secret_access_key": "b"}
    assert "Hedged" not in repr(Store("s3://bucket/x", hedge=False, **options)._store())


def _read_in_child(store, answers):
    try:
        answers.put(asyncio.run(store.get("object")).data)
    except StateError as error:
        answers.put(str(error))


def test_pickled_memory_store_elsewhere(tmp_path):
    """A memory store refuses to be opened in an unrelated process; a directory opens anywhere."""
    context = multiprocessing.get_context("spawn")
    for store, expected in [
        (Store("memory:elsewhere"), "memory of another process"),
        (Store(tmp_path), b"1"),
    ]:
        asyncio.run(store.put("object", b"1"))
        answers = context.Queue()
        child = context.Process(target=_read_in_child, args=(store, answers))
        child.start()
        answer = answers.get()
        child.join()
        answers.close()
        answers.join_thread()
        assert expected == answer or expected in str(answer)
