"""Two processes share a million records, and one is killed half way."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from cordwood import sync

RECORDS = 1_000_000
PARTITIONS = 8

WORKER = """
import sqlite3, sys
import numpy as np
from cordwood import sync

place, kind, sink = sys.argv[1:]

def at_least_once(consumer):
    for found in consumer.batches():
        values = np.array([int(v) for v in found.batch.column("value").to_pylist()], np.int64)
        with open(sink, "ab") as file:
            file.write(values.tobytes())
        consumer.commit()
        print(len(values), flush=True)

def exactly_once(consumer):
    for found in consumer.batches():
        rows = [(int(v),) for v in found.batch.column("value").to_pylist()]
        first = found.batch.column("offset")[0].as_py()
        with base:
            moved = base.execute(
                "update position set next = ? where part = ? and next = ?",
                (found.next, found.partition, first),
            )
            if moved.rowcount != 1:
                raise SystemExit("somebody else has this partition")
            base.executemany("insert into seen values (?)", rows)
        print(len(rows), flush=True)

def position(partition):
    return base.execute("select next from position where part = ?", (partition,)).fetchone()[0]

topics = sync.Topics(place)
how = dict(group="g", timeout_s=3.0)
if kind == "exactly":
    base = sqlite3.connect(sink, timeout=60)
    base.execute("pragma synchronous = off")
    how["positions"] = position
with topics.consumer("shop", "clicks", **how) as consumer:
    print("joined", flush=True)
    sys.stdin.readline()
    (exactly_once if kind == "exactly" else at_least_once)(consumer)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A topic with a million records: the numbers from 0 on."""
    where = tmp_path_factory.mktemp("topics")
    numbers = np.arange(RECORDS)
    with sync.Topics(where) as topics:
        topics.create("shop", "clicks", partitions=PARTITIONS, extent_bytes=4 << 20)
        with topics.producer("shop", "clicks") as producer:
            for part in np.array_split(numbers, 10):
                values = pa.array(part).cast(pa.string()).cast(pa.binary())
                table = pa.table({"value": values, "partition": part % PARTITIONS})
                producer.send_arrow(table)
    return where


def run(place, kind, sink):
    """Two members; one is killed when it has handled some."""
    command = [sys.executable, "-c", WORKER, str(place), kind, str(sink)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as killed, subprocess.Popen(command, **pipes) as other:
        try:
            for member in (killed, other):
                assert "joined\n" == member.stdout.readline()
            for member in (killed, other):
                member.stdin.write("go\n")
                member.stdin.flush()
            count = 0
            while count < RECORDS // 10:
                count += int(killed.stdout.readline())
            killed.kill()
            out, _ = other.communicate()
            assert 0 == other.returncode
            assert 0 < sum(map(int, out.split()))
        finally:
            killed.kill()
            other.kill()


def test_every_record_is_handled_at_least_once(place, tmp_path):
    """What was handled and not committed when the member died comes again, and nothing else."""
    # EVIDENCE-OF: G-93
    run(place, "least", tmp_path / "sink")
    seen = np.fromfile(tmp_path / "sink", np.int64)
    times = np.bincount(seen, minlength=RECORDS)
    assert (times >= 1).all()
    assert times.sum() - RECORDS < RECORDS // 4
    with sync.Topics(place) as topics:
        assert 0 == sum(one.records for one in topics.lag("shop", "clicks", "g"))
        topics.delete_group("shop", "clicks", "g")


def test_every_record_is_handled_exactly_once_by_a_sink_with_transactions(place, tmp_path):
    """It keeps the positions together with what it made of the records."""
    # EVIDENCE-OF: G-93
    sink = tmp_path / "sink.db"
    with sqlite3.connect(sink) as base:
        base.execute("pragma journal_mode = wal")
        base.execute("create table seen (value integer)")
        base.execute("create table position (part integer primary key, next integer)")
        rows = [(number, 0) for number in range(PARTITIONS)]
        base.executemany("insert into position values (?, ?)", rows)
    run(place, "exactly", sink)
    seen = sqlite3.connect(sink).execute("select count(*), count(distinct value) from seen")
    assert (RECORDS, RECORDS) == seen.fetchone()
    with sync.Topics(place) as topics:
        topics.delete_group("shop", "clicks", "g")
