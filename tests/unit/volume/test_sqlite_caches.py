"""What connections keep in memory: it is thrown away whenever what it is of has changed."""

from __future__ import annotations

import errno

import apsw
import pytest

import cordwood
from cordwood import sync
from cordwood.journal.pair import Pair
from cordwood.volume import sqlite


@pytest.fixture
def store(tmp_path):
    """A store in a directory."""
    return cordwood.Store(tmp_path / "store")


@pytest.fixture
def connect(tmp_path, store):
    """Connections to the volume `app`, closed in the end."""
    opened = []

    def one(name="app", **how):
        opened.append(sqlite.connect(store, name, directory=tmp_path / "here", **how))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close(True)


# EVIDENCE-OF: G-131


def seen(connection):
    """The only value of the table."""
    return connection.execute("select x from t").get


def whole(connection):
    """Whether the database is."""
    return "ok" == connection.execute("pragma integrity_check").get


def test_a_restored_version_with_as_many_changes(connect):
    """Restored, and changed as often as before: the counter of changes is the same again."""
    one, other = connect(), connect()
    one.execute("create table t (x); insert into t values (0)")
    one.execute("pragma cordwood_push")
    for number in range(3):
        one.execute("update t set x = ?", (f"before {number}",))
    assert "before 2" == seen(other)
    one.execute("pragma cordwood_restore(1)")
    for number in range(3):
        one.execute("update t set x = ?", (f"after {number}",))
    assert "after 2" == seen(other) == seen(one)
    other.execute("insert into t values (1)")
    assert whole(one)
    assert whole(other)


def test_pages_written_below_sqlite(connect, tmp_path, store):
    """Whoever writes pages by hand is noticed by who reads tables."""
    one = connect()
    one.execute("create table t (x); insert into t values ('here')")
    assert "here" == seen(one)
    volume = sync.Volume(store, "app", directory=tmp_path / "here")
    with volume.begin() as transaction:
        page = transaction.read(2)
        transaction.write(2, page.replace(b"here", b"else"))
    volume.close()
    assert "else" == seen(one)


def test_other_tables_by_as_many_changes(connect):
    """Two branches, each with a table that the other has not: the schema's version is the same."""
    one, other = connect(), connect()
    one.execute("create table t (x); insert into t values ('both')")
    one.execute("pragma cordwood_push")
    one.execute("pragma cordwood_branch('trial')")
    one.execute("create table mine (x); insert into mine values ('mine')")
    one.execute("pragma cordwood_push")
    assert "mine" == other.execute("select x from mine").get
    other.execute("pragma cordwood_checkout('trial')")
    other.execute("create table theirs (x); insert into theirs values ('theirs')")
    other.execute("pragma cordwood_push")
    for connection in (one, other):
        connection.execute("pragma cordwood_checkout('app')")
        assert "mine" == connection.execute("select x from mine").get
        connection.execute("pragma cordwood_checkout('trial')")
        with pytest.raises(apsw.SQLError, match="no such table: mine"):
            connection.execute("insert into mine values ('lost')")
        assert "theirs" == connection.execute("select x from theirs").get
        assert whole(connection)


def test_a_reset_to_other_tables(connect):
    """What was made here is given up, and something else is made: a connection that slept sees."""
    one, other = connect(), connect()
    one.execute("create table t (x)")
    one.execute("pragma cordwood_push")
    one.execute("create table mine (x); insert into mine values ('mine')")
    assert "mine" == other.execute("select x from mine").get
    one.execute("pragma cordwood_reset")
    one.execute("create table theirs (x); insert into theirs values ('theirs')")
    with pytest.raises(apsw.SQLError, match="no such table: mine"):
        other.execute("insert into mine values ('lost')")
    assert ["theirs"] == [row[0] for row in one.execute("select x from theirs")]


def test_a_database_has_its_own_numbers(connect, tmp_path, store):
    """What is stored is what SQLite would have stored in a file, however often it was moved."""
    one, plain = connect(), sqlite.plain(tmp_path / "plain.db")
    statements = ["create table t (x)", "insert into t values (1)", "create index i on t (x)"]
    for number, statement in enumerate(statements):
        for connection in (one, plain):
            connection.execute(statement)
        one.execute("pragma cordwood_push")
        one.execute("pragma cordwood_reset")
        with sync.Volume(store, "app", directory=tmp_path / "here") as volume:
            stored = volume.snapshot().read(1)
        assert stored[:96] == (tmp_path / "plain.db").read_bytes()[:96], number


def test_a_transaction_over_two_volumes_of_which_one_fails(connect, store, tmp_path, monkeypatch):
    """What was committed to the first is taken back, and who saw it sees that."""
    one, witness = connect(), connect()
    sqlite.attach(one, "b", store, "other", directory=tmp_path / "here")
    one.execute("create table main.t (x); insert into main.t values (0)")
    one.execute("create table b.t (x); insert into b.t values (0)")
    put, failing = Pair.put, []

    def full(self, *rest):
        if failing and failing.append(0) is None and len(failing) == 3:
            saw.append(seen(witness))
            raise OSError(errno.ENOSPC, "no space")
        put(self, *rest)

    saw = []
    monkeypatch.setattr(Pair, "put", full)
    failing.append(0)
    with pytest.raises(apsw.FullError):
        one.execute("begin; update main.t set x = 1; update b.t set x = 1; commit")
    failing.clear()
    assert [1] == saw
    assert one.getautocommit()
    assert [0, 0] == [seen(one), one.execute("select x from b.t").get]
    assert 0 == seen(witness)
    one.execute("begin; update main.t set x = 2; update b.t set x = 2; commit")
    assert [2, 2, 2] == [seen(one), seen(witness), one.execute("select x from b.t").get]
    assert whole(one)
    assert whole(witness)


def test_a_volume_that_cannot_be_attached_is_closed(connect, store, tmp_path):
    """The name is taken in the connection: nothing of the other volume stays open."""
    one = connect()
    with pytest.raises(apsw.SQLError, match="main"):
        sqlite.attach(one, "main", store, "other", directory=tmp_path / "here")
    assert {} == sqlite._vfs._expected
