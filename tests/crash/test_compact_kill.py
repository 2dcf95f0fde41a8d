"""`cordwood log compact` killed with SIGKILL at random moments: the table has everything once."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from cordwood import Setsum, sync
from cordwood.base.clock import SeededEntropy

KILLS = 8
LIFE_S_MAX = 0.8

COMMAND = """
from cordwood.cli.main import main
print("ready", flush=True)
main()
"""


def live_and_die(words, life_s):
    """Run the command; kill it after a while, counted from when it has been loaded."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdout=subprocess.PIPE, text=True
    ) as child:
        assert "ready\n" == child.stdout.readline()
        try:
            child.wait(timeout=life_s)
        except subprocess.TimeoutExpired:
            child.kill()
            return True
        assert 0 == child.returncode
        return False


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_killed_command(tmp_path, mode):
    """Whatever it was doing: nothing is lost, nothing is there twice, and the last run finishes."""
    # EVIDENCE-OF: G-66, G-77
    wood = f"file://{tmp_path}/wood"
    log, table = sync.Log(wood, "orders"), sync.Table(wood, "table")
    table.create(mode=mode)
    chance, entropy = np.random.default_rng(7), SeededEntropy(f"kill {mode}")
    words = ["log", "compact", log.url, "--into", table.url, "--engine", "local"]
    newest: dict[bytes, bytes] = {}
    killed = 0
    for _ in range(KILLS):
        keys = [b"%d" % key for key in chance.integers(0, 3_000, 4_000)]
        bodies = [chance.bytes(1_000) for _ in keys]
        newest |= dict(zip(keys, bodies, strict=True))
        with log.writer(create=True) as writer:
            for start in range(0, len(keys), 500):
                part = slice(start, start + 500)
                writer.append_arrow(pa.table({"key": keys[part], "body": bodies[part]}))
        killed += live_and_die(words, LIFE_S_MAX * entropy.uniform())
        assert len(set(offsets(table))) == len(offsets(table))
    assert not live_and_die(words, 60)
    assert killed > 0
    rows = table.to_arrow()
    if mode == "append":
        assert list(range(1, 4_000 * KILLS + 1)) == sorted(offsets(table))
        assert log.state().setsum == Setsum.sum(file.setsum for file in table.files())
    else:
        pairs = zip(rows["key"].to_pylist(), rows["body"].to_pylist(), strict=True)
        assert newest == dict(pairs)
        assert len(newest) == rows.num_rows
    assert [] == table.scrub()
    assert 4_000 * KILLS + 1 == log.cursors.load("compaction").offset


def offsets(table):
    """What is in the table now."""
    return table.to_arrow(["offset"]).column("offset").to_pylist()
