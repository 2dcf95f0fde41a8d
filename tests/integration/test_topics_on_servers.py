"""The same topics on a real S3 server and a real Azure server."""

from __future__ import annotations

import threading
import warnings

import pytest

import cordwood
from cordwood import sync
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import AlreadyExistsError, NotFoundError
from cordwood.topics.engine import Engine, Sending, config_of
from cordwood.topics.folder import Folder
from cordwood.topics.rows import columns_of_rows
from cordwood.topics.shelf import Shelf


@pytest.fixture(
    params=[
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("azure", marks=pytest.mark.azure),
    ]
)
def store(request):
    """A fresh prefix of a server."""
    server = request.getfixturevalue(request.param)
    return cordwood.Store(f"{server.url}/{SYSTEM_ENTROPY.token()}", **server.options)


def test_the_life_of_a_topic(store):
    """Producers and consumers, two of each, a retry, retention, deletion."""
    # EVIDENCE-OF: G-95
    first, second = sync.Topics(store), sync.Topics(store)
    first.create("shop", "clicks", partitions=2, retention_s=None, retention_bytes=0)
    with pytest.raises(AlreadyExistsError):
        second.create("shop", "clicks")

    def send(topics, who):
        with topics.producer("shop", "clicks", name=who) as producer:
            for number in range(6):
                sends = [producer.send(b"v", key=b"k", sequence=number) for _ in range(2)]
                assert sends[0] == sends[1]
            producer.send_many([b"many"] * 20, keys=[b"%d" % n for n in range(20)])

    threads = [
        threading.Thread(target=send, args=(topics, f"p{n}"))
        for n, topics in enumerate((first, second))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with first.consumer("shop", "clicks", group="g", timeout_s=0) as one:
        found = list(one)
        one.commit()
        with second.consumer("shop", "clicks", group="g", timeout_s=0) as other:
            assert [] == list(other)
    assert 2 * (6 + 20) == len(found)
    assert 12 == sum(record.value == b"v" for record in found)
    assert 0 == sum(one.records for one in second.lag("shop", "clicks", "g"))
    assert [("shop", "clicks")] == second.list()
    assert 2 * (6 + 20) == Shelf(store).retain("shop", "clicks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with second.consumer("shop", "clicks", timeout_s=0) as consumer:
            assert [] == list(consumer)
    second.delete("shop", "clicks")
    with pytest.raises(NotFoundError):
        first.describe("shop", "clicks")
    first.close()
    second.close()


def test_a_tier(store, tmp_path):
    """What is acknowledged by the store is there, and read from there when it is gone here."""
    home = Folder(str(tmp_path))
    home._shelves[store.url] = Shelf(store)
    engine = Engine(home, SYSTEM_CLOCK, SYSTEM_ENTROPY)
    config = config_of(
        "shop",
        "clicks",
        partitions=1,
        compaction=False,
        properties=None,
        retention_s=None,
        retention_bytes=None,
        ack="store",
        flush_period_s=10,
        extent_bytes=4096,
        tombstone_s=0,
        tier=store.url,
        local_retention_s=0,
    )
    engine.create(config, None, exist_ok=False)
    sending = Sending(engine, "shop", "clicks", None)
    for number in range(5):
        sending.send_all(columns_of_rows([b"%0600d" % number] * 4, None, None), None)
    local = home.partition("shop", "clicks", 0)
    assert 20 > local.local_bounds().oldest > 0
    assert (0, 20) == local.bounds()
    for topics in (home, Shelf(store)):
        scan, found = topics.partition("shop", "clicks", 0).scan(0), []
        while batches := scan.take():
            found += [value for one in batches for value in one.column("value").to_pylist()]
        assert [b"%0600d" % (number // 4) for number in range(20)] == found
    sending.close()
    home.delete("shop", "clicks")
    assert [] == Shelf(store).topics()
