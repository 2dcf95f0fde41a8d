"""Versions from SQL: pragmas, time travel, branches, divergence; lazily read pages."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

import apsw
import pytest

import cordwood
from cordwood import sync
from cordwood.base.errors import InvalidInputError, NotFoundError
from cordwood.store.directory import DirectoryStore
from cordwood.store.url import Store
from cordwood.testing.handclock import HandClock
from cordwood.testing.hooked import Hooked
from cordwood.volume import sqlite


@pytest.fixture
def clock():
    """A clock that is set by hand."""
    return HandClock()


@pytest.fixture
def connect(tmp_path, clock):
    """Connections to the volume `app`, closed in the end."""
    opened = []

    def one(place="here", **how):
        how.setdefault("directory", tmp_path / place)
        opened.append(sqlite.connect(tmp_path / "store", "app", clock=clock, **how))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close(True)


@pytest.fixture
def line(connect, clock):
    """A connection after three versions, five minutes apart, whose table says which."""
    connection = connect()
    connection.execute("create table t (x)")
    connection.execute("insert into t values (0)")
    for number in (1, 2, 3):
        connection.execute("update t set x = ?", (number,))
        assert str(number) == asked(connection, "push", f"version {number}")
        clock.pass_s(300)
    return connection


def asked(connection, verb, value=None):
    """The answer of a pragma."""
    given = "" if value is None else f"('{value}')"
    return connection.execute(f"pragma cordwood_{verb}{given}").get


def fill(connection):
    """A table that is larger than what is fetched at once, published."""
    connection.execute("create table large (x)")
    with connection:
        connection.executemany("insert into large values (randomblob(900))", [()] * 1000)
    asked(connection, "push")


def seen(connection):
    """The only value of the table."""
    return connection.execute("select x from t").get


@pytest.mark.usefixtures("line")
def test_time_travel(connect, clock):
    """A version by LSN, by a time, by how long ago; and nothing is written to it."""
    # EVIDENCE-OF: G-132
    at = datetime.fromtimestamp(clock.now_us() / 1e6 - 700, UTC)
    for moment, found in [(1, 1), ("2", 2), ("5 minutes ago", 3), ("6 minutes ago", 2), (at, 1)]:
        old = connect("elsewhere", at=moment)
        assert found == seen(old)
        with pytest.raises(apsw.ReadOnlyError):
            old.execute("delete from t")
    with pytest.raises(NotFoundError):
        connect(at="2 hours ago")
    with pytest.raises(NotFoundError):
        connect(at=9)
    with pytest.raises(InvalidInputError):
        connect(at="once upon a time")


def test_a_time_is_looked_up_in_the_store(line, connect, clock):
    """What others published since is known to who asks for a time."""
    there = connect("there")
    line.execute("update t set x = 4")
    asked(line, "push")
    clock.pass_s(60)
    assert 4 == seen(connect("there", at="30 seconds ago"))
    assert 3 == seen(there)


def test_checkout(line, connect):
    """One connection goes from version to version, to a branch, and back to what is there."""
    assert "app at 1" == asked(line, "checkout", 1)
    assert 1 == seen(line)
    assert "1" == asked(line, "lsn")
    with pytest.raises(apsw.ReadOnlyError, match="is read at version 1"):
        line.execute("delete from t")
    assert "old" == asked(line, "branch", "old")
    assert "app at 2" == asked(line, "checkout", "6 minutes ago")
    assert 2 == seen(line)
    assert "old" == asked(line, "checkout", "old")
    line.execute("update t set x = 'branched'")
    assert "old" == asked(line, "branch")
    assert "app" == asked(line, "checkout", "app")
    assert 3 == seen(line)
    line.execute("begin; select * from t")
    with pytest.raises(apsw.SQLError, match="transaction is open"):
        asked(line, "checkout", 1)
    line.execute("rollback")
    assert "branched" == seen(connect(branch="old"))
    with pytest.raises(apsw.SQLError):
        asked(line, "checkout", "nobody")
    assert 3 == seen(line)


def test_a_version_and_a_branch_with_equal_counters(line):
    """Two versions that SQLite's own counter cannot tell apart are told apart."""
    asked(line, "checkout", 2)
    asked(line, "branch", "other")
    asked(line, "checkout", "other")
    line.execute("update t set x = 'other'")
    counts = []
    for name in ("other", "app", "other", "app"):
        asked(line, "checkout", name)
        counts.append(seen(line))
    assert ["other", 3, "other", 3] == counts


def test_a_branch_is_made_when_it_is_first_opened(line, connect):
    """A branch has what is published here; not what is only committed."""
    branch = connect(branch="exp")
    branch.execute("update t set x = 'exp'")
    assert ("exp", 3) == (seen(branch), seen(line))
    assert "exp" == seen(connect(branch="exp"))
    with pytest.raises(NotFoundError):
        connect(branch="none", create=False)
    line.execute("update t set x = 'not published'")
    with pytest.raises(cordwood.StateError, match="not published"):
        connect(branch="later")


def test_no_volume_is_made_where_none_is_wanted(connect):
    """Without `create`, or for an old version, a name that is not there is an error."""
    for how in ({"create": False}, {"at": 1}):
        with pytest.raises(NotFoundError):
            connect(**how)


def test_status_and_log(line):
    """They answer with JSON."""
    line.execute("update t set x = 4")
    status = json.loads(asked(line, "status"))
    assert (3, 0, False) == (status["lsn"], status["behind"], status["is_safe_to_delete"])
    assert 1 <= status["ahead"]
    versions = json.loads(asked(line, "log"))
    assert ["version 3", "version 2", "version 1"] == [one["message"] for one in versions]
    assert 1 == len(json.loads(asked(line, "log", 1)))


def test_fetch_and_pull(line, connect):
    """A fetch changes nothing that is seen, a pull does."""
    there = connect("there")
    line.execute("update t set x = 4")
    asked(line, "push")
    assert ("4", 3) == (asked(there, "fetch"), seen(there))
    assert ("4", 4) == (asked(there, "pull"), seen(there))
    assert "nothing to push" == asked(there, "push")


def test_divergence_has_three_ways_out(line, connect, tmp_path):
    """Theirs instead of ours; ours on a branch; ours on top where no page is in both."""
    there = connect("there")
    line.execute("update t set x = 'theirs'")
    asked(line, "push")
    there.execute("update t set x = 'ours'")
    for verb in ("push", "pull"):
        with pytest.raises(apsw.SQLError, match="diverged"):
            asked(there, verb)
    with pytest.raises(apsw.SQLError, match="both sides wrote page"):
        asked(there, "rebase")
    assert "ours" == seen(there)
    volume = sync.Volume(tmp_path / "store", "app", directory=tmp_path / "there")
    volume.branch("mine", unpushed=True)
    volume.close()
    assert "theirs" == seen(there)
    assert "ours" == seen(connect("there", branch="mine"))
    there.execute("update t set x = 'again'")
    assert ("4", "theirs") == (asked(there, "reset"), seen(there))


def test_restore(line, connect):
    """An older version is what is there, by a commit; other connections see it."""
    idle = connect()
    assert 3 == seen(idle)
    asked(line, "restore", 1)
    assert (1, 1) == (seen(line), seen(idle))
    assert "4" == asked(line, "push")
    assert 1 == seen(connect("there"))


def test_names_and_upkeep(line, connect, tmp_path):
    """A tag, a checkpoint and hydration by pragma."""
    fill(line)
    assert "v1" == asked(line, "tag", "v1")
    assert "4" == asked(line, "checkpoint")
    there = connect("there")
    assert 0 < int(asked(there, "hydrate"))
    assert 1.0 == json.loads(asked(there, "status"))["cached_share"]
    os.rename(tmp_path / "store", tmp_path / "away")
    assert 3 == seen(there)
    os.rename(tmp_path / "away", tmp_path / "store")


def test_a_name_that_was_moved(line, connect, tmp_path):
    """A connection is told at the next pull, and follows."""
    there = connect("there")
    assert 3 == seen(there)
    with sync.Volume(tmp_path / "store", "app", directory=tmp_path / "here") as volume:
        volume.branch("other", 1).tag("app", force=True)
    with pytest.raises(apsw.SQLError, match="moved"):
        asked(there, "pull")
    there.execute("begin; select x from t")
    with pytest.raises(apsw.SQLError, match="transaction"):
        asked(there, "follow")
    there.execute("commit")
    assert (
        asked(there, "follow") == asked(there, "follow") != json.loads(asked(line, "status"))["log"]
    )
    assert 1 == seen(there)
    there.execute("update t set x = 'there'")
    assert "2" == asked(there, "push")


@pytest.mark.parametrize("verb", ["push", "pull", "reset", "rebase", "restore", "checkout"])
def test_nothing_moves_in_a_transaction_that_writes(line, verb):
    """It would wait for itself, so it is refused; the transaction goes on."""
    line.execute("begin immediate; update t set x = 5")
    with pytest.raises(apsw.SQLError, match="transaction"):
        asked(line, verb, 1)
    line.execute("commit")
    assert 5 == seen(line)


@pytest.mark.parametrize("verb", ["push", "pull", "reset", "rebase", "restore"])
def test_nothing_moves_where_an_old_version_is_read(line, verb):
    """Who reads a version cannot change what others see."""
    asked(line, "checkout", 2)
    with pytest.raises(apsw.ReadOnlyError, match="version 2 is read"):
        asked(line, verb, 1)
    assert 2 == seen(line)


def test_a_forked_child_is_refused(line, connect):
    """A connection belongs to its process: a child gets an error, and never waits for ever."""
    fill(line)
    old = connect("there", at=4)
    child = os.fork()
    if child == 0:
        refused = 0
        for connection, query in ((line, "select x from t"), (old, "select sum(x) from large")):
            try:
                connection.execute(query).fetchall()
            except apsw.Error as error:
                refused += "fork" in str(error)
        os._exit(refused)
    assert 2 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert 3 == seen(line)
    assert 1000 == old.execute("select count(*) from large").get


def test_pragmas_that_are_wrong(line):
    """One clear error each."""
    for words, match in [
        ("cordwood_nothing", "no pragma"),
        ("cordwood_tag", "of what"),
        ("cordwood_tag('../up')", "cannot name"),
        ("cordwood_log('x')", "no number"),
        ("cordwood_restore('never')", "names no version"),
    ]:
        with pytest.raises(apsw.SQLError, match=match):
            line.execute(f"pragma {words}")
    assert "normal" == line.execute("pragma locking_mode = exclusive").get


def test_only_the_pages_that_a_query_needs_are_fetched(connect, tmp_path):
    """A point query on a large database that is not here reads a little; a scan asks for much."""
    # EVIDENCE-OF: G-132
    one = connect()
    one.execute("create table t (id integer primary key, x blob, y); create index i on t (y)")
    rows = [(n, n * 7919 % 10007) for n in range(9000)]
    with one:
        one.executemany("insert into t values (?, randomblob(900), ?)", rows)
    asked(one, "push")
    hooked = Hooked(DirectoryStore(str(tmp_path / "store")))
    there = sqlite.connect(Store.over(hooked), "app", directory=tmp_path / "there")
    assert 900 == there.execute("select length(x) from t where id = 4321").get
    assert 0 < json.loads(asked(there, "status"))["cached_share"] < 0.05
    before = len(hooked.calls)
    assert 9000 * 900 == there.execute("select sum(length(x)) from t").get
    assert len(hooked.calls) - before < 25  # of 150 frames
    assert 0.9 < json.loads(asked(there, "status"))["cached_share"]
    there.close()


def test_a_store_that_is_away(line, connect, tmp_path):
    """What is here is read, written and committed; what is not says so, and works later."""
    fill(line)
    fresh = connect("there")
    assert 3 == seen(fresh)
    os.rename(tmp_path / "store", tmp_path / "away")
    line.execute("update t set x = 'offline'")
    assert "offline" == seen(line)
    with pytest.raises(apsw.Error):
        asked(line, "push")
    with pytest.raises(apsw.Error):
        fresh.execute("select sum(length(x)) from large").fetchall()
    assert 3 == seen(fresh)
    os.rename(tmp_path / "away", tmp_path / "store")
    assert 900_000 == fresh.execute("select sum(length(x)) from large").get
    assert "5" == asked(line, "push")


def test_the_default_directory(tmp_path, monkeypatch):
    """Local state is below the user's data, for each store elsewhere; never for a memory store."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    one = sqlite.connect(tmp_path / "store", "app")
    one.execute("create table t (x)")
    one.close()
    place = sqlite.default_directory(cordwood.Store(tmp_path / "store"))
    assert os.listdir(place)
    assert place.startswith(str(tmp_path / "data"))
    assert place != sqlite.default_directory(cordwood.Store(tmp_path / "other"))
    with pytest.raises(InvalidInputError, match="directory"):
        sqlite.connect("memory:", "app")
