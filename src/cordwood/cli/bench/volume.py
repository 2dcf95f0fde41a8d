"""`cordwood volume bench`: SQLite on a volume beside SQLite on a plain file, in one run."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.cli.output import command, console, print_json, size
from cordwood.store.directory import DirectoryStore
from cordwood.store.url import Store
from cordwood.sync.volume import Volume
from cordwood.testing.hooked import Hooked
from cordwood.volume import sqlite

VALUE_BYTES = 400
UNPUSHED = (0, 200, 3_000)
"""Local commits over which reads are measured."""
DEFAULT_CACHE = -2_000
"""SQLite's own: two megabytes."""
PLAIN = {"wal": "wal, full sync", "delete": "delete, full sync"}
"""Journal modes of the plain files."""


@click.group()
def bench() -> None:
    """Measure volumes, beside a peer in the same run."""


@bench.command("sqlite")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--rows", type=click.IntRange(1_000), default=220_000, show_default=True)
@click.option("--reads", type=click.IntRange(1), default=5_000, show_default=True)
@click.option("--updates", type=click.IntRange(1), default=300, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@command
def bench_sqlite(
    directory: Path | None, *, rows: int, reads: int, updates: int, rounds: int, as_json: bool
) -> None:
    """Load, read and update rows of 400 bytes, on a volume and on plain files.

    In a temporary folder under DIRECTORY, or the current one: on the disk that is to be measured.
    They take turns, and each round has a ratio; the middle one is given. Reads are measured in
    seconds of the processor, what waits for the disk by the clock.
    """
    with tempfile.TemporaryDirectory(dir=directory or Path.cwd()) as place:
        result = measure(Path(place), rows, reads, updates, rounds)
    if as_json:
        print_json(result)
        return
    table = Table("", "volume, /s", "plain file", "/s", "ratio", "wanted")
    for row in result["rates"]:
        figures = (f"{row['per_s']:,}", row["plain"], f"{row['plain_per_s']:,}")
        table.add_row(row["what"], *figures, f"{row['ratio']:.2f}", f"{row['reach']:g}")
    console().print(table)
    for count, rate in result["unpushed_reads_per_s"].items():
        console().print(f"reads/s over {int(count):,} commits that are not pushed: {rate:,}")
    cold, mb = result["cold"], size(result["database_bytes"])
    console().print(f"branch of {mb}: {result['branch_ms']} ms (wanted: under 50)")
    console().print(
        f"first query on {mb} that is not here: {size(cold['bytes'])} in {cold['requests']} "
        f"requests (wanted: under 1 MB), {cold['ms']} ms"
    )


def measure(place: Path, rows: int, reads: int, updates: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    volume = sqlite.connect(str(place / "store"), "app", directory=place / "local")
    bases = {"volume": volume} | {mode: _plain(place, mode) for mode in PLAIN}
    rng = np.random.default_rng(7)
    load = _loads(bases, rows, max(3, rounds // 2))
    for base in bases.values():
        _warm(base, rows)
    rates = [*load]
    for what, cache, reach in (
        ("point reads, 64 MB cached", -64_000, 0.3),
        ("point reads, 10 pages cached", 10, 0.3),
    ):
        for base in bases.values():
            base.execute(f"pragma cache_size = {cache}")
            _read(base, rng, rows, reads)
        rates += _compared(what, bases, lambda b: _read(b, rng, rows, reads), reach, rounds)
    volume.execute("pragma cordwood_push('loaded')")
    for base in bases.values():
        base.execute(f"pragma cache_size = {DEFAULT_CACHE}")
        _warm(base, rows)
    rates += _compared(
        "durable updates", bases, lambda b: _update(b, rng, rows, updates), 0.5, rounds
    )
    decay = {str(count): _unpushed(volume, rng, rows, reads, count) for count in UNPUSHED}
    volume.execute("pragma cordwood_push('updated')")
    database_bytes = volume.execute("pragma page_count").get * 4096
    for base in bases.values():
        base.close()
    return {
        "rows": rows,
        "database_bytes": database_bytes,
        "rates": rates,
        "unpushed_reads_per_s": decay,
        "branch_ms": _branch_ms(place, rounds),
        "cold": _cold(place, rows),
    }


def _plain(place: Path, mode: str) -> sqlite.Connection:
    base = sqlite.plain(place / f"{mode}.db")
    base.execute(f"pragma journal_mode = {mode}")
    base.execute("pragma synchronous = full")
    return base


def _loads(bases: dict[str, Any], rows: int, rounds: int) -> list[dict[str, Any]]:
    """Rows per second of one large transaction; each round makes the table anew."""
    values = [os.urandom(VALUE_BYTES) for _ in range(1_000)]

    def load(base: Any) -> float:
        base.execute("drop table if exists t")
        base.execute("create table t (id integer primary key, x blob)")
        lines = ((number, values[number % 1_000]) for number in range(rows))
        begin_s = SYSTEM_CLOCK.monotonic_s()
        with base:
            base.executemany("insert into t values (?, ?)", lines)
        return rows / (SYSTEM_CLOCK.monotonic_s() - begin_s)

    return _compared("bulk load, rows", bases, load, 0.5, rounds)


def _warm(base: Any, rows: int) -> None:
    assert base.execute("select sum(length(x)) from t").get == rows * VALUE_BYTES


def _read(base: Any, rng: np.random.Generator, rows: int, count: int) -> float:
    """Queries by key, at random, per second of the processor: nothing else is waited for."""
    wanted = [(number,) for number in rng.integers(0, rows, count).tolist()]
    run = base.execute
    begin_s = _cpu_s()
    for one in wanted:
        run("select x from t where id = ?", one).fetchall()
    return count / (_cpu_s() - begin_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _update(base: Any, rng: np.random.Generator, rows: int, count: int) -> float:
    """Transactions per second, each of one row at random, each durable."""
    value = os.urandom(VALUE_BYTES)
    wanted = [(value, number) for number in rng.integers(0, rows, count).tolist()]
    begin_s = SYSTEM_CLOCK.monotonic_s()
    for one in wanted:
        base.execute("update t set x = ? where id = ?", one)
    return count / (SYSTEM_CLOCK.monotonic_s() - begin_s)


def _compared(
    what: str,
    bases: dict[str, Any],
    rate: Callable[[Any], float],
    reach: float,
    rounds: int,
) -> list[dict[str, Any]]:
    """The rates of a volume and of each plain file, in turns, and the middle of their ratios."""
    seen = [{name: rate(base) for name, base in bases.items()} for _ in range(rounds)]
    found = []
    for mode, plain in PLAIN.items():
        turns = sorted(seen, key=lambda turn: turn["volume"] / turn[mode])
        middle, ratios = turns[len(turns) // 2], [turn["volume"] / turn[mode] for turn in turns]
        found.append(
            {
                "what": what,
                "plain": plain,
                "per_s": round(middle["volume"]),
                "plain_per_s": round(middle[mode]),
                "ratio": round(ratios[len(ratios) // 2], 2),
                "ratio_min": round(ratios[0], 2),
                "ratio_max": round(ratios[-1], 2),
                "reach": reach,
            }
        )
    return found


def _unpushed(base: Any, rng: np.random.Generator, rows: int, reads: int, count: int) -> int:
    """Reads per second with so many commits since the last push, each of one row."""
    base.execute("pragma cordwood_push")
    value = os.urandom(VALUE_BYTES)
    for number in rng.integers(0, rows, count).tolist():
        base.execute("update t set x = ? where id = ?", (value, number))
    _read(base, rng, rows, reads)
    return round(sorted(_read(base, rng, rows, reads) for _ in range(3))[1])


def _branch_ms(place: Path, rounds: int) -> float:
    """The time to make a branch, the middle of some."""
    volume = Volume(str(place / "store"), "app", directory=place / "local")
    times = []
    with volume:
        for number in range(rounds):
            begin_s = SYSTEM_CLOCK.monotonic_s()
            volume.branch(f"branch{number}")
            times.append(SYSTEM_CLOCK.monotonic_s() - begin_s)
    return round(1000 * sorted(times)[len(times) // 2], 1)


def _cold(place: Path, rows: int) -> dict[str, Any]:
    """What one query by key asks of the store, from a directory that knows nothing."""
    fetched = 0

    async def counted(call: Callable[[], Any], *_: Any) -> Any:
        nonlocal fetched
        answer = await call()
        fetched += len(getattr(answer, "data", answer))
        return answer

    hooked = Hooked(DirectoryStore(str(place / "store")), get=counted, get_range=counted)
    begin_s = SYSTEM_CLOCK.monotonic_s()
    base = sqlite.connect(Store.over(hooked), "app", directory=place / "cold", create=False)
    base.execute("select x from t where id = ?", (rows // 2,)).fetchall()
    taken_s = SYSTEM_CLOCK.monotonic_s() - begin_s
    base.close()
    return {"bytes": fetched, "requests": len(hooked.calls), "ms": round(1000 * taken_s, 1)}
