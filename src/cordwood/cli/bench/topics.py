"""`cordwood topic bench`: durable sends beside SQLite's commits, in one run."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.cli.bench.compaction import STEPS, measure_compaction
from cordwood.cli.bench.harness import run
from cordwood.cli.output import command, console, count_progress, print_json, size
from cordwood.sync.topics import Producer, Topics
from cordwood.topics.topics import Topics as AsyncTopics

GROUP = 1_000
EXTENT_BYTES = 256 << 20


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--record", type=click.IntRange(1), default=128, show_default=True, help="Bytes.")
@click.option("--sends", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True)
@click.option("--keys", type=click.IntRange(1), help="Compaction instead, with so many keys.")
@command
def bench(
    directory: Path | None,
    *,
    record: int,
    sends: int,
    rounds: int,
    keys: int | None,
    as_json: bool,
) -> None:
    """Send records durably, one by one and many at once, beside SQLite in WAL mode, FULL sync.

    In a temporary folder under DIRECTORY, or the current one: on the disk that is to be measured.
    The two take turns, and each round has a ratio; the middle one is given.

    With --keys: send so many distinct keys to a compaction topic, and three tenths of them again;
    compact it; read the last record of each. Rates, and the peak of memory of each step.
    """
    with tempfile.TemporaryDirectory(dir=directory or Path.cwd()) as place:
        if keys is not None:
            with count_progress("compaction", shown=not as_json) as advance:
                compacted = measure_compaction(Path(place), keys, record, advance)
            _print_compaction(compacted, as_json=as_json)
            return
        result = measure(Path(place), record, sends, rounds)
    if as_json:
        print_json(result)
        return
    table = Table("", "sends/s", "SQLite, rows/s", "ratio", "wanted")
    for name, row in result["rates"].items():
        wanted = f"{row['reach']:g}" if "reach" in row else ""
        figures = (f"{row['per_s']:,.0f}", f"{row['sqlite_per_s']:,.0f}", f"{row['ratio']:.2f}")
        table.add_row(name.replace("_", " "), *figures, wanted)
    console().print(table)


def _print_compaction(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    table = Table("", "bytes", "seconds", "CPU s", "MB/s", "memory", "of it before")
    for step in STEPS:
        row = result[step]
        memory = size(row["rss_peak_bytes"]), size(row["rss_before_bytes"])
        rates = f"{row['seconds']:g}", f"{row['cpu_seconds']:g}", f"{row['mb_per_s']:g}"
        table.add_row(step, size(row["bytes"]), *rates, *memory)
    console().print(f"{result['keys']:,} keys, records of {result['record_bytes']} bytes")
    console().print(table)


def measure(place: Path, record: int, sends: int, rounds: int) -> dict[str, Any]:
    """The rates of both, round by round."""
    topics = Topics(place / "topics")
    topics.create("bench", "sends", extent_bytes=EXTENT_BYTES)
    base = sqlite3.connect(place / "sqlite.db", isolation_level=None)
    base.execute("pragma journal_mode = wal")
    base.execute("pragma synchronous = full")
    base.execute("create table records (number integer primary key, value blob)")
    value = os.urandom(record)
    rows = [(value,)] * GROUP

    def one_row() -> None:
        base.execute("insert into records (value) values (?)", (value,))

    def many_rows() -> None:
        base.execute("begin")
        base.executemany("insert into records (value) values (?)", rows)
        base.execute("commit")

    with topics, topics.producer("bench", "sends") as producer:
        ways: dict[str, tuple[Callable[[], float], Callable[[], float], float | None]] = {
            "single": (
                lambda: _rate(lambda: producer.send(value), sends),
                lambda: _rate(one_row, sends),
                1.0,
            ),
            "grouped_1000": (
                lambda: GROUP * _rate(lambda: producer.send_many([value] * GROUP), sends // 10),
                lambda: GROUP * _rate(many_rows, sends // 10),
                3.0,
            ),
            "tasks_1000": (
                lambda: run(lambda: _tasks(place, value, sends // 20)),
                lambda: _rate(one_row, sends // 4),
                3.0,
            ),
        }
        _warm(producer, value, one_row)
        rates = {name: _compared(*way, rounds) for name, way in ways.items()}
    base.close()
    return {"record_bytes": record, "rounds": rounds, "rates": rates}


def _compared(
    ours: Callable[[], float], theirs: Callable[[], float], reach: float | None, rounds: int
) -> dict[str, float]:
    pairs = sorted(((ours(), theirs()) for _ in range(rounds)), key=lambda pair: pair[0] / pair[1])
    mine, peer = pairs[len(pairs) // 2]
    return {
        "per_s": round(mine),
        "sqlite_per_s": round(peer),
        "ratio": round(mine / peer, 2),
        "ratio_min": round(pairs[0][0] / pairs[0][1], 2),
        "ratio_max": round(pairs[-1][0] / pairs[-1][1], 2),
    } | ({} if reach is None else {"reach": reach})


def _warm(producer: Producer, value: bytes, one_row: Callable[[], None]) -> None:
    for _ in range(20):
        producer.send(value)
        one_row()


def _rate(call: Callable[[], object], times: int) -> float:
    begin_s = SYSTEM_CLOCK.monotonic_s()
    for _ in range(times):
        call()
    return times / (SYSTEM_CLOCK.monotonic_s() - begin_s)


async def _tasks(place: Path, value: bytes, rounds: int) -> float:
    """So many tasks that each send one record at a time."""
    async with (
        AsyncTopics(place / "topics") as topics,
        topics.producer("bench", "sends") as producer,
    ):

        async def send() -> None:
            for _ in range(rounds):
                await producer.send(value)

        begin_s = SYSTEM_CLOCK.monotonic_s()
        await asyncio.gather(*(send() for _ in range(GROUP)))
        return GROUP * rounds / (SYSTEM_CLOCK.monotonic_s() - begin_s)
