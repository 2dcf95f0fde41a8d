"""Topics on an object store, shared by any number of machines.

::

    {namespace}/{topic}/config          what the topic is; written last
    {namespace}/{topic}/{partition}/…   a partition: a log (cordwood.log, logged.py), from 0 on
    {namespace}/{topic}/groups/…        groups of consumers (leased.py)

Of several who make a topic, the one whose `config` is there first has made it. To delete a topic,
`config` is marked first, so that nobody opens it any more; then its logs are destroyed, then all
else goes, and `config` last. Where that was cut off, whoever deletes the topic or makes it anew
goes on with it. (There is no conditional delete: a name should not be used again while somebody may
still be at work on deleting the old topic.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from cordwood.journal import document
from cordwood.log.log import Log
from cordwood.store.api import Match
from cordwood.store.streams import as_generator
from cordwood.store.url import Store
from cordwood.topics.config import TopicConfig
from cordwood.topics.home import Pace, missing_topic, taken_id, taken_name
from cordwood.topics.leased import TTL_S, Group, LeasedMember
from cordwood.topics.logged import LoggedPartition
from cordwood.topics.names import check_name, name_id

CONFIG = "config"
GROUPS = "groups"

T = TypeVar("T")


class StoredTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `config` says."""

    partitions: list[TopicConfig]
    incarnation: str
    """Tells it from a later topic of the same name."""
    is_deleted: bool = False
    """Whether it is being deleted."""
    format: int = document.FORMAT


@dataclass(frozen=True, slots=True)
class _Opened:
    etag: str
    partitions: list[LoggedPartition]


class Shelf:
    """The topics on a store."""

    pace = Pace(refresh_s=3.0, pause_first_s=0.02, pause_max_s=1.0, at_once=16)

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        ttl_s: float = TTL_S,
    ) -> None:
        """Name the store; no I/O. `ttl_s` is how long a consumer that died keeps its partitions."""
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._ttl_s = ttl_s
        self._opened: dict[tuple[str, str], _Opened] = {}

    @property
    def name(self) -> str:
        """See `Home`."""
        return self._store.url

    def create(self, configs: Sequence[TopicConfig]) -> None:
        """See `Home`."""
        if configs[0].tier is not None:
            raise InvalidInputError(
                "a topic on a store has no tier", hint="a tier is for topics in a directory"
            )
        self.create_tier(configs)

    def create_tier(self, configs: Sequence[TopicConfig]) -> None:
        """Make a topic that a directory may be the writer of."""
        if configs[0].compaction:
            raise InvalidInputError(
                "a compaction topic lives in a directory: a log keeps all its records",
                hint="make it in a directory, or without compaction",
            )
        _run(self._create(configs))

    async def _create(self, configs: Sequence[TopicConfig]) -> None:
        namespace, topic = configs[0].namespace, configs[0].topic
        key = _key(namespace, topic, CONFIG)
        with suppress(NotFoundError):
            there, _ = await self._load(namespace, topic)
            if not there.is_deleted:
                raise taken_name(namespace, topic)
            await self._delete(namespace, topic)
        await self._check_ids(namespace, topic)
        for number in range(len(configs)):
            await self._log(namespace, topic, number).create(exist_ok=True)
        made = StoredTopic(list(configs), self._entropy.token())
        try:
            await self._store.put(key, document.encoded("topic", made), "create")
        except AlreadyExistsError as error:
            raise taken_name(namespace, topic) from error

    def topics(self, namespace: str | None = None) -> list[tuple[str, str]]:
        """See `Home`."""
        return _run(self._topics(namespace))

    async def _topics(self, namespace: str | None) -> list[tuple[str, str]]:
        """One LIST and one GET for each topic."""
        names = []
        for place in await self._folders("" if namespace is None else f"{namespace}/", 2):
            space, topic = place.split("/")
            with suppress(NotFoundError):
                if not (await self._load(space, topic))[0].is_deleted:
                    names.append((space, topic))
        return names

    def partition(self, namespace: str, topic: str, number: int) -> LoggedPartition:
        """See `Home`. Only for the first of a topic's the store is asked whether it is there."""
        known = self._opened.get((namespace, topic))
        if known is None or number == 0:
            known = _run(self._open(namespace, topic))
        if number not in range(len(known.partitions)):
            raise NotFoundError(
                f"{namespace}/{topic} has partitions 0 to {len(known.partitions) - 1}, "
                f"and no {number}"
            )
        return known.partitions[number]

    def join(self, namespace: str, topic: str, group: str) -> LeasedMember:
        """See `Home`."""
        count = self.partition(namespace, topic, 0).config.partitions
        return LeasedMember(self._group(namespace, topic, group), count)

    def groups(self, namespace: str, topic: str) -> dict[str, dict[int, int]]:
        """See `Home`."""
        return _run(self._groups(namespace, topic))

    async def _groups(self, namespace: str, topic: str) -> dict[str, dict[int, int]]:
        places = await self._folders(f"{_key(namespace, topic, GROUPS)}/", 4)
        names = [place.rpartition("/")[2] for place in places]
        return {name: await self._group(namespace, topic, name).positions() for name in names}

    def delete_group(self, namespace: str, topic: str, group: str) -> None:
        """See `Home`."""
        _run(self._group(namespace, topic, group).delete())

    def retain(self, namespace: str, topic: str) -> int:
        """Let go of records that are too old or too many; how many went."""
        count = self.partition(namespace, topic, 0).config.partitions
        return sum(self.partition(namespace, topic, number).retain() for number in range(count))

    def delete(self, namespace: str, topic: str) -> None:
        """See `Home`."""
        _run(self._delete(namespace, topic))

    def delete_tier(self, namespace: str, topic: str, tier_id: str) -> None:
        """Delete a topic that a directory was the writer of, and not another of that name."""
        there, _ = _run(self._load(namespace, topic))
        if there.partitions[0].tier_id == tier_id:
            _run(self._delete(namespace, topic))

    def delete_unused(self, namespace: str, topic: str, tier_id: str) -> None:
        """The same for one that was never used: it stays if it has records, or is another's."""
        with suppress(NotFoundError):
            there, _ = _run(self._load(namespace, topic))
            if there.partitions[0].tier_id != tier_id:
                return
            if there.is_deleted or not _run(self._is_used(namespace, topic, len(there.partitions))):
                _run(self._delete(namespace, topic))

    async def _is_used(self, namespace: str, topic: str, count: int) -> bool:
        """Whether a topic ever had records."""
        for number in range(count):
            if (await self._log(namespace, topic, number).manifest()).next_offset > 1:
                return True
        return False

    async def _delete(self, namespace: str, topic: str) -> None:
        key = _key(namespace, topic, CONFIG)
        there, etag = await self._load(namespace, topic)
        if not there.is_deleted:
            there = msgspec.structs.replace(there, is_deleted=True)
            try:
                await self._store.put(key, document.encoded("topic", there), Match(etag))
            except ConflictError:
                # Somebody else deletes it, or our own put was not answered.
                again, _ = await self._load(namespace, topic)
                if again.incarnation != there.incarnation or not again.is_deleted:
                    raise
        # Who lost against the maker of this topic may have made more logs than it has.
        for place in await self._folders(f"{_key(namespace, topic)}/", 3):
            number = place.rpartition("/")[2]
            if number.isdecimal():
                if (await self._load(namespace, topic))[0].incarnation != there.incarnation:
                    return
                with suppress(NotFoundError):
                    await self._log(namespace, topic, int(number)).destroy()
        prefix = f"{_key(namespace, topic)}/"
        found = [meta.key async for meta in self._store.list(prefix) if meta.key != key]
        # The last manifests of a chain log stay: by them a slow producer learns that it is gone.
        rest = [one for one in found if one.removeprefix(prefix).split("/")[1:2] != ["manifest"]]
        if rest:
            await self._store.delete(rest)
        await self._store.delete([key])
        self._opened.pop((namespace, topic), None)

    def close(self) -> None:
        """See `Home`."""
        opened, self._opened = list(self._opened.values()), {}
        for one in opened:
            for partition in one.partitions:
                partition.close()

    async def _open(self, namespace: str, topic: str) -> _Opened:
        """The partitions of a topic; others than before if it was made anew."""
        key = _key(namespace, topic, CONFIG)
        known = self._opened.get((namespace, topic))
        if known is not None:
            with suppress(NotFoundError):
                if (await self._store.head(key)).etag == known.etag:
                    return known
        there, etag = await self._load(namespace, topic)
        if there.is_deleted:
            raise missing_topic(namespace, topic)
        check = self._checker(namespace, topic, etag)
        partitions = [
            LoggedPartition(self._log(namespace, topic, number), config, self._clock, check)
            for number, config in enumerate(there.partitions)
        ]
        opened = _Opened(etag, partitions)
        self._opened[namespace, topic] = opened
        return opened

    def _checker(self, namespace: str, topic: str, etag: str) -> Callable[[], Awaitable[None]]:
        """Raises if the topic is not that one any more. One HEAD."""
        key = _key(namespace, topic, CONFIG)

        async def check() -> None:
            try:
                found = (await self._store.head(key)).etag
            except NotFoundError as error:
                raise missing_topic(namespace, topic) from error
            if found != etag:
                raise missing_topic(namespace, topic)

        return check

    async def _load(self, namespace: str, topic: str) -> tuple[StoredTopic, str]:
        key = _key(namespace, topic, CONFIG)
        try:
            data, etag = await self._store.get(key)
        except NotFoundError as error:
            raise missing_topic(namespace, topic) from error
        where = f"{self._store.url}/{key}"
        return document.decoded("topic", StoredTopic, bytes(data), where), etag

    async def _folders(self, prefix: str, depth: int) -> list[str]:
        """The folders at a depth below a prefix, in order. One LIST for each."""
        found: list[str] = []
        after = ""
        while True:
            async with aclosing(as_generator(self._store.list(prefix, after))) as metas:
                meta = await anext(metas, None)
            if meta is None:
                return found
            names = meta.key.split("/")
            if len(names) > depth:
                found.append("/".join(names[:depth]))
                after = f"{found[-1]}0"  # "0" is the sign after "/": behind all of the folder.
            else:
                after = meta.key

    async def _check_ids(self, namespace: str, topic: str) -> None:
        """Make sure that neither id is another's."""
        spaces = await self._folders("", 1)
        topics = [place.rpartition("/")[2] for place in await self._folders(f"{namespace}/", 2)]
        for what, name, others in (("namespace", namespace, spaces), ("topic", topic, topics)):
            for other in others:
                if other != name and name_id(other) == name_id(name):
                    raise taken_id(what, name, other)

    def _log(self, namespace: str, topic: str, number: int) -> Log:
        name = _key(namespace, topic, str(number))
        return Log(self._store, name, clock=self._clock, entropy=self._entropy)

    def _group(self, namespace: str, topic: str, group: str) -> Group:
        folder = _key(namespace, topic, GROUPS, check_name("group", group))
        return Group(self._store, folder, self._clock, self._entropy, self._ttl_s)


def _key(*names: str) -> str:
    return "/".join(names)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return portal.current().run(work)
