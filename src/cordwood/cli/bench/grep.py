"""`cordwood grep --bench`: a search by index beside full scans by ripgrep and grep, of one tree.

What a search costs is shown in its parts, since they grow with different things: `python` starts an
interpreter that does nothing, `load` one that loads what a search needs; `glance` compares the tree
with its census and asks the index (with the number of files), `find` asks the index and reads the
candidates (with what is found); `command` is a whole run of the command. `look` goes through the
tree by itself, as a search without a census does. Peers read every file, hidden and ignored ones as
well, but for those that are no text, and are whole runs of their commands. All is taken in turn,
the best of several; the files are in the system's cache.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rich.table import Table

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.cli.bench.harness import Stopwatch, stopwatch
from cordwood.cli.output import console
from cordwood.index.lines import Finder
from cordwood.index.sources import Sources

TIMES = 5


def measure(sources: Sources, finder: Finder, *, flags: dict[str, Any]) -> dict[str, Any]:
    """Each part and each peer, in CPU and wall seconds."""
    root = os.fsdecode(sources.root)
    # Peers read what is ignored as well.
    sources = Sources(root, sources.place, ignore=False)
    looked = sources.look(sources.names())
    candidates = sources.candidates(finder, looked)
    sources.count()
    lines = sum(1 for name in candidates for _ in sources.lines(finder, name))

    def look() -> None:
        sources.look(sources.names())

    def find() -> None:
        for name in sources.candidates(finder, looked):
            for _ in sources.lines(finder, name):
                pass

    def glance() -> None:
        sources.glance(finder)

    pattern = finder.expression.pattern
    insensitive = ["-i"] if flags["ignore_case"] else []
    ours = [sys.executable, "-m", "cordwood", "grep", "--index", sources.place, "--no-ignore"]
    runs: dict[str, Callable[[], Stopwatch]] = {
        "python": lambda: _there([sys.executable, "-c", "pass"]),
        "load": lambda: _there([sys.executable, "-c", "import cordwood.cli.quick"]),
        "look": lambda: _here(look),
        "glance": lambda: _here(glance),
        "find": lambda: _here(find),
        "command": lambda: _there([*ours, *insensitive, pattern, root]),
    }
    if shutil.which("rg"):
        runs["ripgrep"] = lambda: _there(["rg", "-uu", "-n", *insensitive, "--", pattern, root])
    if shutil.which("grep"):
        runs["grep"] = lambda: _there(["grep", "-rInE", *insensitive, "--", pattern, root])
    best: dict[str, Stopwatch] = {}
    _there([*ours, *insensitive, pattern, root])  # What was compiled for it is there from here on.
    for _ in range(TIMES):
        for name, run in runs.items():
            watch = run()
            kept = best.setdefault(name, watch)
            kept.cpu_s = min(kept.cpu_s, watch.cpu_s)
            kept.wall_s = min(kept.wall_s, watch.wall_s)
    sources.close()
    return {
        "pattern": pattern,
        "files": len(looked.names),
        "bytes": looked.size_bytes,
        "candidates": len(candidates),
        "lines": lines,
        "missing": [name for name in ("ripgrep", "grep") if name not in runs],
        "runs": {
            name: {"cpu_s": round(watch.cpu_s, 5), "wall_s": round(watch.wall_s, 5)}
            for name, watch in best.items()
        },
    }


def report(result: dict[str, Any]) -> None:
    """For people."""
    screen = console()
    runs = result["runs"]
    screen.print(
        f"{result['pattern']!r}: {result['files']:,} files, {result['bytes'] / 1e6:,.0f} MB, "
        f"{result['candidates']:,} candidates, {result['lines']:,} lines",
        markup=False,
    )
    peer = next((name for name in ("ripgrep", "grep") if name in runs), None)
    table = Table("", "CPU ms", "wall ms", *([f"{peer} ÷ this, CPU", "wall"] if peer else []))
    for name, run in runs.items():
        row = [name, f"{run['cpu_s'] * 1e3:,.1f}", f"{run['wall_s'] * 1e3:,.1f}"]
        if peer:
            row += [
                f"{runs[peer][kind] / max(run[kind], 1e-6):,.1f}x" for kind in ("cpu_s", "wall_s")
            ]
        table.add_row(*row)
    screen.print(table)
    for name in result["missing"]:
        screen.print(f"{name} is not installed: not compared")


def _here(call: Callable[[], None]) -> Stopwatch:
    with stopwatch() as watch:
        call()
    return watch


def _there(command: list[str]) -> Stopwatch:
    """A command of its own, to its end; that it finds nothing is no failure."""
    watch = Stopwatch()
    before, began_s = _children_s(), SYSTEM_CLOCK.monotonic_s()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)  # noqa: S603
    watch.wall_s = SYSTEM_CLOCK.monotonic_s() - began_s
    watch.cpu_s = _children_s() - before
    return watch


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
