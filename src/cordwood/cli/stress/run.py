"""The stress test as a whole: parties come and go, readers watch, a report is left."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from cordwood.base.errors import CordwoodError, InvalidInputError, NotFoundError
from cordwood.cli.stress.work import Plan, chance, collect, follow, load_map, now_s, read_all, write
from cordwood.log.chain.options import Protocol
from cordwood.log.log import Log

KILL_MIN_S = 0.5
KILL_MAX_S = 4.0
STOP_S = 60.0
"""How long a party may take to end when it is asked to."""

VIOLATIONS_KEPT = 20
SCRATCH = 0.2
"""The share of reads that begin at the oldest record instead of where the last one ended."""


@dataclass(slots=True)
class Report:
    """What a stress test did and saw."""

    seconds: float = 0.0
    appended: int = 0
    """Records that writers were told to be durable."""
    read: int = 0
    verified: int = 0
    """Of those read, the ones that were what they must be, at their place."""
    collected: int = 0
    kills: int = 0
    reads: int = 0
    violations: int = 0
    examples: list[str] = field(default_factory=list)
    """The first violations, in words."""

    @property
    def faults(self) -> int:
        """Faults that were injected: processes that were killed."""
        return self.kills

    def wrong(self, what: str) -> None:
        """Note a violation."""
        self.violations += 1
        if len(self.examples) < VIOLATIONS_KEPT:
            self.examples.append(what)


class Stress:
    """One stress test."""

    def __init__(
        self,
        plan: Plan,
        *,
        writers: int,
        readers: int,
        kill: bool,
        progress: Callable[[Report], None],
        protocol: Protocol | None = None,
    ) -> None:
        """Nothing begun. With a memory store the parties are tasks, otherwise processes."""
        self._plan = plan
        self._protocol = protocol
        self._log = Log.from_url(plan.url)
        self._names = [f"w{i}" for i in range(writers)]
        self._readers = readers
        self._kill = kill
        self._progress = progress
        self._durable: dict[str, int] = {}
        self._is_over: bool = False
        self.report = Report()
        if kill and plan.url.startswith("memory:"):
            raise InvalidInputError(
                "a memory store has no processes to kill", hint="use a directory: file:///…"
            )

    def stop(self) -> None:
        """Let it end before its time; it checks everything once more, as ever."""
        self._is_over = True

    async def run(self, seconds: float) -> Report:
        """Run so long (0: until `stop`), then check everything once more."""
        started_s = now_s()
        await self._log.create(exist_ok=True, grace_s=1, protocol=self._protocol)
        if (await self._log.manifest()).next_offset > 1 and await self._is_foreign():
            raise InvalidInputError(
                f"{self._log.url} holds records of its own", hint="name a log that does not exist"
            )
        live = self._task if self._plan.url.startswith("memory:") else self._process
        try:
            async with asyncio.TaskGroup() as group:
                for role in [*self._names, "collector"]:
                    group.create_task(live(role))
                for _ in range(self._readers):
                    group.create_task(self._watch())
                group.create_task(self._clock(seconds, started_s))
        finally:
            self._is_over = True
        await self._last_look()
        self.report.seconds = now_s() - started_s
        return self.report

    async def _is_foreign(self) -> bool:
        wrong: list[str] = []
        try:
            await read_all(self._log, wrong.append)
        except NotFoundError:
            return True
        return bool(wrong)

    async def _clock(self, seconds: float, started_s: float) -> None:
        while not self._is_over and (not seconds or now_s() - started_s < seconds):
            await asyncio.sleep(0.5)
            self.report.seconds = now_s() - started_s
            self._progress(self.report)
        self._is_over = True

    def _heard(self, facts: dict[str, int]) -> None:
        for name, count in facts.items():
            if name == "collected":
                self.report.collected += count
            else:
                self.report.appended += max(0, count - self._durable.get(name, 0))
                self._durable[name] = max(count, self._durable.get(name, 0))

    # Parties.

    async def _task(self, role: str) -> None:
        if role == "collector":
            await collect(self._log, self._heard, lambda: self._is_over)
        else:
            await write(self._plan, self._log, role, 0, self._heard, lambda: self._is_over)

    async def _process(self, role: str) -> None:
        """Process after process, each until it is killed or all is over."""
        life = 0
        plan = msgspec.json.encode(self._plan).decode()
        while not self._is_over:
            life += 1
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "cordwood.cli.stress.worker",
                plan,
                role,
                str(life),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us: they end when their input does.
            )
            listening = asyncio.create_task(self._listen(child))
            until_s = now_s() + KILL_MIN_S + (KILL_MAX_S - KILL_MIN_S) * chance()
            while not (self._ended() or listening.done()):
                await asyncio.sleep(0.05)
                if self._kill and now_s() > until_s and child.returncode is None:
                    child.send_signal(signal.SIGKILL)
                    self.report.kills += 1
                    break
            assert child.stdin is not None
            child.stdin.close()
            try:
                await asyncio.wait_for(listening, STOP_S)
            except TimeoutError:
                child.kill()
                self.report.wrong(f"{role} did not end within {STOP_S:g} s")
            await child.wait()

    def _ended(self) -> bool:
        return self._is_over

    async def _listen(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        while line := await child.stdout.readline():
            # A line cut short was not said to anybody.
            if line.endswith(b"\n"):
                self._heard(msgspec.json.decode(line, type=dict[str, int]))

    # Readers.

    async def _watch(self) -> None:
        follower, position = None, 1
        while not self._is_over:
            await asyncio.sleep(0.2 + chance())
            durable = dict(self._durable)
            seen_before = self.report.violations
            try:
                manifest = await self._log.manifest()
                if follower is None or position < manifest.oldest_offset or chance() < SCRATCH:
                    follower = await load_map(self._log, manifest.collected_hex)
                    position = manifest.oldest_offset
                start, count = position, follower.num_records
                await follow(self._log, follower, position, manifest.next_offset, self.report.wrong)
            except NotFoundError as error:
                self.report.wrong(f"a collection was revealed too early: {error}")
                follower = None
                continue
            except CordwoodError as error:
                if type(error).__name__ != "CollectedError":
                    self.report.wrong(f"a read failed: {error}")
                follower = None
                continue
            position = max(start, manifest.next_offset)
            found = follower.num_records - count
            self.report.reads += 1
            self.report.read += found
            self.report.verified += found - (self.report.violations - seen_before)
            for loss in follower.behind(durable):
                self.report.wrong(loss)

    async def _last_look(self) -> None:
        """After all have ended: adopt, read everything, prove it."""
        async with self._log.writer():
            pass
        try:
            follower, _ = await read_all(self._log, self.report.wrong)
        except NotFoundError as error:
            self.report.wrong(f"a collection was revealed too early: {error}")
        else:
            for loss in follower.behind(self._durable):
                self.report.wrong(loss)
        scrubbed = await self._log.scrub(deep=True)
        for fault in scrubbed.errors:
            self.report.wrong(f"scrub: {fault}")
