"""A name stands for a log, a table or a Delta table; whoever comes second is refused."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import AlreadyExistsError, Delta, Log, Table
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore


@pytest.fixture
def store(tmp_path):
    """A directory: Delta has its own client."""
    return cordwood.Store(f"file://{tmp_path}/wood")


MAKE = {
    "log": lambda store: Log(store, "team/orders").create(),
    "table": lambda store: Table(store, "team/orders").create(),
    "Delta table": lambda store: Delta(store, "team/orders").create(),
}
AGAIN = {
    "log": lambda store: Log(store, "team/orders").create(exist_ok=True),
    "table": lambda store: Table(store, "team/orders").create(exist_ok=True),
    "Delta table": lambda store: Delta(store, "team/orders").create(exist_ok=True),
}


@pytest.mark.parametrize("first", MAKE)
@pytest.mark.parametrize("second", MAKE)
async def test_one_name_one_kind(store, first, second):
    """The same again is a matter of `exist_ok`; another kind is refused either way."""
    await MAKE[first](store)
    if first == second:
        await AGAIN[second](store)
        with pytest.raises(AlreadyExistsError, match="exists already"):
            await MAKE[second](store)
        return
    for make in (MAKE, AGAIN):
        with pytest.raises(AlreadyExistsError, match=f"is the name of a {first}"):
            await make[second](store)


async def test_every_way_to_make_a_log(store):
    """A writer, a fork, a copy, a continuation."""
    table = Table(store, "t")
    await table.create()
    log, there = Log(store, "a"), Log(store, "t")
    await log.create()
    with pytest.raises(AlreadyExistsError, match="is the name of a table"):
        async with there.writer(create=True):
            pass
    for make in (log.fork, log.copy, log.migrate):
        with pytest.raises(AlreadyExistsError, match="is the name of a table"):
            await make(there)
    with pytest.raises(cordwood.NotFoundError):
        await there.state()
    assert 0 == (await table.state()).rows


async def test_what_it_costs():
    """An existing log that may exist is one request, as it was."""
    metered = MeteredStore(MemoryStore())
    log = Log(cordwood.Store.over(metered), "a")
    await log.create()
    before = metered.snapshot().requests
    await log.create(exist_ok=True)
    assert 1 == metered.snapshot().requests - before
