"""Topics in a directory that are uploaded to a store: once, in order, whatever fails."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

import cordwood
from cordwood import sync
from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
    StateError,
    StoreError,
)
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.faults import Fault, FaultyStore
from cordwood.topics import tier as tiers
from cordwood.topics.batch import Columns, encoded
from cordwood.topics.engine import Engine, Sending, config_of
from cordwood.topics.folder import Folder
from cordwood.topics.rows import checked_row
from cordwood.topics.shelf import Shelf

SMALL = 4096
URL = "memory:tier"


@pytest.fixture(autouse=True)
def in_hand(monkeypatch):
    """Uploads happen when the test says so."""
    monkeypatch.setattr(tiers, "UPLOAD_FIRST_S", 3600.0)


class Place:
    """A directory, real or modelled, and the store that it is uploaded to."""

    def __init__(self, root, backend=None, disk=None, **how):
        self.root = str(root)
        self.backend = backend or MemoryStore()
        self.disk = disk
        self.how = how

    def home(self, backend=None, disk=None):
        """As a process has it."""
        folder = Folder(self.root, disk=disk or self.disk)
        folder._shelves[URL] = Shelf(Store.over(backend or self.backend))
        return folder

    def create(self, **how):
        """A topic; its home."""
        home = self.home()
        engine = Engine(home, SYSTEM_CLOCK, SeededEntropy(1))
        rest = {
            "partitions": 1,
            "compaction": False,
            "properties": None,
            "retention_s": None,
            "retention_bytes": None,
            "ack": "journal",
            "flush_period_s": 10,
            "extent_bytes": SMALL,
            "tombstone_s": 0,
            "tier": URL,
            "local_retention_s": 0,
        }
        engine.create(config_of("shop", "clicks", **{**rest, **how}), None, exist_ok=False)
        return home

    def there(self):
        """What is on the store."""
        return offsets_and_values(Shelf(Store.over(self.backend)).partition("shop", "clicks", 0))


def part(home):
    """The partition."""
    return home.partition("shop", "clicks", 0)


def send(home, value, **how):
    """One record; its offset."""
    row = checked_row(value, None, None, how.get("timestamp_us"))
    return part(home).append_one(row)


def offsets_and_values(partition, offset=0):
    """All records from one on."""
    scan, found = partition.scan(offset), []
    while batches := scan.take(1000):
        for batch in batches:
            found += zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            )
    return found


def numbered(count):
    """What is read of so many records."""
    return [(number, b"%0500d" % number) for number in range(count)]


def test_what_is_uploaded_is_deleted_here_and_read_from_there(tmp_path):
    """Nobody who reads notices; both have the same offsets, values and times."""
    place = Place(tmp_path)
    home = place.create()
    for number in range(40):
        send(home, b"%0500d" % number, timestamp_us=number)
    assert len(part(home).journal.bases()) > 4
    state = Engine(home, SYSTEM_CLOCK, SeededEntropy(1)).describe("shop", "clicks")
    assert 40 == state.partitions[0].not_uploaded
    assert 40 == part(home).upload() == part(home).upload()
    assert 1 == len(part(home).journal.bases())
    assert 0 == part(home).not_uploaded()
    assert (0, 40) == part(home).bounds()
    send(home, b"%0500d" % 40)
    assert 1 == part(home).not_uploaded()
    for start in (0, 17, 39, 40):
        assert numbered(41)[start:] == offsets_and_values(part(place.home()), start)
    assert numbered(40) == place.there()
    batch = part(home).scan(3).take(10**9)[0]
    assert 3 == batch.column("timestamp_us")[0].as_py()


def test_what_is_too_much_on_the_store_goes_here_as_well(tmp_path):
    """Without a time to keep it for: else a directory would grow for ever."""
    place = Place(tmp_path)
    home = place.create(local_retention_s=None, retention_bytes=20_000)
    rng = np.random.default_rng(3)
    for _ in range(10):
        for _ in range(10):
            send(home, rng.bytes(1000))
        part(home).upload()
    before = part(home).local_bounds()
    assert (0, 100) == before
    assert part(home).retain() > 50
    oldest, end = part(home).local_bounds()
    assert 50 < oldest <= part(home).far.bounds().oldest
    assert 100 == end == part(home).bounds().next


def test_what_a_dead_one_did_not_flush_is_seen_by_who_reads_on(tmp_path):
    """As in a topic without a tier."""
    place = Place(tmp_path)
    home = place.create(ack="flush", flush_period_s=0.002)
    other = place.home()
    scan = part(other).scan(0)
    assert [] == scan.take()
    with part(home).journal.turn() as turn:
        payload = encoded(Columns(pa.array([b"x"], pa.binary())))
        turn.append(payload, time_us=1)
        turn.say()
    found = []
    while not found:
        found = scan.take()
    assert [b"x"] == found[0].column("value").to_pylist()


def test_the_topic_on_the_store_is_read_by_anybody_and_written_by_none(tmp_path):
    """It is a topic like any other there, with one writer."""
    place = Place(tmp_path)
    home = place.create()
    send(home, b"a")
    home.close()  # Not to wait for the background.
    topics = sync.Topics(Store.over(place.backend))
    with topics.consumer("shop", "clicks", timeout_s=0) as consumer:
        assert [b"a"] == [record.value for record in consumer]
    with (
        topics.producer("shop", "clicks") as producer,
        pytest.raises(StateError, match="uploaded from a directory"),
    ):
        producer.send(b"b")


def test_acknowledged_by_the_store(tmp_path):
    """It is there when `send` returns; while the store is away, the sender is told."""
    memory = MemoryStore()
    faulty = FaultyStore(memory, SeededEntropy(1), SYSTEM_CLOCK)
    place = Place(tmp_path, faulty)
    home = place.create(ack="store")
    sending = Sending(Engine(home, SYSTEM_CLOCK, SeededEntropy(1)), "shop", "clicks", "p")
    row = checked_row(b"x", None, None, None)
    for number in range(3):
        assert number == sending.send_one(row, None, number).offset
        assert number + 1 == len(place.there())
    faulty.script("put", *[Fault.THROTTLED] * 20)
    with pytest.raises(StoreError, match="not yet on the store") as told:
        sending.send_one(row, None, 3)
    assert told.value.applied
    faulty.heal()
    assert 3 == sending.send_one(row, None, 3).offset
    assert [(number, b"x") for number in range(4)] == place.there()
    threads = [threading.Thread(target=send, args=(home, b"x")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(number, b"x") for number in range(12)] == place.there()


def test_a_store_that_is_away_holds_up_nothing(tmp_path):
    """Appends go on, nothing is deleted, and it is said; later all of it is uploaded."""
    faulty = FaultyStore(MemoryStore(), SeededEntropy(1), SYSTEM_CLOCK)
    place = Place(tmp_path, faulty)
    home = place.create()
    faulty._read_faults = faulty._write_faults = {Fault.THROTTLED: 1.0}
    for number in range(20):
        assert number == send(home, b"%0500d" % number)
    part(home)._upload_now()
    assert "not uploaded" in part(home).trouble
    assert 20 == part(home).not_uploaded()
    assert numbered(20) == offsets_and_values(part(home))
    faulty.heal()
    faulty._read_faults = faulty._write_faults = {}
    part(home)._upload_now()
    assert "" == part(home).trouble
    assert numbered(20) == place.there() == offsets_and_values(part(home))
    faulty._read_faults = {Fault.THROTTLED: 1.0}
    state = Engine(home, SYSTEM_CLOCK, SeededEntropy(1)).describe("shop", "clicks")
    assert state.partitions[0].oldest == state.partitions[0].oldest_here > 0
    assert "does not answer" in state.warnings[0]


@pytest.mark.parametrize("seed", range(6))
def test_uploads_through_a_store_that_loses_answers(tmp_path, seed, monkeypatch):
    """Two processes, lost answers, late puts: each record is there once, at its offset."""
    # EVIDENCE-OF: G-96
    monkeypatch.setattr(tiers, "UPLOAD_BYTES", 2000)
    memory = MemoryStore()
    place = Place(tmp_path, memory)
    place.create()
    faults = {Fault.ERROR_AFTER: 0.15, Fault.ERROR_BEFORE: 0.1, Fault.ZOMBIE: 0.15}
    entropy = SeededEntropy(seed)
    homes = [
        place.home(FaultyStore(memory, entropy, SYSTEM_CLOCK, write_faults=faults))
        for _ in range(2)
    ]
    for number in range(40):
        send(homes[number % 2], b"%0500d" % number)
        if number % 3 == 0:
            with suppress(CordwoodError):
                part(homes[number % 2]).upload()
    assert 40 == part(place.home()).upload()
    assert numbered(40) == place.there() == offsets_and_values(part(place.home()))


def test_uploaders_at_once(tmp_path):
    """They take turns."""
    place = Place(tmp_path)
    place.create()
    homes = [place.home() for _ in range(3)]

    def work(home):
        for _ in range(10):
            send(home, b"x")
            part(home).upload()

    threads = [threading.Thread(target=work, args=(home,)) for home in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(number, b"x") for number in range(30)] == place.there()


@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_at_every_step(seed):
    """Of appends, uploads and deletions: nothing acknowledged is lost, nothing is there twice."""
    # EVIDENCE-OF: G-96
    steps = 0
    while True:
        disk = CrashDisk()
        place = Place("/topics", disk=disk)
        home = place.create()
        disk.cut_after(steps)
        done = 0
        try:
            for number in range(12):
                send(home, b"%0500d" % number)
                done += 1
                if number % 4 == 3:
                    part(home).upload()
        except PowerCut:
            pass
        else:
            assert steps > 50
            return
        found = disk.power_cut(SeededEntropy(f"{seed}-{steps}"))
        again = part(place.home(disk=found))
        records = offsets_and_values(again)
        assert numbered(len(records)) == records
        assert done <= len(records) <= done + 1
        assert len(records) == again.append_one(checked_row(b"more", None, None, None))
        assert len(records) + 1 == again.upload()
        assert [*records, (len(records), b"more")] == place.there()
        steps += 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_every_step_is_told_and_overcome(number):
    """Of uploads and deletions: the next one does what is left."""
    # EVIDENCE-OF: G-96
    for step in range(1, 100):
        disk = CrashDisk()
        place = Place("/topics", disk=disk)
        home = place.create()
        for one in range(12):
            send(home, b"%0500d" % one)
        before = disk.steps
        disk.fail(step, number)
        try:
            part(home).upload()
        except StoreError:
            pass
        else:
            if disk.steps < before + step:
                assert step > 2
                return
        assert 12 == part(home).upload() == part(place.home()).upload()
        assert numbered(12) == place.there() == offsets_and_values(part(place.home()))
    pytest.fail("it never ends")


def test_tiers_that_cannot_be(tmp_path):
    """Say what is wrong, and leave nothing."""
    place = Place(tmp_path / "one")
    for wrong, match in (
        ({"compaction": True}, "no tier"),
        ({"tier": None, "ack": "store", "local_retention_s": None}, "has a tier"),
        ({"tier": None}, "for a topic with a tier"),
        ({"tier": "ftp://x"}, "ftp"),
        ({"local_retention_s": -1}, "local_retention_s"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            place.create(**wrong)
    assert [] == place.home().topics()
    with pytest.raises(InvalidInputError, match="has no tier"):
        sync.Topics(cordwood.Store("memory:")).create("shop", "clicks", tier=URL)
    place.create()
    with pytest.raises(AlreadyExistsError):
        Place(tmp_path / "two", place.backend).create()
    with pytest.raises(AlreadyExistsError):
        place.create()


def test_a_directory_that_is_not_what_was_uploaded(tmp_path):
    """Another topic of the name there, or records that are missing here: nothing is uploaded."""
    place = Place(tmp_path)
    home = place.create()
    send(home, b"a")
    part(home).upload()
    shelf = Shelf(Store.over(place.backend))
    shelf.delete("shop", "clicks")
    with pytest.raises(NotFoundError, match="no topic"):
        part(place.home()).upload()
    Place(tmp_path / "other", place.backend).create()
    with pytest.raises(StateError, match="one tier"):
        part(place.home()).upload()
    send(home, b"b")
    with pytest.raises(NotFoundError, match="no topic"):
        part(home).upload()


def test_a_copy_of_a_directory_does_not_mix_its_records_with_the_others(tmp_path):
    """One of them uploads; the other is told, and keeps what it has."""
    # EVIDENCE-OF: G-96
    place = Place(tmp_path / "one")
    home = place.create()
    for value in (b"a", b"b"):
        send(home, value)
    part(home).upload()
    home.close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for value in (b"c", b"d"):
        send(home, value)
    part(home).upload()
    other = Place(tmp_path / "two", place.backend).home()
    for value in (b"C", b"D", b"E"):
        send(other, value)
    with pytest.raises(StateError, match=r"record 3 .* is not the one"):
        part(other).upload()
    assert list(enumerate([b"a", b"b", b"c", b"d"])) == place.there()
    assert [b"a", b"b", b"C", b"D", b"E"] == [one for _, one in offsets_and_values(part(other))]
    send(home, b"e")
    assert 5 == part(home).upload() == part(place.home()).upload()


def test_deletion_takes_both(tmp_path):
    """And one that was cut off after the store's part is finished."""
    place = Place(tmp_path)
    home = place.create()
    send(home, b"a")
    part(home).upload()
    config = part(home).config
    home._shelf(URL).delete_tier("shop", "clicks", config.tier_id)
    home.delete("shop", "clicks")
    assert [] == home.topics()
    home = place.create()
    send(home, b"a")
    part(home).upload()
    home.delete("shop", "clicks")
    assert [] == home.topics() == [key for key in place.backend._objects if "shop" in key]


def test_in_the_background_and_at_the_end(tmp_path, monkeypatch):
    """Nobody has to ask for it."""
    monkeypatch.setattr(tiers, "UPLOAD_FIRST_S", 0.01)
    url = f"file://{tmp_path}/store"
    uploaded = threading.Event()
    upload = tiers.TieredPartition.upload

    def told(partition):
        end = upload(partition)
        uploaded.set()
        return end

    monkeypatch.setattr(tiers.TieredPartition, "upload", told)
    with sync.Topics(tmp_path / "topics") as topics:
        topics.create("shop", "clicks", tier=url)
        with topics.producer("shop", "clicks") as producer:
            producer.send(b"a")
            assert uploaded.wait(30)
    with sync.Topics(cordwood.Store(url)).consumer("shop", "clicks", timeout_s=0) as consumer:
        assert [b"a"] == [record.value for record in consumer]


SENDER = """
import sys
from cordwood import sync
from cordwood.topics import tier
tier.UPLOAD_FIRST_S = 0.001
with sync.Topics(sys.argv[1]) as topics, topics.producer("shop", "clicks", name="p") as producer:
    for number in range(int(sys.argv[2]), 100_000):
        producer.send(b"%0500d" % number, sequence=number)
        print(number, flush=True)
"""


def test_uploaders_that_are_killed(tmp_path):
    """The next one goes on where the log ends."""
    url = f"file://{tmp_path}/store"
    rng = np.random.default_rng(6)
    topics = sync.Topics(tmp_path / "topics")
    how = {"retention_s": None, "local_retention_s": 0, "extent_bytes": SMALL}
    topics.create("shop", "clicks", tier=url, **how)
    heard = 0
    for _ in range(4):
        command = [sys.executable, "-c", SENDER, str(tmp_path / "topics"), str(heard)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for _ in range(rng.integers(20, 120)):
                heard = int(child.stdout.readline()) + 1
            child.send_signal(signal.SIGKILL)
            rest = [
                line for line in child.stdout.read().splitlines(keepends=True) if line[-1:] == "\n"
            ]
            heard = int(rest[-1]) + 1 if rest else heard
    partition = topics._engine.home.partition("shop", "clicks", 0)
    end = partition.upload()
    assert heard <= end <= heard + 1
    assert numbered(end) == offsets_and_values(partition)
    assert numbered(end) == offsets_and_values(Shelf(Store(url)).partition("shop", "clicks", 0))
