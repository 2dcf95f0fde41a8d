"""A job: heavy work on logs, cut into units that any machine can do.

::

    plan    here, once        what there is to do ─▶ units of about equal size
    work    anywhere          a unit ─▶ its result; twice, at the same time or elsewhere is no harm
    finish  here, once        all results ─▶ publish, in one step, and report

Units and results are small and travel as JSON: they hold names of objects, never what is in them.
A job is rebuilt elsewhere from its name and its settings, so both say everything that `work` needs.
Credentials are not among them: a store takes them from the environment of whoever opens it.

Crash anywhere before `finish` published: nothing has happened but uploads that nobody names. What
`finish` promises each job says itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from cordwood.base.errors import InternalError, InvalidInputError
from cordwood.store.url import Store

if TYPE_CHECKING:
    from cordwood.pipeline.engine import Engine

SettingsT = TypeVar("SettingsT", bound=Struct)
UnitT = TypeVar("UnitT", bound="Unit")
ResultT = TypeVar("ResultT", bound=Struct)
ReportT = TypeVar("ReportT")

HOMES = {
    "collect": "cordwood.pipeline.collect:Collect",
    "compact": "cordwood.pipeline.compact:Compact",
    "forest": "cordwood.pipeline.forest:CollectForest",
    "index": "cordwood.pipeline.indexing:IndexLog",
    "keys": "cordwood.pipeline.keys:Keys",
    "merge": "cordwood.pipeline.merging:MergeIndex",
    "rollup": "cordwood.pipeline.rollup:RollUp",
    "scrub": "cordwood.pipeline.scrub:Scrub",
    "volumes": "cordwood.pipeline.volumes:TendVolumes",
}
"""Where the jobs are that can be rebuilt by name."""


class Unit(Struct, frozen=True, kw_only=True):
    """A part of a job that one worker does."""

    num_bytes: int = 0
    """About how much it is, for whoever shares the work and shows how far it is."""

    @property
    def title(self) -> str:
        """For people: what it works on."""
        return type(self).__name__


class Job(ABC, Generic[SettingsT, UnitT, ResultT, ReportT]):
    """Heavy work in units. See the module."""

    name: ClassVar[str]
    settings_type: ClassVar[type[Any]]
    unit_type: ClassVar[type[Any]]
    result_type: ClassVar[type[Any]]

    at_once: int | None = None
    """Units that are handed out together, before `note` is called; None for all of them."""

    def __init__(self, settings: SettingsT, stores: Iterable[Store] = ()) -> None:
        """No I/O. `stores` are used for their URLs; any other store is opened by its URL."""
        self.settings = settings
        self._stores = {store.url: store for store in stores}

    async def weigh(self) -> int:
        """About how many bytes there are to work on: what an engine is chosen by."""
        return 0

    @abstractmethod
    async def plan(self, engine: Engine) -> list[UnitT]:
        """What there is to do. The engine is there for questions that are heavy themselves."""

    @abstractmethod
    async def work(self, unit: UnitT) -> ResultT:
        """Do one unit. It may be done twice, at the same time or on another machine."""

    async def note(self, units: Sequence[UnitT], results: Sequence[ResultT]) -> None:
        """Some units were done: for a job that keeps how far it is."""

    @abstractmethod
    async def finish(self, results: Sequence[ResultT]) -> ReportT:
        """Make of all results, in the order of the units, what the job is for."""

    async def close(self) -> None:
        """Let go what `plan` took, whether the job was finished or not."""

    def rows(self, unit: UnitT) -> AsyncIterator[pa.RecordBatch]:
        """What a unit gives to a question of the engine; only for jobs that are questions."""
        raise InternalError(f"the job {self.name!r} is no question, and {unit.title} has no rows")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def stores(self) -> list[Store]:
        """The stores it was given."""
        return list(self._stores.values())

    def store(self, url: str) -> Store:
        """The store of this URL."""
        return self._stores.get(url) or _opened(url)


@cache
def _opened(url: str) -> Store:
    """One client for each store in a worker, however many units it does."""
    return Store(url)


def rebuild(name: str, settings: bytes) -> Job[Any, Any, Any, Any]:
    """The job of this name with these settings, as JSON.

    Raises:
        InvalidInputError: there is no such job, or it has other settings.
    """
    if name not in HOMES:
        raise InvalidInputError(f"there is no job {name!r}", hint=f"one of {', '.join(HOMES)}")
    module, _, kind = HOMES[name].partition(":")
    made: type[Job[Any, Any, Any, Any]] = getattr(import_module(module), kind)
    try:
        return made(msgspec.json.decode(settings, type=made.settings_type))
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"job {name!r}: its settings are none: {error}") from error
