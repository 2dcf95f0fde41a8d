"""Processes that add, delete, merge and compact one index at once, killed with SIGKILL in a loop.

Each writes down what it is about to do, and once more when it was acknowledged. In the end the
index holds what the acknowledgements say; of what a killed process was about to do, all or nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

from cordwood.index.engine import Engine
from cordwood.index.folder import Folder

WORKER = """
import sys
import numpy as np
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder

root, name = sys.argv[1], sys.argv[2]
engine = Engine(Folder(root))
chance = np.random.default_rng(int(name))
mine, number = [], 0
say = lambda *words: print(*words, flush=True)
engine.newest()
say("ready")
while True:
    turn = int(chance.integers(10))
    if turn < 6:
        added = [f"{name}-{number + n}" for n in range(3)]
        number += 3
        deleted = [mine.pop(int(chance.integers(len(mine)))) for _ in range(min(2, len(mine)))]
        say("try", "+".join(added), "+".join(deleted))
        writing = Writing(engine)
        writing.delete([one.encode() for one in deleted])
        writing.add([one.encode() for one in added], ["all"] * 3)
        writing.commit()
        say("done")
        mine += added
    elif turn < 8:
        engine.merge(tiered=turn == 6)
    elif turn == 8:
        engine.compact()
    else:
        say("number", engine.new_id("shared"))
"""


class Worker:
    """A process, and what it has said."""

    def __init__(self, root, name):
        command = [sys.executable, "-c", WORKER, str(root), str(name)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines = []

    def read(self, count):
        """So many more lines."""
        self.lines += [self.process.stdout.readline() for _ in range(count)]

    def kill(self):
        """At whatever it is doing."""
        self.process.send_signal(signal.SIGKILL)
        rest = self.process.stdout.readlines()
        errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        assert (-signal.SIGKILL, "") == (self.process.wait(), errors)
        # A line cut in the middle was told to nobody.
        self.lines += [line for line in rest if line.endswith("\n")]


class Told:
    """What the acknowledgements of all workers say."""

    def __init__(self):
        self.present = set()
        self.doubtful = []
        self.numbers = []

    def take(self, lines):
        """The life of one worker."""
        pending = None
        for line in lines:
            words = line.rstrip("\n").split(" ")
            if words[0] == "try":
                pending = [{one for one in word.split("+") if one} for word in words[1:]]
            elif words[0] == "done":
                added, deleted = pending
                self.present = (self.present | added) - deleted
                pending = None
            elif words[0] == "number":
                self.numbers.append(int(words[1]))
        if pending is not None:
            self.doubtful.append(pending)

    def check(self, there):
        """What is there is what was told, and whole transactions that were not."""
        for added, deleted in self.doubtful:
            if added & there:
                assert added <= there
                assert not deleted & there
                self.present = (self.present | added) - deleted
            else:
                assert deleted <= there
        assert self.present == there


@pytest.mark.slow
def test_killed_workers(tmp_path):
    """Four at once, a dozen killed: nothing acknowledged is lost, nothing deleted comes back."""
    kill_workers(tmp_path / "index", workers=4, kills=12, lines=12)


def test_a_few_killed_workers(tmp_path):
    """Two at once, three killed."""
    # EVIDENCE-OF: G-82, G-83, G-85, G-86
    kill_workers(tmp_path / "index", workers=2, kills=3, lines=8)


def kill_workers(root, *, workers, kills, lines):
    """Run them, kill one after the other, and look."""
    engine = Engine(Folder(str(root)))
    engine.create("whitespace", frequencies=False, exist_ok=False)
    chance, told = np.random.default_rng(7), Told()
    running = []
    try:
        for name in range(kills):
            while len(running) < min(workers, kills - name):
                running.append(Worker(root, name * 100 + len(running)))
            victim = running.pop(0)
            victim.read(1 + int(chance.integers(lines, 2 * lines)))
            victim.kill()
            told.take(victim.lines)
        assert [] == running
    finally:
        for worker in running:
            worker.kill()
    assert len(told.present) > 3 * kills
    for look in (lambda: None, lambda: engine.merge(tiered=False), engine.compact):
        look()
        there = {one.decode() for one in engine.newest().match("all")}
        told.check(there)
        assert len(there) == engine.newest().documents
    assert len(told.numbers) == len(set(told.numbers))
    assert engine.check().ok
    # Nothing of the dead is in the way, or left.
    engine.close()
    engine.compact()
    names = sorted(path.name for path in root.iterdir() if path.name.startswith("segment."))
    assert 1 == len(names)
    left = [path for folder in ("handles", "spool") for path in (root / folder).iterdir()]
    assert [] == left
