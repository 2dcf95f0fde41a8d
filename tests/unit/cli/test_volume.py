"""`cordwood volume`: databases in and out, versions, branches, drawn; one clear line on errors."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager

import pytest

from cordwood import sync
from cordwood.cli.bench.volume import measure
from cordwood.cli.commits import drawn
from cordwood.volume import sqlite
from cordwood.volume.graph import Graph, Line
from cordwood.volume.versions import Version


@pytest.fixture(autouse=True)
def _directory(monkeypatch, tmp_path):
    """Local state of the test alone."""
    monkeypatch.setenv("CORDWOOD_DIRECTORY", str(tmp_path / "local"))


@pytest.fixture
def file(tmp_path):
    """A plain database in WAL mode, as applications leave it."""
    path = tmp_path / "app.db"
    base = sqlite3.connect(path)
    base.execute("pragma journal_mode = wal")
    base.execute("create table t (id integer primary key, x)")
    base.executemany("insert into t (x) values (?)", [(b"z" * 300,)] * 2000)
    base.commit()
    base.close()
    return path


@pytest.fixture
def url(run, file):
    """The same, imported."""
    assert "published as version 1" in run("volume", "import", "wood/app", file)
    return "wood/app"


def sql(run, url, statement, *more):
    """One statement in the shell."""
    return run("volume", "shell", url, "-c", statement, *more)


def test_a_file_comes_in_and_goes_out(run, url, file, tmp_path):
    """Byte for byte, but for the two bytes that say which journal; any version, whole or not."""
    # EVIDENCE-OF: G-133
    sql(run, url, "update t set x = 'new' where id = 7")
    run("volume", "push", url, "-m", "second")
    sql(run, url, "delete from t where id > 1500; vacuum")
    run("volume", "export", url, "first.db", "--at", 1)
    first = bytearray(file.read_bytes())
    first[18:20] = b"\1\1"
    assert first == (tmp_path / "first.db").read_bytes()
    for name, at, rows in (("second.db", ["--at", 2], 2000), ("now.db", [], 1500)):
        run("volume", "export", url, name, *at)
        base = sqlite3.connect(tmp_path / name)
        assert [("ok",)] == base.execute("pragma integrity_check").fetchall()
        assert (rows, "new") == (
            base.execute("select count(*) from t").fetchone()[0],
            base.execute("select x from t where id = 7").fetchone()[0],
        )
        base.close()
    assert "is there already" in run("volume", "export", url, "now.db", code=1)
    assert "no directory" in run("volume", "export", url, "none/now.db", code=1)
    assert "wrote" in run("volume", "export", url, "now.db", "--force")


def test_an_export_does_not_take_the_place_of_what_is_no_file(run, url, tmp_path):
    """A device or a pipe stays what it is, though it is asked for by force."""
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in run("volume", "export", url, tmp_path / "pipe", "--force", code=1)
    assert (tmp_path / "pipe").is_fifo()


def test_imports_that_cannot_be(run, url, file, tmp_path, monkeypatch):
    """A volume that has a database, a file that is none, one that somebody writes to."""
    assert "not empty" in run("volume", "import", url, file, code=1)
    (tmp_path / "text").write_text("no database at all " * 99)
    assert "no SQLite database" in run("volume", "import", "wood/text", "text", code=1)
    assert "no SQLite database" in run("volume", "import", "wood/text", "text", code=1)
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
    busy = sqlite.plain(file)
    busy.execute("begin immediate")
    busy.execute("insert into t (x) values (1)")
    found = run("volume", "import", "wood/busy", file, "--json", code=1)
    assert "contended" == found["error"]
    busy.close()
    assert run("volume", "import", "wood/busy", file, "--no-push", "--json")["lsn"] is None


def test_an_import_that_was_cut_off_begins_again(run, file, monkeypatch):
    """What a first try left is seen by nobody, and replaced by the second."""
    monkeypatch.setattr("cordwood.volume.transfer.COMMIT_BYTES", 100_000)
    read = []

    def fail(done, total):
        read.append(done)
        if len(read) == 3:
            raise OSError(5, "the disk went away")

    @contextmanager
    def bar(*_, **__):
        yield fail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.cli.database.byte_progress", bar)
        assert "went away" in run("volume", "import", "wood/app", file, code=1)
    status = run("volume", "status", "wood/app", "--json")
    assert (0, True) == (status["lsn"], status["ahead"] > 0)
    run("volume", "import", "wood/app", file)
    assert "2000\n" == sql(run, "wood/app", "select count(*) from t")
    assert "ok\n" == sql(run, "wood/app", "pragma integrity_check")


def test_the_life_of_versions(run, url):
    """Push, branch, restore, log, diff, status, as JSON and in words."""
    assert "nothing to push" in run("volume", "push", url)
    sql(run, url, "delete from t where id = 1")
    assert "do not delete that directory" in run("volume", "status", url)
    assert {"lsn": 2} == run("volume", "push", url, "-m", "one less", "--json")
    assert "made exp" in run("volume", "branch", url, "exp", "--at", 1)
    assert [{"n": 2000}] == [sql(run, "wood/exp", "select count(*) n from t", "--json")]
    assert 1999 == sql(run, url, "select count(*) n from t", "--json")["n"]
    assert 2000 == sql(run, url, "select count(*) n from t", "--at", 1, "--json")["n"]
    versions = run("volume", "log", url, "--json")
    assert ["one less", "app.db"] == [one["message"] for one in versions]
    assert "one less" in run("volume", "log", url, "-n", 1)
    pages = run("volume", "diff", url, 1, 2, "--json")["pages"]
    assert pages == [int(page) for page in run("volume", "diff", url, 1).split()]
    assert 1 in pages
    run("volume", "restore", url, 1)
    assert 2000 == sql(run, url, "select count(*) n from t", "--json")["n"]
    assert "wood" in run("volume", "tag", url, "v1")
    names = run("volume", "list", "wood", "--json")
    assert ["app", "exp", "v1"] == [one["name"] for one in names]
    run("volume", "delete", "wood/v1", "--yes")
    assert "no volume named 'v1'" in run("volume", "delete", "wood/v1", "--yes", code=1)
    assert "no volume" in run("volume", "status", "wood/v1", code=1)


def test_two_directories(run, url, tmp_path):
    """Fetch, pull, hydrate, divergence, reset and rebase between two machines."""
    there = ("-d", tmp_path / "there")
    assert "7\n" == sql(run, url, "select id from t where id = 7", *there)
    assert 0 < run("volume", "hydrate", url, *there, "--json")["bytes"]
    sql(run, url, "delete from t where id = 1")
    run("volume", "push", url)
    assert {"before": 1, "lsn": 2} == run("volume", "fetch", url, *there, "--json")
    assert "version 2, before 1" in run("volume", "pull", url, *there)
    sql(run, url, "delete from t where id = 2")
    run("volume", "push", url)
    sql(run, url, "delete from t where id = 3", *there)
    assert "diverged" in run("volume", "push", url, *there, code=1)
    assert "DIVERGED" in run("volume", "status", url, *there)
    assert "both sides" in run("volume", "rebase", url, *there, code=1)
    assert "made mine" in run("volume", "branch", url, "mine", "--unpushed", *there)
    assert "as before" in run("volume", "reset", url, *there)
    assert "1998\n" == sql(run, url, "select count(*) from t", *there)


def test_a_name_that_was_moved(run, url, file, tmp_path):
    """It is followed when that is asked for."""
    there = ("-d", tmp_path / "there")
    assert {"moved": False, "lsn": 1} == run("volume", "follow", url, *there, "--json")
    run("volume", "import", "wood/other", file)
    sql(run, "wood/other", "delete from t where id > 7")
    run("volume", "push", "wood/other")
    run("volume", "tag", "wood/other", "app", "--force")
    assert "moved" in run("volume", "pull", url, *there, code=1)
    assert "another volume, at version 2" in run("volume", "follow", url, *there)
    assert "7\n" == sql(run, url, "select count(*) from t", *there)


def test_upkeep(run, url):
    """A checkpoint, a collection."""
    assert 1 == run("volume", "checkpoint", url, "--json")["lsn"]
    assert "checkpoint at version 1" in run("volume", "checkpoint", url)
    assert {"checkpoints": []} == run("volume", "discover", url, "--json")
    assert "nothing to add" in run("volume", "discover", url)
    assert 0 == run("volume", "collect", "wood", "--keep-s", 0, "--json")["deleted"]
    assert "deleted 0 objects" in run("volume", "collect", "wood")


def test_errors_are_one_clear_line(run, url):
    """No traceback, and the code tells."""
    assert "does not name a volume" in run("volume", "status", "app", code=1)
    assert "syntax error" in run("volume", "shell", url, "-c", "selec 1", code=1)
    assert "not_found" == run("volume", "status", "wood/none", "--json", code=1)["error"]
    assert "sql" == run("volume", "shell", url, "-c", "selec", "--json", code=1)["error"]
    assert "names no version" in run("volume", "diff", url, "never", code=1)
    volume = sync.Volume("wood", "plain", directory="local")
    volume.create()
    with volume.begin() as txn:
        txn.write(1, b"no database ".ljust(4096, b"."))
    volume.close()
    assert "not a database" in run("volume", "shell", "wood/plain", "-c", "select 1", code=1)
    assert "goes with one statement" in run("volume", "shell", url, "--json", code=1)["message"]
    assert "cannot name" in run("volume", "branch", url, "a b", code=1)
    assert "no volume" in run("volume", "delete", "wood/none", "--yes", code=1)


def test_creating(run):
    """A volume without pages; twice only if that is allowed."""
    assert run("volume", "create", "wood/new", "--page-size", 512, "--json")["created"]
    assert "already" in run("volume", "create", "wood/new", code=1)
    assert "exists already" in run("volume", "create", "wood/new", "--exist-ok")
    assert 512 == run("volume", "status", "wood/new", "--json")["page_size"]


def test_the_benchmark(tmp_path, monkeypatch):
    """Every figure that is wanted is there, beside both plain files."""
    monkeypatch.setattr("cordwood.cli.bench.volume.UNPUSHED", (0, 5))
    found = measure(tmp_path, rows=1_000, reads=20, updates=3, rounds=1)
    assert 8 == len(found["rates"])
    assert all(0 < row["ratio"] for row in found["rates"])
    assert ["0", "5"] == list(found["unpushed_reads_per_s"])
    assert 0 < found["cold"]["bytes"] < found["database_bytes"]
    assert 0 < found["cold"]["requests"] < 40
    assert 0 < found["branch_ms"]


def version(log, lsn):
    """A commit to be drawn."""
    return Version(lsn, log, "", "", 0, "", "", 0, 0, 0)


def picture(graph):
    """Its rows with LSNs."""
    return [f"{row} {one.lsn}" if one else row for row, one in drawn(graph)]


def test_the_picture_of_branches():
    """A branch joins the line it began at; lines that go past are crossed."""
    lines = (
        Line("a", None, 4, ("app",)),
        Line("b", ("a", 1), 2, ("b",)),
        Line("c", ("a", 2), 3, ("c",)),
    )
    commits = [("c", 3), ("b", 2), ("a", 4), ("a", 3), ("a", 2), ("a", 1)]
    graph = Graph(lines, tuple(version(*one) for one in commits), 0)
    assert [
        "    ● 3",
        "  ● │ 2",
        "● │ │ 4",
        "● │ │ 3",
        "├─┼─╯",
        "● │ 2",
        "├─╯",
        "● 1",
    ] == picture(graph)


def test_the_picture_as_the_store_has_it(run, url):
    """All branches of the family, each with its names; no other volume's."""
    run("volume", "branch", url, "exp")
    run("volume", "create", "wood/other")
    for name in ("exp", "app"):
        sql(run, f"wood/{name}", "delete from t where id = 1")
        run("volume", "push", f"wood/{name}", "-m", f"on {name}")
    rows = run("volume", "log", url, "--graph").splitlines()
    assert 4 == len(rows)
    assert "├─╯" == rows[2]
    assert ["[app]", "[exp]"] == sorted(
        word for row in rows[:2] for word in row.split() if "[" in word
    )
    assert ["on app", "on exp"] == sorted(row[-6:] for row in rows[:2])
    assert rows[3].startswith("●  1  ")
    graph = run("volume", "log", url, "--graph", "--json")
    assert 2 == len(graph["lines"])
    assert "… 1 older" in run("volume", "log", url, "--graph", "-n", 2)


def test_the_shell_reads_statements(run, url):
    """Without a statement of its own it takes them from standard input."""
    assert "2000" in run("volume", "shell", url, stdin="select count(*) from t;\n.exit\n")
