"""Processes that write, read, push and drain one volume's directory, killed with SIGKILL in a loop.

Which pages version `v` writes, and how long the volume is then, follows from `v` alone, and page 1
holds the newest version. So whoever sees page 1 knows what every other page must be: a mixture of
two versions shows at once. What was acknowledged is told to the parent, which lives.

Run it as `python -m cordwood.testing.volumekilling FOLDER KILLS SEED`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from cordwood.base.clock import SYSTEM_ENTROPY, Entropy, SeededEntropy
from cordwood.base.errors import ContendedError
from cordwood.testing.volumemodel import PAGE_BYTES, Version, page_of, version_of
from cordwood.volume.local import Local
from cordwood.volume.locks import REMOTE
from cordwood.volume.overlay import View

_LINE_BYTES = 64
_COUNT_MAX = 24


class Report(NamedTuple):
    """What came of it."""

    acknowledged: int
    """Commits."""
    newest: int
    """The version that is there in the end."""
    lost: list[int]
    """Acknowledged, and not there."""
    twice: list[int]
    """Versions that two writers made."""
    published: int
    """The published version in the end."""
    reads: int
    """Snapshots that were compared page by page."""
    errors: list[str]


class History:
    """All versions, as they must be."""

    def __init__(self) -> None:
        """Version 0 is empty."""
        self._versions = [Version()]

    def at(self, version: int) -> Version:
        """The whole volume at a version."""
        while len(self._versions) <= version:
            number = len(self._versions)
            count, pages = change(number)
            self._versions.append(self._versions[-1].changed(pages, count, None))
        return self._versions[version]


def change(version: int) -> tuple[int, dict[int, bytes]]:
    """How long the volume is at a version, and which pages it writes."""
    count = 2 + version * 7 % (_COUNT_MAX - 1)
    numbers = [n for n in range(2, count + 1) if (n * 31 + version) % 5 == 0]
    return count, {n: page_of(n, version) for n in (1, *numbers)}


class Worker:
    """What one process does."""

    def __init__(self, folder: str, remote: str, say: Callable[[str], None]) -> None:
        """Open the directory."""
        self._remote = remote
        self._say = say
        self._history = History()
        self.local = Local.open(folder, PAGE_BYTES, switch_pages=24)

    def write(self, entropy: Entropy) -> None:
        """Commit one version after the other, and now and then push, drain and reclaim."""
        while True:
            with self.local.snapshot() as view:
                self.check(view)
                version = self.version(view) + 1
                count, pages = change(version)
                with suppress(ContendedError):
                    self.local.begin(view).commit(pages, count)
                    self._say(f"committed {version}")
            chance = entropy.uniform()
            if chance < 0.1:
                self._push()
            elif chance < 0.2:
                self.local.drain()
            elif chance < 0.25:
                self.local.reclaim()

    def read(self, entropy: Entropy) -> None:
        """Compare the newest snapshot, and one that is older, with what they must be."""
        older = self.local.snapshot()
        while True:
            with self.local.snapshot() as view:
                self.check(view)
            self.check(older)
            self._say("read")
            if entropy.uniform() < 0.2:
                older.close()
                older = self.local.snapshot()

    def _push(self) -> None:
        local = self.local
        with local.locks.alone(REMOTE) as is_free:
            if not is_free:
                return
            with local.snapshot() as view:
                if not view.unpushed:
                    return
                lsn = view.lsn + 1
                aside = f"{self._remote}/{lsn}.{os.getpid()}"
                with open(aside, "w") as file:
                    file.write(str(self.version(view)))
                os.rename(aside, f"{self._remote}/{lsn}")
                local.publish(lsn, bytes(32), view.entry, view.page_count, own=True)

    def _below(self, view: View) -> Version:
        if not view.lsn:
            return Version()
        with open(f"{self._remote}/{view.lsn}") as file:
            return self._history.at(int(file.read()))

    def version(self, view: View) -> int:
        """The newest version, as page 1 says."""
        page = view.read(1)
        found = self._below(view).read(1) if page is None else bytes(page)
        return version_of(found)

    def check(self, view: View) -> None:
        """Compare a snapshot, page by page, with what it must be."""
        version = self.version(view)
        expected, below = self._history.at(version), self._below(view)
        for number in range(1, _COUNT_MAX + 1):
            page = view.read(number)
            found = below.read(number) if page is None else bytes(page)
            if found != expected.read(number):
                self._say(f"error page {number} of version {version} is {found[:24]!r}")


def main(folder: str, kills: int, seed: int) -> Report:
    """Start processes, kill them, and look at what is left."""
    remote = f"{folder}.remote"
    os.mkdir(remote)
    entropy = SeededEntropy(seed)
    told: list[str] = []
    workers: dict[int, tuple[int, str]] = {}
    kinds = ["write", "write", "read", "write", "read"]
    for kill in range(kills):
        alive = [kind for _, kind in workers.values()]
        for kind in kinds[: 3 + kill % 3]:
            if kind in alive:
                alive.remove(kind)
            else:
                process, pipe = _start(folder, remote, kind)
                workers[process] = (pipe, kind)
        _listen(workers, told, 0.01 + 0.08 * entropy.uniform())
        everybody = list(workers)
        chosen = everybody[int(entropy.uniform() * len(everybody))]
        # Now and then all at once: then the next one is alone, and recovers.
        for process in everybody if kill % 7 == 6 else [chosen]:
            _kill(process, workers, told)
    for process in list(workers):
        _kill(process, workers, told)
    return _report(folder, remote, told)


def _report(folder: str, remote: str, told: list[str]) -> Report:
    said: list[str] = []
    worker = Worker(folder, remote, said.append)
    with worker.local.snapshot() as view:
        newest, published = worker.version(view), view.lsn
        worker.check(view)
    done = [int(line.split()[1]) for line in told if line.startswith("committed")]
    return Report(
        acknowledged=len(done),
        newest=newest,
        lost=sorted(version for version in set(done) if version > newest),
        twice=sorted(version for version, times in Counter(done).items() if times > 1),
        published=published,
        reads=told.count("read"),
        errors=[line for line in [*told, *said] if line.startswith("error")],
    )


def _start(folder: str, remote: str, kind: str) -> tuple[int, int]:
    """A process, and the pipe by which it tells what it did."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        os.close(reading)

        def say(line: str) -> None:
            # Short enough for the pipe to take it whole.
            os.write(writing, line.encode()[: _LINE_BYTES - 1].ljust(_LINE_BYTES - 1) + b"\n")

        getattr(Worker(folder, remote, say), kind)(SYSTEM_ENTROPY)
    except BaseException:  # noqa: BLE001 - a child tells, and goes
        os.write(writing, f"error {traceback.format_exc()[-900:]}".encode().ljust(1024))
    finally:
        os._exit(1)


def _listen(workers: dict[int, tuple[int, str]], told: list[str], wait_s: float) -> None:
    """Take in what is told, for a while."""
    pipes = [pipe for pipe, _ in workers.values()]
    for _ in range(20):
        ready, _, _ = select.select(pipes, [], [], wait_s / 20)
        for pipe in ready:
            _take(pipe, told)


def _take(pipe: int, told: list[str]) -> bool:
    data = os.read(pipe, 1 << 16)
    if data.startswith(b"error "):
        told.append(data.decode(errors="replace"))
    else:
        told.extend(line.strip().decode() for line in data.splitlines())
    return bool(data)


def _kill(process: int, workers: dict[int, tuple[int, str]], told: list[str]) -> None:
    """At whatever it is doing; what it had told counts."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    pipe, _ = workers.pop(process)
    while _take(pipe, told):
        pass
    os.close(pipe)


if __name__ == "__main__":
    report = main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(msgspec.json.encode(report._asdict()).decode() + "\n")
