"""A real Spark cluster on the loopback address: a master and some workers, each a process.

The pyspark package has the classes but no scripts to start them with. A worker is the leader of its
own process group, to which its executors and their Python workers belong: killing the group is what
a machine does that loses its power.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.testing.servers import free_port

START_S_MAX = 90.0

_POLL_S = 0.1
_DEPLOY = "org.apache.spark.deploy"
_WATCH = '"$@" </dev/null & cat >/dev/null; kill -KILL 0'
"""Run it until our end of the pipe closes, also if we are killed; then end the whole group."""


@dataclass(slots=True)
class Cluster:
    """A cluster that runs."""

    url: str
    """Its master's."""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors and everything they started."""
        _end(self.workers[number])


@contextmanager
def spark_cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a master and workers with one core each; end them all afterwards."""
    spec = find_spec("pyspark")
    assert spec is not None, "pyspark is installed"
    assert spec.origin is not None
    home = os.path.dirname(spec.origin)
    environment = os.environ | {
        "SPARK_HOME": home,
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        log = directory / f"{name}.log"
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-cp", f"{home}/jars/*", *words]
        with log.open("wb") as file:
            process = subprocess.Popen(  # noqa: S603 - our own words
                ["/bin/sh", "-c", _WATCH, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        started.append(process)
        return process

    port, page = free_port(), free_port()
    cluster = Cluster(f"spark://127.0.0.1:{port}")
    place = ("--host", "127.0.0.1", "--webui-port")
    try:
        start("master", f"{_DEPLOY}.master.Master", "--port", str(port), *place, str(page))
        _wait_for(directory / "master.log", b"New state: ALIVE")
        for number in range(workers):
            own = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work{number}"))
            worker = start(
                f"worker{number}",
                f"{_DEPLOY}.worker.Worker",
                *own,
                *place,
                str(free_port()),
                cluster.url,
            )
            cluster.workers.append(worker)
        for number in range(workers):
            _wait_for(directory / f"worker{number}.log", b"Successfully registered with master")
        yield cluster
    finally:
        for process in started:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _wait_for(log: Path, words: bytes) -> None:
    """Until a process has said something."""
    until_s = SYSTEM_CLOCK.monotonic_s() + START_S_MAX
    while words not in log.read_bytes():
        if SYSTEM_CLOCK.monotonic_s() > until_s:
            raise TimeoutError(f"{log.name}: {log.read_text(errors='replace')[-2_000:]}")
        threading.Event().wait(_POLL_S)
