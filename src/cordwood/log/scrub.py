"""Scrub: prove that a log is what its setsum says, or say exactly where it is not.

A shallow scrub reads the manifest and every node and checks their invariants. A deep one also reads
every fragment and recomputes its checksum, and its setsum from the records, which are hashed where
they lie (log/pages.py) if that can be done. Because the sum does not depend on order, any split of
the work gives the same total::

    collected + sum over fragments read = setsum in the manifest

A scrub keeps going after a fault, reads with bounded concurrency, and holds no more than a few
fragments in memory. It can be done piece by piece (`start`, `limits`): each piece says where the
next one begins. Or, for a watch that never ends, a sample at a time: fragments at random offsets,
with the nodes that lead there. What is collected while a scrub runs is not missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from cordwood.base.clock import SYSTEM_ENTROPY, Entropy
from cordwood.base.errors import Code, CorruptionError, FormatError, InvalidInputError
from cordwood.base.given import given, given_number
from cordwood.base.setsum import Setsum
from cordwood.base.workers import Turns
from cordwood.log import paths, tree
from cordwood.log.chain.chain import write_id
from cordwood.log.chain.document import check_step
from cordwood.log.chain.names import manifest as manifest_name
from cordwood.log.chain.names import manifest_index
from cordwood.log.fetch import check_fragment
from cordwood.log.format import GAPS, Fragment, Manifest, NodePointer
from cordwood.log.holds import collected
from cordwood.log.objects import LogObjects
from cordwood.log.reader import NO_LIMITS, Limits, check_offset

CONCURRENCY = 8
"""Fragments being read or checked at once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong."""

    code: Code
    where: str
    message: str

    def __str__(self) -> str:
        """The message."""
        return self.message


@dataclass(slots=True)
class ScrubReport:
    """What a scrub found."""

    deep: bool
    records: int = 0
    bytes: int = 0
    fragments: int = 0
    nodes: int = 0
    setsum: Setsum = field(default_factory=Setsum)
    """The sum over everything found. Of a whole scrub with what was collected: equal to the
    manifest's if `ok`. The sums of pieces add up to that."""
    errors: list[Fault] = field(default_factory=list)
    next_offset: int | None = None
    """Where to go on, if a limit ended it."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.errors

    def add(self, error: FormatError, where: str) -> None:
        """Note a fault."""
        self.errors.append(Fault(error.code, where, error.message))


Progress = Callable[[ScrubReport, Manifest], None]
"""Called after every fragment, for a progress bar."""

Seen = Callable[[Fragment], None]
"""Called with every fragment that the log names, for who shares the work of reading them."""


async def scrub(
    objects: LogObjects,
    *,
    deep: bool = False,
    start: int | None = None,
    limits: Limits = NO_LIMITS,
    sample: int | None = None,
    entropy: Entropy = SYSTEM_ENTROPY,
    progress: Progress | None = None,
    seen: Seen | None = None,
) -> ScrubReport:
    """Check a log. One GET per node; a deep scrub adds one per fragment.

    Raises:
        NotFoundError: there is no such log.
        CollectedError: `start` has been collected.
        StoreError: the store could not be read; what is damaged goes into the report instead.
    """
    _check_part(start, limits, sample)
    report = ScrubReport(deep)
    try:
        manifest, _ = await objects.load()
    except FormatError as error:
        # A chain has many manifests: the error knows which one it is about.
        where = error.where if isinstance(error, CorruptionError) else ""
        report.add(error, where or objects.key(paths.MANIFEST))
        return report
    await _check_chain(objects, manifest, report)
    work = _Scrub(objects, manifest, report, progress, seen)
    if sample is not None:
        await work.take_sample(sample, entropy)
    else:
        await work.walk(start, limits)
    return report


async def _check_chain(objects: LogObjects, manifest: Manifest, report: ScrubReport) -> None:
    """Of a chain, prove that the newest manifest is a valid step from its predecessor. One GET.

    A predecessor that was swept proves nothing, and is not missed.
    """
    link, chain = manifest.chain, objects.chain
    if link is None or chain is None or link.prev is None:
        return
    index = manifest_index(link.prev.path)
    try:
        before = None if index is None else await chain.get(index)
        if before is not None and write_id(before) == link.prev.write:
            check_step(before, manifest, objects.key(manifest_name(link.index)))
    except FormatError as error:
        report.add(error, objects.key(link.prev.path))


def _check_part(start: object, limits: Limits, sample: object) -> None:
    """Refuse what cannot say which part of a log is scrubbed."""
    if start is not None:
        check_offset(start)
    given(limits, Limits, "what limits a scrub")
    if limits.start_time_us is not None or limits.limit_time_us is not None:
        raise InvalidInputError(
            "a scrub has no limits by time", hint="ask reader.offset_at(time_us) for the offset"
        )
    if sample is not None:
        given_number(given(sample, int, "sample"), "sample", least=1)


class _Scrub:
    """One scrub under way."""

    def __init__(
        self,
        objects: LogObjects,
        manifest: Manifest,
        report: ScrubReport,
        progress: Progress | None,
        seen: Seen | None = None,
    ) -> None:
        self._objects = objects
        self._manifest = manifest
        self._report = report
        self._progress = progress
        self._seen = seen
        self._pending: set[asyncio.Task[Setsum]] = set()
        self._done: list[asyncio.Task[Setsum]] = []
        self._turns = Turns()
        self._total = Setsum()
        self._collected_to = 0
        """What lies before this was seen to be collected since we began."""

    async def walk(self, start: int | None, limits: Limits) -> None:
        """From `start` to the end, or to a limit."""
        manifest = self._manifest
        begin = manifest.oldest_offset if start is None else start
        if begin < manifest.oldest_offset:
            raise collected(self._objects.name, begin, manifest.oldest_offset)
        if begin > manifest.next_offset:
            raise InvalidInputError(
                f"log {self._objects.name!r} ends at {manifest.next_offset}, before {begin}: there "
                "is nothing to scrub"
            )
        is_whole = begin == manifest.oldest_offset
        if is_whole:
            self._total = Setsum.from_hex(manifest.collected_hex)
        end = manifest.next_offset
        if limits.limit_offset is not None:
            end = min(end, limits.limit_offset)
        if limits.max_records is not None:
            end = min(end, begin + limits.max_records)
        last: Fragment | None = None
        num_files = num_bytes = 0
        try:
            async with aclosing(self._fragments(tree.roots(manifest), begin, end)) as found:
                async for fragment in found:
                    num_files, num_bytes = num_files + 1, num_bytes + fragment.num_bytes
                    if num_files > 1 and (
                        (limits.max_files is not None and num_files > limits.max_files)
                        or (limits.max_bytes is not None and num_bytes > limits.max_bytes)
                    ):
                        break
                    self._check_sequence(last, fragment)
                    last = fragment
                    await self._begin(fragment)
            await self._settle(0)
        finally:
            await self._stop()
        reached = last.limit if last is not None else end
        self._report.next_offset = None if reached >= manifest.next_offset else reached
        self._finish(is_whole=is_whole and self._report.next_offset is None)

    async def take_sample(self, count: int, entropy: Entropy) -> None:
        """Fragments at so many random offsets, each with the nodes that lead to it."""
        oldest, limit = self._manifest.oldest_offset, self._manifest.next_offset
        seen: set[str] = set()
        try:
            for _ in range(count if oldest < limit else 0):
                offset = oldest + int((limit - oldest) * entropy.uniform())
                pointers = tree.roots(self._manifest)
                async with aclosing(self._fragments(pointers, offset, offset + 1)) as found:
                    async for fragment in found:
                        if fragment.path not in seen:
                            seen.add(fragment.path)
                            await self._begin(fragment)
            await self._settle(0)
        finally:
            await self._stop()
        self._finish(is_whole=False)

    def _finish(self, *, is_whole: bool) -> None:
        self._report.setsum = self._total
        if is_whole and self._report.ok and self._total.hexdigest() != self._manifest.setsum_hex:
            link = self._manifest.chain
            path = paths.MANIFEST if link is None else manifest_name(link.index)
            self._fault(
                Code.SETSUM_MISMATCH,
                self._objects.key(path),
                f"the log's setsum is {self._manifest.setsum_hex}, its fragments add up to "
                f"{self._total.hexdigest()}",
            )

    # Fragments.

    async def _begin(self, fragment: Fragment) -> None:
        if self._seen is not None:
            self._seen(fragment)
        self._pending.add(asyncio.ensure_future(self._check(fragment)))
        await self._settle(CONCURRENCY - 1)

    async def _settle(self, most: int) -> None:
        while len(self._pending) > most:
            done, self._pending = await asyncio.wait(
                self._pending, return_when=asyncio.FIRST_COMPLETED
            )
            self._done = [*done]
            for task in self._done:
                self._total = self._total + task.result()
                if self._progress is not None:
                    self._progress(self._report, self._manifest)

    async def _stop(self) -> None:
        """End what is still under way, after a failure too: its outcome interests nobody."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, *self._done, return_exceptions=True)
        await self._turns.stop()

    async def _check(self, fragment: Fragment) -> Setsum:
        """The fragment's setsum: recomputed if `deep`, else as its pointer says."""
        if self._report.deep:
            try:
                await check_fragment(self._objects, fragment, self._turns)
            except FormatError as error:
                if await self._oldest_since(error) >= fragment.limit:
                    return fragment.setsum
                self._report.add(error, self._objects.key_of(fragment))
                return Setsum()
        self._report.fragments += 1
        self._report.records += fragment.num_records
        self._report.bytes += fragment.num_bytes
        return fragment.setsum

    async def _fragments(
        self, pointers: Sequence[NodePointer | Fragment], start: int, limit: int
    ) -> AsyncGenerator[Fragment, None]:
        """Every fragment of the range; a damaged node is noted and passed over."""
        for pointer in tree.overlapping(pointers, start, limit):
            if isinstance(pointer, Fragment):
                yield pointer
                continue
            try:
                node = await self._objects.read_node(pointer)
            except FormatError as error:
                oldest = await self._oldest_since(error)
                if oldest <= pointer.start:
                    self._report.add(error, self._objects.key_of(pointer))
                    continue
                # It was collected while we were on our way: what is left of it hangs elsewhere.
                now, _ = await self._objects.load()
                self._total = self._total + Setsum.from_hex(pointer.setsum_hex)
                span = (max(start, oldest), min(limit, pointer.limit))
                async with aclosing(self._fragments(tree.roots(now), *span)) as rest:
                    async for fragment in rest:
                        self._total = self._total - fragment.setsum
                        yield fragment
                continue
            self._report.nodes += 1
            if node.pointer() != pointer:
                self._fault(
                    Code.CORRUPT,
                    self._objects.key_of(pointer),
                    f"node {pointer.path} is {node.pointer()}, its parent says {pointer}",
                )
            async with aclosing(self._fragments(node.children, start, limit)) as below:
                async for fragment in below:
                    yield fragment

    async def _oldest_since(self, error: FormatError) -> int:
        """The oldest offset as it is now, if something is missing; else none that explains it."""
        if error.code is not Code.MISSING_OBJECT:
            return 0
        now, _ = await self._objects.load()
        self._collected_to = now.oldest_offset
        return now.oldest_offset

    def _check_sequence(self, before: Fragment | None, after: Fragment) -> None:
        if before is None or before.limit < self._collected_to:
            return
        if before.limit != after.start and self._report.ok:
            self._fault(
                Code.CORRUPT,
                after.path,
                f"fragment {after.path} starts at {after.start}, "
                f"the one before it ends at {before.limit}",
            )
        follows = after.seq_no == before.seq_no + 1
        if not follows and GAPS not in self._manifest.features and self._report.ok:
            self._fault(
                Code.CORRUPT,
                after.path,
                f"slot {after.seq_no} follows slot {before.seq_no}, and the log has no gaps",
            )

    def _fault(self, code: Code, where: str, message: str) -> None:
        self._report.errors.append(Fault(code, where, message))
