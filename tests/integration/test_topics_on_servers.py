"""The same topics on a real S3 server and a real Azure server."""

from __future__ import annotations

import threading
import warnings

import pytest

import cordwood
from cordwood import sync
from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import AlreadyExistsError, NotFoundError
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
