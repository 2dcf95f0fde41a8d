"""Processes that write to one database in a volume, killed with SIGKILL again and again.

One process is the nursery: it has loaded everything, and forks those that are to die, two at a time
on one directory. Each inserts rows in transactions of its own, now and then pushes, and writes down
which rows were acknowledged. After every kill, while the other one goes on: SQLite finds the
database whole, and every row is there that was acknowledged, once, with all its transaction's.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from cordwood.base.clock import SYSTEM_ENTROPY, Entropy
from cordwood.testing.nursing import nurse, nursery
from cordwood.volume import sqlite

LIFE_MAX_S = 0.1
IN_A_HURRY = 20
PAUSE_S = 0.02
"""After so many transactions a process rests after each: it goes on while the database is looked
at, and the more it has written by then, the longer that takes."""
AT_ONCE = 2
ROWS = 3
"""In each transaction."""


@dataclass(slots=True)
class DatabaseAccount:
    """What was said, and what was found."""

    kills: int = 0
    acknowledged: int = 0
    published: int = 0
    wrong: list[str] = field(default_factory=list)
    """What was found wrong, and after which kill."""


def kill_databases(folder: Path, kills: int, entropy: Entropy) -> DatabaseAccount:
    """Run and kill so many processes on a database in a folder; look at it after each."""
    with_table = _connect(folder)
    with_table.execute("create table t (who text, number integer, pad, primary key (who, number))")
    with_table.close()
    account = DatabaseAccount()
    pause = threading.Event()
    with nursery("cordwood.testing.sqlitekilling", folder) as lives:
        for life in range(0, kills, AT_ONCE):
            with lives.life(str(life)) as children:
                for child in children:
                    pause.wait(LIFE_MAX_S * entropy.uniform())
                    os.kill(child, signal.SIGKILL)
                    account.kills += 1
                    _look(folder, account)
    return account


def _look(folder: Path, account: DatabaseAccount) -> None:
    """Compare the database with what was acknowledged before."""
    said = (folder / "said").read_text() if (folder / "said").exists() else ""
    lines = [line.split() for line in said.splitlines(keepends=True) if line.endswith("\n")]
    connection = _connect(folder)
    state = connection.execute("pragma integrity_check").get
    rows = dict(connection.execute("select who || ' ' || number, length(pad) from t"))
    halves = connection.execute(
        "select who, number / ? from t group by 1, 2 having count(*) != ?", (ROWS, ROWS)
    ).fetchall()
    account.published = int(connection.execute("pragma cordwood_lsn").get)
    connection.close()
    lost = [line for line in lines if f"{line[0]} {line[1]}" not in rows]
    account.acknowledged = len(lines)
    if state != "ok" or lost or halves:
        account.wrong.append(f"kill {account.kills}: {state}, lost {lost[:3]}, torn {halves[:3]}")


def _connect(folder: Path) -> sqlite.Connection:
    return sqlite.connect(str(folder / "store"), "app", directory=folder / "local", page_size=1024)


def _write(folder: Path, who: str, ready: int) -> None:
    """Insert until the end; say when it has begun."""
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    connection = _connect(folder)
    pause = threading.Event()
    number = 0
    while True:
        size = int(4000 * SYSTEM_ENTROPY.uniform() ** 4)
        rows = [(who, number + row, size) for row in range(ROWS)]
        with connection:
            connection.executemany("insert into t values (?, ?, zeroblob(?))", rows)
        os.write(said, "".join(f"{who} {number + row}\n" for row in range(ROWS)).encode())
        number += ROWS
        if number == ROWS:
            os.write(ready, b".")
        if SYSTEM_ENTROPY.uniform() < 0.05:
            connection.execute("pragma cordwood_push")
        if number > IN_A_HURRY * ROWS:
            pause.wait(PAUSE_S)


if __name__ == "__main__":
    _folder = Path(sys.argv[1])
    nurse(lambda line, place, begun: _write(_folder, f"{line}.{place}", begun), AT_ONCE, ready=1)
