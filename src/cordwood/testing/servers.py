"""Real servers for tests: S3 by ministack, Azure Blob Storage by Azurite, each a child process.

Both listen on a free port of the loopback interface, keep everything in memory, and are gone when
their block ends, however it ends: the server hangs on a pipe to this process, and a small shell
kills it when that pipe closes, so even a killed test run leaves nothing behind.

Azurite needs Node and `npm ci --prefix tools/azurite`. `azurite_missing` says in one line what is
not there, for `pytest.skip`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY

START_S_MAX = 60.0
"""A server takes one or two seconds to start, and far longer on a machine that is busy."""

STOP_S_MAX = 10.0

_POLL_S = 0.05

_WATCH = '"$@" </dev/null & server=$!; cat >/dev/null; kill -TERM $server 2>/dev/null; wait $server'
"""Run the server until our end of the pipe closes. `cat` ends with the pipe."""

_AZURITE = (
    Path(__file__).parents[3] / "tools" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server with one empty bucket or container."""

    url: str
    """Of the bucket, for `cordwood.Store`; append `/prefix` to keep tests apart."""
    options: dict[str, Any] = field(repr=False)
    """The keyword options to open it with: endpoint and credentials."""
    endpoint: str = ""


@contextmanager
def s3_server(bucket: str = "cordwood") -> Iterator[Server]:
    """An S3 server with one bucket, while the block runs."""
    port = free_port()
    environment = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "LOG_LEVEL": "WARNING",
    }
    command = [shutil.which("ministack", path=_path()) or "ministack"]
    with _running(command, environment, port):
        endpoint = f"http://127.0.0.1:{port}"
        _put(f"{endpoint}/{bucket}", {})
        options = {
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "test",
        }
        yield Server(f"s3://{bucket}", options, endpoint)


@contextmanager
def azure_server(container: str = "cordwood") -> Iterator[Server]:
    """An Azure Blob server with one container, while the block runs."""
    missing = azurite_missing()
    if missing:
        raise RuntimeError(missing)
    port, account = free_port(), "cordwood"
    account_key = base64.b64encode(bytes.fromhex(SYSTEM_ENTROPY.token())).decode()
    command = [
        str(_AZURITE),
        "--silent",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--inMemoryPersistence",
        "--extentMemoryLimit",
        "512",
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
    ]
    with _running(command, {"AZURITE_ACCOUNTS": f"{account}:{account_key}"}, port):
        endpoint = f"http://127.0.0.1:{port}/{account}"
        _put(
            f"{endpoint}/{container}?restype=container",
            _shared_key(account, account_key, container),
        )
        options = {"endpoint": endpoint, "account_name": account, "account_key": account_key}
        yield Server(f"az://{container}", options, endpoint)


def azurite_missing() -> str:
    """What is missing to run Azurite, in one line; empty if nothing is."""
    if shutil.which("node") is None:
        return "Azurite needs Node, which is not on the path"
    if not _AZURITE.exists():
        return "Azurite is not installed: npm ci --prefix tools/azurite"
    return ""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str], port: int) -> Iterator[None]:
    """Run a server while the block runs."""
    with (
        tempfile.TemporaryDirectory(prefix="cordwood-server-") as folder,
        tempfile.TemporaryFile() as output,
    ):
        process = subprocess.Popen(  # noqa: S603 - our own command, with nothing from outside
            ["/bin/sh", "-c", _WATCH, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            _wait_until_up(process, port, output)
            yield
        finally:
            _stop(process)


def _wait_until_up(process: subprocess.Popen[bytes], port: int, output: IO[bytes]) -> None:
    until_s = SYSTEM_CLOCK.monotonic_s() + START_S_MAX
    pause = threading.Event()
    while SYSTEM_CLOCK.monotonic_s() < until_s and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        pause.wait(_POLL_S)
    output.seek(0)
    raise RuntimeError(f"server did not start: {output.read().decode(errors='replace')[-2_000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe the server hangs on; if that does not help, kill all of it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _put(url: str, headers: Mapping[str, str]) -> None:
    """Send an empty PUT to a server on this machine."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=START_S_MAX)
    with closing(connection):
        connection.request("PUT", url.partition(parts.netloc)[2], body=b"", headers=dict(headers))
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace")
    if answer.status not in {200, 201}:
        raise RuntimeError(f"PUT {url}: {answer.status} {body}")


def _shared_key(account: str, account_key: str, container: str) -> dict[str, str]:
    """The headers that allow a container to be created: Azure's Shared Key scheme."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    text = "\n".join(
        [
            "PUT",
            *[""] * 11,
            f"x-ms-date:{date}",
            f"x-ms-version:{version}",
            f"/{account}/{account}/{container}",
            "restype:container",
        ]
    )
    digest = hmac.new(base64.b64decode(account_key), text.encode(), hashlib.sha256).digest()
    return {
        "x-ms-date": date,
        "x-ms-version": version,
        "Content-Length": "0",
        "Authorization": f"SharedKey {account}:{base64.b64encode(digest).decode()}",
    }


def _path() -> str:
    """Where to look for programs: beside this interpreter first, then as usual."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
