"""Scrub: prove that a log is what its setsum says, or say exactly where it is not.

A shallow scrub reads the manifest and every node and checks their invariants. A deep one also reads
every fragment and recomputes its checksum and setsum from the records. Because the sum does not
depend on order, any split of the work gives the same total::

    collected + sum over fragments read = setsum in the manifest

A scrub keeps going after a fault, reads with bounded concurrency, and holds no more than a few
fragments in memory. Errors found before it was stopped are in the report. What is collected while
it runs is no fault: it counts with the sum that its pointer has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from cordwood.base.errors import Code, FormatError
from cordwood.base.setsum import Setsum
from cordwood.log import tree
from cordwood.log.fetch import fetch_table
from cordwood.log.format import GAPS, Fragment, Manifest, NodePointer
from cordwood.log.objects import LogObjects

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
    """The sum over everything found, with what was collected: equal to the manifest's if `ok`."""
    errors: list[Fault] = field(default_factory=list)
    oldest_offset: int = 0
    """Where the log began when it was last looked at: what lies before may be gone."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.errors

    def add(self, error: FormatError, where: str) -> None:
        """Note a fault."""
        self.errors.append(Fault(error.code, where, error.message))


Progress = Callable[[ScrubReport, Manifest], None]
"""Called after every fragment, for a progress bar."""


async def scrub(
    objects: LogObjects, *, deep: bool = False, progress: Progress | None = None
) -> ScrubReport:
    """Check a log. One GET per node; a deep scrub adds one per fragment.

    Raises:
        NotFoundError: there is no such log.
        StoreError: the store could not be read; what is damaged goes into the report instead.
    """
    report = ScrubReport(deep)
    try:
        manifest, _ = await objects.load()
    except FormatError as error:
        report.add(error, objects.key("manifest/MANIFEST"))
        return report
    report.oldest_offset = manifest.oldest_offset
    total = Setsum.from_hex(manifest.collected_hex)
    pending: set[asyncio.Task[Setsum]] = set()

    async def settle(most: int) -> None:
        nonlocal total, pending
        while len(pending) > most:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                total = total + task.result()
                if progress is not None:
                    progress(report, manifest)

    last: Fragment | None = None
    try:
        async with aclosing(_fragments(objects, tree.roots(manifest), report)) as found:
            async for fragment in found:
                if isinstance(fragment, NodePointer):
                    total = total + Setsum.from_hex(fragment.setsum_hex)
                    continue
                _check_sequence(last, fragment, manifest, report)
                last = fragment
                check = _check(objects, fragment, report, deep=deep)
                pending.add(asyncio.ensure_future(check))
                await settle(CONCURRENCY - 1)
        await settle(0)
    finally:
        for task in pending:
            task.cancel()
    report.setsum = total
    if report.ok and total.hexdigest() != manifest.setsum_hex:
        report.errors.append(
            Fault(
                Code.SETSUM_MISMATCH,
                objects.key("manifest/MANIFEST"),
                f"the log's setsum is {manifest.setsum_hex}, its fragments add up to "
                f"{total.hexdigest()}",
            )
        )
    return report


async def _fragments(
    objects: LogObjects, pointers: Sequence[NodePointer | Fragment], report: ScrubReport
) -> AsyncGenerator[Fragment | NodePointer, None]:
    """Every fragment below these pointers; a damaged node is noted and passed over.

    A node that was collected meanwhile is given itself.
    """
    for pointer in pointers:
        if isinstance(pointer, Fragment):
            yield pointer
            continue
        try:
            node = await objects.read_node(pointer)
        except FormatError as error:
            if await _was_collected(objects, error, pointer, report):
                yield pointer
            else:
                report.add(error, objects.key(pointer.path))
            continue
        report.nodes += 1
        if node.pointer() != pointer:
            report.errors.append(
                Fault(
                    Code.CORRUPT,
                    objects.key(pointer.path),
                    f"node {pointer.path} is {node.pointer()}, its parent says {pointer}",
                )
            )
        async with aclosing(_fragments(objects, node.children, report)) as below:
            async for fragment in below:
                yield fragment


async def _check(
    objects: LogObjects, fragment: Fragment, report: ScrubReport, *, deep: bool
) -> Setsum:
    """The fragment's setsum: recomputed if `deep`, else as its pointer says."""
    if deep:
        try:
            await fetch_table(objects, fragment, verify=True)
        except FormatError as error:
            if await _was_collected(objects, error, fragment, report):
                return fragment.setsum
            report.add(error, objects.key(fragment.path))
            return Setsum()
    report.fragments += 1
    report.records += fragment.num_records
    report.bytes += fragment.num_bytes
    return fragment.setsum


async def _was_collected(
    objects: LogObjects,
    error: FormatError,
    pointer: NodePointer | Fragment,
    report: ScrubReport,
) -> bool:
    """Whether something is missing because a collection came by."""
    if error.code is not Code.MISSING_OBJECT:
        return False
    report.oldest_offset = (await objects.load()).manifest.oldest_offset
    return pointer.start < report.oldest_offset


def _check_sequence(
    before: Fragment | None, after: Fragment, manifest: Manifest, report: ScrubReport
) -> None:
    if before is None:
        return
    if before.limit < report.oldest_offset:
        return
    if before.limit != after.start and report.ok:
        report.errors.append(
            Fault(
                Code.CORRUPT,
                after.path,
                f"fragment {after.path} starts at {after.start}, "
                f"the one before it ends at {before.limit}",
            )
        )
    follows = after.seq_no == before.seq_no + 1
    if not follows and GAPS not in manifest.features and report.ok:
        report.errors.append(
            Fault(
                Code.CORRUPT,
                after.path,
                f"slot {after.seq_no} follows slot {before.seq_no}, and the log has no gaps",
            )
        )
