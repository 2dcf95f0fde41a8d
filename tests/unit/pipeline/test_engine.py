"""Engines: found by name, chosen by size; a unit that fails fails the job by its name."""

from __future__ import annotations

import asyncio
import sys

import msgspec
import pytest
from msgspec import Struct

import cordwood
from cordwood import CordwoodWarning, InternalError, InvalidInputError, NotFoundError, StateError
from cordwood.pipeline import engine as module
from cordwood.pipeline.engine import LOCAL_BYTES_MAX, choose, engine, run
from cordwood.pipeline.job import Job, Unit, rebuild
from cordwood.pipeline.local import AT_ONCE, LocalEngine


class Number(Unit, frozen=True, kw_only=True):
    """Doubles a number."""

    value: int

    @property
    def title(self):
        """For people."""
        return f"number {self.value}"


class Doubled(Struct, frozen=True):
    """The result."""

    value: int


class Doubling(Job[Doubled, Number, Doubled, int]):
    """Adds up doubled numbers."""

    name = "doubling"
    settings_type = Doubled
    unit_type = Number
    result_type = Doubled
    closed = False
    active = most = 0

    async def weigh(self):
        """As its settings say."""
        return self.settings.value

    async def plan(self, engine):
        """Ten numbers."""
        return [Number(value=n, num_bytes=10) for n in range(10)]

    async def work(self, unit):
        """Later numbers are done sooner."""
        self.active += 1
        self.most = max(self.most, self.active)
        for _ in range(20 - unit.value):
            await asyncio.sleep(0)
        self.active -= 1
        if unit.value == self.settings.value:
            raise NotFoundError("it is gone", hint="look elsewhere")
        return Doubled(2 * unit.value)

    async def finish(self, results):
        """In the order of the units."""
        assert sorted(result.value for result in results) == [result.value for result in results]
        return sum(result.value for result in results)

    async def close(self):
        """Noted."""
        self.closed = True


async def test_a_job_from_plan_to_report():
    """Results come in the order of the units; a few are done at once; progress is told."""
    job = Doubling(Doubled(-1))
    told = []
    assert 90 == await run(job, "local", lambda done, total: told.append((done, total)))
    assert job.closed
    assert AT_ONCE == job.most
    assert (0, 100) == told[0]
    assert (100, 100) == told[-1]
    assert sorted(told) == told


async def test_a_unit_that_fails():
    """The same error, with what was being done; the others are stopped; nothing is finished."""
    # EVIDENCE-OF: G-73
    job = Doubling(Doubled(3))
    with pytest.raises(NotFoundError) as caught:
        await run(job, "local")
    assert "doubling of number 3: it is gone" == caught.value.message
    assert "doubling of number 3: it is gone. look elsewhere" == str(caught.value)
    assert job.closed
    before = job.active
    await asyncio.sleep(0)
    assert before == job.active


class Elsewhere:
    """An engine that may not run here."""

    name = "spark"
    missing = ""
    refusal = ""
    failure = ""

    def refuses(self, stores):
        """As it is told."""
        return self.refusal if list(stores) else ""

    async def start(self):
        """As it is told."""
        if self.failure:
            raise StateError(self.failure)


@pytest.fixture
def elsewhere(monkeypatch):
    """Such an engine in the place of Spark; `elsewhere("missing", "no Java")` makes it fail."""
    monkeypatch.setitem(module.OURS, "spark", f"{__name__}:Elsewhere")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(module, "entry_points", lambda group: ())
    return lambda what, why: monkeypatch.setattr(Elsewhere, what, why)


async def test_engines_are_found_by_name(elsewhere):
    """`auto` takes what suits; a name is taken at its word."""
    assert isinstance(engine("local"), LocalEngine)
    assert isinstance(engine(), LocalEngine)
    with pytest.raises(InvalidInputError, match="no engine 'hadoop'"):
        engine("hadoop")
    with pytest.raises(InvalidInputError):
        engine("auto")
    assert "local" == (await choose("auto", LOCAL_BYTES_MAX - 1)).name
    assert "local" == (await choose("local", 10**15)).name
    assert "spark" == (await choose("auto", LOCAL_BYTES_MAX)).name
    elsewhere("missing", "there is no Java")
    with pytest.raises(StateError, match="there is no Java"):
        await choose("spark", 0)


@pytest.mark.parametrize("what", ["missing", "refusal", "failure"])
async def test_auto_stays_here_where_spark_cannot_run(elsewhere, what):
    """It is not installed, cannot reach the store, or does not start: a warning says so."""
    elsewhere(what, "Spark cannot do it")
    store = cordwood.Store("memory:")
    with pytest.warns(CordwoodWarning, match="1.0 GB are worked on in this process: Spark cannot"):
        assert "local" == (await choose("auto", LOCAL_BYTES_MAX, [store])).name
    assert "local" == (await choose("auto", LOCAL_BYTES_MAX - 1, [store])).name


async def test_auto_looks_at_the_stores_of_a_job(elsewhere, monkeypatch):
    """One in memory is worked on here, however much it holds."""
    elsewhere("refusal", "no task can reach it")
    monkeypatch.setattr(module, "LOCAL_BYTES_MAX", 1)
    job = Doubling(Doubled(10), [cordwood.Store("memory:")])
    with pytest.warns(CordwoodWarning, match="no task can reach it"):
        assert 90 == await run(job, "auto")


async def test_units_in_groups():
    """A job that keeps how far it is hears of each group; progress goes on through all of them."""
    noted, told = [], []

    class Noting(Doubling):
        at_once = 4

        async def note(self, units, results):
            noted.append(
                [(unit.value, result.value) for unit, result in zip(units, results, strict=True)]
            )

    assert 90 == await run(Noting(Doubled(-1)), "local", lambda *done: told.append(done))
    assert [4, 4, 2] == [len(group) for group in noted]
    assert [(n, 2 * n) for n in range(10)] == [pair for group in noted for pair in group]
    assert sorted(told) == told
    assert (100, 100) == told[-1]
    assert {100} == {total for _, total in told}


def test_an_entry_point_adds_an_engine(monkeypatch):
    """Others may bring one."""

    class Point:
        name = "theirs"
        value = "cordwood.pipeline.local:LocalEngine"

    monkeypatch.setattr(module, "entry_points", lambda group: [Point])
    assert isinstance(engine("theirs"), LocalEngine)


def test_a_job_is_rebuilt_by_name():
    """With the settings it had; anything else is refused."""
    settings = {"store": "memory:x", "logs": ["orders"]}
    job = rebuild("scrub", msgspec.json.encode(settings))
    assert ("scrub", ("orders",)) == (job.name, job.settings.logs)
    with pytest.raises(InvalidInputError, match="no job 'mystery'"):
        rebuild("mystery", b"{}")
    for wrong in (b"{}", b"x", b'{"store": 1}'):
        with pytest.raises(InvalidInputError, match="its settings are none"):
            rebuild("scrub", wrong)


async def test_a_job_that_is_no_question():
    """Has no rows."""
    with pytest.raises(InternalError, match="is no question"):
        Doubling(Doubled(1)).rows(Number(value=1))
    assert "Unit" == Unit().title
