"""A fragment on its way: from a batch to a slot, and what became of it.

The fragments of one writer form a chain: each names the one before it as its predecessor, in slots
taken in order. They fly together, and land in any order. `judge` says what became of each after a
writer was refused, given where the log now stands; it decides by facts that can never change again:

1. A fragment the manifest names is committed.
2. A fragment whose slot went to somebody else is dead, and so is everything behind it in the chain.
3. A fragment in a slot that the log has passed without naming it is void (log/recovery.py, rule 3):
   dead as well. A sealed log has passed every slot.
4. Anything else may still be adopted by somebody, so nothing may be said but "uncertain". That
   happens only when the store could not be asked, or collection has removed the place of the proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from cordwood.base.errors import (
    Code,
    CordwoodError,
    LimitError,
    StoreError,
    UncertainError,
)
from cordwood.base.limits import FRAGMENT_BYTES_MAX
from cordwood.log import fragment as fragments
from cordwood.log.batch import Batch
from cordwood.log.filters import EMPTY, StreamSet, footer_text, streams_of
from cordwood.log.format import ZERO, Fragment, Manifest
from cordwood.log.recovery import Landed, Tail
from cordwood.store.api import Buffer

PathOf = Callable[[int, int, str], str]
"""The path of a fragment that does not lie in a slot, by its offsets and its setsum."""


class Stage(Enum):
    """How far a fragment got."""

    FLYING = "flying"
    LANDED = "landed"
    """It lies in its slot."""
    REFUSED = "refused"
    """Its slot was taken."""
    FAILED = "failed"
    """The store refused it for another reason; it was certainly not written."""
    UNKNOWN = "unknown"
    """The store did not answer in time."""


class Fate(Enum):
    """What became of a fragment after all."""

    COMMITTED = "committed"
    DEAD = "dead"
    UNCERTAIN = "uncertain"


@dataclass(slots=True, eq=False)
class Flight:
    """One fragment of a writer's chain."""

    batch: Batch
    seq_no: int
    link: fragments.Link
    fragment: Fragment
    has_columns: bool
    stage: Stage = Stage.FLYING
    error: BaseException | None = None
    task: asyncio.Task[Any] | None = field(default=None, repr=False)
    streams: StreamSet | None = EMPTY
    """Which it holds; None if they are too many to say."""

    def landed(self) -> Landed:
        """What recovery needs to know of a fragment it need not read."""
        return Landed(self.fragment, self.link, self.has_columns, self.streams)


def build(
    batch: Batch,
    tail: Tail,
    timestamp_us: int,
    write_id: str,
    compression: fragments.Compression,
    path_of: PathOf | None = None,
) -> tuple[Flight, Buffer]:
    """The fragment that follows `tail`, and its bytes: the one heavy step of an append."""
    content = batch.content()
    table = fragments.build_table(content, tail.next_offset, timestamp_us)
    streams = streams_of(content.extra.get("stream"))

    def vouch(setsum_hex: str) -> tuple[fragments.Link, str]:
        link = fragments.Link(
            id=write_id,
            start=tail.next_offset,
            limit=tail.next_offset + len(content),
            at=timestamp_us,
            setsum=setsum_hex,
            prev_id=tail.id,
            prev_setsum=tail.setsum_hex or ZERO,
        )
        return link, footer_text(streams, setsum_hex)

    link, data = fragments.encode(table, compression, vouch)
    if len(data) > FRAGMENT_BYTES_MAX:
        raise LimitError(
            f"a batch makes a fragment of {len(data)} bytes, the limit is {FRAGMENT_BYTES_MAX}",
            code=Code.TOO_LARGE,
            hint="append it in smaller batches",
        )
    seq_no = tail.next_seq_no
    pointer = fragments.pointer(link, seq_no, len(data))
    if path_of is not None:
        pointer = msgspec.structs.replace(
            pointer, path=path_of(link.start, link.limit, link.setsum)
        )
    return Flight(batch, seq_no, link, pointer, bool(content.extra), streams=streams), data


def judge(
    flights: Sequence[Flight],
    manifest: Manifest,
    tail: Tail,
    is_named: Callable[[Flight], bool],
) -> list[Fate]:
    """What became of each fragment of a chain, where the log now ends at `tail`."""
    fates = []
    is_dead = False
    is_sealed = manifest.seal is not None
    for flight in flights:
        is_collected = flight.seq_no < manifest.first_seq_no
        # A refused fragment is never the one the manifest names, however alike they are.
        is_dead = is_dead or flight.stage in {Stage.REFUSED, Stage.FAILED}
        if not is_dead and is_named(flight):
            fates.append(Fate.COMMITTED)
        elif is_dead or (not is_collected and (is_sealed or flight.seq_no < tail.next_seq_no)):
            is_dead = True
            fates.append(Fate.DEAD)
        else:
            fates.append(Fate.UNCERTAIN)
    return fates


def uncertain(chain: Sequence[Flight], cause: BaseException | None) -> UncertainError:
    """What the waiters of a chain's last fragment are told when nobody can know."""
    flight = chain[-1]
    error = UncertainError(
        f"records [{flight.link.start}, {flight.link.limit}) in slot {flight.seq_no} may or may "
        f"not be in the log: {str(cause) or repr(cause)}",
        write_id=flight.link.id,
        chain=tuple((f.link.start, f.link.id) for f in chain),
        hint=f"ask log.find_write(error) what became of write id {flight.link.id} "
        "before appending the same records again",
    )
    error.__cause__ = cause
    return error


def not_written(cause: BaseException) -> StoreError:
    """What waiters are told when their records were certainly not written."""
    known = cause if isinstance(cause, CordwoodError) else None
    error = StoreError(
        f"nothing was written: {known.message if known else repr(cause)}",
        code=known.code if known else None,
        hint=known.hint if known else "",
        transient=True,
    )
    error.__cause__ = cause
    return error
