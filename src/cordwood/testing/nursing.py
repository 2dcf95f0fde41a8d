"""Processes that are to be killed, forked by one that stays: a fork is quick, an import is not.

Who kills writes a line to a nurse, and reads which processes it forked; kills them; writes a line,
and reads by which signals they ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nursery(module: str, folder: Path) -> Iterator[Lives]:
    """A process that runs a module which calls `nurse`."""
    command = [sys.executable, "-m", module, str(folder)]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Lives(process)
        assert process.stdin is not None
        process.stdin.close()


class Lives:
    """What a nurse is asked for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Made by `nursery`."""
        self._process = process

    @contextmanager
    def life(self, name: str) -> Iterator[list[int]]:
        """Processes that are to be killed in this block.

        Raises:
            RuntimeError: one of them ended by itself.
        """
        children = [int(one) for one in self._asked(name)]
        try:
            yield children
        finally:  # One that lives on would keep the nurse waiting, and that whoever started it.
            for child in children:
                os.kill(child, signal.SIGKILL)
        if self._asked("gone") != ["9"] * len(children):
            raise RuntimeError(f"a process of life {name} ended by itself")

    def _asked(self, line: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()


def nurse(work: Callable[[str, int, int], None], count: int, *, ready: int) -> None:
    """Fork `count` processes for each line of standard input; say how they ended.

    `work` is handed the line, which of them it is, and a descriptor: a byte written there says that
    it has begun. So many of them must have said so before they are named.
    """
    for line in sys.stdin:
        children = []
        told, begun = os.pipe()
        for place in range(count):
            child = os.fork()
            if child == 0:
                work(line.strip(), place, begun)
                os._exit(1)
            children.append(child)
        for _ in range(ready):
            os.read(told, 1)
        _say(*children)
        os.close(told)
        os.close(begun)
        sys.stdin.readline()
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        _say(*(-end for end in ends))


def _say(*numbers: int) -> None:
    sys.stdout.write(" ".join(map(str, numbers)) + "\n")
    sys.stdout.flush()
