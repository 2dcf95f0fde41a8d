"""A real Spark cluster on this machine: a master and workers, each a process of its own.

Spark's wheel has the classes of a standalone cluster and no scripts; this is what starts them.
Everything listens on the loopback interface and is gone when the block ends, however it ends: each
process hangs on a pipe to this one (testing/servers.py).

A worker starts executors, and these start Python. They share the worker's session, by which `kill`
finds them all. So a killed worker is gone like a machine whose power was cut.

A driver runs in a process of its own, because a process has one Spark session at most: `drive`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.base.errors import StateError
from cordwood.testing.servers import free_port

START_S_MAX = 120.0
"""A cluster is up in five seconds, and far later on a machine that is busy."""

DRIVE_S_MAX = 240.0

_POLL_S = 0.1
_WATCH = '"$@" </dev/null & child=$!; cat >/dev/null; kill -KILL $child 2>/dev/null; wait $child'
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
_CLOUD = ("AWS_", "AZURE_", "GOOGLE_")


class Cluster:
    """A master and its workers."""

    def __init__(self, folder: Path, cores: int, memory: str, *, apart: bool = False) -> None:
        """Not started. Each worker gives so many cores and so much memory."""
        self._folder = folder
        self._cores = cores
        self._memory = memory
        self._apart = apart
        self._started = 0
        self._port, self._page = free_port(), free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        """Those that run, the oldest first."""

    @property
    def url(self) -> str:
        """What a session is given as its master."""
        return f"spark://127.0.0.1:{self._port}"

    def start(self, workers: int) -> None:
        """Start the master, and so many workers; return when all of them are at its service."""
        self._master = self._run(
            "master.Master",
            *("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page)),
        )
        self._wait_for(0)
        for _ in range(workers):
            self._start_worker()
        self._wait_for(workers)

    def add_worker(self) -> None:
        """Start one more worker, and wait until it is there."""
        self._start_worker()
        self._wait_for(len(self.workers))

    def owner(self, pid: int) -> subprocess.Popen[bytes] | None:
        """The worker that a process belongs to, if it is one's and still runs."""
        try:
            session = os.getsid(pid)
        except ProcessLookupError:
            return None
        return next((worker for worker in self.workers if worker.pid == session), None)

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker with everything it has started, at once and for good."""
        self.workers.remove(worker)
        _kill_session(worker)

    def stop(self) -> None:
        """End all of it."""
        for process in [*self.workers, *([self._master] if self._master else [])]:
            _kill_session(process)
        self.workers.clear()

    def drive(
        self, script: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Driver:
        """Run a driver: Python code that makes a session with `SPARK_MASTER` from `os.environ`."""
        return Driver(script, arguments, {**_environment(), "SPARK_MASTER": self.url}, environment)

    # Below.

    def _start_worker(self) -> None:
        options = ("--cores", str(self._cores), "--memory", self._memory)
        self._started += 1
        host = f"127.0.0.{1 + self._started}" if self._apart else "127.0.0.1"
        place = ("--host", host, "--webui-port", str(free_port()))
        folder = ("--work-dir", str(self._folder / "work"))
        self.workers.append(self._run("worker.Worker", *place, *options, *folder, self.url))

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = shutil.which("java", path=_java_path())
        if java is None:
            raise StateError("a Spark cluster needs a Java runtime")
        jars = os.path.join(_spark_home(), "jars", "*")
        command = [java, *_QUICK, "-cp", jars, f"org.apache.spark.deploy.{name}", *arguments]
        with open(self._folder / "log.txt", "ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own command
                ["/bin/sh", "-c", _WATCH, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=_environment(),
                start_new_session=True,
            )

    def _wait_for(self, workers: int) -> None:
        """Until the master answers, and has so many workers."""
        until_s = SYSTEM_CLOCK.monotonic_s() + START_S_MAX
        pause = threading.Event()
        while SYSTEM_CLOCK.monotonic_s() < until_s:
            with (
                suppress(URLError, OSError, ValueError),
                urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer,
            ):
                if json.load(answer)["aliveworkers"] >= workers:
                    return
            pause.wait(_POLL_S)
        tail = (self._folder / "log.txt").read_text(errors="replace")[-2_000:]
        raise StateError(f"the cluster did not start: {tail}")


class Driver:
    """A driver under way."""

    def __init__(
        self,
        script: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        more: Mapping[str, str] | None,
    ) -> None:
        """Start it."""
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `result`
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-c", script, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
            env={**environment, **(more or {})},
        )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def result(self) -> dict[str, object]:
        """Wait for its end: the JSON object that it printed last.

        Raises:
            StateError: it failed; with the end of what it said.
        """
        with self._output:
            try:
                printed, _ = self._process.communicate(timeout=DRIVE_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                printed, _ = self._process.communicate()
            self._output.seek(0)
            said = self._output.read()
        if self._process.returncode:
            raise StateError(f"the driver failed: {said[-6_000:]}")
        found: dict[str, object] = json.loads(printed.splitlines()[-1])
        return found


@contextmanager
def spark_cluster(
    workers: int = 2, *, cores: int = 1, memory: str = "1g", apart: bool = False
) -> Iterator[Cluster]:
    """A cluster, while the block runs.

    With `apart` each worker has an address of its own, as if it were another machine: Spark runs no
    task twice at once on the same one.
    """
    with tempfile.TemporaryDirectory(prefix="cordwood-cluster-") as folder:
        cluster = Cluster(Path(folder), cores, memory, apart=apart)
        try:
            cluster.start(workers)
            yield cluster
        finally:
            cluster.stop()


def _spark_home() -> str:
    if home := os.environ.get("SPARK_HOME"):
        return home
    found = find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations is not None
    return found.submodule_search_locations[0]


def _environment() -> dict[str, str]:
    """What a process of the cluster sees: no credentials, whatever is set here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLOUD)}
    return {
        **kept,
        "SPARK_HOME": _spark_home(),
        # Without it executors look for Spark's own build directories, which a wheel has not.
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _java_path() -> str:
    home = os.environ.get("JAVA_HOME", "")
    return os.pathsep.join([os.path.join(home, "bin"), os.environ.get("PATH", "")])


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that we started with everything of its session."""
    for _ in range(5):
        # More than once: one that is just being started is not listed yet.
        members = _members(process.pid)
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            break
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.wait()


def _members(session: int) -> list[int]:
    """The processes of a session, without those that have ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, _, _, of, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(of) == session and state != "Z":
                    found.append(int(entry.name))
    return found
