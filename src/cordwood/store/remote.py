"""Objects in S3, Google Cloud Storage or Azure Blob Storage.

The one module that uses the client library. What it adds:

1. **One request per call.** The library's own retries are off: after a put whose answer was lost,
   its second attempt meets our own object and reports a refusal, which is a lie. Repeating is the
   business of `store/retry.py`, which knows how to tell.
2. **Failures explained** (`store/answers.py`): which may pass, and which leave a write in doubt.
3. **Etags.** S3 and Azure name a put by its etag. S3's is a hash of the content and comes back when
   the content does, hence the rule that every mutable object carries an id. Google names a put by
   its generation number; there our etag is both, as `generation etag`. A list on Google gives
   the etag alone; it may be used to match, at the price of one more request. Azure puts quotes
   around etags except in lists; ours have none.
4. **Lists.** The library's prefix is whole folders, ours is plain text: we list the folder and
   filter. What lies at or before `start_after` is filtered here too, because some servers ignore
   it. Order is checked; S3's directory buckets (`--x-s3`), which have none, are read whole and
   sorted.
5. **Forks.** The library hangs for ever, without a word, in a child forked after its first use.
   Every call first compares process ids and raises StateError(forked) instead.
6. **The end.** A process that used it ends when the library's threads can bear it:
   `store/ending.py`, which this module loads.

Time limits: a small request, and the start of the answer to a get, `timeout_s`; moving a large body
`bulk_timeout_s`; a connection `connect_timeout_s`. An idle connection is dropped after 20 s, before
servers drop theirs: a request sent on a connection that is just being closed is in doubt.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from cordwood.base.errors import (
    Code,
    ContendedError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
    StateError,
    StoreError,
    UnsupportedError,
)
from cordwood.store import ending as _ending  # noqa: F401 - to be loaded is all it is for
from cordwood.store.answers import CREDENTIALS_HINT, Answer, explain
from cordwood.store.api import Buffer, Match, Meta, Object, ObjectStore, PutMode, at_rest, check_key
from cordwood.store.hedged import HEDGES_PER_S, HedgedStore
from cordwood.store.keys import is_key
from cordwood.store.location import REMOTE_SCHEMES, Location, parse_location
from cordwood.store.ranges import check_range, check_start
from cordwood.store.retry import DEADLINE_S, RetryingStore

if TYPE_CHECKING:
    from obstore import UpdateVersion

TIMEOUT_S = 10.0
BULK_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 2.0
_POOL_IDLE_S = 20.0

_BULK_BYTES_MIN = 2**20
"""A body this long gets the longer time limit."""

_LIST_CHUNK = 1_000
_DELETES_AT_ONCE = 16

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAILURES = (BaseError, OSError, ValueError, NotImplementedError)
"""Everything the library raises: its own errors, and Python's for not found and bad arguments."""

_CANNOT = {"NotSupportedError", "NotImplementedError"}

_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}

_Client = S3Store | GCSStore | AzureStore

_user_pid = 0
"""The process that first used the client library, inherited by forked children; 0 for none yet."""


def _guard() -> None:
    """Refuse to hang.

    Raises:
        StateError: this process was forked from one that had used the client library.
    """
    global _user_pid  # noqa: PLW0603 - a fact about the process, not about an object
    pid = os.getpid()
    if _user_pid == 0:
        _user_pid = pid
    elif _user_pid != pid:
        raise StateError(
            f"remote store used in process {pid}, which was forked from {_user_pid} after that "
            "had used one",
            code=Code.FORKED,
            hint="start workers with the 'spawn' or 'forkserver' method, "
            "or fork before the first use of a remote store",
        )


class RemoteStore:
    """Objects in a bucket or container. Pickles by its URL and options."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        bulk_timeout_s: float = BULK_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        **options: Any,
    ) -> None:
        """Name a bucket, `s3://bucket/prefix` and so on; no request is sent yet.

        Args:
            url: the bucket or container, with a key prefix.
            timeout_s: for one small request.
            bulk_timeout_s: for one request with a body of more than 1 MiB.
            connect_timeout_s: for making a connection.
            options: the client library's settings, such as `endpoint`, `region`, `access_key_id`,
                `secret_access_key`, `account_name`; what is not given comes from the environment.
                Plain HTTP is allowed where the endpoint says `http://`.

        Raises:
            InvalidInputError: the URL is not a remote store's, or there is no such option.
        """
        location = parse_location(url)
        if location.scheme not in REMOTE_SCHEMES:
            raise InvalidInputError(f"store URL {url!r} does not name a remote store")
        limits = {
            "timeout_s": timeout_s,
            "bulk_timeout_s": bulk_timeout_s,
            "connect_timeout_s": connect_timeout_s,
        }
        self._location = location
        self._arguments = limits | options
        self._timeout_s = timeout_s
        self._is_ordered = not location.name.endswith("--x-s3")
        self._quick = _client(location, options, timeout_s, connect_timeout_s)
        self._bulk = _client(location, options, bulk_timeout_s, connect_timeout_s)

    def __repr__(self) -> str:
        """The URL; never the options, which may hold credentials."""
        return f"RemoteStore({self._location.url!r})"

    def __reduce__(self) -> tuple[Callable[..., RemoteStore], tuple[str, dict[str, Any]]]:
        """Pickle the configuration; explicit credentials travel with it."""
        return _restore, (self._location.url, self._arguments)

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        _guard()
        with self._answers("get", check_key(key)):
            async with asyncio.timeout(self._timeout_s):
                answer = await obstore.get_async(self._bulk, key)
            data = await answer.bytes_async()
        return Object(bytes(data), self._etag(key, answer.meta))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`.

        One request; two for an empty range, and for one that starts at or past the end.
        """
        _guard()
        check_range(check_key(key), start, length)
        if length == 0:
            check_start(key, start, (await self.head(key)).size_bytes)
            return b""
        client = self._quick if length < _BULK_BYTES_MIN else self._bulk
        try:
            found = await obstore.get_range_async(client, key, start=start, length=length)
            return memoryview(found)
        except _FAILURES as error:
            answer = Answer.read(error)
            if answer.status != 416 and not answer.says("Wanted range starting at"):
                raise explain("get_range", key, error, self._location.scheme) from error
        check_start(key, start, (await self.head(key)).size_bytes)
        return b""

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        _guard()
        with self._answers("head", check_key(key)):
            found = await obstore.head_async(self._quick, key)
        return self._meta(key, found)

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object, atomically. See `ObjectStore.put`.

        A cancelled call leaves it open whether the write happened.
        """
        _guard()
        check_key(key)
        client = self._quick if len(data) < _BULK_BYTES_MIN else self._bulk
        version = await self._version(key, mode) if isinstance(mode, Match) else mode
        with self._answers("put", key, mode):
            answer = await obstore.put_async(
                client, key, at_rest(data), mode=version, use_multipart=False
            )
        return self._etag(key, answer)

    async def copy(self, source: str, target: str) -> None:
        """Have the store copy an object. See `ServerCopies.copy`.

        On S3 three requests: a copy that must not replace anything is an upload in one part. Not on
        Azure, where a copy may be seen before it is whole.
        """
        _guard()
        check_key(source)
        check_key(target)
        if self._location.scheme == "az":
            raise UnsupportedError(f"copy {source!r}: Azure's copies may end later than they say")
        try:
            await obstore.copy_async(self._bulk, source, target, overwrite=False)
        except _FAILURES as error:
            answer = Answer.read(error)
            if answer.kind in _CANNOT or answer.status in {405, 501}:
                raise UnsupportedError(f"copy {source!r}: this store does not copy") from error
            raise explain("copy", target, error, self._location.scheme, "create") from error

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects, in batches where the store has them. See `ObjectStore.delete`."""
        _guard()
        wanted = list(dict.fromkeys(check_key(key) for key in keys))
        if not wanted:
            return
        with self._answers("delete", wanted[0]):
            try:
                await obstore.delete_async(self._quick, wanted)
            except FileNotFoundError as error:
                # Some were not there, and some stores then stop or complain: ask for each.
                if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                    raise
                await self._delete_each(wanted)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order. See `ObjectStore.list`."""
        _guard()
        folder = prefix.rpartition("/")[0]
        if folder and not is_key(folder):
            return
        async with aclosing(self._folder(prefix, folder, start_after)) as metas:
            if not self._is_ordered:
                found = [meta async for meta in metas if meta.key.startswith(prefix)]
                for meta in sorted(found, key=lambda meta: meta.key):
                    yield meta
                return
            previous = ""
            async for meta in metas:
                _check_order(prefix, previous, meta.key)
                if not meta.key.startswith(prefix):
                    return
                yield meta
                previous = meta.key

    async def sync(self, keys: Iterable[str]) -> None:
        """Nothing to do, what is visible is durable. See `ObjectStore.sync`."""
        for key in keys:
            check_key(key)

    async def _folder(
        self, prefix: str, folder: str, start_after: str
    ) -> AsyncGenerator[Meta, None]:
        """The objects of a folder from the prefix on, as the store gives them."""
        # Keys with the prefix all lie behind the prefix less its last letter: begin there.
        positions = [text for text in (start_after, prefix[:-1]) if text and is_key(text)]
        with self._answers("list", prefix):
            pages = obstore.list(
                self._quick,
                folder or None,
                offset=max(positions, default=None),
                chunk_size=_LIST_CHUNK,
            )
            async for page in pages:
                for found in page:
                    key = found["path"]
                    if key > start_after and key >= prefix and is_key(key):
                        yield self._meta(key, found)

    async def _delete_each(self, keys: Sequence[str]) -> None:
        """Delete one by one, a few at a time; what is not there is as good as deleted."""
        for at in range(0, len(keys), _DELETES_AT_ONCE):
            outcomes = await asyncio.gather(
                *(
                    obstore.delete_async(self._quick, key)
                    for key in keys[at : at + _DELETES_AT_ONCE]
                ),
                return_exceptions=True,
            )
            for outcome in outcomes:
                if isinstance(outcome, BaseException) and not isinstance(
                    outcome, FileNotFoundError
                ):
                    raise outcome

    async def _version(self, key: str, mode: Match) -> UpdateVersion:
        """What the client library wants to know of the object to be replaced."""
        if self._location.scheme == "az":
            return {"e_tag": f'"{mode.etag}"'}
        if self._location.scheme == "s3":
            return {"e_tag": mode.etag}
        generation, _, etag = mode.etag.rpartition(" ")
        if not generation:
            # An etag from a list: look up the generation it belongs to, if it still does.
            try:
                found = await self.head(key)
            except NotFoundError as error:
                raise ContendedError(f"put {key!r}: expected etag {etag}, found none") from error
            generation, _, present = found.etag.rpartition(" ")
            if present != etag:
                raise ContendedError(f"put {key!r}: expected etag {etag}, found {present}")
        return {"e_tag": etag, "version": generation}

    def _etag(self, key: str, found: Mapping[str, Any]) -> str:
        etag, generation = found["e_tag"], found["version"]
        if not etag:
            raise StoreError(
                f"object {key!r}: the store gave no etag",
                code=Code.STORE_UNSAFE,
                key=key,
                applied=True,
                hint="conditional puts need etags; use a store that has them",
            )
        if self._location.scheme == "gs" and generation:
            return f"{generation} {etag}"
        return str(etag).strip('"') if self._location.scheme == "az" else str(etag)

    def _meta(self, key: str, found: Mapping[str, Any]) -> Meta:
        modified_us = (found["last_modified"] - _EPOCH) // timedelta(microseconds=1)
        return Meta(key, found["size"], self._etag(key, found), modified_us)

    @contextmanager
    def _answers(self, operation: str, key: str, mode: PutMode = "overwrite") -> Iterator[None]:
        """Turn what the client library raises into errors of ours."""
        try:
            yield
        except CordwoodError:
            raise
        except _FAILURES as error:
            raise explain(operation, key, error, self._location.scheme, mode) from error


def _check_order(prefix: str, previous: str, key: str) -> None:
    """Refuse a list that is not in key order: where the prefix ends could not be told."""
    if key <= previous:
        raise StoreError(
            f"list {prefix!r}: {key!r} came after {previous!r}",
            code=Code.STORE_UNSAFE,
            operation="list",
            hint="this store does not list in key order; use a bucket that does",
        )


def _restore(url: str, arguments: dict[str, Any]) -> RemoteStore:
    return RemoteStore(url, **arguments)


def open_remote(
    location: Location,
    *,
    hedge: bool = True,
    hedges_per_s: float = HEDGES_PER_S,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> ObjectStore:
    """A remote store as users get it: repeated where it may be, asked twice where it is slow."""
    store = RetryingStore(RemoteStore(location.url, **options), deadline_s=deadline_s)
    return HedgedStore(store, hedges_per_s=hedges_per_s) if hedge else store


def _client(
    location: Location, options: Mapping[str, Any], timeout_s: float, connect_timeout_s: float
) -> _Client:
    """The client library's store, with its own retries off."""
    settings = dict(options)
    if location.scheme == "gs" and "endpoint" in settings:
        settings["base_url"] = settings.pop("endpoint")
    if location.scheme == "s3":
        # The only way in which S3 copies without replacing what is there.
        settings.setdefault("copy_if_not_exists", "multipart")
    client_options = {
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=connect_timeout_s),
        "pool_idle_timeout": timedelta(seconds=_POOL_IDLE_S),
        "allow_http": settings.pop("allow_http", _says_http(location.scheme, settings)),
        **settings.pop("client_options", {}),
    }
    kind: Callable[..., _Client] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[
        location.scheme
    ]
    try:
        return kind(
            location.name,
            prefix=location.prefix or None,
            client_options=client_options,
            retry_config={"max_retries": 0},
            **settings,
        )
    except (*_FAILURES, TypeError) as error:
        raise InvalidInputError(
            f"store {location.url}: {str(error).partition(chr(10))[0]}",
            hint=CREDENTIALS_HINT[location.scheme],
        ) from error


def _says_http(scheme: str, settings: Mapping[str, Any]) -> bool:
    """Whether the endpoint, from the settings or the environment, is plain HTTP."""
    given = settings.get("endpoint") or settings.get("base_url")
    if given is None:
        named = (os.environ.get(name) for name in _ENDPOINT_VARIABLES[scheme])
        given = next((value for value in named if value), "")
    return str(given).startswith("http://") or bool(settings.get("use_emulator"))
