"""The examples run as they are."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from cordwood import sync

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(spark, monkeypatch):
    """`run("name.py", …)`: as a program, in the session of the tests."""

    def start(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return start


def bodies(url):
    """Every record."""
    with sync.Log.from_url(url).reader() as reader:
        return [(record.key, record.body) for record in reader.read()]


def test_copy(run, log, url, tmp_path):
    """Twice: the second run copies what came between."""
    for part in ([b"a", b"b"], [b"c"]):
        with log.writer() as writer:
            writer.append_many(part)
        run("spark_copy.py", url, f"{url}-copy", str(tmp_path / "checkpoint"))
    assert bodies(url) == bodies(f"{url}-copy")


def test_words(run, log, url):
    """Sorted, with their counts."""
    with log.writer() as writer:
        writer.append_many([b"the axe and the saw", b"the wedge"])
    run("spark_words.py", url, f"{url}-words")
    assert [(b"and", b"1"), (b"axe", b"1"), (b"saw", b"1"), (b"the", b"3"), (b"wedge", b"1")] == (
        bodies(f"{url}-words")
    )


def test_append(run, url, capsys):
    """No Spark at all."""
    run("append.py", url)
    assert capsys.readouterr().out.splitlines() == [
        "appended at 1 and 2",
        '1 {"order": 1}',
        '2 {"order": 2}',
        "whole: True",
    ]


def test_read(run, url, capsys):
    """A query, a projection, and what the manifest says."""
    run("spark_read.py", url)
    assert capsys.readouterr().out.splitlines() == [
        "red 334",
        "green 333",
        "blue 333",
        "offsets 501 to 1000",
        "1000 records in 4 files",
    ]


def test_every_example_is_tested():
    """By its name, above."""
    tested = Path(__file__).read_text()
    assert [] == [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in tested]


def test_search(run, tmp_path, capsys):
    """A collection is asked before and after its compaction."""
    run("search.py", f"file://{tmp_path}/wood/notes")
    words = capsys.readouterr().out.splitlines()
    assert {"monday", "tuesday"} == {line.split()[1] for line in words[:2]}
    assert "waiting: 4" == words[2]
    assert "indexed: 2 still found: [b'monday', b'tuesday']" == words[3]


def test_search_on_spark(run, spark, tmp_path, capsys):
    """Twice: the second build is the first."""
    texts = [("a", "quick fox"), ("b", "lazy quick dog"), ("c", "cat")]
    frame = spark.createDataFrame(texts, "id STRING, text STRING")
    frame.write.parquet(f"file://{tmp_path}/texts")
    for expected in ("3 documents", "nothing new"):
        run("spark_search.py", f"file://{tmp_path}/texts", f"{tmp_path}/index")
        words = capsys.readouterr().out.splitlines()
        assert expected == words[0]
        assert ["a"] == [line.split()[1] for line in words[1:]]
