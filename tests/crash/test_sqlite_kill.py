"""SQLite processes killed with SIGKILL, and a bank whose machines die: no row is lost or torn."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.bank import Bank
from cordwood.testing.sqlitekilling import kill_databases
from cordwood.volume import sqlite


def test_databases_killed_at_random_moments_are_whole(tmp_path):
    """Fifty kills, two processes at a time: after each the database is whole, with every row."""
    # EVIDENCE-OF: G-106, G-107, G-108, G-129, G-130
    account = kill_databases(tmp_path, 50, SYSTEM_ENTROPY)
    assert [] == account.wrong
    assert 50 == account.kills
    assert 150 < account.acknowledged
    assert 0 < account.published


INSERT = """
import sys
from cordwood.volume import sqlite
connection = sqlite.connect(sys.argv[1], "app", directory=sys.argv[2])
sys.stdin.readline()
for number in range(300):
    connection.execute("insert into t values (?, ?)", (sys.argv[3], number))
connection.close()
"""


def test_two_processes_on_one_directory_lose_nothing(tmp_path):
    """Six hundred rows that two processes were told are there are there."""
    store, local = str(tmp_path / "store"), str(tmp_path / "local")
    connection = sqlite.connect(store, "app", directory=local)
    connection.execute("create table t (who, number)")
    words = [sys.executable, "-c", INSERT, store, local]
    both = [
        subprocess.Popen([*words, who], stdin=subprocess.PIPE, text=True) for who in ("one", "two")
    ]
    for each in both:
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in both:
        each.stdin.close()
        assert 0 == each.wait(120)
    assert 600 == connection.execute("select count(*) from (select distinct * from t)").get
    assert "ok" == connection.execute("pragma integrity_check").get
    connection.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_bank_keeps_its_sum(tmp_path, seed):
    """Transfers, pushes, pulls, deaths and divergence on three machines: no money is made."""
    happened = Bank(seed, tmp_path).run(60)
    assert 0 < happened["committed"]
    assert 0 < happened["pushed"]
    assert 0 < happened["killed"]
