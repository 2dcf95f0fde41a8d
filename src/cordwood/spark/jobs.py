"""A job as a data source: its units are splits, reading a split does the unit.

That ships names of objects to the tasks and brings small results back; nothing that is worked on
ever passes through the JVM, and it works wherever a data source does: on one machine, on a cluster,
through Spark Connect.

Two kinds of reads:

* results: one row for each unit, as JSON. A failure that would be the same elsewhere is a row too,
  so that the driver can say it in our words; another one fails the task, which Spark does again.
* rows of a question (pipeline/keys.py), for Spark to compute with.
"""

from __future__ import annotations

import base64
import re
import socket
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cordwood.base import errors, portal
from cordwood.base.errors import Code, CordwoodError, StoreError
from cordwood.base.lazy import lazily
from cordwood.pipeline.job import Job, Unit, rebuild
from cordwood.spark.task import refused, settle

FORMAT = "cordwood_job"
RESULTS = "unit INT NOT NULL, done BOOLEAN NOT NULL, result STRING NOT NULL"
QUESTION = (
    "log INT NOT NULL, key BINARY NOT NULL, offset BIGINT NOT NULL, "
    "source INT NOT NULL, row INT NOT NULL"
)
_RESULT_SCHEMA = pa.schema(
    [
        pa.field("unit", pa.int32(), False),
        pa.field("done", pa.bool_(), False),
        pa.field("result", pa.string(), False),
    ]
)

BATCH_BYTES = 2 * 2**20
"""About how much a batch of a question's rows holds on its way to the JVM."""


class Failure(Struct, frozen=True):
    """Why a unit failed, in the words of the error."""

    kind: str
    code: Code
    message: str
    hint: str

    @classmethod
    def of(cls, error: CordwoodError) -> Failure:
        """What travels of an error."""
        return cls(type(error).__name__, error.code, error.message, error.hint)

    def error(self) -> CordwoodError:
        """The error again."""
        kind: type[CordwoodError] = getattr(errors, self.kind, CordwoodError)
        return kind(self.message, code=self.code, hint=self.hint)


class UnitFailedError(Exception):
    """Fails a task with what the driver has to know, in a form that it finds in Spark's report."""

    def __init__(self, error: CordwoodError) -> None:
        """The words for people, and the whole for the driver."""
        text = base64.b64encode(msgspec.json.encode(Failure.of(error))).decode()
        super().__init__(f"{error} [cordwood:{text}]")


def failure_in(report: str) -> CordwoodError | None:
    """The error that failed a task, found in what Spark says of it."""
    found = re.search(r"\[cordwood:([A-Za-z0-9+/=]+)\]", report)
    if found is None:
        return None
    return msgspec.json.decode(base64.b64decode(found[1]), type=Failure).error()


def is_passing(error: CordwoodError) -> bool:
    """Whether the same unit may well succeed when it is done again."""
    return isinstance(error, StoreError) and error.transient


def options_for(
    job: Job[Any, Any, Any, Any], units: Sequence[Unit], *, rows: bool
) -> dict[str, str]:
    """The options of a read that does these units."""
    return {
        "job": job.name,
        "settings": msgspec.json.encode(job.settings).decode(),
        "units": pack(units),
        "rows": "true" if rows else "false",
    }


def pack(units: Sequence[Unit]) -> str:
    """Units as text, small."""
    return base64.b85encode(zlib.compress(msgspec.json.encode(units), 1)).decode()


def unpack(text: str) -> list[msgspec.Raw]:
    """The units, each as JSON of its own."""
    data = zlib.decompress(base64.b85decode(text))
    return msgspec.json.decode(data, type=list[msgspec.Raw])


class UnitSplit(InputPartition):
    """What Spark carries to a task: one unit."""

    def __init__(self, place: int, unit: bytes) -> None:
        """As JSON: it is pickled for every task."""
        super().__init__(place)
        self.unit = unit


class JobSource(DataSource):
    """`format("cordwood_job")`: for the engine, not for users."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """A row for each unit, unless it is a question."""
        return QUESTION if self.options.get("rows") == "true" else RESULTS

    def reader(self, schema: StructType) -> JobReader:
        """No I/O."""
        return JobReader(dict(self.options))


class JobReader(DataSourceReader):
    """Does units."""

    def __init__(self, options: dict[str, str]) -> None:
        """Small: it is pickled for every task."""
        self._packed = options.get("units", "")
        self._name = options.get("job", "")
        self._settings = options.get("settings", "").encode()
        self._rows = options.get("rows") == "true"

    def partitions(self) -> Sequence[InputPartition]:
        """A split for each unit."""
        splits = [UnitSplit(i, bytes(unit)) for i, unit in enumerate(unpack(self._packed))]
        # They are in the splits now; every task would carry all of them.
        self._packed = ""
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Do one unit."""
        settle()
        if not isinstance(partition, UnitSplit):
            return  # Spark's own, in place of none: there is nothing to do.
        job = rebuild(self._name, self._settings)
        unit = msgspec.json.decode(partition.unit, type=job.unit_type)
        if self._rows:
            yield from _rows(job, unit)
            return
        done, result = _result(job, unit)
        row = {"unit": partition.value, "done": done, "result": msgspec.json.encode(result)}
        yield pa.RecordBatch.from_pylist([row], schema=_RESULT_SCHEMA)


def _known_here(job: Job[Any, Any, Any, Any], error: CordwoodError) -> CordwoodError:
    """A failure with what only a worker knows: for which machine the store failed."""
    if not isinstance(error, StoreError):
        return error
    if error.code is Code.STORE_DENIED:
        return refused(job.settings.store, error)
    message = f"the worker on {socket.gethostname()}: {error.message}"
    return StoreError(message, code=error.code, hint=error.hint, transient=error.transient)


def _result(job: Job[Any, Any, Any, Any], unit: Unit) -> tuple[bool, Struct]:
    try:
        return True, portal.current().run(job.work(unit))
    except CordwoodError as error:
        known = _known_here(job, error)
        if is_passing(error):
            raise UnitFailedError(known) from error
        return False, Failure.of(known)


def _rows(job: Job[Any, Any, Any, Any], unit: Unit) -> Iterator[pa.RecordBatch]:
    """The rows of a question, in batches the JVM likes."""
    rows = job.rows(unit)
    home = portal.current()
    end = object()

    async def following() -> Any:
        return await anext(rows, end)

    while True:
        try:
            batch = home.run(following())
        except CordwoodError as error:
            raise UnitFailedError(_known_here(job, error)) from error
        if batch is end:
            return
        most = max(1, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, most):
            yield batch.slice(start, most)


def __getattr__(name: str) -> Any:
    """`build_index` needs the extra `search`, which other jobs do without."""
    if name == "build_index":
        return lazily("cordwood.spark.indexing", name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
