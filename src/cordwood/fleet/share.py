"""Who does what: workers share logs by rendezvous hashing. Pure functions.

Each worker gives every log a number, a hash of both names; the log is the worker's whose number is
highest. When a worker joins or leaves, only its own logs change hands.

Every worker reads the dirty logs of all members, and takes those logs it owns. The same function
says who rolls a dirty log up: it is a log with a name as well.

The list of workers changes in three steps, so that at no time a log is nobody's::

    everybody uses old  ─▶  everybody uses (old, new)  ─▶  everybody uses new

No worker goes to the next step before all have reached the last one. In the middle a log has up to
two owners. That costs work and does no harm: a compaction ends in a compare-and-swap of a cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from cordwood.base.errors import InvalidInputError


def owner(log_name: str, workers: Iterable[str]) -> str:
    """The worker that owns a log. Equal for every order of the list."""
    names = set(workers)
    if not names:
        raise InvalidInputError("there is no worker to own anything", hint="name at least one")
    return max(names, key=lambda worker: (_weight(worker, log_name), worker))


def owners(
    log_name: str, workers: Sequence[str], becoming: Sequence[str] | None = None
) -> frozenset[str]:
    """Who takes a log: its owner, and while the list changes also its owner to be."""
    lists = [workers] if becoming is None else [workers, becoming]
    return frozenset(owner(log_name, names) for names in lists if names)


def share(
    worker: str,
    log_names: Iterable[str],
    workers: Sequence[str],
    becoming: Sequence[str] | None = None,
) -> list[str]:
    """Those of some logs that a worker takes, in their order."""
    return [name for name in log_names if worker in owners(name, workers, becoming)]


def _weight(worker: str, log_name: str) -> int:
    # A name holds no zero byte, so no two pairs are hashed alike.
    return xxhash.xxh3_64_intdigest(f"{worker}\0{log_name}".encode())
