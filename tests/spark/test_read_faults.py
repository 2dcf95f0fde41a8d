"""Reads that cannot succeed: each fails, and says what is wrong and where."""

from __future__ import annotations

import pickle
import re
import socket
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from cordwood import CorruptionError, NotFoundError, Store, StoreError, sync
from cordwood.base.errors import Code
from cordwood.spark import read_log, task
from cordwood.spark.batch_reader import reader_of
from cordwood.spark.schema import PLAIN
from cordwood.store.memory import MemoryStore


def flip(log, fragment, at):
    """Damage one byte of a fragment's file."""
    path = Path(log.store.url.removeprefix("file://"), log.name, fragment.path)
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("path", ["nothing", "wood"])
def test_a_path_that_is_no_log(spark, log, url, path):
    """The error names what was looked for; `read_log` gives it as Cordwood's own."""
    elsewhere = url.replace("/wood/orders", f"/wood/{path}")
    with pytest.raises(Exception, match=f"there is no log named '{path}'"):
        spark.read.format("cordwood").load(elsewhere).count()
    with pytest.raises(NotFoundError, match="there is no log named"):
        read_log(spark, elsewhere)


def test_a_pattern_that_matches_nothing(spark, log, url):
    """Not an empty frame: somebody mistyped."""
    with pytest.raises(Exception, match=r"no log in .* is named like clicks-\*"):
        spark.read.format("cordwood").load(url.replace("orders", "clicks-*")).count()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("offset BIGINT, colour STRING", "there is no column 'colour' to read"),
        ("offset INT", "column 'offset' is bigint, not int"),
        ("body STRING", "column 'body' is binary, not string"),
        ("key BINARY NOT NULL", "column 'key' is declared NOT NULL and may be null"),
    ],
)
def test_a_schema_that_cannot_be_read(spark, log, url, schema, said):
    """One clear error for a column that is not there, of another type, or may be null."""
    with pytest.raises(Exception, match=said):
        spark.read.format("cordwood").schema(schema).load(url).collect()


def test_a_bad_option_is_named(spark, log, url):
    """Also when it comes through Spark."""
    with pytest.raises(Exception, match="a read of a log has no option 'startofset'"):
        spark.read.format("cordwood").option("startOfset", 1).load(url).collect()


def test_a_damaged_fragment_fails_the_job_and_is_named(spark, log, url, fill):
    """Nothing is dropped in silence; who does not read its bodies may not notice."""
    fill(log, fragments=3, each=2000)
    with log.reader() as reader:
        damaged = reader.scan()[1]
    flip(log, damaged, 5_000)
    with pytest.raises(Exception, match=re.escape(f"fragment orders/{damaged.path} is damaged")):
        spark.read.format("cordwood").load(url).count()
    narrow = spark.read.format("cordwood").schema("offset BIGINT, timestamp TIMESTAMP")
    assert narrow.load(url).count() == 6000
    with pytest.raises(Exception, match=re.escape(f"fragment orders/{damaged.path} is damaged")):
        narrow.option("verify", "full").load(url).count()


@pytest.mark.parametrize("verify", ["true", "full", "false"])
def test_damage_names_the_log_where_several_are_read(url, fill, verify):
    """By the object's key: the paths in two logs are alike."""
    store = sync.Log.from_url(url).store
    for name in ("a", "b", "c"):
        log = sync.Log(store, name)
        log.create()
        fill(log, fragments=1, each=2000)
        with log.reader() as reader:
            fragment = reader.scan()[0]
        if name == "b":
            Path(store.url.removeprefix("file://"), "b", fragment.path).write_bytes(b"spoiled")
    options = {"path": store.url, "logs": "a,b,c", "verify": verify}
    reader = reader_of(StructType([*PLAIN, StructField("log", StringType(), False)]), options)
    with pytest.raises(CorruptionError, match=re.escape(f"b/{fragment.path} is damaged")):
        for split in reader.partitions():
            list(reader.read(split))


def test_a_missing_fragment_is_named_also_without_bodies(spark, log, url, fill):
    """What the manifest names must be there, whatever was asked for."""
    fill(log, fragments=2)
    with log.reader() as reader:
        gone = reader.scan()[1]
    Path(log.store.url.removeprefix("file://"), log.name, gone.path).unlink()
    narrow = spark.read.format("cordwood").schema("offset BIGINT").load(url)
    with pytest.raises(Exception, match=re.escape(gone.path)):
        narrow.count()


def test_a_remote_log_is_read_ahead_with_credentials_of_the_environment(s3, monkeypatch):
    """Nothing secret is in what Spark carries to a task."""
    for option, value in s3.options.items():
        monkeypatch.setenv(f"AWS_{option.upper()}", value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    log = sync.Log(f"{s3.url}/spark-read", "orders")
    log.create()
    with log.writer() as writer:
        for i in range(20):
            writer.append_many([b"%d" % i] * 10)
    for schema in (StructType(list(PLAIN)), StructType(list(PLAIN[:2]))):
        reader = reader_of(schema, {"path": log.url})
        splits = reader.partitions()
        assert b"hunter2" not in pickle.dumps([reader, splits])
        assert sum(batch.num_rows for split in splits for batch in reader.read(split)) == 200


class Refusing(MemoryStore):
    """A store that lets a worker read nothing."""

    async def get_range(self, key, start, length):
        """As a store answers who has no credentials."""
        raise StoreError("denied", code=Code.STORE_DENIED, hint="set AWS_ACCESS_KEY_ID")


def test_a_store_that_refuses_a_worker_names_its_machine(log, url, fill, monkeypatch):
    """Credentials that only the driver has: which machine lacks them, and what to set there."""
    fill(log, fragments=1)
    reader = reader_of(StructType(list(PLAIN)), {"path": url})
    (split,) = reader.partitions()
    monkeypatch.setitem(task._stores, log.store.url, Store.over(Refusing(), log.store.url))
    with pytest.raises(StoreError) as refused:
        list(reader.read(split))
    assert refused.value.code is Code.STORE_DENIED
    assert f"refused the worker on {socket.gethostname()}" in str(refused.value)
    assert "every executor" in refused.value.hint
    assert "AWS_ACCESS_KEY_ID" in refused.value.hint


def test_a_store_that_takes_no_pin_says_how_to_read_without(log, url, fill, monkeypatch):
    """Whoever may only read is told which option lets them."""
    fill(log, fragments=1)

    async def refuse(*_, **__):
        raise StoreError("denied", code=Code.STORE_DENIED)

    monkeypatch.setattr("cordwood.log.log.make_pin", refuse)
    with pytest.raises(StoreError, match="pinTtl to 0"):
        reader_of(StructType(list(PLAIN)), {"path": url}).partitions()
    assert reader_of(StructType(list(PLAIN)), {"path": url, "pinTtl": "0"}).partitions()
