"""Making a topic that has a tier: on the store and in a directory, or in neither.

::

    .tiers                       in the root: locked by who makes such a topic
    {namespace}/.{topic}.tier    says that a topic is being made on a store, and by which id

It is made on the store first, since its name may be taken there. Whoever is cut off before the
directory has it too leaves the file behind, and with it the topic on the store, which is nobody's.
Whoever makes the topic again removes that one first: it is known by its id, and it is removed only
if it is empty, since the file may also be left of a topic that was made, and used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from cordwood.base.clock import Entropy
from cordwood.base.errors import CordwoodError, CorruptionError, UncertainError
from cordwood.journal import document
from cordwood.journal.locks import Locks
from cordwood.store.disk import Disk
from cordwood.topics.config import TopicConfig
from cordwood.topics.shelf import Shelf

LOCK = ".tiers"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is being made on a store."""

    tier: str
    tier_id: str
    format: int = document.FORMAT


class Founding:
    """The topics with tiers that are made in a directory."""

    def __init__(
        self, root: str, disk: Disk, entropy: Entropy, shelf: Callable[[str], Shelf]
    ) -> None:
        """No I/O. `shelf` opens a store."""
        self._root = root
        self._disk = disk
        self._entropy = entropy
        self._locks = Locks(disk, entropy)
        self._shelf = shelf

    @contextmanager
    def made(
        self, tier: str, configs: Sequence[TopicConfig], check_free: Callable[[], None]
    ) -> Iterator[Sequence[TopicConfig]]:
        """Make a topic on its tier, for a block that makes it in the directory.

        Yields:
            Its partitions, with what tells it from another topic on the store. If the block fails,
            the store does not keep the topic.
        """
        namespace, topic = configs[0].namespace, configs[0].topic
        path = f"{self._root}/{namespace}/.{topic}.tier"
        with self._locks.exclusive(f"{self._root}/{LOCK}"):
            check_free()  # Somebody may have made it while this one waited.
            self._clear(path, namespace, topic)
            plan = Plan(tier, self._entropy.token())
            self._disk.write(path, document.encoded("plan", plan), 0)
            self._disk.fsync_dir(f"{self._root}/{namespace}")
            named = {"tier": plan.tier, "tier_id": plan.tier_id}
            told = [msgspec.structs.replace(config, **named) for config in configs]
            try:
                self._shelf(tier).create_tier(told)
                yield told
            except UncertainError:
                raise  # It may yet come to be there: the next one looks.
            except (OSError, CordwoodError):
                with suppress(OSError, CordwoodError):  # Else the next one does it.
                    check_free()  # It may have its name, and only that may not be durable.
                    self._clear(path, namespace, topic)
                raise
            with suppress(OSError):
                self._disk.unlink(path)

    def _clear(self, path: str, namespace: str, topic: str) -> None:
        """Remove what one who was cut off left on a store."""
        try:
            plan = document.decoded("plan", Plan, bytes(self._disk.read(path)[1]), path)
        except FileNotFoundError:
            return
        except CorruptionError:
            self._disk.unlink(path)  # Cut off while it was written: nothing was made yet.
            return
        self._shelf(plan.tier).delete_unused(namespace, topic, plan.tier_id)
        self._disk.unlink(path)
