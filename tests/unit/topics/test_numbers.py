"""Records with sequence numbers: each is there once, and nobody else is disturbed by them."""

from __future__ import annotations

import asyncio
import errno

import pyarrow as pa
import pytest

import cordwood
from cordwood import sync
from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import ConflictError, InvalidInputError, StoreError
from cordwood.journal.group import Ticket
from cordwood.testing.crashdisk import CrashDisk
from cordwood.topics.batch import Columns, Producer
from cordwood.topics.config import TopicConfig
from cordwood.topics.folder import Folder
from cordwood.topics.partition import _Append


@pytest.fixture(params=["folder", "memory"])
def topics(request, tmp_path):
    """Topics in a directory, or on a store; one of them with partitions."""
    place = tmp_path / "wood" if request.param == "folder" else cordwood.Store("memory:")
    with sync.Topics(place) as made:
        made.place = place
        made.create("shop", "clicks", partitions=4, extent_bytes=1 << 16)
        yield made


@pytest.fixture
def disk():
    """One that can fail."""
    made = CrashDisk("posix")
    made.mkdir("/wood")
    made.fsync_dir("/")
    return made


@pytest.fixture
def partition(disk):
    """A partition on it."""
    home = Folder("/wood", disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(1))
    home.create([TopicConfig(namespace="shop", topic="clicks", extent_bytes=1 << 16)])
    return home.partition("shop", "clicks", 0)


def test_a_record_without_a_key_is_found_again(topics):
    """Whoever sends it again, and whatever was sent in between, for threads and for tasks."""
    # EVIDENCE-OF: G-94
    with topics.producer("shop", "clicks", name="importer") as producer:
        sent = [producer.send(b"%d" % number, sequence=number) for number in range(6)]
    with topics.producer("shop", "clicks", name="importer") as producer:
        again = [producer.send(b"%d" % number, sequence=number) for number in (3, 1, 5)]
    assert [sent[3], sent[1], sent[5]] == again

    async def send():
        async with (
            cordwood.Topics(topics.place) as own,
            own.producer("shop", "clicks", name="importer") as producer,
        ):
            return await producer.send(b"2", sequence=2)

    assert sent[2] == asyncio.run(send())
    with topics.consumer("shop", "clicks", timeout_s=0) as consumer:
        assert 6 == len(list(consumer))


def tickets(*numbers):
    """Records of one producer that are handed in at once."""
    columns = Columns(pa.array([b"x"], pa.binary()))
    return [
        Ticket(_Append(columns, 1, None if number is None else Producer(7, number)), 10)
        for number in numbers
    ]


def test_a_record_that_is_handed_in_twice_is_acknowledged_when_it_is_durable(disk, partition):
    """Not because the first of the two was written."""
    # EVIDENCE-OF: G-88
    partition._commit(tickets(0))
    twice = tickets(1, 1)
    disk.fail(2, errno.EIO)
    with pytest.raises(StoreError):
        partition._commit(twice)
    assert [False, False] == [one.is_done for one in twice]
    twice = tickets(1, 1)
    partition._commit(twice)
    assert [1, 1] == [one.result() for one in twice]
    assert (0, 2) == partition.bounds()


def test_a_number_that_cannot_be_is_told_to_who_sent_it_and_to_nobody_else(partition):
    """Others that share its sync are there."""
    for number in (0, 5):
        partition._commit(tickets(number))
    some = tickets(None, 3, 6)
    partition._commit(some)
    assert [2, 3] == [some[0].result(), some[2].result()]
    with pytest.raises(ConflictError, match="comes after"):
        some[1].result()


@pytest.mark.parametrize("number", [-1, 1 << 63, "1", 1.5, True])
def test_what_is_no_number_is_refused_at_once(topics, number):
    """A sequence, or a partition: nothing is looked for."""
    with topics.producer("shop", "clicks", name="importer") as producer:
        with pytest.raises(InvalidInputError, match="sequence"):
            producer.send(b"x", sequence=number)
        with pytest.raises(InvalidInputError, match="no partition"):
            producer.send(b"x", partition=number)
    for how in ({"extent_bytes": number}, {"partitions": number}, {"retention_bytes": number}):
        if number != 1 << 63 or "retention_bytes" not in how:
            with pytest.raises(InvalidInputError, match="has to be"):
                topics.create("shop", "other", **how)
    assert [("shop", "clicks")] == topics.list()


@pytest.mark.parametrize("name", [5, b"x", "\ud800"], ids=repr)
def test_what_is_no_name_of_a_producer(topics, name):
    """One clear error; the same for lists that are none."""
    with pytest.raises(InvalidInputError, match="name"):
        topics.producer("shop", "clicks", name=name).__enter__()
    with topics.producer("shop", "clicks") as producer:
        for values in (5, (one for one in [b"x"])):
            with pytest.raises(InvalidInputError, match="list"):
                producer.send_many(values)
    for how in ({"properties": [1]}, {"partition_properties": {0: 5}}):
        with pytest.raises(InvalidInputError, match="propert"):
            topics.create("shop", "other", **how)
