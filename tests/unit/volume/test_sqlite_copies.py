"""Databases that are copied into volumes and out of them, by SQLite's own means."""

from __future__ import annotations

import apsw
import pytest

import cordwood
from cordwood.volume import sqlite


@pytest.fixture
def connect(tmp_path):
    """Connections to the volume `app`, closed in the end."""
    opened = []

    def one(place="here", **how):
        store = cordwood.Store(tmp_path / "store")
        opened.append(sqlite.connect(store, "app", directory=tmp_path / place, **how))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close(True)


# EVIDENCE-OF: G-133


def plain(tmp_path, *, page_size=4096, journal="delete", rows=300):
    """A plain database of one table."""
    made = apsw.Connection(str(tmp_path / "plain.db"))
    made.execute(f"pragma page_size = {page_size}")
    made.execute(f"pragma journal_mode = {journal}")
    made.execute("create table t (x)")
    with made:
        made.executemany("insert into t values (?)", [(b"p" * 200,)] * rows)
    return made


def backed_up(target, source):
    """Copy one database over another by SQLite's backup."""
    with target.backup("main", source, "main") as backup:
        backup.step()


def count(connection):
    """How many rows; the database is whole."""
    assert "ok" == connection.execute("pragma integrity_check").get
    return connection.execute("select count(*) from t").get


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("has_tables", [False, True])
def test_a_backup_into_a_volume(connect, tmp_path, journal, has_tables):
    """Whatever journal the plain one has, and whether there was a database or not."""
    source, one, other = plain(tmp_path, journal=journal), connect(), connect()
    if has_tables:
        one.execute("create table t (x); insert into t values (1), (2)")
        assert 2 == count(other)
    backed_up(one, source)
    assert [300] * 3 == [count(each) for each in (one, other, connect())]
    one.execute("insert into t values (1)")
    one.execute("pragma cordwood_push")
    assert 301 == count(connect("there"))


@pytest.mark.parametrize("page_size", [1024, 8192])
@pytest.mark.parametrize("has_tables", [False, True])
def test_a_backup_of_other_pages_is_refused(connect, tmp_path, page_size, has_tables):
    """The volume stays as it was."""
    source, one = plain(tmp_path, page_size=page_size), connect()
    if has_tables:
        one.execute("create table t (x); insert into t values (1), (2)")
    with pytest.raises(apsw.Error, match="4096"):
        backed_up(one, source)
    if has_tables:
        assert 2 == count(one) == count(connect())
    else:
        assert 0 == connect().execute("select count(*) from sqlite_schema").get


@pytest.mark.parametrize("asked", ["8192", "'8192'", "8192.0", "+8192", "0x2000"])
def test_pages_of_another_size_never_get_in(connect, asked):
    """However it is asked for, a vacuum leaves pages as they are."""
    one = connect()
    one.execute("create table t (x); insert into t values (1)")
    with pytest.raises(apsw.Error, match="4096"):
        one.execute(f"pragma page_size = {asked}; vacuum")
    assert 4096 == connect().execute("pragma page_size").get
    assert 1 == count(one) == count(connect())


def test_a_backup_out_of_a_volume_while_others_write(connect, tmp_path):
    """It begins again, and is one version."""
    one, other = connect(), connect()
    one.execute("create table t (x)")
    with one:
        one.executemany("insert into t values (?)", [(b"v" * 900,)] * 300)
    target = apsw.Connection(str(tmp_path / "copy.db"))
    with target.backup("main", one, "main") as backup:
        backup.step(5)
        other.execute("insert into t values (1)")
        while not backup.done:
            backup.step(50)
    assert 301 == count(target)


def test_vacuum_into_a_file(connect, tmp_path):
    """A plain database, whole."""
    one = connect()
    one.execute("create table t (x); insert into t values (1)")
    one.execute("vacuum into ?", (str(tmp_path / "copy.db"),))
    assert 1 == count(apsw.Connection(str(tmp_path / "copy.db")))


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_plain_file_attached(connect, tmp_path, journal):
    """Read and written beside the volume, in one transaction."""
    plain(tmp_path, journal=journal).close()
    one = connect()
    one.execute("attach ? as f", (str(tmp_path / "plain.db"),))
    one.execute("create table main.t as select * from f.t")
    one.execute("begin; insert into main.t values (1); insert into f.t values (1); commit")
    assert [301, 301] == [
        one.execute(f"select count(*) from {schema}.t").get for schema in ("main", "f")
    ]
