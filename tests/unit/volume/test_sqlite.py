"""SQLite on a volume: what a connection does as on a plain file, and what it does besides."""

from __future__ import annotations

import errno
import json
import threading

import apsw
import numpy as np
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

    def one(place="here", name="app", **how):
        opened.append(sqlite.connect(store, name, directory=tmp_path / place, **how))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close(True)


def values(connection, table="t"):
    """The only column of a table."""
    return [row[0] for row in connection.execute(f"select x from {table} order by rowid")]


def checked(connection):
    """A connection whose database is whole."""
    assert "ok" == connection.execute("pragma integrity_check").get
    return connection


def status(connection):
    """How the volume stands."""
    return json.loads(connection.execute("pragma cordwood_status").get)


def test_it_loads_on_first_use():
    """`cordwood.volume.sqlite` is reached from the package alone."""
    assert sqlite is cordwood.volume.sqlite
    assert not hasattr(cordwood.volume, "nothing")


def test_what_is_committed_is_there_after_closing(connect):
    """A database outlives its connections; several see each other's commits."""
    first = connect()
    first.execute("create table t (x)")
    second = connect()
    second.execute("insert into t values (1)")
    assert [1] == values(first)
    first.close()
    second.close()
    assert [1] == values(checked(connect()))


@pytest.mark.parametrize("page_size", [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536])
def test_every_page_size(connect, page_size):
    """Pages of all sizes that SQLite has, with rows larger than a page, pushed and read again."""
    one = connect(page_size=page_size)
    assert page_size == one.execute("pragma page_size").get
    one.execute("create table t (x)")
    one.execute("insert into t values (zeroblob(200000)), (randomblob(999)), (3)")
    one.execute("pragma cordwood_push")
    other = checked(connect("there"))
    assert values(one) == values(other)
    with pytest.raises(apsw.SQLError, match="for good"):
        one.execute(f"pragma page_size = {1024 if page_size != 1024 else 512}")


@pytest.mark.parametrize("mode", ["memory", "delete", "truncate", "persist", "wal", "'off'"])
def test_every_journal_mode(connect, mode):
    """The journal quietly stays in memory, and transactions are whole."""
    one, other = connect(), connect()
    one.execute("create table t (x)")
    assert "memory" == one.execute(f"pragma journal_mode = {mode}").get
    assert "memory" == one.execute("pragma main.journal_mode").get
    one.execute("pragma cache_size = 5")
    for number in range(3):
        one.execute("begin")
        one.executemany("insert into t values (?)", [(b"%d" % number * 3000,)] * 40)
        assert number * 40 == len(values(other))
        one.execute("commit")
        one.execute("begin; delete from t; insert into t values (1)")
        one.execute("rollback")
        assert (number + 1) * 40 == len(values(checked(one))) == len(values(checked(other)))


def test_rollback_after_a_spill_commits_nothing(connect):
    """A transaction larger than SQLite's cache, rolled back: nothing is written for it."""
    one = connect()
    one.execute("create table t (x)")
    one.executemany("insert into t values (?)", [(b"a" * 3000,)] * 50)
    one.execute("pragma cordwood_push")
    one.execute("pragma cache_size = 5")
    one.execute("begin")
    one.execute("update t set x = zeroblob(9000)")
    one.execute("rollback")
    assert [b"a" * 3000] * 50 == values(checked(one))
    assert 0 == status(one)["ahead"]


def test_a_spilled_transaction_is_committed_whole(connect):
    """Pages that SQLite wrote before the commit are seen by nobody else until then."""
    one, other = connect(), connect()
    one.execute("create table t (x)")
    one.execute("pragma cache_size = 5")
    one.execute("begin")
    one.executemany("insert into t values (?)", [(b"b" * 3000,)] * 200)
    assert [] == values(other)
    one.execute("commit")
    assert 200 == len(values(checked(other)))


def test_savepoints(connect):
    """A savepoint is rolled back, what is around it is committed."""
    one = connect()
    one.execute("create table t (x)")
    one.execute("pragma cache_size = 5")
    with one:
        one.execute("insert into t values (1)")
        with pytest.raises(ZeroDivisionError), one:
            one.executemany("insert into t values (?)", [(b"c" * 3000,)] * 100)
            raise ZeroDivisionError
        one.execute("insert into t values (2)")
    assert [1, 2] == values(checked(connect()))


def test_vacuum_makes_the_volume_shorter(connect):
    """What VACUUM gives back is gone, here and in the store; what grows again is right."""
    one, other = connect(), connect()
    one.execute("create table t (x)")
    one.executemany("insert into t values (?)", [(b"d" * 3000,)] * 100)
    one.execute("pragma cordwood_push")
    long = status(one)["num_pages"]
    one.execute("delete from t where rowid > 10")
    one.execute("vacuum")
    assert status(one)["num_pages"] == one.execute("pragma page_count").get < long
    assert 10 == len(values(checked(other)))
    one.executemany("insert into t values (?)", [(b"e" * 3000,)] * 100)
    one.execute("pragma cordwood_push")
    assert values(one) == values(checked(connect("there")))


def test_auto_vacuum(connect):
    """With auto_vacuum each commit may make the volume shorter."""
    one = connect()
    one.execute("pragma auto_vacuum = full")
    one.execute("create table t (x)")
    one.executemany("insert into t values (?)", [(b"f" * 3000,)] * 60)
    long = status(one)["num_pages"]
    one.execute("delete from t")
    assert status(one)["num_pages"] == one.execute("pragma page_count").get < long
    one.execute("insert into t values (1)")
    assert [1] == values(checked(connect()))


def test_a_reader_keeps_its_snapshot(connect):
    """A read transaction sees one version, whatever is committed, pushed or pulled meanwhile."""
    # EVIDENCE-OF: G-130
    one, other = connect(), connect()
    one.execute("create table t (x)")
    one.execute("insert into t values (1)")
    other.execute("begin")
    assert [1] == values(other)
    one.execute("insert into t values (2)")
    one.execute("pragma cordwood_push")
    assert [1] == values(other)
    with pytest.raises(apsw.BusyError):
        other.execute("insert into t values (3)")
    other.execute("rollback")
    assert [1, 2] == values(other)


def test_two_writers(connect):
    """One at a time writes: the other is told that it is busy, or waits for its turn."""
    # EVIDENCE-OF: G-130
    one, other = connect(), connect(busy_timeout_s=0)
    one.execute("create table t (x)")
    one.execute("begin immediate")
    one.execute("insert into t values (1)")
    with pytest.raises(apsw.BusyError):
        other.execute("insert into t values (2)")
    assert [] == values(other)
    one.execute("commit")
    other.execute("insert into t values (2)")
    assert [1, 2] == values(checked(one))


def test_a_write_while_a_statement_is_being_read(connect):
    """Commits between the rows of a query, by the connection that reads them."""
    one, other = connect(), connect()
    one.execute("create table t (x); create table u (x)")
    one.executemany("insert into t values (?)", [(n,) for n in range(300)])
    seen = []
    for (x,) in one.execute("select x from t"):
        seen.append(x)
        if x % 100 == 0:
            one.execute("insert into u values (?)", (x,))
            assert x // 100 + 1 == len(values(other, "u"))
    assert list(range(300)) == seen
    assert [0, 100, 200] == values(checked(one), "u")
    rows = iter(one.execute("select x from t"))
    next(rows)
    one.execute("insert into u values (1)")
    other.execute("insert into u values (2)")
    with pytest.raises(apsw.BusyError):
        one.execute("insert into u values (3)")
    assert 299 == len(list(rows))
    one.execute("insert into u values (3)")
    assert [0, 100, 200, 1, 2, 3] == values(checked(one), "u")


def test_threads(connect):
    """Connections of several threads lose none of each other's commits."""
    connect().execute("create table t (x)")
    failed = []

    def insert(connection):
        try:
            for number in range(40):
                connection.execute("insert into t values (?)", (number,))
        except apsw.Error as error:
            failed.append(error)

    threads = [threading.Thread(target=insert, args=(connect(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failed
    assert 160 == len(values(checked(connect())))


def test_a_full_disk(connect, monkeypatch):
    """A commit that finds no room says so; the database goes on as it was, and later writes."""
    # EVIDENCE-OF: G-129
    one, other = connect(), connect()
    one.execute("create table t (x)")
    one.execute("insert into t values (1)")
    put = Pair.put

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Pair, "put", full)
    for _ in range(2):
        with pytest.raises(apsw.FullError, match="No space left"):
            one.execute("insert into t values (2)")
        assert [1] == values(one) == values(other)
    one.execute("pragma cache_size = 5")
    one.execute("begin")
    one.executemany("insert into t values (?)", [(b"g" * 3000,)] * 100)
    with pytest.raises(apsw.FullError):
        one.execute("commit")
    assert [1] == values(checked(one))
    monkeypatch.setattr(Pair, "put", put)
    one.execute("insert into t values (3)")
    assert [1, 3] == values(checked(other)) == values(one)


def test_other_connections_see_a_pull(connect):
    """What a pull brings is seen by connections that had the same pages in memory."""
    # EVIDENCE-OF: G-131
    one, idle, there = connect(), connect(), connect("there")
    one.execute("create table t (x)")
    one.execute("insert into t values (1)")
    one.execute("pragma cordwood_push")
    there.execute("pragma cordwood_pull")
    # Both sides count one change more: SQLite cannot tell them apart by its counter alone.
    there.execute("update t set x = 'theirs'")
    there.execute("pragma cordwood_push")
    one.execute("update t set x = 'ours'")
    assert ["ours"] == values(idle)
    with pytest.raises(apsw.SQLError, match="diverged"):
        one.execute("pragma cordwood_push")
    assert one.execute("pragma cordwood_reset").get
    assert ["theirs"] == values(idle) == values(one)
    one.execute("insert into t values (2)")
    assert ["theirs", 2] == values(checked(idle))
    one.execute("pragma cordwood_push")
    there.execute("pragma cordwood_pull")
    assert ["theirs", 2] == values(checked(there))


def test_attach(connect, tmp_path, store):
    """Another volume and a plain file in one statement; each keeps its own."""
    one = connect()
    one.execute("create table t (x)")
    sqlite.attach(one, "other", store, "other", directory=tmp_path / "here", page_size=1024)
    one.execute("attach ? as plain", (str(tmp_path / "plain.db"),))
    one.execute("create table other.t (x); create table plain.t (x)")
    for mode in ("memory", "delete"):
        one.execute(f"pragma journal_mode = {mode}")
        one.execute(f"pragma other.journal_mode = {mode}")
        with one:
            one.execute("insert into t values (1)")
            one.execute("insert into other.t values (2)")
            one.execute("insert into plain.t values (3)")
    found = one.execute("select main.t.x + o.x * 10 + p.x * 100 from t, other.t o, plain.t p")
    assert {321} == {row[0] for row in found}
    one.close()
    assert [2, 2] == values(checked(connect(name="other")))
    plain = sqlite.plain(tmp_path / "plain.db")
    assert [3, 3] == values(plain)
    plain.close()


def test_a_name_that_nobody_announced(connect):
    """The file system of volumes opens nothing that `connect` did not prepare."""
    connect()
    with pytest.raises(apsw.CantOpenError):
        apsw.Connection("cordwood:1:app", vfs="cordwood")


def test_a_transaction_that_is_too_large(connect, monkeypatch):
    """A transaction over the limit is refused as a whole, and the next one works."""
    one = connect()
    one.execute("create table t (x)")
    monkeypatch.setattr("cordwood.volume.writing.TRANSACTION_BYTES_MAX", 40_000)
    with pytest.raises(apsw.FullError, match="too large"):
        one.execute("insert into t values (zeroblob(100000))")
    one.execute("insert into t values (1)")
    assert [1] == values(checked(one))


def test_a_transaction_that_grows_too_large(connect, monkeypatch):
    """It is refused before it fills the memory, and what is committed is whole."""
    one = connect()
    one.execute("create table t (x); insert into t values (0)")
    one.execute("pragma cache_size = 5")
    monkeypatch.setattr("cordwood.volume.database.TRANSACTION_BYTES_MAX", 400_000)
    one.execute("begin; insert into t values (1)")
    with pytest.raises(apsw.FullError, match="too large"):
        one.execute(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500)"
            "insert into t select zeroblob(3000) from n"
        )
    kept = one.in_transaction
    if kept:
        one.execute("commit")
    assert [0, 1][: 1 + kept] == values(checked(one)) == values(checked(connect()))
    one.execute("insert into t values (2)")
    assert 2 == values(checked(connect()))[-1]


def test_random_work_equals_a_plain_file(connect, tmp_path):
    """Random statements, on a volume and on a plain file, leave the same tables."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        one, plain = connect(name=f"v{seed}"), sqlite.plain(tmp_path / f"{seed}.db")
        idle = connect(name=f"v{seed}")
        for each in (one, plain):
            each.execute("create table t (x, y); create index i on t (y)")
            each.execute(f"pragma cache_size = {rng.integers(3, 40)}" if each is one else "")
        for step in range(60):
            size, row = (int(n) for n in rng.integers(1, 9000, 2))
            statements = [
                f"insert into t values (zeroblob({size}), {row})",
                f"update t set x = zeroblob({size}), y = {row} where rowid % 7 = {row % 7}",
                f"delete from t where y > {row}",
                f"insert into t select x, y + 1 from t limit {row % 50}",
            ]
            chosen = "; ".join(statements[n] for n in rng.integers(0, 4, rng.integers(1, 5)))
            end = "commit" if rng.random() < 0.7 else "rollback"
            for each in (one, plain):
                each.execute(f"begin; {chosen}; {end}")
            if step % 10 == 9:
                for each in (one, plain):
                    each.execute("vacuum")
                one.execute("pragma cordwood_push")
            everything = "select rowid, length(x), y from t order by rowid"
            assert plain.execute(everything).fetchall() == idle.execute(everything).fetchall()
        checked(one)
        checked(idle)
        plain.close()


def test_two_that_write_in_turns_forget_what_they_remembered(connect, tmp_path):
    """Pages of a commit are remembered for the next statement: not over another's, nor a cut."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        pair = [connect(name=f"w{seed}") for _ in range(2)]
        plain = sqlite.plain(tmp_path / f"{seed}.db")
        for each in (*pair, plain):
            each.execute("pragma cache_size = 3; pragma auto_vacuum = full")
        for each in (pair[0], plain):
            each.execute("create table t (x, y); create index i on t (y)")
        for _ in range(80):
            size, row, few = (int(n) for n in rng.integers(1, 9000, 3))
            statement = [
                f"insert into t values (zeroblob({size}), {row})",
                f"insert into t values (randomblob({few % 50}), {row})",
                f"update t set x = zeroblob({size}) where y % 3 = {few % 3}",
                f"delete from t where y > {row}",
                "pragma cordwood_push",
            ][rng.choice(5, p=[0.4, 0.2, 0.2, 0.15, 0.05])]
            # Mostly the same one several times: else nothing that it remembered counts.
            one = pair[int(rng.random() < 0.3)]
            one.execute(statement).fetchall()
            plain.execute(statement).fetchall()
            everything = "select rowid, length(x), y from t order by rowid"
            assert plain.execute(everything).fetchall() == one.execute(everything).fetchall()
        for each in pair:
            checked(each)
        plain.close()


def test_a_volume_that_is_no_database(connect, tmp_path, store):
    """Pages that SQLite did not write are no database, and it says so."""
    volume = sync.Volume(store, "app", directory=tmp_path / "here")
    volume.create()
    with volume.begin() as txn:
        txn.write(1, b"no database ".ljust(4096, b"."))
    volume.close()
    with pytest.raises(apsw.NotADBError):
        connect()
