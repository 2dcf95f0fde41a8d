"""Long work has a bar on a terminal: over all of it, to its end; a program sees none."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cordwood import sync
from cordwood.cli.main import cli


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A log, a table, an index, a collection and a volume; and a terminal to work on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORDWOOD_HOME", str(tmp_path / "home"))
    log = sync.Log(tmp_path / "wood", "orders")
    with log.writer(create=True) as writer:
        writer.append_many([b"one", b"two"])
    table = sync.Table(tmp_path / "wood", "table")
    table.create()
    sync.compact(log, table, engine="local")
    index = sync.Index(tmp_path / "index")
    index.create()
    for number in range(3):
        with index.begin() as transaction:
            transaction.add(b"%d" % number, "some text")
    with sync.Collection(tmp_path / "wood", "docs") as docs:
        docs.create()
        docs.add(b"1", "some text")
        docs.compact(engine="local")
    volume = sync.Volume(sync.Store(tmp_path / "wood"), "app", directory=tmp_path / "app")
    volume.create()
    with volume:
        for number in range(1, 4):
            with volume.begin() as transaction:
                transaction.write(number, bytes(4096))
            volume.push()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


COMMANDS = {
    "read": ("log", "read", "wood/orders", "-o", "a.jsonl"),
    "read ": ("table", "read", "wood/table", "-o", "a.parquet"),
    "scrub": ("table", "scrub", "wood/table"),
    "check": ("index", "check", "index"),
    "check ": ("collection", "check", "wood/docs"),
    "merge": ("index", "merge", "index"),
    "checkpoint": ("volume", "checkpoint", "wood/app", "--directory", "app"),
}


def test_a_bar_on_a_terminal(places):
    """It ends full; with --json there is none."""
    for title, words in COMMANDS.items():
        told = CliRunner().invoke(cli, words)
        assert 0 == told.exit_code, told.output
        assert title.strip() in told.stderr
        assert "100%" in told.stderr or "0:00:00" in told.stderr, told.stderr
    for words in COMMANDS.values():
        told = CliRunner().invoke(cli, [*words, "--json"])
        assert (0, "") == (told.exit_code, told.stderr), told.output


def test_how_far_it_is(places):
    """From something to all of it, and never back."""
    with sync.Volume(sync.Store(places / "wood"), "app", directory=places / "app") as volume:
        calls = {
            "table": sync.Table(places / "wood", "table").scrub,
            "check": sync.Index(places / "index").check,
            "merge": lambda progress: sync.Index(places / "index").merge(progress=progress),
            "collection": sync.Collection(places / "wood", "docs").check,
            "checkpoint": lambda progress: volume.checkpoint(progress=progress),
        }
        for name, call in calls.items():
            seen = []
            call(lambda done, total, seen=seen: seen.append((done, total)))
            assert seen, name
            done, total = seen[-1]
            assert done == total > 0, (name, seen)
            assert sorted(done for done, _ in seen) == [done for done, _ in seen], (name, seen)
