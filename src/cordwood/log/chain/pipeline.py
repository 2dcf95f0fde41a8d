"""The pipeline of a chain log: several manifests in the air, each behind the one sent before it.

::

    append ─▶ queue ─▶ build ─▶ put shard01/… ─┐
                       build ─▶ put shard02/… ─┤ land in any order
                       build ─▶ put shard01/… ─┘
                                               └─▶ create MANIFEST(i)     ─┐ land in any order;
                                                   create MANIFEST(i + 1) ─┤ an append is answered
                                                   create MANIFEST(i + 2) ─┘ when all before landed

What differs from a cas log (log/pipeline.py), which this extends:

1. A fragment is nothing until a manifest names it; nobody adopts it. So a fragment that failed is
   simply written again, under another name.
2. A manifest is sent when fragments have landed, up to `alpha` of them at once, and at a pace that
   spreads them over the time one takes. It names its predecessor, which may still be in the air.
3. Settling: when one was refused or is in doubt, all land, and the chain is read. If what is in
   doubt could still become part of it, a manifest of ours that changes nothing takes the free name
   (`fence`): whoever is refused there, and everything behind it, is void for ever. Then every
   fragment that the chain names is acknowledged, and the others are written again.
4. An answer that came later than half the grace interval after we knew the name to be free is in
   doubt, however it sounds: names are freed by collection (log/chain/chain.py).

What a crash leaves behind: fragments that nobody names, and manifests that nothing links to; both
go with a collection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import ConflictError, CordwoodError, StateError, StoreError
from cordwood.log import tree
from cordwood.log.batch import Queue
from cordwood.log.chain import names
from cordwood.log.chain.chain import Chain, Head, successor, write_id
from cordwood.log.chain.document import ChainLink, Known
from cordwood.log.chain.verifier import is_offered
from cordwood.log.flight import Fate, Flight, PathOf, Stage, not_written, uncertain
from cordwood.log.format import COLUMNS, Manifest
from cordwood.log.garbage import Garbage
from cordwood.log.objects import Loaded, LogObjects
from cordwood.log.options import Options
from cordwood.log.pipeline import Pipeline
from cordwood.log.recovery import (
    BeforeNaming,
    Ground,
    Landed,
    Tail,
    fence,
    find_named,
    next_tag,
)


@dataclass(slots=True, eq=False)
class Sent:
    """A manifest on its way."""

    manifest: Manifest
    link: ChainLink
    flights: list[Flight]
    unlink: str | None
    """The collection's intent that it fulfils."""
    known_s: float
    known_us: int
    """When we knew last that its name was free."""
    stage: Stage = Stage.FLYING
    task: asyncio.Task[Any] | None = None


class ChainPipeline(Pipeline):
    """From a queue to a chain log."""

    _is_chain = True

    def __init__(
        self,
        objects: LogObjects,
        options: Options,
        clock: Clock,
        entropy: Entropy,
        queue: Queue,
        on_end: Callable[[StateError | None], None],
        before_naming: BeforeNaming | None = None,
    ) -> None:
        """At rest until `start`; as `Pipeline` otherwise."""
        super().__init__(objects, options, clock, entropy, queue, on_end, before_naming)
        self._sent: deque[Sent] = deque()
        """Manifests that are not durable, or behind one that is not, in their order."""
        self._num_sent = 0
        """Fragments that these name: the oldest of our flights."""
        self._sent_s = float("-inf")
        """When the last one went out."""
        self._tip: Manifest
        """The newest manifest sent, or the one we stand on."""
        self._place = 0
        """The name of the next one."""
        self._top = 0
        """The highest name there was when we looked."""
        self._known: Known
        self._known_us = 0
        self._counters: list[int] = []
        """The next number in each shard, with what is in the air."""
        self._width = 1
        self._shard = 0
        """The shard that got the last fragment."""

    @property
    def _chain(self) -> Chain:
        chain = self._objects.chain
        assert chain is not None
        return chain

    # Fragments.

    def _path_of(self) -> PathOf | None:
        """The next shard in turn, and the next number there."""
        self._shard = self._shard % self._width + 1
        seq_no = self._counters[self._shard - 1]
        self._counters[self._shard - 1] += 1
        return partial(names.fragment, self._shard, seq_no)

    # Manifests.

    def _publish(self) -> None:
        """Send manifests, as many as are due."""
        while self._swapping is None:
            landed = self._landed()
            room = self._place - self._known.undecided < self._options.alpha
            if not landed or not room or len(self._sent) >= self._options.alpha:
                return
            if self._age_s(self._validated_s, self._known_us) > self._manifest.grace_s / 2:
                self._start_settling()
                return
            spread_s = self._sent_s + self._swap_s / self._options.alpha if self._sent else 0.0
            wait_s = max(self._pace.next_put_s, spread_s)
            if wait_s > self._clock.monotonic_s():
                self._arm_at(wait_s)
                return
            unlink = self._turns.unlink
            if unlink is None:
                self._send(landed, self._tip)
            elif self._sent:
                # GARBAGE is to be read when everything before is durable: log/collect.py, rule 2.
                return
            else:
                self._swapping = self._tasks.spawn(self._send_smaller, landed, unlink)

    def _landed(self) -> list[Flight]:
        """Fragments that landed in order, and that no manifest names yet."""
        landed: list[Flight] = []
        for i, flight in enumerate(self._flights):
            if i < self._num_sent:
                continue
            if flight.stage is not Stage.LANDED or len(landed) == tree.APPENDED_MAX:
                break
            landed.append(flight)
        return landed

    async def _send_smaller(self, landed: list[Flight], intent: str) -> None:
        """Send a manifest without what a collection has marked."""
        smaller = await self._without_garbage(self._tip, intent)
        self._swapping = None
        if self._settling is None:
            self._send(landed, smaller, intent)
        self._pump()

    async def _may_apply(self, garbage: Garbage) -> bool:
        """Only if the new beginning is offered, and is the one that the garbage says. One GET."""
        try:
            return await is_offered(self._objects, garbage)
        except CordwoodError:
            return False

    def _send(self, landed: list[Flight], base: Manifest, unlink: str | None = None) -> None:
        newest = landed[-1]
        tail = Tail.of(base).after(newest.link, newest.seq_no)
        features = (COLUMNS,) if any(flight.has_columns for flight in landed) else ()
        manifest = tree.append(
            base,
            [flight.fragment for flight in landed],
            next_tag(base, tail, self._entropy),
            features,
        )
        self._folder.learn((flight.fragment, flight.streams) for flight in landed)
        manifest = self._folder.with_filters(self._folder.apply(manifest))
        self._folder.start(manifest)
        before = self._tip.chain
        assert before is not None
        link = ChainLink(
            index=self._place,
            next=names.manifest(max(self._place, self._top) + 1),
            known=self._known,
            alpha=self._options.alpha,
            shards=_count(before.shards, landed, self._width),
            width=self._width,
        )
        made = successor(manifest, self._tip, link)
        sent = Sent(made, link, landed, unlink, self._validated_s, self._known_us)
        self._tip, self._place = made, link.next_index
        self._sent.append(sent)
        self._num_sent += len(landed)
        self._sent_s = self._clock.monotonic_s()
        self._pace.put(self._sent_s)
        sent.task = self._tasks.spawn(self._put_manifest, sent)

    async def _put_manifest(self, sent: Sent) -> None:
        started_s, started_us = self._clock.monotonic_s(), self._clock.now_us()
        sent.stage = Stage.UNKNOWN
        try:
            is_ours = await self._chain.put(sent.manifest)
            sent.stage = Stage.LANDED if is_ours else Stage.REFUSED
        except StoreError as error:
            if not error.applied:
                sent.stage = Stage.FAILED
        except CordwoodError:
            pass
        is_late = self._age_s(sent.known_s, sent.known_us) > self._manifest.grace_s / 2
        if sent.stage is Stage.LANDED and is_late:
            sent.stage = Stage.UNKNOWN
        if sent.stage is not Stage.LANDED:
            self._start_settling()
            self._pump()
            return
        self._swap_s += (self._clock.monotonic_s() - started_s - self._swap_s) / 8
        durable = self._advance(started_s, started_us)
        if durable:
            self._window = min(self._window + 1, self._options.in_flight)
            self._nudge_us = 0
            self._got_through()
            self._turns.look()
        self._pump()
        for flight in durable:
            self._answers.tell(flight.batch, flight.link.start)

    def _advance(self, started_s: float, started_us: int) -> list[Flight]:
        """Stand on the newest manifest before which all are durable; the fragments that now are."""
        durable: list[Flight] = []
        while self._sent and self._sent[0].stage is Stage.LANDED:
            sent = self._sent.popleft()
            write = write_id(sent.manifest)
            self._manifest, self._etag = sent.manifest, f"{sent.link.index:x}.{write}"
            self._known = Known(sent.link.index, write, sent.link.next_index)
            self._validated_s, self._known_us = started_s, started_us
            durable += sent.flights
            if sent.unlink is not None:
                self._turns.unlinked(sent.unlink)
        for _ in durable:
            self._flights.popleft()
        self._num_sent -= len(durable)
        return durable

    # Settling.

    async def _let_land(self) -> None:
        await super()._let_land()
        tasks = [sent.task for sent in self._sent if sent.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def _find_ground(self, own: dict[int, Landed]) -> Ground:
        head = await self._chain.head()
        # A power cut must not take away what we build on.
        await self._objects.store.sync(head.seen)
        self._ground_head = head
        return Ground(head.manifest, head.etag, Tail.of(head.manifest), named=True)

    async def _settled_ground(self) -> tuple[Ground, float]:
        is_fenced = False
        while True:
            ground = await self._find_ground({})
            self._named = await self._find_named(ground.manifest)
            if is_fenced or not self._is_open():
                return ground, self._ground_head.read_s
            with suppress(ConflictError):
                await fence(self._objects, self._entropy, Loaded(ground.manifest, ground.etag))
                is_fenced = True

    async def _find_named(self, manifest: Manifest) -> set[int]:
        sent = [flight for one in self._sent for flight in one.flights]
        ours = [(flight.fragment, flight.link.id) for flight in sent]
        return await find_named(self._objects, manifest, ours)

    def _is_open(self) -> bool:
        """Whether a manifest of ours is not part of the chain, and could still become so."""
        for sent in self._sent:
            if not all(flight.seq_no in self._named for flight in sent.flights):
                return sent.stage not in {Stage.REFUSED, Stage.FAILED}
        return False

    async def _judge(self, ground: Ground) -> list[Fate]:
        maybe = self._maybe_named()
        fates = []
        for i, flight in enumerate(self._flights):
            if i < self._num_sent and flight.seq_no in self._named:
                fates.append(Fate.COMMITTED)
            elif i < maybe and flight.link.start < ground.manifest.oldest_offset:
                # The place where the proof would stand is gone.
                fates.append(Fate.UNCERTAIN)
            else:
                fates.append(Fate.DEAD)
            if flight.stage is Stage.REFUSED:
                self._nudge_us += 1
        self._sent.clear()
        self._num_sent = 0
        return fates

    def _maybe_named(self) -> int:
        """How many of our fragments may be named by a manifest that was not surely refused."""
        count = 0
        for sent in self._sent:
            if sent.stage in {Stage.REFUSED, Stage.FAILED}:
                break
            count += len(sent.flights)
        return count

    def _stand_on(self, ground: Ground, started_s: float) -> None:
        super()._stand_on(ground, started_s)
        head = self._ground_head
        link = ground.manifest.chain
        assert link is not None
        self._tip = ground.manifest
        self._place, self._top, self._known = head.free, head.top, head.known
        self._known_us = head.read_us
        self._width = self._options.shards or link.width
        self._counters = [*link.shards, *[1] * (self._width - len(link.shards))]
        self._sent.clear()
        self._num_sent = 0

    def _give_up(self, error: BaseException) -> None:
        maybe, flights = self._maybe_named(), list(self._flights)
        for i, flight in enumerate(flights):
            doubt = uncertain(flights[: i + 1], error) if i < maybe else not_written(error)
            self._answers.tell(flight.batch, doubt)
        self._flights.clear()
        self._sent.clear()
        self._num_sent = 0
        super()._give_up(error)

    def _age_s(self, then_s: float, then_us: int) -> float:
        return self._chain.age_s(then_s, then_us)

    _ground_head: Head
    """What the ground was made of."""
    _named: set[int]
    """Which of our fragments the chain names, by their numbers."""


def _count(shards: Sequence[int], landed: Sequence[Flight], width: int) -> tuple[int, ...]:
    """The counters when these fragments are named."""
    counters = [*shards, *[1] * (width - len(shards))]
    for flight in landed:
        name = names.parse_fragment(flight.fragment.path)
        assert name is not None
        counters[name.shard - 1] = name.seq_no + 1
    return tuple(counters)
