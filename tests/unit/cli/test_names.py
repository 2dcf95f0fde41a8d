"""`cordwood names`: every form of file, several names to an id, typing errors, and bad input."""

from __future__ import annotations

import json

import pytest

CSV = (
    "id,title,original\n"
    '007,"The Matrix","Matrix, The"\n'
    "2,Crouching Tiger Hidden Dragon,Wo hu cang long\n"
    "3,Dragon Ball,\n"
    "4,M,\n"
    "5,Amélie,Le Fabuleux Destin d'Amélie Poulain\n"
)


@pytest.fixture
def built(run, tmp_path):
    """An index of a few films."""
    (tmp_path / "films.csv").write_text(CSV, encoding="utf-8")
    assert run("names", "build", "films.csv", "--index", "ix") == "8 names in ix\n"
    return "ix"


def found(run, *words, code=0):
    """Ids, the best first."""
    got = run("names", "search", *words, "--json", code=code)
    return [one["id"] for one in (got if isinstance(got, list) else [got])]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("the matrix", "007"),
        ("teh matirx matrix", "007"),
        ("croching tigr", "2"),
        ("wo hu cang lnog", "2"),
        ("dragn bal", "3"),
        ("AMÉLIE", "5"),
        ("fabulous destin", "5"),
        ("m", "4"),
    ],
)
def test_what_was_meant_comes_first(run, built, typed, meant):
    """By any of its names, with errors, in any case, and however short."""
    assert found(run, built, typed)[0] == meant


def test_scores_begin_at_one(run, built):
    """The best is 1, each id is there once with the best of its names, and the others are less."""
    rows = run("names", "search", built, "dragon ball the", "--json")
    assert rows[0] == {"id": "3", "name": "Dragon Ball", "score": 1.0}
    assert len({row["id"] for row in rows}) == len(rows)
    assert [row["score"] for row in rows] == sorted((r["score"] for r in rows), reverse=True)
    assert run("names", "search", built, "dragon ball", "-k", "1") == "1.000\t3\tDragon Ball\n"


def test_nothing_like_it_is_no_error(run, built):
    """Nothing is printed."""
    assert run("names", "search", built, "zzzzzz") == ""


def test_bad_queries(run, built):
    """Each with one clear line."""
    assert "a name of 0 characters" in run("names", "search", built, "  ", code=1)
    assert "characters" in run("names", "search", built, "x" * 5_000, code=1)
    assert "no index at" in run("names", "search", "nowhere", "x", code=1)
    run("names", "search", built, "x", "-k", "0", code=2)
    run("index", "create", "plain")
    assert "plain has no names" in run("names", "search", "plain", "x", code=1)


def test_tsv_and_jsonl(run, tmp_path):
    """Quotes mean nothing in TSV, and \\N is nothing; in JSON a list is several names."""
    (tmp_path / "a.tsv").write_text('key\tname\n1\tThe "Big" One\n2\t\\N\n')
    assert run("names", "build", "a.tsv", "--index", "t", "--id", "key") == "1 names in t\n"
    assert run("names", "search", "t", 'the "big"') == '1.000\t1\tThe "Big" One\n'
    rows = [
        {"id": 1, "names": ["2001-01-01", "A Space Odyssey"]},
        {"id": 2, "names": []},
        {"id": 3, "names": ["1999-12-31"]},
    ]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run("names", "build", "b.jsonl", "--index", "j", "--json") == {"index": "j", "names": 3}
    assert found(run, "j", "space odissey") == ["1"]
    assert run("names", "search", "j", "2001-01-01", "-k", "1") == "1.000\t1\t2001-01-01\n"


def test_columns_are_chosen(run, tmp_path):
    """Only those that are asked for are names."""
    (tmp_path / "films.csv").write_text(CSV, encoding="utf-8")
    run("names", "build", "films.csv", "--index", "ix", "--name", "original")
    assert found(run, "ix", "wo hu cang long") == ["2"]
    assert run("names", "search", "ix", "crouching") == ""


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "id,name\n", "use .csv, .tsv or .jsonl"),
        ("a.csv", "key,name\n1,x\n", "no column 'id'"),
        ("a.csv", "id,name\n,x\n", "a name has no id"),
        ("a.csv", "id,name\n1,x,y\n", "Expected 2 columns"),
        ("a.csv", b"id,name\n1,\xff\n", "UTF8"),
        ("a.jsonl", '{"id": 1, "name": ', "JSON"),
        ("a.jsonl", '{"id": "a\\u0000b", "name": "x"}', "NUL"),
        ("a.jsonl", '{"id": 1, "name": {"x": 1}}', "must be texts"),
    ],
)
def test_bad_files_are_refused_and_may_be_mended(run, tmp_path, name, content, said):
    """One line says why; once the file is right the same command works."""
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said in run("names", "build", name, "--index", "ix", code=1)
    (tmp_path / "good.csv").write_text("id,name\n1,x\n")
    assert run("names", "build", "good.csv", "--index", "ix") == "1 names in ix\n"


def test_an_index_is_built_once(run, built):
    """Names would be there twice."""
    assert "has names in it" in run("names", "build", "films.csv", "--index", built, code=1)
    assert "is not there" in run("names", "build", "nowhere.csv", "--index", "other", code=1)


def test_empty_files(run, tmp_path):
    """Give an index of nothing, in which nothing is found."""
    (tmp_path / "a.csv").write_text("id,name\n")
    assert run("names", "build", "a.csv", "--index", "ix") == "0 names in ix\n"
    assert run("names", "search", "ix", "anything") == ""
