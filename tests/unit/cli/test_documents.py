"""`cordwood index` and `cordwood collection`: what they say, to people and to programs."""

from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner

from cordwood.cli.documents import batches_of
from cordwood.cli.main import cli

DOCUMENTS = 'a\tquick fox\n{"id": "b", "text": "lazy dog"}\n\n{"id": 3, "text": "quick dog"}\n'


@pytest.fixture
def say(tmp_path, monkeypatch):
    """Run a command in an empty directory; its output, or its error if it should fail."""
    monkeypatch.chdir(tmp_path)

    def run(*words, given="", fails=False):
        result = CliRunner().invoke(cli, words, input=given)
        assert (0 != result.exit_code) == fails, result.output + result.stderr
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.stderr if fails else result.stdout

    return run


@pytest.fixture(params=["index", "collection"])
def noun(request, say):
    """An index or a collection with three documents, and its place."""
    place = "ix" if request.param == "index" else "wood/docs"
    assert f"created {place}\n" == say(request.param, "create", place)
    assert "added 3 documents\n" == say(request.param, "add", place, given=DOCUMENTS)
    return request.param, place


def test_search_and_match(say, noun):
    """The best first; all, in order."""
    name, place = noun
    found = say(name, "search", place, "quick AND dog")
    assert ["3"] == [line.split()[1] for line in found.splitlines()]
    hits = [json.loads(line) for line in say(name, "search", place, "quick", "--json").splitlines()]
    assert {"a", "3"} == {hit["id"] for hit in hits}
    assert hits[0]["score"] >= hits[1]["score"] > 0
    assert "3\na\n" == say(name, "match", place, "quick")
    assert '{"id": "b"}\n' == say(name, "match", place, "NOT quick", "--json")
    assert 1 == len(say(name, "search", place, "quick dog", "-k", "1").splitlines())


@pytest.mark.parametrize("at_once", [1, 4_096])
def test_of_lines_with_the_same_id_the_last_replaces_the_others(say, noun, monkeypatch, at_once):
    """An index kept all that came in the same batch."""
    monkeypatch.setattr("cordwood.cli.documents.BATCH", at_once)
    name, place = noun
    lines = "a\tfirst\nb\tfirst\na\tsecond\nb\tsecond\n"
    assert "added 4 documents\n" == say(name, "add", place, "--replace", given=lines)
    assert "a\nb\n" == say(name, "match", place, "second")
    assert "" == say(name, "match", place, "first")


def test_large_documents_are_handed_on_before_they_are_many(monkeypatch):
    """Thousands of large files in one batch do not fit into memory, nor into one append."""
    monkeypatch.setattr("cordwood.cli.documents.BATCH_BYTES", 10)
    lines = io.BytesIO(b"a\t1234\nb\t1234\nc\t1234\nd\t1\ne\t12345678901\n")
    assert [[b"a", b"b", b"c"], [b"d", b"e"]] == [ids for ids, _ in batches_of(lines, ())]


def test_replace_and_delete(say, noun):
    """Documents of the same ids go."""
    name, place = noun
    say(name, "add", place, "--replace", given="a\tslow cat\n")
    assert "a\n" == say(name, "match", place, "slow AND cat")
    assert "3\n" == say(name, "match", place, "quick")
    assert "deleted 2 ids\n" == say(name, "delete", place, "3", "b")
    assert "" == say(name, "match", place, "quick dog")


def test_files_are_documents(say, noun, tmp_path):
    """Under their names."""
    name, place = noun
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("a zebra")
    say(name, "add", place, "--files", "texts")
    assert "texts/one.txt\n" == say(name, "match", place, "zebra")


def test_check_and_show(say, noun):
    """Whole, and how much; to create it again is no error if that is said."""
    name, place = noun
    assert "exists already" in say(name, "create", place, fails=True)
    assert f"created {place}\n" == say(name, "create", place, "--exist-ok")
    assert say(name, "check", place).startswith("whole: ")
    assert json.loads(say(name, "check", place, "--json"))["ok"]
    assert "words" in say(name, "show", place)
    assert "tokenizer" in json.loads(say(name, "show", place, "--json"))


def test_a_place_is_shown_as_it_is(say, tmp_path):
    """What looks like markup in its name is none."""
    place = str(tmp_path / "[/old]" / "ix")
    say("index", "create", place)
    assert place in say("index", "show", place)


def test_an_index_is_merged_and_compacted(say):
    """Segments become one."""
    say("index", "create", "ix", "--tokenizer", "whitespace")
    for number in range(3):
        say("index", "add", "ix", given=f"{number}\tword\n")
    assert "2 segments fewer\n" == say("index", "merge", "ix")
    assert say("index", "compact", "ix").startswith("removed 3 segments")
    assert 1 == json.loads(say("index", "show", "ix", "--json"))["segments"]


def test_a_collection_is_compacted(say):
    """What waited is in the index."""
    say("collection", "create", "wood/docs")
    say("collection", "add", "wood/docs", given="a\tword\n")
    assert 1 == json.loads(say("collection", "show", "wood/docs", "--json"))["waiting"]
    report = say("collection", "compact", "wood/docs", "--engine", "local")
    assert report == "1 operations: 1 documents joined in 1 segments, 0 are gone\n"
    assert 0 == json.loads(say("collection", "show", "wood/docs", "--json"))["waiting"]


def test_damage_is_said_and_the_exit_code_tells(say, tmp_path):
    """Never a wrong answer."""
    say("index", "create", "ix")
    say("index", "add", "ix", given="a\tword\n")
    (segment,) = (tmp_path / "ix").glob("segment.*.idx")
    data = bytearray(segment.read_bytes())
    data[70] ^= 0xFF
    segment.write_bytes(data)
    assert "is damaged" in say("index", "search", "ix", "word", fails=True)
    assert "is damaged" in say("index", "check", "ix", fails=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "search", "nothing", "word"], "there is no index at"),
        (["index", "add", "ix"], "line 1 is no document"),
        (["index", "search", "ix", "a AND"], "nothing follows this AND"),
        (["index", "create", "ix"], "exists already"),
        (["index", "create", "other", "--tokenizer", "bad"], "is none that we know"),
        (["collection", "search", "wood/docs", "word"], "there is no collection named 'docs'"),
        (["collection", "create", "docs"], "does not name a log"),
    ],
)
def test_bad_input_is_one_clear_line(say, words, message):
    """On standard error, and as JSON."""
    say("index", "create", "ix")
    error = say(*words, given="no tab\n", fails=True)
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"id": "a", "text": null}', "id and text are strings"),
        ('{"id": null, "text": "word"}', "id and text are strings"),
        ('{"id": true, "text": "word"}', "id and text are strings"),
        ('{"id": ["a"], "text": "word"}', "id and text are strings"),
        ('{"id": "a"}', "it has no 'text'"),
        ('{"id": "\\ud800", "text": "word"}', "surrogates not allowed"),
        ('{"id": ' + "[" * 100_000, "recursion"),
        ('{"id": "a", "text": "word"', "Expecting"),
    ],
)
def test_a_line_that_is_no_document(say, line, why):
    """Nothing of the lines counts, and no text is made up."""
    say("index", "create", "ix")
    error = say("index", "add", "ix", given=f'{{"id": 7, "text": "word"}}\n{line}\n', fails=True)
    assert "line 2 is no document" in error
    assert why in error
    assert "" == say("index", "match", "ix", "word OR none")
