"""A deep scrub in units: what `log.scrub(deep=True)` finds, on any number of machines.

The metadata is walked here, as a shallow scrub does; that also gives the fragments, or a sample of
them. Units read them and recompute their setsums. Because sums do not depend on order, the rest is
an addition::

    collected + sum over the fragments found whole = setsum in the manifest

Nothing is written to the store. What is collected while it runs is not missed. What was found whole
can be kept in a file (pipeline/kept.py), so that a scrub that was cut off goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from cordwood.base.clock import SYSTEM_ENTROPY, Entropy
from cordwood.base.errors import Code, CordwoodError, FormatError, InternalError, InvalidInputError
from cordwood.base.given import given, given_all
from cordwood.base.setsum import Setsum
from cordwood.base.workers import Turns
from cordwood.log import scrub as of_log
from cordwood.log import tree
from cordwood.log.fetch import check_fragment
from cordwood.log.format import Ancestor, Fragment
from cordwood.log.log import Log
from cordwood.log.objects import LogObjects
from cordwood.log.scrub import Fault, ScrubReport
from cordwood.pipeline.divide import divide, read_bytes
from cordwood.pipeline.each import by_halves, each
from cordwood.pipeline.engine import AUTO, Engine, Progress, run
from cordwood.pipeline.job import Job, Unit
from cordwood.pipeline.kept import Kept

ScrubReports: TypeAlias = dict[str, ScrubReport | CordwoodError]
"""Of each log what was found, or why nothing was."""

READS_AT_ONCE = 4
"""Fragments of a unit being read or checked at once."""

WALKS_AT_ONCE = 4
"""Logs whose metadata is walked at once."""


class ScrubSettings(Struct, frozen=True):
    """Which logs, and how much of them."""

    store: str
    logs: tuple[str, ...]
    sample: int | None = None
    """Only the fragments at so many random offsets of each."""


class ScrubUnit(Unit, frozen=True, kw_only=True):
    """Some fragments of a log; of a whole scrub, neighbours."""

    log: str
    fragments: tuple[Fragment, ...]
    ancestors: tuple[Ancestor, ...] = ()

    @property
    def title(self) -> str:
        """For people: which records."""
        return f"offsets [{self.fragments[0].start}, {self.fragments[-1].limit}) of {self.log!r}"


class Scrubbed(Struct, frozen=True):
    """What a scrub of one log found, in short."""

    log: str
    ok: bool
    records: int = 0
    errors: tuple[str, ...] = ()
    fragments: int = 0
    bytes: int = 0


class Wrong(Struct, frozen=True):
    """A fragment that is not what its pointer says."""

    fragment: Fragment
    code: Code
    where: str
    message: str


class ScrubResult(Struct, frozen=True):
    """What the records of some fragments of a log add up to."""

    log: str
    records: int
    bytes: int
    fragments: int
    setsum: str
    """As computed from the records of those that are whole."""
    wrong: tuple[Wrong, ...] = ()


class _Walked(NamedTuple):
    """What the metadata of a log says."""

    shallow: ScrubReport
    ancestors: tuple[Ancestor, ...]
    fragments: Sequence[Fragment]
    """All that are to be found whole."""
    proved: Sequence[Fragment]
    """Those that were found whole before."""

    def todo(self) -> list[Fragment]:
        """What is to be read."""
        proved = {fragment.path for fragment in self.proved}
        return [fragment for fragment in self.fragments if fragment.path not in proved]


class Scrub(Job[ScrubSettings, ScrubUnit, ScrubResult, ScrubReports]):
    """Checks every record of some logs, or of samples of them."""

    name = "scrub"
    settings_type = ScrubSettings
    unit_type = ScrubUnit
    result_type = ScrubResult

    entropy: Entropy = SYSTEM_ENTROPY
    """Where a sample is taken."""
    kept: Kept | None = None
    """Where it is noted what was found whole; of one log."""

    async def weigh(self) -> int:
        """The bytes in fragments. One GET for each log; a sample is always small."""
        if self.settings.sample is not None:
            return 0
        return sum(await each(self.settings.logs, self._weigh_log, WALKS_AT_ONCE))

    async def _weigh_log(self, name: str) -> int:
        try:
            manifest = await self._log(name).manifest()
        except CordwoodError:
            return 0  # The plan finds it again, and reports it.
        return sum(pointer.num_bytes for pointer in tree.roots(manifest))

    async def plan(self, engine: Engine) -> list[ScrubUnit]:
        """Walk the metadata; its faults go into the report."""
        names = self.settings.logs
        found = await each(names, self._walk, WALKS_AT_ONCE)
        self._found = dict(zip(names, found, strict=True))
        walked = {name: one for name, one in self._found.items() if isinstance(one, _Walked)}
        total = sum(fragment.num_bytes for one in walked.values() for fragment in one.todo())
        if not total:
            return []
        slots = await engine.slots()
        if self.kept is not None:
            self.at_once = self.kept.units_at_once(slots)
        target = read_bytes(total, slots)
        return [
            ScrubUnit(
                log=name,
                fragments=group,
                ancestors=one.ancestors,
                num_bytes=sum(fragment.num_bytes for fragment in group),
            )
            for name, one in walked.items()
            for group in divide(one.todo(), lambda fragment: fragment.num_bytes, target)
        ]

    async def look(self) -> ScrubReports:
        """What the metadata says: all that is checked before the first fragment is read."""
        found = await each(self.settings.logs, self._walk, WALKS_AT_ONCE)
        shallow = (one.shallow if isinstance(one, _Walked) else one for one in found)
        return dict(zip(self.settings.logs, shallow, strict=True))

    async def _walk(self, name: str) -> _Walked | CordwoodError:
        """The fragments to be read, or why the log cannot be looked at."""
        fragments: list[Fragment] = []
        objects = self._log(name).objects
        try:
            shallow = await of_log.scrub(
                objects, sample=self.settings.sample, entropy=self.entropy, seen=fragments.append
            )
            proved: Sequence[Fragment] = ()
            if self.kept is not None and fragments:
                proved = self.kept.proved((await self._log(name).manifest()).incarnation, fragments)
        except CordwoodError as error:
            return error
        return _Walked(shallow, objects.ancestors, fragments, proved)

    async def work(self, unit: ScrubUnit) -> ScrubResult:
        """Read the fragments and hash every record. One GET each."""
        store = self.store(self.settings.store)
        objects = LogObjects(store, unit.log, unit.ancestors)
        turns = Turns()

        async def check(fragment: Fragment) -> Wrong | None:
            try:
                await check_fragment(objects, fragment, turns)
            except FormatError as error:
                return Wrong(fragment, error.code, objects.key_of(fragment), error.message)
            return None

        try:
            found = await each(unit.fragments, check, READS_AT_ONCE)
        finally:
            await turns.stop()
        whole = [f for f, wrong in zip(unit.fragments, found, strict=True) if wrong is None]
        return _result(unit.log, whole, tuple(wrong for wrong in found if wrong is not None))

    async def note(self, units: Sequence[ScrubUnit], results: Sequence[ScrubResult]) -> None:
        """Keep what was found whole."""
        if self.kept is not None:
            done = zip(units, results, strict=True)
            self.kept.add([unit.fragments for unit, result in done if not result.wrong])

    async def finish(self, results: Sequence[ScrubResult]) -> ScrubReports:
        """Add up, and compare with the manifests: of each log the report, or why there is none."""
        by_log: dict[str, list[ScrubResult]] = {}
        for result in results:
            by_log.setdefault(result.log, []).append(result)
        reports: ScrubReports = {}
        for name, one in self._found.items():
            if isinstance(one, _Walked):
                reports[name] = await self._report(name, one, by_log.get(name, []))
            else:
                reports[name] = one
        return reports

    async def _report(
        self, name: str, walked: _Walked, results: Sequence[ScrubResult]
    ) -> ScrubReport:
        """What was found in one log. One GET if a fragment is missing."""
        results = [*results, _result(name, walked.proved)]
        wrong = [one for result in results for one in result.wrong]
        read = Setsum.sum(result.setsum for result in results)
        named = Setsum.sum(fragment.setsum_hex for fragment in walked.fragments)
        if read + Setsum.sum(one.fragment.setsum_hex for one in wrong) != named:
            raise InternalError("the units of a scrub are not all that there was to read")
        oldest = await self._oldest_since(name, wrong)
        missed = [one for one in wrong if one.fragment.limit > oldest]
        shallow = walked.shallow
        return ScrubReport(
            deep=True,
            records=sum(result.records for result in results),
            bytes=sum(result.bytes for result in results),
            fragments=sum(result.fragments for result in results),
            nodes=shallow.nodes,
            setsum=shallow.setsum - Setsum.sum(one.fragment.setsum_hex for one in missed),
            errors=[*shallow.errors, *(Fault(one.code, one.where, one.message) for one in missed)],
        )

    async def _oldest_since(self, name: str, wrong: Sequence[Wrong]) -> int:
        """The oldest offset as it is now, if something is missing; else none that explains it."""
        if all(one.code is not Code.MISSING_OBJECT for one in wrong):
            return 0
        return (await self._log(name).manifest()).oldest_offset

    def _log(self, name: str) -> Log:
        return Log(self.store(self.settings.store), name)


def _result(log: str, whole: Sequence[Fragment], wrong: tuple[Wrong, ...] = ()) -> ScrubResult:
    """Of fragments that were found whole, and those that were not."""
    return ScrubResult(
        log=log,
        records=sum(fragment.num_records for fragment in whole),
        bytes=sum(fragment.num_bytes for fragment in whole),
        fragments=len(whole),
        # Each is what was recomputed: `check_fragment` compared it with its pointer.
        setsum=Setsum.sum(fragment.setsum_hex for fragment in whole).hexdigest(),
        wrong=wrong,
    )


async def scrub_log(
    log: Log,
    *,
    sample: int | None = None,
    resume: Path | str | None = None,
    entropy: Entropy = SYSTEM_ENTROPY,
    engine: str | Engine = AUTO,
    progress: Progress | None = None,
) -> ScrubReport:
    """Check every record of a log, on the engine of this name. See `Log.scrub`.

    Args:
        log: which.
        sample: check only the fragments at so many random offsets.
        resume: a file that keeps what was found whole until the scrub is done: one that is cut off
            is gone on with by the next that is given the same file.
        entropy: where a sample is taken.
        engine: `auto`, `local`, `spark`.
        progress: called with bytes done and bytes to do.

    Raises:
        NotFoundError: there is no such log.
        InvalidInputError: the file keeps something else.
        StoreError: the store could not be read; what is damaged goes into the report instead.
    """
    if resume is not None and sample is not None:
        raise InvalidInputError("a scrub by samples has nothing to go on with")
    given(log, Log, "a log")
    job = Scrub(ScrubSettings(log.store.url, (log.name,), sample), [log.store])
    job.entropy = entropy
    if resume is not None:
        job.kept = Kept(Path(resume), log.url)
    found = (await run(job, engine, progress))[log.name]
    if isinstance(found, CordwoodError):
        raise found
    if job.kept is not None:
        job.kept.delete()
    return found


async def scrub_logs(
    logs: Sequence[Log],
    *,
    sample: int | None = None,
    dry_run: bool = False,
    engine: str | Engine = AUTO,
    progress: Progress | None = None,
) -> list[Scrubbed]:
    """Check every record of some logs of one store, or samples of them; each is by itself.

    Args:
        logs: which.
        sample: of each, check only the fragments at so many random offsets.
        dry_run: check only the metadata, and say how much there is to read.
        engine: `auto`, `local`, `spark`.
        progress: called with bytes done and bytes to do.
    """
    logs = given_all(logs, Log, "a log")
    if not logs:
        return []
    store = logs[0].store
    if any(not log.store.is_same_as(store) for log in logs):
        raise InvalidInputError("the logs of one scrub lie in one store")
    found: ScrubReports = {}

    async def together(names: Sequence[str]) -> None:
        job = Scrub(ScrubSettings(store.url, tuple(names), sample), [store])
        done: ScrubReports = await (job.look() if dry_run else run(job, engine, progress))
        found.update(done)

    names = list(dict.fromkeys(log.name for log in logs))
    await by_halves(names, together, found.__setitem__)
    return [_short(name, found[name]) for name in names]


def _short(name: str, found: ScrubReport | CordwoodError) -> Scrubbed:
    """The report of a log in short."""
    if isinstance(found, CordwoodError):
        return Scrubbed(name, ok=False, errors=(found.message,))
    wrong = tuple(fault.message for fault in found.errors)
    return Scrubbed(name, found.ok, found.records, wrong, found.fragments, found.bytes)
