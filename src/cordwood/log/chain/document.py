"""What a manifest of a chain says of the chain, and when one manifest follows another. Pure.

A chain's manifest is a log's manifest (log/format.py) with the feature `chain` and this link::

    index    which manifest this is; its name follows from it
    prev     the manifest it follows: its path, its setsum, and the write id that no other has
    next     where its successor belongs; what lies between is void
    known    a manifest that was certainly part of the chain when this one was sent, and the first
             name behind it that was not decided yet
    alpha    how many manifests its writer keeps in the air
    shards   the next number in each shard ever used; `width` says how many are in use

Manifest 0 anchors the log. An anchor has no prev: it is part of the chain by itself, and says that
it knows itself. Only a rebuild (log/chain/rebuild.py) makes another.

CHAIN-1  the name is that of the index, and index < next.
CHAIN-2  prev < index; known <= prev; known < undecided <= index, unless this is an anchor.
CHAIN-3  the setsum is prev's and that of the fragments added; nothing else changes it, but where
         a fork is born, or a log is made anew.
CHAIN-4  every fragment of a shard is named by its shard, number, offsets and setsum; numbers of a
         shard are below its counter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from cordwood.base.errors import CorruptionError
from cordwood.base.setsum import Setsum
from cordwood.log.chain import names

ALPHA_MAX = 256
"""What recovery reads at most is bounded by this."""


class Prev(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest before."""

    path: str
    setsum: str
    write: str


class Known(Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest that is part of the chain for certain."""

    index: int
    write: str
    undecided: int
    """The first name behind it of which that was not known."""


class Shards(NamedTuple):
    """How fragments are spread: the next number in each shard there was, and how many are used."""

    counters: tuple[int, ...] = (1,)
    width: int = 1


class ChainLink(Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest's place in the chain."""

    index: int
    next: str
    known: Known
    alpha: int
    shards: tuple[int, ...]
    width: int
    prev: Prev | None = None

    @property
    def next_index(self) -> int:
        """Where the successor belongs."""
        return names.manifest_index(self.next) or 0

    def follows(self, write_id: str) -> bool:
        """Whether it says that it comes right behind this manifest."""
        return self.prev is not None and self.prev.write == write_id


class State(Protocol):
    """What CHAIN-3 compares: a manifest, as log/format.py has it."""

    @property
    def setsum_hex(self) -> str:
        """Over everything ever appended."""
        ...

    @property
    def next_offset(self) -> int:
        """Where it ends."""
        ...

    @property
    def oldest_offset(self) -> int:
        """Where it begins."""
        ...

    @property
    def is_blank(self) -> bool:
        """Whether what follows need not go on from it."""
        ...

    @property
    def fragments(self) -> Sequence[Any]:
        """The newest of them."""
        ...


def check_link(link: ChainLink, where: str) -> None:
    """Raise unless CHAIN-1, CHAIN-2 and what CHAIN-4 says of counters hold."""
    next_index = names.manifest_index(link.next)
    if next_index is None or not 0 <= link.index < next_index:
        raise _broken("CHAIN-1", where, f"next behind {link.index}", link.next)
    known = link.known
    if link.prev is None:
        is_placed = known.index == link.index < known.undecided
    else:
        prev = names.manifest_index(link.prev.path)
        is_placed = prev is not None and known.index <= prev < link.index
        is_placed &= known.index < known.undecided <= link.index
    if not is_placed:
        raise _broken("CHAIN-2", where, "known <= prev < index", str(link))
    if not 0 < link.alpha <= ALPHA_MAX or link.index - known.undecided >= ALPHA_MAX:
        raise _broken("CHAIN-2", where, f"alpha from 1 to {ALPHA_MAX}", str(link.alpha))
    if not 0 < link.width <= len(link.shards) <= names.SHARDS_MAX or min(link.shards) < 1:
        raise _broken("CHAIN-4", where, f"1 to {names.SHARDS_MAX} shards", str(link.shards))


def check_fragment_name(path: str, start: int, limit: int, setsum_hex: str, where: str) -> None:
    """Raise unless a shard's fragment is named by what its pointer says (CHAIN-4)."""
    name = names.parse_fragment(path)
    if name is None or (name.start, name.limit, name.setsum_hex) != (start, limit, setsum_hex):
        raise _broken("CHAIN-4", where, f"a name of [{start}, {limit})", path)


def check_step(before: State, after: State, where: str) -> None:
    """Raise unless the one manifest is a valid successor of the other (CHAIN-3)."""
    if before.is_blank:
        # A fork gets its parent's past all at once; a new log begins behind a destroyed one.
        return
    added = [f for f in after.fragments if f.start >= before.next_offset]
    total = Setsum.sum([before.setsum_hex, *(f.setsum_hex for f in added)])
    if total.hexdigest() != after.setsum_hex:
        raise _broken("CHAIN-3", where, total.hexdigest(), after.setsum_hex)
    if after.next_offset < before.next_offset or after.oldest_offset < before.oldest_offset:
        raise _broken("CHAIN-3", where, "a log that only grows", str(after.next_offset))


def walk(start: Known, docs: Mapping[int, ChainLink], writes: Mapping[int, str]) -> Known:
    """The newest manifest that is part of the chain, and the first free name behind it.

    From a manifest that is, the chain goes to the first name from `next` on that holds one which
    follows it; what holds another is void for ever, and the first that is empty ends the chain.
    """
    index, write, place = start.index, start.write, start.undecided
    while place in docs:
        if docs[place].follows(write):
            index, write = place, writes[place]
            place = docs[place].next_index
        else:
            place += 1
    return Known(index, write, place)


def _broken(rule: str, where: str, expected: str, got: str) -> CorruptionError:
    return CorruptionError(
        f"{where} breaks invariant {rule}: expected {expected}, got {got}",
        where=where,
        expected=expected,
        got=got,
        hint="the object was damaged or written by a faulty program; "
        "run `cordwood log scrub` to see how far the damage goes",
    )
