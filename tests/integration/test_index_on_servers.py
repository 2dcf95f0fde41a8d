"""The same index on a real S3 server and a real Azure server."""

from __future__ import annotations

import threading

import pytest

import cordwood
from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import AlreadyExistsError
from cordwood.index.engine import Engine, Writing
from cordwood.index.shelf import Shelf


@pytest.fixture(
    params=[
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("azure", marks=pytest.mark.azure),
    ]
)
def machine(request, tmp_path):
    """Gives machines that share an index under a fresh prefix of a server."""
    server = request.getfixturevalue(request.param)
    url = f"{server.url}/{SYSTEM_ENTROPY.token()}"

    def opened(name):
        store = cordwood.Store(url, **server.options)
        return Engine(Shelf(store, "index", cache=str(tmp_path / name)))

    return opened


def written(engine, added, deleted=()):
    """A transaction; what it deletes comes first."""
    writing = Writing(engine)
    if deleted:
        writing.delete(list(deleted))
    writing.add(list(added), list(added.values()))
    return writing.commit()


def test_the_life_of_an_index(machine):
    """Two machines: commits, deletes, a merge, a compaction under an open handle, damage none."""
    first, second = machine("first"), machine("second")
    first.create("words", frequencies=True, exist_ok=False)
    with pytest.raises(AlreadyExistsError):
        second.create("words", frequencies=True, exist_ok=False)
    written(first, {b"a": "all red", b"b": "all"})
    with second.visiting() as (_, snapshot):
        written(first, {b"c": "all"}, [b"a"])
        assert 1 == first.merge(tiered=False)
        first.compact()
        assert [b"a", b"b"] == sorted(snapshot.match("all"))
    first.close()
    assert 2 == first.compact().segments_removed
    assert [b"b", b"c"] == sorted(second.newest().match("all"))
    assert second.check().ok
    assert [1, 2] == [second.new_id("mine"), second.new_id("mine")]
    assert 65 == first.new_id("mine")
    second.close()


def test_machines_at_once(machine):
    """Each adds, deletes and merges: what was acknowledged is there, once."""
    machine("maker").create("words", frequencies=True, exist_ok=False)
    errors = []

    def work(name):
        mine = machine(f"{name}")
        try:
            for number in range(2):
                written(mine, {b"%d-%d" % (name, number): "all", b"%d-x" % name: "all"})
                written(mine, {}, [b"%d-x" % name])
            mine.merge(tiered=False)
            mine.compact()
        except Exception as error:
            errors.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == errors
    after = machine("after")
    right = sorted(b"%d-%d" % (name, number) for name in range(3) for number in range(2))
    assert right == sorted(after.newest().match("all"))
    assert after.check().ok
    after.close()
