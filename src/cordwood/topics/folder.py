"""Topics in a local directory, shared by any number of processes and threads.

::

    {namespace}/{topic}/{partition}/    a partition (partition.py), from 0 on
    {namespace}/{topic}/groups/         groups of consumers (members.py)

A topic is made aside, whole, and then gets its name; to delete it, it is given another name, and
then removed. Both names begin with a dot, as no topic's does. Where a removal was cut off, whoever
next makes or deletes a topic of the namespace goes on with it.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    CordwoodError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StateError,
)
from cordwood.base.forks import starts_over
from cordwood.journal.failures import READ_ONLY, told
from cordwood.store.disk import Disk
from cordwood.store.url import Store
from cordwood.topics import config as config_file
from cordwood.topics.alive import MEMORY_BYTES
from cordwood.topics.background import Background
from cordwood.topics.compaction import SHARE, Compactor, StoppedError, Throttle
from cordwood.topics.config import TopicConfig
from cordwood.topics.founding import Founding
from cordwood.topics.home import Pace, missing_topic, taken_id, taken_name
from cordwood.topics.members import LocalMember, delete_group, group_positions
from cordwood.topics.names import check_name, name_id
from cordwood.topics.partition import LocalPartition
from cordwood.topics.shelf import Shelf
from cordwood.topics.tier import TieredPartition

METADATA = "metadata"
GROUPS = "groups"
GONE = ".gone"
"""How the name of a topic ends that is being removed."""


class Folder:
    """The topics in a directory."""

    pace = Pace(refresh_s=1.0, pause_first_s=0.001, pause_max_s=0.05)

    def __init__(
        self,
        root: str,
        *,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name the directory; no I/O."""
        self._root = os.path.abspath(root)
        self._disk = Disk() if disk is None else disk
        self._clock = clock
        self._entropy = entropy
        self.start_over()
        starts_over(self)
        self._partitions: dict[tuple[str, str, int], tuple[tuple[int, int], LocalPartition]] = {}
        """Those that are open, each with what tells it from a later one of the same name."""
        self._shelves: dict[str, Shelf] = {}
        self._backgrounds: dict[tuple[str, str], Background] = {}
        self.compacts = True
        """Whether partitions are compacted by themselves when extents are full."""
        self.when_full: Callable[[tuple[str, str]], None] | None = None
        """Called with a topic one of whose extents is full."""

    def start_over(self) -> None:
        """No thread is in the middle of anything."""
        self._mutex = threading.Lock()

    @property
    def name(self) -> str:
        """See `Home`."""
        return self._root

    def create(self, configs: Sequence[TopicConfig]) -> None:
        """See `Home`."""
        namespace, topic, tier = configs[0].namespace, configs[0].topic, configs[0].tier
        if tier is None and configs[0].ack == "store":
            raise InvalidInputError(
                "a topic in a directory that is acknowledged by a store has a tier",
                hint='name the store: tier="s3://bucket/prefix"',
            )
        with told("create", self._path(namespace, topic)):
            self._check_free(namespace, topic)
            if tier is None:
                self._make_folder(self._path(namespace))
                self._make(configs)
                return
            tier = Store(tier).url
            self._make_folder(self._path(namespace))
            founding = Founding(self._root, self._disk, self._entropy, self._shelf)
            free = partial(self._check_free, namespace, topic)
            with founding.made(tier, configs, free) as told_configs:
                self._make(told_configs)

    def _make(self, configs: Sequence[TopicConfig]) -> None:
        """Make a topic aside, and give it its name."""
        namespace, topic = configs[0].namespace, configs[0].topic
        aside = self._path(namespace, f".{topic}.{self._entropy.token()[:16]}")
        self._sweep(namespace)
        try:
            self._furnish(aside, configs)
            self._disk.rename(aside, self._path(namespace, topic))
        except OSError as error:
            with suppress(OSError):
                self._remove_tree(aside)
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                raise taken_name(namespace, topic) from error
            raise
        self._disk.fsync_dir(self._path(namespace))

    def _sweep(self, namespace: str) -> None:
        """Remove topics whose deletion was cut off."""
        with suppress(OSError):
            for name, kind in self._disk.scan(self._path(namespace)):
                if kind == "folder" and name[0] == "." and name.endswith(GONE):
                    with suppress(OSError):  # Somebody else is at it as well.
                        self._remove_tree(self._path(namespace, name))

    def topics(self, namespace: str | None = None) -> list[tuple[str, str]]:
        """See `Home`."""
        with told("list", self._root):
            spaces = self._names("") if namespace is None else [namespace]
            return sorted((space, topic) for space in spaces for topic in self._names(space))

    def partition(self, namespace: str, topic: str, number: int) -> LocalPartition:
        """See `Home`."""
        key = namespace, topic, number
        folder = self._path(namespace, topic, str(number))
        with told("open", folder, lambda _: self._missing(namespace, topic, number)):
            found = self._disk.stat(f"{folder}/{METADATA}")
        made = found.inode, found.mtime_ns  # Inodes are used again, at other times.
        with self._mutex:
            if key in self._partitions and self._partitions[key][0] != made:
                self._partitions.pop(key)[1].journal.abandon()  # It was deleted, and made again.
            if key not in self._partitions:
                config = self._config(namespace, topic, number)
                if not number:  # All who use a topic open this one.
                    self._settle(namespace)
                opened = self._opened(folder, config, number)
                self._partitions[key] = made, opened
                if self.when_full is not None:
                    opened.when_full = partial(self.when_full, (namespace, topic))
                if config.compaction:
                    opened.when_closed = lambda: self._compact_soon(opened, number)
            return self._partitions[key][1]

    def join(self, namespace: str, topic: str, group: str) -> LocalMember:
        """See `Home`."""
        partitions = self.partition(namespace, topic, 0).config.partitions
        folder = self._path(namespace, topic, GROUPS, check_name("group", group))
        with told("join", folder):
            self._make_folder(folder)
        return LocalMember(folder, partitions, self._disk, self._entropy)

    def groups(self, namespace: str, topic: str) -> dict[str, dict[int, int]]:
        """See `Home`."""
        folder = self._path(namespace, topic, GROUPS)
        with told("read", folder):
            try:
                found = sorted(name for name, kind in self._disk.scan(folder) if kind == "folder")
            except FileNotFoundError:
                return {}
            return {name: group_positions(f"{folder}/{name}", self._disk) for name in found}

    def delete_group(self, namespace: str, topic: str, group: str) -> None:
        """See `Home`."""
        folder = self._path(namespace, topic, GROUPS, check_name("group", group))
        with told("delete", folder, lambda _: NotFoundError(f"there is no group {group!r}")):
            delete_group(folder, self._disk)

    def delete(self, namespace: str, topic: str) -> None:
        """See `Home`."""
        self.delete_if(namespace, topic, lambda: True)

    def delete_if(self, namespace: str, topic: str, condition: Callable[[], bool]) -> bool:
        """Delete a topic if a condition holds while nobody appends to it; whether it did."""
        place = self._path(namespace, topic)
        aside = self._path(namespace, f".{topic}.{self._entropy.token()[:16]}{GONE}")
        self._delete_tier(namespace, topic)
        with told("delete", place, lambda _: missing_topic(namespace, topic)), ExitStack() as held:
            for number in self._numbers(namespace, topic):
                # Appends under way end first, and none begins before the topic is gone.
                with suppress(CordwoodError):
                    journal = self.partition(namespace, topic, number).journal
                    held.enter_context(journal.alone())
                    with suppress(OSError):  # A full disk must not keep what fills it.
                        journal.unsettle()
            if not condition():
                return False
            self._disk.rename(place, aside)
            self._disk.fsync_dir(self._path(namespace))
        self._forget(namespace, topic)
        with told("delete", place):
            self._remove_tree(aside)
            self._sweep(namespace)
            with suppress(OSError):  # A namespace is there as long as it has topics.
                self._disk.rmdir(self._path(namespace))
        return True

    def _delete_tier(self, namespace: str, topic: str) -> None:
        """Delete the topic on its tier, if it has one: first, so that who was cut off can go on."""
        if not self._numbers(namespace, topic):
            return
        with suppress(NotFoundError, CorruptionError):
            config = self._config(namespace, topic, 0)
            if config.tier is not None:
                self._shelf(config.tier).delete_tier(namespace, topic, config.tier_id)

    def _opened(self, folder: str, config: TopicConfig, number: int) -> LocalPartition:
        how = folder, config, self._disk, self._clock, self._entropy
        if config.tier is None:
            return LocalPartition(*how)
        shelf = self._shelf(config.tier)
        far = partial(shelf.partition, config.namespace, config.topic, number)
        return TieredPartition(*how, far)

    def _shelf(self, tier: str) -> Shelf:
        """The store that topics of a tier are uploaded to."""
        if tier not in self._shelves:
            self._shelves[tier] = Shelf(Store(tier), clock=self._clock, entropy=self._entropy)
        return self._shelves[tier]

    def close(self) -> None:
        """See `Home`."""
        with self._mutex:
            partitions, self._partitions = list(self._partitions.values()), {}
            backgrounds, self._backgrounds = list(self._backgrounds.values()), {}
        for background in backgrounds:
            background.stop()
        for _, partition in partitions:
            partition.close()

    def background(self, namespace: str, topic: str) -> Background:
        """What is done by itself for a topic."""
        with self._mutex:
            name = f"cordwood-compaction-{topic}"
            return self._backgrounds.setdefault((namespace, topic), Background(name))

    def compactor(
        self, partition: LocalPartition, pace: Throttle, memory_bytes: int = MEMORY_BYTES
    ) -> Compactor:
        """Who compacts a partition.

        Raises:
            StateError: it is none of a compaction topic.
        """
        config = partition.config
        if partition.keys is None:
            raise StateError(
                f"{config.namespace}/{config.topic} is no compaction topic",
                hint="create another one with compaction, and copy the records to it",
            )
        return Compactor(
            partition.journal,
            partition.keys,
            config,
            self._clock,
            self._entropy,
            pace=pace,
            memory_bytes=memory_bytes,
        )

    def _compact_soon(self, partition: LocalPartition, number: int) -> None:
        """Compact a partition, if that is worth it, without letting anybody wait for it."""

        def work(stop: threading.Event) -> None:
            with suppress(StoppedError):
                pace = Throttle(self._clock, None, stop, share=SHARE)
                self.compactor(partition, pace).compact_dirty(number)

        if self.compacts:
            self.background(partition.config.namespace, partition.config.topic).offer(number, work)

    def _config(self, namespace: str, topic: str, number: int) -> TopicConfig:
        path = self._path(namespace, topic, str(number), METADATA)
        with told("open", path, lambda _: self._missing(namespace, topic, number)):
            config = config_file.decoded(bytes(self._disk.read(path)[1]), path)
        if (config.namespace, config.topic) != (namespace, topic):
            raise CorruptionError(
                f"{path} is that of {config.namespace}/{config.topic}",
                where=path,
                hint="a topic is not renamed by moving its folder: move it back",
            )
        return config

    def _missing(self, namespace: str, topic: str, number: int) -> CordwoodError:
        """There is no such topic, or it has fewer partitions, or its file is gone."""
        numbers = self._numbers(namespace, topic)
        path = self._path(namespace, topic, str(number), METADATA)
        if number in numbers:
            with suppress(FileNotFoundError):
                self._disk.stat(path)
                return missing_topic(namespace, topic)  # It was not there, and was made since.
            if number in self._numbers(namespace, topic):  # Else it was deleted since.
                return CorruptionError(f"{path} is missing", where=path, hint="bring it back")
            return missing_topic(namespace, topic)
        if numbers:
            return NotFoundError(
                f"{namespace}/{topic} has partitions 0 to {max(numbers)}, and no {number}"
            )
        return missing_topic(namespace, topic)

    def _numbers(self, namespace: str, topic: str) -> list[int]:
        with suppress(FileNotFoundError, NotADirectoryError):
            found = self._disk.scan(self._path(namespace, topic))
            return sorted(int(name) for name, _ in found if name.isdecimal() and name.isascii())
        return []

    def _check_free(self, namespace: str, topic: str) -> None:
        """Make sure that neither name nor id is another's."""
        for what, name, others in (
            ("namespace", namespace, self._names("")),
            ("topic", topic, self._names(namespace)),
        ):
            for other in others:
                if other != name and name_id(other) == name_id(name):
                    raise taken_id(what, name, other)
        if topic in self._names(namespace):
            raise taken_name(namespace, topic)

    def _furnish(self, aside: str, configs: Sequence[TopicConfig]) -> None:
        """Make a folder with all that an empty topic has."""
        self._disk.mkdir(aside)
        for number, config in enumerate(configs):
            self._disk.mkdir(f"{aside}/{number}")
            data = config_file.encoded(config)
            self._disk.write(f"{aside}/{number}/{METADATA}", data, config.created_us * 1000)
            self._disk.fsync_dir(f"{aside}/{number}")
        self._disk.fsync_dir(aside)

    def _make_folder(self, path: str) -> None:
        """Make a folder, and those above it, if they are not there; their names are durable."""
        with suppress(FileNotFoundError):
            if self._disk.stat(path).kind != "folder":
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            return
        above = os.path.dirname(path)
        self._make_folder(above)
        with suppress(FileExistsError):
            self._disk.mkdir(path)
        self._disk.fsync_dir(above)

    def _settle(self, namespace: str) -> None:
        """Make the names durable that lead to a topic: its maker may have died before that."""
        for path in (self._path(namespace), self._root, os.path.dirname(self._root)):
            with told("open", path):
                try:
                    self._disk.fsync_dir(path)
                except OSError as error:
                    if error.errno not in READ_ONLY:  # One who may only read leaves it to others.
                        raise

    def _remove_tree(self, path: str) -> None:
        if not self._disk.inline:
            shutil.rmtree(path)
            return
        for name, kind in self._disk.scan(path):
            if kind == "folder":
                self._remove_tree(f"{path}/{name}")
            else:
                self._disk.unlink(f"{path}/{name}")
        self._disk.rmdir(path)

    def _forget(self, namespace: str, topic: str) -> None:
        with self._mutex:
            keys = [key for key in self._partitions if key[:2] == (namespace, topic)]
            gone = [self._partitions.pop(key) for key in keys]
            background = self._backgrounds.pop((namespace, topic), None)
        if background is not None:
            background.stop()
        for _, partition in gone:
            partition.journal.abandon()

    def _names(self, space: str) -> list[str]:
        """The namespaces, or the topics of one; none if there is no such folder."""
        with suppress(FileNotFoundError):
            found = self._disk.scan(self._path(space) if space else self._root)
            return sorted(name for name, kind in found if kind == "folder" and name[0] != ".")
        return []

    def _path(self, *names: str) -> str:
        return "/".join((self._root, *names))
