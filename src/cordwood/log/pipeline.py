"""The pipeline: batches become fragments, fragments become durable, a manifest makes them visible.

::

    append ─▶ queue ─▶ build ─▶ put slot N     ─┐
                       build ─▶ put slot N + 1 ─┤ land in any order
                       build ─▶ put slot N + 2 ─┘
                                                └─▶ swap MANIFEST, naming the landed ones ─▶ wake

Several fragments fly at once; one manifest is swapped at a time and names every fragment that has
landed in order, so a slow put delays only what is behind it. The writer is self-clocked: the next
manifest goes out as soon as the last one landed, before anybody is woken. A companion, a fragment
with everything queued, goes out just ahead of it and lands in time for the manifest after.

An append is acknowledged when a manifest that names its fragment is durable: seen by our own swap
succeeding, or by reading it. There are two ways to fall out of this loop, and one way back:

  refused   a slot was taken, or the manifest replaced: another writer is at work
  unknown   the store did not answer in time, so a put may or may not have happened

**Settling** (`_settle`) is the way back: let everything land, load the manifest, adopt what follows
it, then judge every fragment of ours by facts that can no longer change (log/flight.py). Committed
ones are acknowledged, dead ones are written again with new ids behind the new tail, in their order;
only what nobody can know is reported as UncertainError. Afterwards one fragment flies at a time,
and the number grows back with each success.

What a crash leaves behind at each step:

  before a slot was taken     nothing; nobody was told anything
  slot taken, not named       an orphan: the next opener adopts it once, or passes it by for ever
  manifest swapped            the records are in the log; the caller may not have heard

A writer that finds the log **sealed** (log/seal.py) settles for the last time: what the sealed
manifest names is acknowledged, everything else was certainly not written, and the writer ends.

Whoever wants to know of new records before they are named (`before_naming`: the dirty log of a
fleet) is told before the first slot is taken on new ground, so should that fail, nothing was
written. Our own swaps continue that ground; somebody else's ends it.

A writer that has not seen its manifest for half the log's grace interval reads it again before it
takes a slot: a collection may have deleted old slots meanwhile (docs/formats/log.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import AlreadyExistsError, CordwoodError, StateError, StoreError
from cordwood.base.workers import in_worker
from cordwood.log import tree
from cordwood.log.answers import Answers
from cordwood.log.batch import Batch, Queue
from cordwood.log.flight import Fate, Flight, PathOf, Stage, build, judge, not_written, uncertain
from cordwood.log.folding import Folder
from cordwood.log.format import COLUMNS, Manifest
from cordwood.log.garbage import Garbage, Phase, apply, load_garbage
from cordwood.log.intents import Asker, TurnKeeper
from cordwood.log.objects import LogObjects
from cordwood.log.options import Options
from cordwood.log.pace import Pace
from cordwood.log.recovery import (
    BeforeNaming,
    Ground,
    Landed,
    Tail,
    find_ground,
    find_named,
    next_tag,
)
from cordwood.log.seal import replaced, sealed
from cordwood.log.tasks import Tasks
from cordwood.store.api import Buffer

INLINE_BYTES_MAX = 256 * 1024
"""Batches up to this are built on the event loop; larger ones in a thread, not to hold it up."""

UNNAMED_PER_SLOT = 4
"""Fragments above the manifest allowed for each fragment in the air."""

LOSSES_MAX = 3
"""Times in a row that all our fragments were refused before we ask for a turn."""

BACKOFF_S = 0.01
"""The first pause after a loss is up to twice this long; it doubles with each one."""


class Pipeline:
    """From a queue to a log. `pump` decides what starts; the rest says what came of it."""

    _is_chain = False

    _idle: asyncio.Future[None] | None = None
    """Done when nothing is left to do; made when somebody waits for that."""

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
        """At rest until `start`. `on_end` is called should it break down, or find the log sealed.

        Then it takes no more appends; a seal comes with the error to refuse them with.
        """
        self._before_naming = before_naming
        self._is_announced = False
        """Whether `before_naming` was awaited for the ground we stand on."""
        self._objects = objects
        self._options = options
        self._clock = clock
        self._entropy = entropy
        self._queue = queue
        self._on_end = on_end
        self._tasks = Tasks(self._break_down)
        self._loop: asyncio.AbstractEventLoop
        self._is_running = False
        self._due_s = float("-inf")
        """When the timer goes off, if there is one."""
        self.timer: asyncio.Handle | None = None
        """The next run of the pump; None if an event must bring it."""

        self._manifest: Manifest
        self._etag = ""
        self._validated_s = 0.0
        """When the manifest was last known to be ours to replace: the start of that request."""
        self._tail: Tail
        """What the next fragment will follow: the manifest's tail plus our chain above it."""

        self._flights: deque[Flight] = deque()
        """Our chain above the manifest, in slot order."""
        self._num_flying = 0
        self._nudge_us = 0
        """Added to the time of fragments, so that one whose name was taken gets another."""
        self._building: Batch | None = None
        """The batch that a thread is making a fragment of."""
        self._window = options.in_flight
        self._pace = Pace(options.batch_interval_s, options.throttle)

        self._answers = Answers(queue, self._pump)
        self._swapping: asyncio.Task[None] | None = None
        self._swap_s = 0.1
        """How long our swaps take, smoothed."""
        self._companion: Flight | None = None
        """The newest fragment when the last manifest went out: it lands about when that does."""
        self._linger_until_s = float("-inf")
        """Until then a manifest waits for the companion of the one before it."""
        self._folder = Folder(objects, self._tasks.spawn)

        self._settling: asyncio.Task[None] | None = None
        self._needs_ground = False
        """Whether we must settle before we take a slot."""
        self._has_settled = False
        """Whether nothing was put since the last settling: then there is no use in another."""
        self._losses = 0
        self._asker = Asker(objects, clock, entropy)
        self._turns = TurnKeeper(
            objects, clock, options.intent_interval_s, self._tasks.spawn, self._after_turn
        )

    async def start(self) -> None:
        """Recover and adopt, then run. Two GETs on a log at rest.

        Raises:
            StateError: the log is sealed.
        """
        self._loop = asyncio.get_running_loop()
        started_s = self._clock.monotonic_s()
        ground = await self._find_ground({})
        if ground.manifest.seal is not None:
            raise sealed(self._objects.name, ground.manifest.seal)
        self._stand_on(ground, started_s)
        self._is_running = True

    async def drain(self) -> None:
        """Wait until nothing is left to do, or nothing will be done any more."""
        while self._is_running and not self.is_idle:
            self._idle = idle = self._idle or self._loop.create_future()
            self._pump()  # Which may already do all that is left.
            await asyncio.shield(idle)

    async def stop(self) -> None:
        """Take no more work; end what goes on beside it."""
        self._is_running = False
        self._answers.tell_all()
        self._disarm()
        leftovers = [*self._folder.tasks, *([self._turns.task] if self._turns.task else [])]
        for task in leftovers:
            task.cancel()
        await asyncio.gather(*leftovers, return_exceptions=True)
        await self._asker.release()

    async def flush(self) -> None:
        """Wait until everything taken so far is durable or has failed, and all were told so."""
        flying = [flight.batch for flight in self._flights]
        batches = [*self._answers.batches, *flying, *self._queue.waiting()]
        if self._building is not None:
            batches.append(self._building)
        watches: list[asyncio.Future[None]] = []
        for batch in batches:
            watches.append(self._loop.create_future())
            batch.watchers.append(watches[-1])
        await asyncio.gather(*watches)

    # When to look.

    def arm(self) -> None:
        """Make sure the pump runs when what is queued is due."""
        if self.timer is None:
            if self._is_quiet():
                self.arm_now()
            else:
                self._arm_at(self._pace.next_part_s)

    def arm_now(self) -> None:
        """Run the pump soon: a whole batch waits."""
        self._disarm()
        self._due_s = float("-inf")
        self.timer = self._loop.call_soon(self._pump)

    def _arm_at(self, when_s: float) -> None:
        if self.timer is not None and self._due_s <= when_s:
            return
        self._disarm()
        self._due_s = when_s
        delay_s = max(0.0, when_s - self._clock.monotonic_s())
        self.timer = self._loop.call_later(delay_s, self._pump)

    def _disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # The pump decides what may start now. Plain functions; every event ends in one call of it.

    def _pump(self) -> None:
        self._disarm()
        if self._settling is not None or not self._is_running:
            return
        self._publish()
        self._launch()
        if self._is_quiet():
            self._turns.grant(self._etag, self._swap_s)
        if self._idle is not None and self.is_idle:
            self._idle.set_result(None)
            self._idle = None

    def _launch(self) -> None:
        """Start fragments: whole batches at once, a part of one when it has waited its time."""
        while self._queue and self._may_launch():
            if self._is_stale():
                self._start_settling()
                return
            if self._before_naming is not None and not self._is_announced:
                # Nothing of ours flies here: new ground is stood on when everything has landed.
                self._settling = self._tasks.spawn(self._announce, self._before_naming)
                return
            is_due = self._queue.has_full or self._is_quiet()
            due_s = self._pace.next_put_s if is_due else self._pace.next_part_s
            if due_s > self._clock.monotonic_s():
                self._arm_at(due_s)
                return
            self._start_flight()

    def _publish(self) -> None:
        """Start a manifest if one is due, with a companion just ahead of it."""
        if self._swapping is not None or not self._flights:
            return
        landed: list[Flight] = []
        for flight in self._flights:
            if flight.stage is not Stage.LANDED or len(landed) == tree.APPENDED_MAX:
                break
            landed.append(flight)
        if not landed:
            return
        companion = self._companion
        is_awaited = companion is not None and companion.stage is Stage.FLYING
        wait_s = max(self._pace.next_put_s, self._linger_until_s if is_awaited else 0.0)
        if wait_s > self._clock.monotonic_s():
            self._arm_at(wait_s)
            return
        if self._queue and self._may_launch() and not self._pace.is_throttled:
            self._start_flight()
        self._companion = self._flights[-1]
        self._pace.put(self._clock.monotonic_s())
        self._swapping = self._tasks.spawn(self._swap, landed)

    def _may_launch(self) -> bool:
        return (
            self._building is None
            and self._turns.asked is None
            and self._num_flying < self._window
            and len(self._flights) < (self._window - 1) * UNNAMED_PER_SLOT + 1
        )

    def _is_quiet(self) -> bool:
        """Whether nothing of ours is in the air or waits to be named."""
        return not self._flights and self._swapping is None and self._building is None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do, and nobody left to tell."""
        is_at_rest = self._settling is None and not self._answers
        return is_at_rest and not self._queue and self._is_quiet()

    def _is_stale(self) -> bool:
        """Whether the ground must be looked at again before a slot is taken."""
        unseen_s = self._clock.monotonic_s() - self._validated_s
        is_old = self._is_quiet() and unseen_s > self._manifest.grace_s / 2
        return self._needs_ground or (is_old and not self._has_settled)

    # Fragments.

    def _start_flight(self) -> None:
        self._has_settled = False
        batch = self._queue.take()
        self._pace.launch(self._clock.monotonic_s())
        given = (
            batch,
            self._tail,
            max(self._clock.now_us(), self._tail.at_us) + self._nudge_us,
            self._entropy.token(),
            self._options.compression,
            self._path_of(),
        )
        if batch.num_bytes > INLINE_BYTES_MAX:
            self._building = batch
            self._tasks.spawn(self._build_in_thread, batch, given)
            return
        try:
            flight, data = build(*given)
        except Exception as error:  # noqa: BLE001 - whatever it was, its waiters must hear of it
            self._spoiled(batch, error)
        else:
            self._fly(flight, data)

    def _path_of(self) -> PathOf | None:
        """How the next fragment is named; None for a slot."""
        return None

    async def _build_in_thread(self, batch: Batch, given: tuple[Any, ...]) -> None:
        try:
            flight, data = await in_worker(build, *given)
        except Exception as error:  # noqa: BLE001 - whatever it was, its waiters must hear of it
            if self._building is batch:
                self._building = None
                self._spoiled(batch, error)
        else:
            # Should the writer have given up meanwhile, the waiters were told so: nothing flies.
            if self._building is batch:
                self._building = None
                self._fly(flight, data)
        self._pump()

    def _spoiled(self, batch: Batch, error: BaseException) -> None:
        """A batch of which no fragment can be made: find out which part it is."""
        parts = batch.split()
        if len(parts) > 1:
            self._queue.take_back(parts)
        else:
            self._answers.tell(batch, error)

    def _fly(self, flight: Flight, data: Buffer) -> None:
        self._tail = self._tail.after(flight.link, flight.seq_no)
        self._flights.append(flight)
        self._num_flying += 1
        flight.task = self._tasks.spawn(self._put, flight, data)

    async def _put(self, flight: Flight, data: Buffer) -> None:
        try:
            await self._objects.put_fragment(flight.fragment.path, data)
            flight.stage = Stage.LANDED
        except AlreadyExistsError as error:
            flight.stage, flight.error = Stage.REFUSED, error
        except StoreError as error:
            flight.stage = Stage.UNKNOWN if error.applied else Stage.FAILED
            flight.error = error
        except CordwoodError as error:
            flight.stage, flight.error = Stage.UNKNOWN, error
        except BaseException as error:
            flight.stage, flight.error = Stage.UNKNOWN, error
            raise
        finally:
            self._num_flying -= 1
        if flight.stage is not Stage.LANDED:
            self._start_settling()
        self._pump()

    # Manifests.

    async def _swap(self, landed: list[Flight]) -> None:
        """Name the landed fragments; then start what can start; then wake who waits."""
        started_s = self._clock.monotonic_s()
        newest = landed[-1]
        tail = Tail.of(self._manifest).after(newest.link, newest.seq_no)
        manifest = tree.append(
            self._manifest,
            [flight.fragment for flight in landed],
            next_tag(self._manifest, tail, self._entropy),
            (COLUMNS,) if any(flight.has_columns for flight in landed) else (),
        )
        # One that is found while this swap is under way waits for the next.
        unlink = self._turns.unlink
        try:
            if unlink is not None:
                manifest = await self._without_garbage(manifest, unlink)
            self._folder.learn((flight.fragment, flight.streams) for flight in landed)
            manifest = self._folder.with_filters(self._folder.apply(manifest))
            self._folder.start(manifest)
            etag = await self._objects.swap(manifest, self._etag)
        except CordwoodError:
            self._swapping = None
            self._start_settling()
            return
        self._swapping = None
        self._manifest, self._etag, self._validated_s = manifest, etag, started_s
        now_s = self._clock.monotonic_s()
        self._swap_s += (now_s - started_s - self._swap_s) / 8
        self._linger_until_s = now_s + self._options.batch_interval_s / 2
        for _ in landed:
            self._flights.popleft()
        self._window = min(self._window + 1, self._options.in_flight)
        self._got_through()
        if unlink is not None:
            self._turns.unlinked(unlink)
        self._turns.look()
        self._pump()
        for flight in landed:
            self._answers.tell(flight.batch, flight.link.start)

    async def _without_garbage(self, manifest: Manifest, intent: str) -> Manifest:
        """The manifest without what a collection has marked, if it still fits. One GET.

        GARBAGE is read now, after the manifest that this one replaces: see log/collect.py, rule 2.
        """
        try:
            garbage, _ = await load_garbage(self._objects)
        except CordwoodError:
            # It is the collection's to report; it need not stop an append.
            return manifest
        if garbage.phase is not Phase.MARKED or not intent.endswith(garbage.nonce or "?"):
            return manifest
        if not await self._may_apply(garbage):
            return manifest
        return apply(manifest, garbage) or manifest

    async def _may_apply(self, garbage: Garbage) -> bool:
        """Whether it may be left out."""
        return True

    # Settling.

    def _start_settling(self) -> None:
        if self._settling is None:
            self._needs_ground = True
            self._settling = self._tasks.spawn(self._settle)

    async def _settle(self) -> None:
        """Find out where the log stands and what became of our fragments; then go on."""
        await self._let_land()
        try:
            if self._losses >= LOSSES_MAX:
                await self._asker.ask()
            elif self._losses:
                # Several newcomers at once: whoever waits longest lets the others through.
                await asyncio.sleep(self._entropy.uniform() * BACKOFF_S * 2**self._losses)
            ground, started_s = await self._settled_ground()
            await self._apply_fates(ground)
            self._stand_on(ground, started_s)
            self._window = 1
            if ground.manifest.seal is not None:
                self._end_sealed(sealed(self._objects.name, ground.manifest.seal))
            elif ground.manifest.chain is not None and not self._is_chain:
                self._end_sealed(replaced(self._objects.name))
            else:
                self._folder.start(ground.manifest)
        except CordwoodError as error:
            self._give_up(error)
        self._settling = None
        self._pump()

    async def _settled_ground(self) -> tuple[Ground, float]:
        """Where the log stands now that everything of ours has landed; and since when we know."""
        own = {f.seq_no: f.landed() for f in self._flights if f.stage is Stage.LANDED}
        while True:
            started_s = self._clock.monotonic_s()
            ground = await self._find_ground(own)
            if ground.named:
                return ground, started_s
            await self._asker.ask()

    async def _find_ground(self, own: dict[int, Landed]) -> Ground:
        told = self._before_naming
        return await find_ground(self._objects, self._entropy, own, self._folder.apply, told)

    async def _announce(self, before_naming: BeforeNaming) -> None:
        """Tell who wants to know, before the first slot on new ground is taken."""
        try:
            await before_naming(self._manifest.next_offset)
            self._is_announced = True
        except CordwoodError as error:
            self._give_up(error)
        self._settling = None
        self._pump()

    async def _let_land(self) -> None:
        while self._num_flying or self._swapping is not None or self._building is not None:
            tasks = [f.task for f in self._flights if f.task is not None and not f.task.done()]
            tasks += [self._swapping] if self._swapping is not None else []
            await (asyncio.wait(tasks) if tasks else asyncio.sleep(0.001))

    async def _judge(self, ground: Ground) -> list[Fate]:
        """What became of each of our fragments."""
        ours = [(flight.fragment, flight.link.id) for flight in self._flights]
        named = await find_named(self._objects, ground.manifest, ours)
        return judge(self._flights, ground.manifest, ground.tail, lambda f: f.seq_no in named)

    async def _apply_fates(self, ground: Ground) -> None:
        fates = await self._judge(ground)
        judged = list(zip(self._flights, fates, strict=True))
        self._flights.clear()
        dead = [f for f, fate in judged if fate is Fate.DEAD and f.stage is not Stage.FAILED]
        self._queue.take_back([flight.batch for flight in dead])
        if dead and Fate.COMMITTED not in fates:
            self._losses += 1
        else:
            self._got_through()
        doubtful: list[Flight] = []
        for flight, fate in judged:
            if fate is Fate.COMMITTED:
                self._answers.tell(flight.batch, flight.link.start)
            elif fate is Fate.UNCERTAIN:
                doubtful.append(flight)
                self._answers.tell(flight.batch, uncertain(doubtful, flight.error))
            elif flight.stage is Stage.FAILED and flight.error is not None:
                self._answers.tell(flight.batch, flight.error)

    def _stand_on(self, ground: Ground, started_s: float) -> None:
        is_same = self._is_announced and ground.etag == self._etag
        self._is_announced = ground.is_announced or is_same
        self._manifest, self._etag, self._tail = ground.manifest, ground.etag, ground.tail
        self._validated_s = started_s
        self._needs_ground = not ground.named
        self._has_settled = True
        self._companion = None

    def _got_through(self) -> None:
        self._losses = 0
        if self._asker.is_asking:
            self._tasks.spawn(self._asker.release)

    def _end_sealed(self, error: StateError) -> None:
        """Nothing that waits will ever be written: say so, and take no more."""
        self._on_end(error)
        self._answers.tell_all()
        self._got_through()
        for batch in self._queue.drain():
            self._answers.tell(batch, error)

    def _give_up(self, error: BaseException) -> None:
        """The store cannot be asked: tell what is known, and look again on the next append."""
        is_dead = False
        flights = list(self._flights)
        for i, flight in enumerate(flights):
            is_dead = is_dead or flight.stage in {Stage.REFUSED, Stage.FAILED}
            doubt = not_written(error) if is_dead else uncertain(flights[: i + 1], error)
            self._answers.tell(flight.batch, doubt)
        self._flights.clear()
        unwritten = self._queue.drain()
        if self._building is not None:
            unwritten.append(self._building)
            self._building = None
        for batch in unwritten:
            self._answers.tell(batch, not_written(error))
        self._needs_ground = True

    def _after_turn(self, was_granted: bool) -> None:
        """When somebody has had a turn the ground may have moved."""
        self._needs_ground = self._needs_ground or was_granted
        self._pump()

    def _break_down(self, error: BaseException) -> None:
        """A task of ours failed or was cancelled: nobody is left waiting, and the writer ends."""
        self._is_running = False
        self._on_end(None)
        self._answers.tell_all()
        self._swapping = self._settling = None
        self._give_up(error)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
