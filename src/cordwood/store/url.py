"""`Store`: the store a user holds, named by a URL.

A `Store` is a name with a lazily built back end behind it. Making one reads and writes nothing;
the first call builds the back end::

    memory:           MemoryStore
    file:             DirectoryStore
    s3: gs: az:       RemoteStore, in a RetryingStore, in a HedgedStore unless that is not wanted

It may be shared by threads and event loops, compared, hashed and pickled, all by its URL. A pickle
carries the URL and the options (with any credentials given as options; those in the environment
stay there). A memory store's pickle carries this process's token besides: it opens again here and
in children made by fork, which inherit a copy, and refuses anywhere else instead of being empty.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import InvalidInputError, StateError
from cordwood.base.given import given
from cordwood.store.api import (
    Buffer,
    LocalReads,
    Match,
    Meta,
    Object,
    ObjectStore,
    PutMode,
    ServerCopies,
    at_rest,
    check_key,
)
from cordwood.store.directory import DirectoryStore
from cordwood.store.location import REMOTE_SCHEMES, Location, parse_location
from cordwood.store.memory import MemoryStore
from cordwood.store.prefix import PrefixStore

_BOOT = SYSTEM_ENTROPY.token()
"""Names this process and the children it forks: what a memory store's pickle is good for."""


class Store:
    """Objects by key at a URL. Implements `ObjectStore`; every key is checked before it is used."""

    def __init__(self, url: str | os.PathLike[str], **options: Any) -> None:
        """Name a store; nothing is opened yet.

        Args:
            url: `memory:`, `memory:name`, `file:///dir` or a path, `s3://bucket/prefix`,
                `gs://bucket/prefix`, `az://container/prefix`.
            options: for a remote store only. Where an answer is slow it asks again, within the
                budget `hedges_per_s` (`hedge=False` does not), `deadline_s` bounds the retrying of
                one call;
                `timeout_s`, `bulk_timeout_s`, `connect_timeout_s` bound one request; the rest,
                such as `endpoint`, `region`, `access_key_id`, goes to the client library.

        Raises:
            InvalidInputError: the URL names no store that we know, or takes no such option.
        """
        location = parse_location(url)
        if options and location.scheme not in REMOTE_SCHEMES:
            raise InvalidInputError(
                f"store {location.url}: a {location.scheme} store has no option {min(options)!r}"
            )
        self._location = location
        self._options = options
        self._boot = _BOOT
        self._backend: ObjectStore | None = None
        if location.scheme == "memory":
            # A private memory store lives as long as somebody holds it: from now on we do.
            self._backend = _open(location, options)

    @staticmethod
    def over(object_store: ObjectStore, url: str = "custom:") -> Store:
        """A `Store` with a back end of your own: a wrapper, a fault-injecting one, a test's.

        The URL is only a name here; its scheme decides `scheme` and `is_remote`. Two of them are
        equal if URL and back end are. It can be pickled if the back end can.
        """
        location = Location(url.partition(":")[0], url, "")
        return _assemble(location, {"over": object_store}, _BOOT, object_store)

    @property
    def url(self) -> str:
        """The store's place in normal form; it holds no secrets, and names the same place again."""
        return self._location.url

    @property
    def scheme(self) -> str:
        """memory, file, s3, gs, az; or that of the URL given to `over`."""
        return self._location.scheme

    @property
    def is_remote(self) -> bool:
        """Whether requests leave the machine: then a first use should check that it is safe."""
        return self.scheme in REMOTE_SCHEMES

    @property
    def identity(self) -> int:
        """What tells two stores with one URL apart: endpoint and account, given or inherited."""
        inherited = [item for item in os.environ.items() if item[0].startswith(_CLOUD_VARIABLES)]
        return hash((self.url, repr(sorted(self._options.items())), repr(sorted(inherited))))

    def is_same_as(self, other: Store) -> bool:
        """Whether both are one place: what is put into one can be got from the other."""
        return self == other and self.identity == other.identity

    @property
    def local(self) -> LocalReads | None:
        """The store itself, if it is a directory: then threads may read from it directly."""
        store = self._store()
        return store if isinstance(store, DirectoryStore) and not store.is_modelled else None

    @property
    def copies(self) -> ServerCopies | None:
        """The store itself, if it can copy objects within it."""
        store = self._store()
        return store if isinstance(store, ServerCopies) else None

    def child(self, prefix: str) -> PrefixStore:
        """A view of the objects below the folder `prefix`, by the rest of their keys."""
        return PrefixStore(self, prefix)

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        return await self._store().get(check_key(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        return await self._store().get_range(check_key(key), start, length)

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        return await self._store().head(check_key(key))

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object, atomically and durably. See `ObjectStore.put`.

        On a remote store an answer that was lost is looked for before anything is reported, so
        besides the contract's errors there is `UncertainError`: see `RetryingStore.put`.
        """
        _check_put(check_key(key), data, mode)
        return await self._store().put(key, at_rest(data), mode)

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. See `ObjectStore.delete`."""
        await self._store().delete(_check_keys("delete", keys))

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order. See `ObjectStore.list`."""
        given(prefix, str, "a list's prefix")
        given(start_after, str, "a list's start_after")
        return self._store().list(prefix, start_after)

    async def sync(self, keys: Iterable[str]) -> None:
        """Make what is visible durable. See `ObjectStore.sync`."""
        await self._store().sync(_check_keys("sync", keys))

    def _store(self) -> ObjectStore:
        """The back end. Two threads may both build one: either serves."""
        if self._backend is None:
            if self.scheme == "memory" and self._boot != _BOOT:
                raise StateError(
                    f"store {self.url}: it lives in the memory of another process",
                    hint="share a file: or a remote store between processes",
                )
            self._backend = _open(self._location, self._options)
        return self._backend

    def __repr__(self) -> str:
        """The URL, never the options: they may hold credentials."""
        return f"Store({self.url!r})"

    def __eq__(self, other: object) -> bool:
        """Equal if they name the same place."""
        if not isinstance(other, Store):
            return NotImplemented
        return self.url == other.url and self._options.get("over") is other._options.get("over")

    def __hash__(self) -> int:
        """By the URL."""
        return hash(self.url)

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[Any, ...]]:
        """Pickle by URL and options."""
        if "over" in self._options:
            return Store.over, (self._options["over"], self.url)
        return _restore, (self.url, self._options, self._boot)


def _check_put(key: str, data: object, mode: object) -> None:
    """Refuse what is no put: a mode that no store knows would be taken for `overwrite`."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidInputError(f"put {key!r}: an object is bytes, not {type(data).__name__}")
    if not isinstance(mode, Match) and mode not in ("create", "overwrite"):
        raise InvalidInputError(
            f"put {key!r}: there is no mode {mode!r}",
            hint="use 'create', 'overwrite', or Match(etag)",
        )


def _check_keys(operation: str, keys: Iterable[str]) -> list[str]:
    """Refuse one key in place of several: each of its letters would be one."""
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise InvalidInputError(
            f"{operation} takes several keys, not {keys!r}", hint="pass a list of keys"
        )
    return [check_key(key) for key in keys]


_CLOUD_VARIABLES = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")
"""How variables begin that choose an endpoint or an account."""


def _restore(url: str, options: dict[str, Any], boot: str) -> Store:
    """A store from its pickle; another process's memory store is refused when it is used."""
    if boot == _BOOT or not url.startswith("memory:"):
        return Store(url, **options)
    return _assemble(parse_location(url), options, boot, None)


def _assemble(
    location: Location, options: dict[str, Any], boot: str, backend: ObjectStore | None
) -> Store:
    store = Store.__new__(Store)
    store.__dict__.update(_location=location, _options=options, _boot=boot, _backend=backend)
    return store


def _open(location: Location, options: dict[str, Any]) -> ObjectStore:
    """The back end of a location. Still no I/O."""
    if location.scheme == "memory":
        return MemoryStore.named(location.name, private=location.name.startswith("~"))
    if location.scheme == "file":
        return DirectoryStore(location.name)
    # The client library is large and must not be used in a process that forks: load it only here.
    from cordwood.store.remote import open_remote  # noqa: PLC0415

    return open_remote(location, **options)
