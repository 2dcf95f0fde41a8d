"""Collection: free what no cursor needs, in three steps that can each be repeated.

::

    mark     read cursors and manifest ─▶ write GARBAGE: what goes, with a nonce
    unlink   read the cursors again ─▶ a manifest without it ─▶ GARBAGE says so
    sweep    a grace interval later, by the store's clock: prove that nothing refers to it,
             delete what no pin and no fork holds (log/deletion.py) ─▶ GARBAGE is empty

Why nothing that is needed can go:

1. A cursor, pin or fork that is made, or moves back, while this goes on was either there when the
   cursors were read again, after GARBAGE was written, or reads GARBAGE itself, after it was
   written, and withdraws (log/cursors.py, log/holds.py).
2. A garbage is applied only by who read GARBAGE *after* the manifest that it replaces. So once a
   garbage was cancelled and the manifest replaced since, nobody can apply it any more; only then
   GARBAGE becomes empty.
3. Whatever is deleted begins before `initial_offset`, and its slot is below `initial_seq_no`: no
   manifest can name it again. A slot above is never touched, however old it is: its writer may be
   asleep.
4. A reader that holds an older manifest, and a writer that has not looked for a while, have the
   grace interval to finish.

Crash at any point and the next collection goes on from what GARBAGE says. Two collections at once
take turns by compare-and-swap; deleting twice is deleting once. The cost is one request for each
thing deleted and a few for each level of the tree.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    StateError,
)
from cordwood.base.given import given_number
from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.chain import names
from cordwood.log.chain.sweep import ChainSweeper
from cordwood.log.chain.verifier import verify
from cordwood.log.cursors import Cursors
from cordwood.log.cut import Cut, fragments_below, make_cut, nodes_below
from cordwood.log.deletion import Deleter, Held, Progress, Slots
from cordwood.log.format import BULK, Manifest, Position, encode
from cordwood.log.garbage import (
    Garbage,
    GarbageExtension,
    GarbageSeen,
    Phase,
    Upload,
    apply,
    empty,
    is_applied,
    load_garbage,
)
from cordwood.log.holds import let_go, store_time_us
from cordwood.log.intents import UNLINK, Asker
from cordwood.log.objects import LogObjects
from cordwood.log.recovery import Tail, check_has_tail, have_replaced, next_tag
from cordwood.log.uploads import sweep_uploads
from cordwood.store.api import Match, PutMode
from cordwood.store.timekeeping import age_us

FRAGMENTS_MAX = 10_000
"""Fragments that one pass frees, about: GARBAGE, and what a crash repeats, stay small."""

TRIES_MAX = 5
"""Times a pass begins again because the log changed under it."""


@dataclass(slots=True)
class CollectReport:
    """What a collection did, and how far it came."""

    phase: Phase = Phase.EMPTY
    """Of what is being collected; `unlinked` if the grace interval still runs."""
    oldest_offset: int = 1
    """The first record that can be read."""
    records: int = 0
    """Taken out of the log."""
    bytes: int = 0
    setsum: Setsum = field(default_factory=Setsum)
    """The sum of the records taken out."""
    deleted: int = 0
    """Objects deleted; a few of them may not have been there."""
    held: list[str] = field(default_factory=list)
    """Which pins and forks kept something from being deleted."""
    due_s: float = 0.0
    """How long until what was unlinked may be deleted."""
    skipped: str = ""
    """What was left undone because something is damaged, if anything was."""
    gave_up: bool = False
    """Whether there was something to free, and the log changed under every try."""


class Collector:
    """Collects one log. Holds no state: everything is in the store."""

    def __init__(
        self,
        objects: LogObjects,
        clock: Clock,
        entropy: Entropy,
        *,
        progress: Progress | None = None,
    ) -> None:
        """No I/O."""
        self._objects = objects
        self._clock = clock
        self._entropy = entropy
        self._cursors = Cursors(objects, clock, entropy)
        self._progress = progress

    # Mark.

    async def mark(
        self,
        *,
        keep_from: int | None = None,
        max_fragments: int = FRAGMENTS_MAX,
        max_share: float = 1.0,
    ) -> Garbage:
        """Write down what goes; what is written down already is left as it is, if it may go.

        Raises:
            StateError: the log has no cursor, or more than `max_share` of its bytes would go.
        """
        _check_limits(keep_from, max_fragments, max_share)
        for _ in range(TRIES_MAX):
            seen = await self._load()
            if _takes_too_much(seen.garbage, keep_from):
                await self._cancel(seen)
                continue
            if seen.garbage.is_pending:
                return await self._verify(seen, max_share)
            manifest, etag = await self._objects.load()
            check_has_tail(self._objects.name, manifest)
            cutoff = await self._cutoff(keep_from)
            try:
                cut = await make_cut(
                    self._objects, manifest, cutoff, manifest.writer, max_fragments
                )
                if cut is None:
                    return seen.garbage
                _check_share(cut, manifest, max_share)
                garbage = await self._garbage(cut, manifest, etag)
            except CorruptionError as error:
                # We slept, and others have collected what we were about to look at.
                if await self._objects.has_passed(manifest.oldest_offset, error):
                    continue
                raise
            with suppress(ConflictError, AlreadyExistsError):
                put = await self._put(garbage, seen.etag)
                return await self._verify(GarbageSeen(garbage, put), max_share)
        raise _busy(self._objects.name)

    async def _verify(self, seen: GarbageSeen, max_share: float) -> Garbage:
        """Second step of a chain log: look at everything again, and offer the new beginning.

        What speaks against it ends it: nobody may unlink what was only listed. Of two one decides.

        Raises:
            StateError: too much would go.
        """
        garbage, etag = seen
        if garbage.phase is not Phase.LISTED:
            return garbage
        try:
            name = await verify(self._objects, self._cursors, garbage, max_share)
        except (CorruptionError, StateError):
            with suppress(ConflictError):
                await self._put(empty(self._entropy.token()), etag)
            raise
        done = garbage.in_phase(Phase.MARKED, name) if name else empty(self._entropy.token())
        with suppress(ConflictError):
            await self._put(done, etag)
            return done
        return (await self._load()).garbage

    async def _cutoff(self, keep_from: int | None) -> int:
        """The first offset that somebody needs."""
        cursors = await self._cursors.list()
        if not cursors:
            raise StateError(
                f"log {self._objects.name!r} has no cursor, so nothing says what may go",
                code=Code.NO_CURSOR,
                hint="make one with cursors.init(name, offset), or `cordwood log cursor set`: what "
                "lies before every cursor goes",
            )
        first = min(cursors.values(), key=lambda witness: witness.offset)
        # Read after the cursors: a mistyped one must not let go what is not even written.
        end = (await self._objects.load()).manifest.next_offset
        if first.offset > end:
            raise StateError(
                f"log {self._objects.name!r}: the cursor {first.name!r} stands at {first.offset}, "
                f"behind the end of the log, {end}",
                hint=f"move it to {end} or before",
            )
        return first.offset if keep_from is None else min(first.offset, keep_from)

    async def _garbage(self, cut: Cut, manifest: Manifest, etag: str) -> Garbage:
        stay = {pointer.path for pointer in cut.kept} | {node.path for node in cut.made}
        # A writer may have made nodes over what goes and not named them: it closed, or is about to.
        unnamed = [node.pointer() for node in tree.fold(manifest, manifest.writer)]
        drop = [*await nodes_below(self._objects, cut.dropped), *cut.replaced]
        drop += [pointer for pointer in unnamed if pointer.start < cut.first_to_keep]
        garbage = Garbage(
            nodes_to_drop=tuple({p.path: p for p in drop if p.path not in stay}.values()),
            nodes_to_make=tuple(cut.made),
            node_for_root=cut.node_for_root,
            drop_start=manifest.first_seq_no,
            drop_limit=cut.first_seq_no,
            discard_hex=cut.discarded.hexdigest(),
            first_to_keep=Position(cut.first_to_keep),
            cordwood=GarbageExtension(
                self._entropy.token(),
                Phase.MARKED if manifest.chain is None else Phase.LISTED,
                etag,
                uploads=await self._uploads(cut, manifest) or UNSET,
            ),
        )
        if apply(manifest, garbage) is None:
            raise CorruptionError(
                f"log {self._objects.name!r}: what would be collected does not balance",
                hint="run `cordwood log scrub`; nothing was changed",
            )
        return garbage

    async def _uploads(self, cut: Cut, manifest: Manifest) -> tuple[Upload, ...]:
        """Files that go and whose names do not follow from their slots."""
        if BULK not in manifest.features and manifest.chain is None:
            return ()
        gone = await fragments_below(self._objects, cut.dropped)
        return tuple(
            Upload(f.path, f.seq_no)
            for f in gone
            if paths.is_bulk(f.path) or paths.is_in_shard(f.path)
        )

    # Unlink.

    async def unlink(self) -> Garbage:
        """Take what is marked out of the manifest; what cannot be is cancelled.

        A live writer does it with its next manifest; we do it if there is none.
        """
        for _ in range(TRIES_MAX):
            seen = await self._load()
            garbage = seen.garbage
            if garbage.phase is Phase.CANCELLED:
                return await self._cancel(seen)
            if garbage.phase is not Phase.MARKED:
                return garbage
            first = garbage.first_to_keep.offset
            cursors = await self._cursors.list()
            # What was seen must survive a power cut, or a cursor could be back before the cut.
            await self._objects.sync([paths.cursor(name) for name in cursors])
            positions = [witness.offset for witness in cursors.values()]
            if not positions or min(positions) < first:
                return await self._cancel(seen)
            with suppress(ConflictError):
                if not await self._replace_manifest(garbage):
                    return await self._cancel(seen)
                done = garbage.in_phase(Phase.UNLINKED)
                await self._put(done, seen.etag)
                return done
        raise _busy(self._objects.name)

    async def _replace_manifest(self, garbage: Garbage) -> bool:
        """Whether the log is past the garbage now; False if it does not fit any more."""
        asker = Asker(self._objects, self._clock, self._entropy, UNLINK, garbage.nonce)
        try:
            while True:
                manifest, etag = await self._objects.load()
                if is_applied(manifest, garbage):
                    return True
                # Rule 2: after the manifest.
                now = (await self._load()).garbage
                if now.nonce != garbage.nonce or now.phase is not Phase.MARKED:
                    raise ConflictError("another collection went on")
                smaller = apply(manifest, garbage)
                if smaller is None:
                    return False
                tag = next_tag(manifest, Tail.of(manifest), self._entropy)
                smaller = msgspec.structs.replace(smaller, writer=str(tag))
                try:
                    await self._objects.swap(smaller, etag)
                except ConflictError:
                    await asker.ask()
                else:
                    return True
        finally:
            await asker.release()

    async def _cancel(self, seen: GarbageSeen) -> Garbage:
        """Give a garbage up: it stays in the log. Returns how it ended."""
        garbage, etag = seen
        with suppress(ConflictError):
            if garbage.phase is Phase.LISTED:
                nothing = empty(self._entropy.token())
                await self._put(nothing, etag)
                return nothing
            if garbage.phase is Phase.MARKED:
                garbage = garbage.in_phase(Phase.CANCELLED)
                etag = await self._put(garbage, etag)
            before = await self._objects.load()
            manifest = before.manifest
            if not is_applied(manifest, garbage):
                manifest = await have_replaced(self._objects, self._entropy, before)
            if is_applied(manifest, garbage):
                # Somebody did it before it was cancelled.
                garbage = garbage.in_phase(Phase.UNLINKED)
            else:
                garbage = empty(self._entropy.token())
            await self._put(garbage, etag)
            return garbage
        return (await self._load()).garbage

    async def take_over(self) -> None:
        """End a collection that another program began and will never finish; ours are left alone.

        It is given up like one of our own: what the log is past already is swept a grace interval
        from now, anything else stays in the log. While the other program runs, nobody can stop it
        from doing the rest of its work, so only a person can know that this is safe.
        """
        garbage, etag = await load_garbage(self._objects)
        if garbage.is_foreign:
            check_has_tail(self._objects.name, (await self._objects.load()).manifest)
            ours = GarbageExtension(self._entropy.token(), Phase.MARKED)
            garbage = msgspec.structs.replace(garbage, cordwood=ours)
            await self._cancel(GarbageSeen(garbage, etag))

    # Sweep.

    async def sweep(
        self, *, grace_s: float = 0.0, rate: float | None = None
    ) -> tuple[Garbage, CollectReport]:
        """Delete what was unlinked, once the grace interval has passed.

        Args:
            grace_s: wait at least so long; the log's own grace interval holds in any case.
            rate: objects deleted per second at most.
        """
        _check_pace(grace_s, rate)
        report = CollectReport()
        garbage, etag = await self._load()
        if garbage.phase is not Phase.UNLINKED:
            return garbage, report
        manifest, _ = await self._objects.load()
        report.due_s = await self._due_s(max(manifest.grace_s, grace_s))
        if report.due_s > 0:
            return garbage, report
        # Somebody else's swap may be seen before it is durable: then a power cut would bring back
        # a manifest that names what is deleted now.
        await self._objects.sync([paths.MANIFEST])
        await self._prove(manifest, garbage)
        first_own = manifest.ancestors[-1].seq_no if manifest.ancestors else 0
        slots = Slots(max(garbage.drop_start, first_own), max(garbage.drop_limit, first_own))
        deleter = Deleter(self._objects, self._entropy, rate=rate, progress=self._progress)
        uploads = tuple(u for u in garbage.uploads if u.seq_no >= first_own)
        gone = Held(
            log=manifest.incarnation,
            slots=(slots,) if manifest.chain is None else (),
            nodes=garbage.nodes_to_drop,
            uploads=uploads,
        )
        await deleter.delete(gone, garbage.nonce)
        if garbage.prefix:
            await self._objects.store.delete([self._objects.key(names.prefix(garbage.prefix))])
        report.deleted, report.held = deleter.done.count, deleter.done.held
        place = garbage.first_to_keep.offset, garbage.drop_limit
        await let_go(self._objects, self._entropy, manifest, *place)
        with suppress(ConflictError):
            await self._put(empty(self._entropy.token()), etag)
        return garbage, report

    async def _due_s(self, grace_s: float) -> float:
        """How long until what was unlinked may be deleted, by the store's clock."""
        due_s = 0.0
        unlinked_us = (await self._objects.store.head(self._objects.key(paths.GARBAGE))).modified_us
        for surely in (False, True):
            now_us = await store_time_us(self._objects, self._entropy, surely=surely)
            due_s = grace_s - age_us(unlinked_us, now_us) / 1_000_000
            if due_s > 0:
                break
        return max(0.0, due_s)

    async def _prove(self, manifest: Manifest, garbage: Garbage) -> None:
        """Raise unless nothing can refer to what is deleted."""
        first = garbage.first_to_keep.offset
        named = {pointer.path for pointer in tree.roots(manifest)}
        wrong = [p.path for p in garbage.nodes_to_drop if p.path in named or p.start >= first]
        if not is_applied(manifest, garbage) or manifest.first_seq_no < garbage.drop_limit or wrong:
            raise CorruptionError(
                f"log {self._objects.name!r}: the manifest still needs what GARBAGE says is "
                f"unlinked: oldest offset {manifest.oldest_offset}, first to keep {first}, "
                f"nodes {wrong[:3]}",
                hint="nothing was deleted; another program may have replaced the manifest",
            )
        for witness in (await self._cursors.list()).values():
            if witness.offset < first and witness.is_proved:
                raise StateError(
                    f"log {self._objects.name!r}: the cursor {witness.name!r} stands at "
                    f"{witness.offset}, before the collected point {first}",
                    hint="nothing was deleted; find out who moved it back without a check, then "
                    f"move it to {first} or later",
                )

    async def _let_go(self) -> None:
        """Let the ancestors of a fork free what it does not need, once nothing is being collected.

        GARBAGE is read after the manifest: if it is empty, what that manifest is past was swept.
        """
        manifest, _ = await self._objects.load()
        if manifest.ancestors and not (await self._load()).garbage.is_pending:
            place = manifest.oldest_offset, manifest.first_seq_no
            await let_go(self._objects, self._entropy, manifest, *place)

    async def sweep_held(self, *, rate: float | None = None) -> CollectReport:
        """Delete what was left: because it was held, and is no more, or as an old upload."""
        deleter = Deleter(self._objects, self._entropy, rate=rate, progress=self._progress)
        await deleter.delete_held((await self._load()).garbage.nonce)
        await self._let_go()
        report = CollectReport(deleted=deleter.done.count, held=deleter.done.held)
        left = ChainSweeper(self._objects, self._entropy, rate=rate, progress=self._progress)
        await left.sweep()
        report.deleted += left.count
        try:
            report.deleted += await sweep_uploads(self._objects, self._entropy)
        except CorruptionError as error:
            # A damaged node hides what it names; what can be collected need not wait for that.
            report.skipped = f"uploads were not swept: {error.message}"
        return report

    # All of it.

    async def collect(
        self,
        *,
        keep_from: int | None = None,
        max_fragments: int = FRAGMENTS_MAX,
        max_share: float = 1.0,
        grace_s: float = 0.0,
        rate: float | None = None,
        wait_s: float = 5.0,
        take_over: bool = False,
    ) -> CollectReport:
        """One pass: finish what was begun, then free what can be freed now.

        It waits for the grace interval only if that takes `wait_s` at most; otherwise the report
        says when to come back, and the next collection goes on.
        """
        _check_limits(keep_from, max_fragments, max_share)
        _check_pace(grace_s, rate)
        total = CollectReport()
        before, _ = await self._objects.load()
        if take_over:
            await self.take_over()
        _add(total, await self.sweep_held(rate=rate))
        _, swept = await self.sweep(grace_s=grace_s, rate=rate)
        _add(total, swept)
        garbage = (await self._load()).garbage
        for _ in range(TRIES_MAX):
            if garbage.phase is Phase.UNLINKED:
                break
            garbage = await self.mark(
                keep_from=keep_from, max_fragments=max_fragments, max_share=max_share
            )
            if not garbage.is_pending:
                break
            garbage = await self.unlink()
        else:
            total.gave_up = garbage.phase is not Phase.UNLINKED
        _, swept = await self.sweep(grace_s=grace_s, rate=rate)
        while 0 < swept.due_s <= wait_s:
            # The store's clock may count in whole seconds, so once may not be enough.
            wait_s -= swept.due_s
            await asyncio.sleep(swept.due_s)
            _, swept = await self.sweep(grace_s=grace_s, rate=rate)
        _add(total, swept)
        after, _ = await self._objects.load()
        total.phase = Phase.UNLINKED if total.due_s > 0 else Phase.EMPTY
        total.oldest_offset = after.oldest_offset
        total.records = after.oldest_offset - before.oldest_offset
        total.bytes = _bytes_of(before) + (after.acc_bytes - before.acc_bytes) - _bytes_of(after)
        total.setsum = Setsum.from_hex(after.collected_hex) - Setsum.from_hex(before.collected_hex)
        return total

    # One step at a time.

    async def step_mark(
        self, keep_from: int | None, max_fragments: int, max_share: float
    ) -> CollectReport:
        """`mark`, with a report."""
        garbage = await self.mark(
            keep_from=keep_from, max_fragments=max_fragments, max_share=max_share
        )
        return await self._report(garbage.phase, garbage)

    async def step_unlink(self) -> CollectReport:
        """`unlink`, with a report."""
        garbage = await self.unlink()
        return await self._report(garbage.phase, garbage)

    async def step_sweep(self, grace_s: float, rate: float | None) -> CollectReport:
        """`sweep`, with a report."""
        total = CollectReport()
        _add(total, await self.sweep_held(rate=rate))
        garbage, swept = await self.sweep(grace_s=grace_s, rate=rate)
        _add(total, swept)
        phase = garbage.phase if swept.due_s > 0 else (await self._load()).garbage.phase
        report = await self._report(phase, garbage)
        _add(report, total)
        return report

    async def _report(self, phase: Phase, garbage: Garbage) -> CollectReport:
        manifest, _ = await self._objects.load()
        report = CollectReport(phase, manifest.oldest_offset)
        report.setsum = Setsum.from_hex(garbage.discard_hex)
        return report

    # Below.

    async def _load(self) -> GarbageSeen:
        seen = await load_garbage(self._objects)
        if seen.garbage.is_foreign:
            raise StateError(
                f"log {self._objects.name!r} is being collected by another program, whose work is "
                f"in {self._objects.key(paths.GARBAGE)}",
                hint="let it finish; if it never will, make sure that it does not run any more, "
                "and collect with take_over=True or `cordwood log collect --take-over`",
            )
        return seen

    async def _put(self, garbage: Garbage, etag: str) -> str:
        key = self._objects.key(paths.GARBAGE)
        mode: PutMode = Match(etag) if etag else "create"
        return await self._objects.store.put(key, encode(garbage, key), mode)


def _check_share(cut: Cut, manifest: Manifest, max_share: float) -> None:
    total = _bytes_of(manifest)
    share = sum(pointer.num_bytes for pointer in cut.dropped) / total if total else 0.0
    if share > max_share:
        raise StateError(
            f"{share:.0%} of the log's bytes would go, the limit is {max_share:.0%}",
            code=Code.LIMIT,
            hint="raise the limit if that is what you want",
        )


def _check_limits(keep_from: int | None, max_fragments: int, max_share: float) -> None:
    if keep_from is not None and (type(keep_from) is not int or keep_from < 0):
        raise InvalidInputError(f"keep_from is an offset, not {keep_from!r}")
    if type(max_fragments) is not int or max_fragments < 1:
        raise InvalidInputError(f"max_fragments is a number of at least 1, not {max_fragments!r}")
    given_number(max_share, "max_share", most=1)


def _check_pace(grace_s: float, rate: float | None) -> None:
    given_number(grace_s, "grace_s")
    if rate is not None:
        given_number(rate, "rate")
        if not rate:
            raise InvalidInputError("rate is a number of objects per second, not 0")


def _takes_too_much(garbage: Garbage, keep_from: int | None) -> bool:
    """Whether what somebody marked is more than this caller lets go."""
    is_marked = garbage.phase in {Phase.LISTED, Phase.MARKED, Phase.CANCELLED}
    return is_marked and keep_from is not None and garbage.first_to_keep.offset > keep_from


def _bytes_of(manifest: Manifest) -> int:
    return sum(pointer.num_bytes for pointer in tree.roots(manifest))


def _add(total: CollectReport, part: CollectReport) -> None:
    total.deleted += part.deleted
    total.due_s = part.due_s
    total.held += [what for what in part.held if what not in total.held]
    total.skipped = total.skipped or part.skipped


def _busy(name: str) -> StateError:
    return StateError(
        f"log {name!r} changed under the collection again and again", hint="collect it later"
    )
