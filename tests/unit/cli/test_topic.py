"""`cordwood topic`: what a program or a person sends from the shell is read there."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordwood import Store, sync
from cordwood.cli.bench.topics import measure
from cordwood.topics import tier as tiers

TOPIC = "shop/clicks"


@pytest.fixture
def place(run, tmp_path):
    """A directory with a topic."""
    run("topic", "create", "wood", TOPIC, "--partitions", 2, "--extent-bytes", 100_000)
    return tmp_path / "wood"


def test_lines_go_in_and_come_out(run, place):
    """With a separator, keys as well."""
    words = ("topic", "produce", place, TOPIC)
    assert "sent 2 records\n" == run(*words, stdin="left\nright\n")
    assert {"records": 1} == run(*words, "--separator", ":", "--json", stdin="ada:up:down\r\n")
    assert {"left", "right", "up:down"} == set(run("topic", "consume", place, TOPIC).split())
    out = run("topic", "consume", place, TOPIC, "--separator", "=")
    assert {"=left", "=right", "ada=up:down"} == set(out.split())
    assert "" == run("topic", "consume", place, TOPIC, "-n", 0)
    assert 1 == len(run("topic", "consume", place, TOPIC, "-n", 1).split())


def test_json_goes_in_and_comes_out(run, place):
    """Text as text, other values as JSON, bytes in base64."""
    rows = [
        {"value": "a", "key": "k", "headers": {"h": "x"}, "timestamp_us": 5, "partition": 1},
        {"value": {"n": 1}, "timestamp_us": 6, "partition": 1},
        {
            "value_base64": "/w==",
            "headers_base64": {"h": "/w=="},
            "timestamp_us": 7,
            "partition": 1,
        },
        {"key": "k", "timestamp_us": 8, "partition": 1},
    ]
    lines = "\n".join(map(json.dumps, rows)) + "\n\n"
    assert {"records": 4} == run(
        "topic", "produce", place, TOPIC, "--as", "jsonl", "--json", stdin=lines
    )
    found = run("topic", "consume", place, TOPIC, "--json")
    whole = {"partition": 1, "offset": 0, "timestamp_us": 5, "key": "k", "value": "a"}
    assert whole | {"headers": {"h": "x"}} == found[0]
    assert '{"n":1}' == found[1]["value"]
    assert ("/w==", {"h": "/w=="}) == (found[2]["value_base64"], found[2]["headers_base64"])
    assert (None, "k") == (found[3]["value"], found[3]["key"])


def test_what_is_consumed_can_be_produced_again(run, place, tmp_path):
    """Bytes that are no text, nulls, empty keys and headers stay as they were, both ways."""
    with sync.Topics(place) as topics, topics.producer(*TOPIC.split("/")) as producer:
        headers = {"bytes": b"\xff", "text": b"x", "none": b""}
        producer.send(b"\xff\0", key=b"\xfe", headers=headers, partition=1)
        producer.send(None, key=b"", partition=1)
        producer.send(b"", partition=1)
    given = run("topic", "consume", place, TOPIC, "--json")
    lines = "\n".join(map(json.dumps, given))
    run("topic", "consume", place, TOPIC, "-o", tmp_path / "all.parquet")
    run("topic", "create", place, "shop/lines", "--partitions", 2, "--extent-bytes", 100_000)
    run("topic", "produce", place, "shop/lines", "--as", "jsonl", stdin=lines)
    assert given == run("topic", "consume", place, "shop/lines", "--json")
    run("topic", "create", place, "shop/rows", "--partitions", 2, "--extent-bytes", 100_000)
    run("topic", "produce", place, "shop/rows", tmp_path / "all.parquet", "--as", "parquet")
    assert given == run("topic", "consume", place, "shop/rows", "--json")


def test_a_topic_that_is_there_was_not_created(run, place):
    """With leave it may be there, and that is said."""
    words = ("topic", "create", place, TOPIC, "--exist-ok")
    assert f"{TOPIC} exists already\n" == run(*words)
    assert {"created": False, "topic": TOPIC} == run(*words, "--json")
    made = run("topic", "create", place, "shop/new", "--exist-ok", "--json")
    assert {"created": True, "topic": "shop/new"} == made


def test_a_damaged_parquet_file_is_one_line(run, place, tmp_path):
    """And how much of it was sent."""
    path = tmp_path / "some.parquet"
    table = pa.table({"value": [b"%06d" % number * 100 for number in range(40_000)]})
    pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=10_000)
    data = bytearray(path.read_bytes())
    middle = len(data) * 5 // 8
    data[middle : middle + 100_000] = b"\xff" * 100_000
    path.write_bytes(data)
    words = ("topic", "produce", place, TOPIC, path, "--as", "parquet", "--json")
    said = run(*words, code=1)
    assert "the Parquet file is damaged" in said["message"]
    assert 20_000 == said["records"]


def test_parquet_goes_in_and_comes_out(run, place, tmp_path):
    """The columns that a topic knows; others are left out."""
    table = pa.table({"value": [b"a", b"b"], "key": [b"k", None], "other": [1, 2]})
    pq.write_table(table, tmp_path / "in.parquet")
    run("topic", "produce", place, TOPIC, tmp_path / "in.parquet", "--as", "parquet")
    words = ("topic", "consume", place, TOPIC, "-o", "out.parquet", "--group", "g")
    assert "wrote 2 records" in run(*words)
    out = pq.read_table(tmp_path / "out.parquet")
    assert ["partition", "offset", "timestamp_us", "key", "value", "headers"] == out.schema.names
    assert {b"a", b"b"} == set(out.column("value").to_pylist())
    assert 0 == run("topic", "lag", place, TOPIC, "g", "--json")["lag"]
    assert "no Parquet" in run(
        "topic", "produce", place, TOPIC, "--as", "parquet", stdin="text", code=1
    )


def test_a_file_is_whole_or_not_there(run, place, tmp_path, monkeypatch):
    """One that failed half way leaves the file before it, and its group where it was."""
    words = ("topic", "consume", place, TOPIC, "-o", "out.parquet", "--group", "g")
    run("topic", "produce", place, TOPIC, stdin="a\n")
    run(*words)
    before = (tmp_path / "out.parquet").read_bytes()
    run("topic", "produce", place, TOPIC, stdin="b\nc\n")

    def cut_off(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("cordwood.cli.records.ParquetFile.close", cut_off)
        run(*words, code=1)
    assert before == (tmp_path / "out.parquet").read_bytes()
    assert ["out.parquet"] == [path.name for path in tmp_path.glob("out.*")]
    run(*words)
    assert [b"b", b"c"] == pq.read_table(tmp_path / "out.parquet").column("value").to_pylist()


def test_groups_go_on_and_lag_is_told(run, place):
    """Printed is committed."""
    run("topic", "produce", place, TOPIC, stdin="".join(f"{n}\n" for n in range(10)))
    first = run("topic", "consume", place, TOPIC, "--group", "g", "-n", 4).split()
    lag = run("topic", "lag", place, TOPIC, "g", "--json")
    assert (6, 6) == (lag["lag"], sum(one["lag"] for one in lag["partitions"]))
    assert "6 records behind" in run("topic", "lag", place, TOPIC, "g")
    rest = run("topic", "consume", place, TOPIC, "--group", "g").split()
    assert sorted(map(str, range(10))) == sorted(first + rest)
    assert "deleted group g" in run("topic", "delete", place, TOPIC, "--group", "g")
    assert "no group" in run("topic", "lag", place, TOPIC, "g", code=1)


def test_topics_are_listed_described_and_deleted(run, place):
    """For people and for programs."""
    words = ("topic", "create", place, "shop/prices", "--compaction", "--property", "owner=ada")
    run(*words, "--extent-bytes", 10_000)
    assert "shop/clicks\nshop/prices\n" == run("topic", "list", place)
    assert {"namespace": "shop", "topic": "clicks"} in run("topic", "list", place, "--json")
    state = run("topic", "describe", place, "shop/prices", "--json")
    assert ({"owner": "ada"}, True) == (
        state["config"]["properties"],
        state["config"]["compaction"],
    )
    run("topic", "produce", place, TOPIC, stdin="a\n")
    run("topic", "consume", place, TOPIC, "--group", "g")
    said = run("topic", "describe", place, TOPIC)
    assert "groups: g" in said
    assert str(state["namespace_id"]) in said
    assert "owner = ada" in run("topic", "describe", place, "shop/prices")
    assert {"deleted": TOPIC, "records": 1} == run("topic", "delete", place, TOPIC, "--json")
    assert "shop/prices\n" == run("topic", "list", place)


def test_properties_are_shown_as_they_are(run, tmp_path):
    """What looks like markup in them is none."""
    run("topic", "create", "wood", "shop/odd", "--property", "team=[/eu]", "--property", "a=[red]b")
    shown = run("topic", "describe", "wood", "shop/odd")
    assert "team = [/eu]" in shown
    assert "a = [red]b" in shown


def test_compaction_topics_are_asked_compacted_and_retained(run, place):
    """The last record of a key, of all keys, and what goes."""
    words = ("topic", "create", place, "shop/prices", "--compaction", "--extent-bytes", 4_096)
    run(*words, "--retention-s", 1)
    lines = "".join(f"key{n % 3}:{n}{'x' * 50}\n" for n in range(300))
    run("topic", "produce", place, "shop/prices", "--separator", ":", stdin=lines)
    assert f"key1=298{'x' * 50}\n" == run("topic", "latest", place, "shop/prices", "key1")
    assert 299 == run("topic", "latest", place, "shop/prices", "key2", "--json")["offset"]
    assert 3 == len(run("topic", "latest", place, "shop/prices").splitlines())
    assert "no record of the key" in run("topic", "latest", place, "shop/prices", "none", code=1)
    assert "are free" in run("topic", "compact", place, "shop/prices")
    assert 3 == len(run("topic", "latest", place, "shop/prices").splitlines())
    assert 0 == run("topic", "retain", place, TOPIC, "--json")["partitions"][0]["records"]
    assert "records went" in run("topic", "retain", place, "shop/prices")
    assert "no compaction topic" in run("topic", "compact", place, TOPIC, code=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "wood", "noslash"), "names no topic"),
        (("create", "wood", "a/b/c"), "cannot be the name"),
        (("create", "wood", "a b/c"), "cannot be the name"),
        (("create", "wood", "../c"), "cannot be the name"),
        (("create", "wood", "a/b", "--property", "x"), "has no value"),
        (("create", "wood", TOPIC), "exists already"),
        (("describe", "wood", "shop/none"), "no topic"),
        (("consume", "wood", "shop/none"), "no topic"),
        (("produce", "wood", "shop/none"), "no topic"),
        (("delete", "wood", "shop/none"), "no topic"),
        (("lag", "wood", "shop/none", "g"), "no topic"),
        (("list", "wood", "shop/clicks"), "cannot be the name"),
        (("list", "wood", ".."), "cannot be the name"),
        (("produce", "wood", TOPIC, "--separator", ""), "separator is empty"),
    ],
)
def test_bad_words_get_one_line(run, place, words, said):
    """And the same as JSON."""
    assert said in run("topic", *words, code=1)
    assert said in run("topic", *words, "--json", code=1)["message"]


def test_what_was_sent_before_a_failure_is_told(run, place, monkeypatch):
    """So that somebody can go on from there."""
    monkeypatch.setattr("cordwood.cli.records.BLOCK_LINES", 1)
    lines = '{"value": "a"}\n{"value": "b"}\nnothing\n'
    said = run("topic", "produce", place, TOPIC, "--as", "jsonl", "--json", stdin=lines, code=1)
    assert (2, 2) == (said["records"], said["lines"])
    assert "line 3 is no record" in said["message"]
    numbers = [f'{{"value": 1, "{name}": 1e300}}' for name in ("timestamp_us", "partition")]
    others = ['{"value": 1, "partition": 0.5}', '{"value": 1, "headers_base64": {"a": "?"}}']
    for wrong in (
        *('{"values": 1}', "[1]", '{"value_base64": "?"}', '{"headers": 1}'),
        *numbers,
        *others,
        '{"headers_base64": {"a": 1}}',
    ):
        out = run("topic", "produce", place, TOPIC, "--as", "jsonl", stdin=wrong + "\n", code=1)
        assert "line 1 is no record" in out
        assert "none was sent" in out


def test_a_tier_is_made_and_described(run, tmp_path):
    """What is produced is on the store when the command ends."""
    tier = f"file://{tmp_path}/tier"
    words = ("--tier", tier, "--local-retention-s", 60)
    run("topic", "create", "near", TOPIC, *words)
    run("topic", "produce", "near", TOPIC, stdin="left\nright\n")
    out = run("topic", "describe", "near", TOPIC)
    assert "not uploaded" in out
    assert "tier file:" in out
    said = run("topic", "describe", "near", TOPIC, "--json")
    assert (0, 60.0) == (said["partitions"][0]["not_uploaded"], said["config"]["local_retention_s"])
    with sync.Topics(Store(tier)).consumer("shop", "clicks", timeout_s=0) as consumer:
        assert [b"left", b"right"] == [record.value for record in consumer]
    assert "with a tier" in run("topic", "create", "near", "shop/x", *words[2:], code=1)


def test_a_topic_is_uploaded(run, tmp_path, monkeypatch):
    """What a process that stays has not uploaded yet; one without a tier says so."""
    monkeypatch.setattr(tiers, "UPLOAD_FIRST_S", 3600.0)
    run("topic", "create", "near", TOPIC, "--tier", f"file://{tmp_path}/tier")
    topics = sync.Topics(tmp_path / "near")
    with topics.producer("shop", "clicks") as producer:
        producer.send_many([b"left", b"right"])
    said = run("topic", "describe", "near", TOPIC, "--json")["partitions"][0]
    assert (2, 0) == (said["not_uploaded"], said["oldest_here"])
    assert "2 records uploaded" in run("topic", "upload", "near", TOPIC)
    said = run("topic", "upload", "near", TOPIC, "--json")
    assert [{"partition": 0, "records": 0, "next": 2}] == said["partitions"]
    run("topic", "create", "near", "shop/plain")
    assert "has no tier" in run("topic", "upload", "near", "shop/plain", code=1)
    topics.close()


def test_the_bench_measures(tmp_path):
    """Both sides, and their ratio."""
    rates = measure(tmp_path, 16, 40, 1)["rates"]
    assert {"single", "grouped_1000", "tasks_1000"} == set(rates)
    assert all(row["per_s"] > 0 and row["ratio"] > 0 for row in rates.values())
    with sync.Topics(tmp_path / "topics") as topics:
        held = topics.describe("bench", "sends").partitions[0].next
    assert 20 + 40 + 4_000 + 2_000 == held


def test_the_bench_of_compaction_measures(run, tmp_path):
    """Each step has its rate and its memory."""
    out = run("topic", "bench", tmp_path, "--keys", 20_000, "--record", 20)
    assert "20,000 keys, records of 20 bytes" in out
    assert all(step in out for step in ("send", "compact", "read"))
