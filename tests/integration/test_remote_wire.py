"""The remote store over HTTP, against a server that fails to order; and Google's protocol.

The server here is a small one of our own. It stands in for two things that cannot be had: a real
S3 that loses answers when told to, and any server for Google Cloud Storage (no emulator that works
with the client library exists). It speaks what the client library sends: put with If-Match,
If-None-Match and x-goog-if-generation-match, get with ranges, head, delete, and list in pages.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
import re
import socket
import struct
import threading
from collections import deque
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.log.log import Log
from cordwood.store.api import Match
from cordwood.store.remote import RemoteStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.servers import free_port
from cordwood.testing.stores import StoreTests, keys_of

PAGE_KEYS = 1_000
MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)


class TinyServer(ThreadingHTTPServer):
    """Buckets in a dictionary: key to bytes, etag, generation and time."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects = {}
        self.generation = 1_000
        self.lock = threading.Lock()
        self.faults = deque()
        self.over = threading.Event()
        self.after_put = lambda: None
        self.is_backwards = False
        self.requests = []

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that hung up is no news."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Quiet."""

    def handle_request(self):
        """Answer one request, or fail as the next fault says."""
        url = urlsplit(self.path)
        key, query = unquote(url.path).lstrip("/").partition("/")[2], parse_qs(url.query)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append(self.command)
        fault = self.server.faults.popleft() if self.server.faults else ("", "")
        what, when = fault
        if when == "before":
            return self.fail(what)
        with self.server.lock:
            answer = getattr(self, f"answer_{self.command.lower()}")(key, query, body)
        if when == "after":
            return self.fail(what)
        return self.answer(*answer)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_request  # noqa: N815

    def fail(self, what):
        """Answer with a status, hang, close or reset."""
        if isinstance(what, tuple):
            status, code = what
            return self.answer(status, f"<Error><Code>{code}</Code></Error>".encode(), {})
        if what == "hang":
            self.server.over.wait()
        if what == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        self.close_connection = True
        return None

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def describe(self, found):
        _, etag, generation, modified = found
        return {
            "ETag": etag,
            "x-goog-generation": str(generation),
            "Last-Modified": format_datetime(modified, usegmt=True),
        }

    def answer_put(self, key, _, body):
        present = self.server.objects.get(key)
        generation = self.headers.get("x-goog-if-generation-match")
        found = "0" if present is None else str(present[2])
        if generation is not None and generation != found:
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        if self.headers.get("if-none-match") == "*" and present is not None:
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        if (match := self.headers.get("if-match")) is not None:
            if present is None:
                return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
            if match != present[1]:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        self.server.generation += 1
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        made = (body, etag, self.server.generation, MODIFIED)
        self.server.objects[key] = made
        self.server.after_put()
        return 200, b"", self.describe(made)

    def answer_get(self, key, query, _):
        if "list-type" in query:
            return self.answer_list(query)
        found = self.server.objects.get(key)
        if found is None:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        body = found[0]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range") or "")
        if wanted is None:
            return 200, body, self.describe(found)
        start, last = int(wanted[1]), int(wanted[2])
        if start >= len(body):
            return 416, b"<Error><Code>InvalidRange</Code></Error>", {}
        part = body[start : last + 1]
        span = f"bytes {start}-{start + len(part) - 1}/{len(body)}"
        return 206, part, self.describe(found) | {"Content-Range": span}

    def answer_head(self, key, query, _):
        status, body, headers = self.answer_get(key, query, _)
        return status, b"", headers | {"Content-Length": str(len(body))}

    def answer_delete(self, key, *_):
        if self.server.objects.pop(key, None) is None:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        return 204, b"", {}

    def answer_list(self, query):
        prefix = query.get("prefix", [""])[0]
        start = query.get("continuation-token", query.get("start-after", [""]))[0]
        keys = sorted(key for key in self.server.objects if key.startswith(prefix) and key > start)
        page = keys[:PAGE_KEYS]
        parts = []
        for key in page:
            body, etag, _, modified = self.server.objects[key]
            parts.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size><ETag>{escape(etag)}"
                f"</ETag><LastModified>{modified.isoformat()}</LastModified></Contents>"
            )
        if len(keys) > PAGE_KEYS:
            parts.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        if self.server.is_backwards:
            parts.reverse()
        text = f"<ListBucketResult>{''.join(parts)}</ListBucketResult>"
        return 200, text.encode(), {"Content-Type": "application/xml"}


@pytest.fixture
def server():
    """A running server; every thread it has ends with the test."""
    server = TinyServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def s3(server, url="s3://bucket", **options):
    return RemoteStore(
        url,
        endpoint=server.endpoint,
        region="us-east-1",
        access_key_id="id",
        secret_access_key="secret",
        **options,
    )


def retrying(server, **options):
    return RetryingStore(s3(server, **options), backoff_first_s=0.001, backoff_max_s=0.01)


def patience(fault):
    """Wait for a server that hangs as briefly as one may, and for any other as long as it takes."""
    return {"timeout_s": 0.3} if fault[0] == "hang" else {}


class TestGoogle(StoreTests):
    """Google's protocol, with generations in place of etags."""

    list_has_etags = False

    @pytest.fixture
    def store(self, server):
        return Store("gs://bucket/folder", endpoint=server.endpoint, bearer_token="token")

    async def test_no_aba(self, store):
        """A stale etag is refused even when the bytes have come back: generations do not."""
        first = await store.put("object", b"A", "create")
        await store.put("object", b"B", Match(first))
        await store.put("object", b"A")
        with pytest.raises(ContendedError):
            await store.put("object", b"C", Match(first))

    async def test_etag_from_list_of_what_is_gone(self, store):
        """An etag from a list, which has no generation, is refused once its object is gone."""
        await store.put("object", b"A", "create")
        listed = [meta.etag async for meta in store.list()]
        await store.delete(["object"])
        with pytest.raises(ContendedError):
            await store.put("object", b"B", Match(listed[0]))

    async def test_cursors_of_a_chain_log(self, store):
        """Logs are chains here: a version is known by what a list says of it, and a get."""
        log = Log(store, "orders")
        async with log.writer(create=True) as writer:
            await writer.append_many([b"x"] * 9)
        first = await log.cursors.init("app", 2)
        moved = await log.cursors.save("app", 5, first)
        moved = await log.cursors.save("app", 3, moved)
        assert moved == await log.cursors.load("app")
        with pytest.raises(ContendedError):
            await log.cursors.save("app", 7, first)
        pin = await log.pin("backup", 1, 4)
        await pin.renew()
        await pin.release()
        assert ("chain", {"app": 3}) == ((await log.state()).protocol, (await log.state()).cursors)


AFTER = [
    ((503, "SlowDown"), "after"),
    ((500, "InternalError"), "after"),
    ("close", "after"),
    ("reset", "after"),
    ("hang", "after"),
]
BEFORE = [
    ((503, "SlowDown"), "before"),
    ((409, "ConditionalRequestConflict"), "before"),
    ("close", "before"),
    ("hang", "before"),
]


@pytest.mark.parametrize("fault", [*AFTER, *BEFORE], ids=str)
@pytest.mark.parametrize("mode", ["create", "match", "overwrite"])
async def test_failed_put_is_in_doubt(server, fault, mode):
    """A put that failed on the wire says that it may have happened, and so it may."""
    store = s3(server)
    etag = await store.put("object", b"before") if mode == "match" else ""
    server.faults.append(fault)
    hasty = s3(server, **patience(fault))
    with pytest.raises(StoreError) as caught:
        await hasty.put("object", b"after", Match(etag) if mode == "match" else mode)
    assert (True, True) == (caught.value.applied, caught.value.transient)
    happened = server.objects.get("object", (b"",))[0] == b"after"
    assert (fault[1] == "after") == happened


@pytest.mark.parametrize("fault", [*AFTER, *BEFORE], ids=str)
@pytest.mark.parametrize("mode", ["create", "match", "overwrite"])
async def test_failed_put_is_resolved(server, fault, mode):
    """With retries above it, the same put succeeds, with the etag of the object there is."""
    store = retrying(server, **patience(fault))
    etag = await s3(server).put("object", b"before") if mode == "match" else ""
    server.faults.append(fault)
    new = await store.put("object", b"after", Match(etag) if mode == "match" else mode)
    assert (b"after", new) == await store.get("object")


@pytest.mark.parametrize("fault", [*AFTER, *BEFORE], ids=str)
async def test_failed_reads(server, fault):
    """A read that failed on the wire may pass; with retries above it, it does."""
    await s3(server).put("object", b"bytes")
    server.faults.append(fault)
    with pytest.raises(StoreError) as caught:
        await s3(server, **patience(fault)).get("object")
    assert (False, True) == (caught.value.applied, caught.value.transient)
    server.faults.append(fault)
    store = retrying(server, **patience(fault))
    assert b"bytes" == (await store.get("object")).data
    server.faults.append(fault)
    assert ["object"] == await keys_of(store)


async def test_throttled_put_is_definite(server):
    """Too many requests: the put did not happen."""
    server.faults.append(((429, "TooManyRequests"), "before"))
    with pytest.raises(StoreError) as caught:
        await s3(server).put("object", b"", "create")
    assert (False, True) == (caught.value.applied, caught.value.transient)


async def test_refusals_are_definite(server):
    """A clean 412 is a refusal, in both modes, and so is a match on nothing."""
    store = s3(server)
    etag = await store.put("object", b"1", "create")
    await store.put("object", b"2", Match(etag))
    with pytest.raises(AlreadyExistsError):
        await store.put("object", b"3", "create")
    with pytest.raises(ContendedError):
        await store.put("object", b"3", Match(etag))
    with pytest.raises(ContendedError):
        await store.put("absent", b"3", Match(etag))


@pytest.mark.parametrize("status", [401, 403])
async def test_denied(server, status):
    """Wrong credentials are reported at once, with the variables to set."""
    server.faults.append(((status, "AccessDenied"), "before"))
    with pytest.raises(StoreError) as caught:
        await retrying(server).get("object")
    assert Code.STORE_DENIED == caught.value.code
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


async def test_missing_bucket(server):
    """A bucket that does not exist is not an object that does not."""
    for call in (lambda: retrying(server).get("object"), lambda: retrying(server).put("a", b"")):
        server.faults.append(((404, "NoSuchBucket"), "before"))
        with pytest.raises(StoreError) as caught:
            await call()
        assert "bucket" in caught.value.hint


async def test_no_server():
    """A refused connection is unreachable, and definite: nothing was sent."""
    store = RemoteStore(
        "s3://bucket",
        endpoint=f"http://127.0.0.1:{free_port()}",
        access_key_id="id",
        secret_access_key="secret",
    )
    with pytest.raises(StoreError) as caught:
        await store.put("object", b"", "create")
    error = caught.value
    assert (Code.STORE_UNREACHABLE, False, True) == (error.code, error.applied, error.transient)


async def test_one_request_per_put(server):
    """The client library's own retries are off."""
    server.faults.extend([((503, "SlowDown"), "before")] * 3)
    with pytest.raises(StoreError):
        await s3(server).put("object", b"", "create")
    assert ["PUT"] == server.requests
    with pytest.raises(StoreError):
        await s3(server).get("object")
    assert ["PUT", "GET"] == server.requests


async def test_large_put_is_one_request(server):
    """A large object is one put in every mode, never a multipart upload that could be left open."""
    store = s3(server, bulk_timeout_s=30)
    data = bytes(20 * 2**20)
    etag = await store.put("object", data)
    await store.put("object", data + b"1", Match(etag))
    assert ["PUT", "PUT"] == server.requests


async def test_delete_asks_for_each(server):
    """Where a batch stops at a missing key, the rest is deleted all the same."""
    store = Store("gs://bucket", endpoint=server.endpoint, bearer_token="token")
    for num in range(0, 40, 2):
        await store.put(f"{num:02}", b"")
    await store.delete([f"{num:02}" for num in range(40)])
    assert {} == server.objects


async def test_uncertain_swap(server):
    """A swap whose answer was lost and whose object has moved on since is uncertain."""
    store = retrying(server, timeout_s=0.3)
    etag = await s3(server).put("object", b"0")
    # Ours takes effect and hangs; before it is looked for, somebody else's put is there.
    server.faults.append(("hang", "after"))
    server.after_put = lambda: server.objects.update(object=(b"theirs", '"other"', 1, MODIFIED))
    with pytest.raises(UncertainError):
        await store.put("object", b"ours", Match(etag))


async def test_lists_without_order(server):
    """A list that comes without order is refused, or sorted where that is known of the bucket."""
    store, express = s3(server), s3(server, url="s3://bucket--x-s3")
    for key in ("a/1", "a/2", "b/1", "c"):
        await store.put(key, b"")
    server.is_backwards = True
    with pytest.raises(StoreError) as caught:
        await keys_of(store)
    assert Code.STORE_UNSAFE == caught.value.code
    assert ["a/1", "a/2", "b/1", "c"] == await keys_of(express)
    assert ["a/2"] == await keys_of(express, "a", "a/1")
    assert ["b/1"] == await keys_of(express, "b/")


def test_forked_child_is_told(server):
    """A child forked after the first use is refused with advice, instead of hanging for ever."""
    store = Store("s3://bucket", endpoint=server.endpoint, access_key_id="a", secret_access_key="b")
    asyncio.run(store.put("object", b"1"))
    unused = Store("s3://other", access_key_id="a", secret_access_key="b")
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            for other in (store, unused):
                for call in (other.get("object"), other.head("object"), anext(other.list())):
                    with pytest.raises(StateError, match="spawn") as caught:
                        asyncio.run(wait_for(call))
                    assert Code.FORKED == caught.value.code
            status = 7
        finally:
            os._exit(status)
    assert 7 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert b"1" == asyncio.run(store.get("object")).data


async def wait_for(call):
    return await call


def test_pickle_of_a_used_store(server):
    """A store that was used pickles by its configuration, and works from another event loop."""
    store = s3(server)
    asyncio.run(store.put("object", b"1"))
    again = pickle.loads(pickle.dumps(store))
    assert b"1" == asyncio.run(again.get("object")).data
    assert "secret" not in repr(again)


def test_endpoint_from_the_environment(server, monkeypatch):
    """Endpoint and credentials come from the environment, and plain HTTP is allowed by it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = Store("s3://bucket/x", deadline_s=5)
    asyncio.run(store.put("object", b"1"))
    assert {"x/object"} == set(server.objects)
    with pytest.raises(NotFoundError):
        asyncio.run(store.get("absent"))
