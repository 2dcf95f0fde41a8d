"""Processes that are to be killed, forked by one that stays: a fork is quick, an import is not.

Who kills writes a line to a nurse, and reads which processes it forked; kills them; writes a line,
and reads by which signals they ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


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
