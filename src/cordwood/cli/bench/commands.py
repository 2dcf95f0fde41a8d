"""The bench commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from cordwood.cli.bench import collecting as collect_bench
from cordwood.cli.bench import latency as latency_bench
from cordwood.cli.bench import memory as memory_bench
from cordwood.cli.bench import scan as scan_bench
from cordwood.cli.bench import shards as shards_bench
from cordwood.cli.bench import streams as streams_bench
from cordwood.cli.bench import tail as tail_bench
from cordwood.cli.bench import throughput as throughput_bench
from cordwood.cli.bench.harness import run
from cordwood.cli.bench.histogram import PUBLISHED, lines, picture
from cordwood.cli.output import command, console, print_json

_POSITIVE = click.FloatRange(0, min_open=True)


@click.group()
def bench() -> None:
    """Measure a log, each figure beside a peer or a limit taken in the same run."""


@bench.command()
@click.option("--protocol", type=click.Choice(["cas", "chain", "both"]), default="cas")
@click.option(
    "--rate", type=_POSITIVE, default=10_000, show_default=True, help="Appends per second."
)
@click.option(
    "--body", type=click.IntRange(0), default=100, show_default=True, help="Bytes of a record."
)
@click.option("--put-latency-ms", type=click.FloatRange(0), default=100, show_default=True)
@click.option("--seconds", type=_POSITIVE, default=60, show_default=True)
@click.option("--shards", type=click.IntRange(1, 12), default=1, help="Of the chain log.")
@click.option("--histogram", is_flag=True, help="Print how many took how long.")
@click.option("--svg", type=click.Path(dir_okay=False), help="Draw that, beside wal3's own table.")
@command
def latency(
    *,
    protocol: str,
    rate: float,
    body: int,
    put_latency_ms: float,
    seconds: float,
    shards: int,
    histogram: bool,
    svg: str | None,
    as_json: bool,
) -> None:
    """Append latency in an open loop, without coordinated omission."""
    results = [
        run(
            lambda one=one: latency_bench.latency(  # type: ignore[misc]
                rate, body, put_latency_ms, seconds, one, shards if one == "chain" else 1
            )
        )
        for one in (("cas", "chain") if protocol == "both" else (protocol,))
    ]
    title = f"{rate:,.0f} appends/s of {body} B, {put_latency_ms:g} ms per put"
    found = {result["protocol"]: result["histogram"] for result in results}
    if svg is not None:
        drawing = picture({"wal3, published": PUBLISHED, **found}, title)
        Path(svg).write_text(drawing)
    if as_json:
        print_json(results[0] if len(results) == 1 else {r["protocol"]: r for r in results})
        return
    table = Table(title=title)
    for column in ("", "p50", "p90", "p99", "p99.9", "max"):
        table.add_column(column, justify="right")
    names = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")
    rows = [(f"{r['protocol']}, this run, ms", r) for r in results]
    rows += [(f"floor of {r['protocol']}", r["floor_ms"]) for r in results]
    rows.append(("wal3's published table (100 ms)", results[0]["published_wal3"]))
    for name, figures in rows:
        table.add_row(name, *(f"{figures[n]:g}" if n in figures else "" for n in names))
    console().print(table)
    for result in results:
        click.echo(f"{result['protocol']}:")
        flat = ("appends", "errors", "puts_per_s", "bytes_per_append", "cpu_cores", "alpha")
        _print_flat(result, flat)
        if histogram:
            for line in lines(result["protocol"], result["histogram"]):
                click.echo(line)


@bench.command()
@click.option("--fragments", type=click.IntRange(1), default=240, show_default=True)
@command
def shards(*, fragments: int, as_json: bool) -> None:
    """Writing and reading a chain log on a store that limits requests for each prefix."""
    result = run(lambda: shards_bench.shards((1, 2, 4, 8, 12), fragments))
    if as_json:
        print_json(result)
        return
    table = Table("shards", "fragments written/s", "fragments read/s")
    for one in result["runs"]:
        table.add_row(*(f"{value:g}" for value in one.values()))
    console().print(table)


@bench.command()
@click.option(
    "--rate", type=_POSITIVE, default=110_000, show_default=True, help="Single appends/s."
)
@click.option("--batch-rate", type=_POSITIVE, default=1_100_000, show_default=True)
@click.option("--plain-batch-rate", type=_POSITIVE, default=350_000, show_default=True)
@click.option("--body", type=click.IntRange(0), default=100, show_default=True)
@click.option("--put-latency-ms", type=click.FloatRange(0), default=100, show_default=True)
@click.option("--seconds", type=_POSITIVE, default=10, show_default=True)
@command
def throughput(
    *,
    rate: float,
    batch_rate: float,
    plain_batch_rate: float,
    body: int,
    put_latency_ms: float,
    seconds: float,
    as_json: bool,
) -> None:
    """How much one process takes in: append, append_many, append_arrow."""
    result = {
        "append": run(lambda: throughput_bench.appends(rate, body, put_latency_ms, seconds)),
        "append_many": run(
            lambda: throughput_bench.batches(
                {"numba": batch_rate, "hashlib": plain_batch_rate}, body, put_latency_ms, seconds
            )
        ),
        "ingest": throughput_bench.ingest(1024, repeats=7),
    }
    print_nested("throughput", result, as_json=as_json)


@bench.command()
@click.option(
    "--record", type=click.IntRange(1), default=1024, show_default=True, help="Bytes of a record."
)
@click.option("--mixed", is_flag=True, help="Sizes from half of that to half more.")
@click.option("--megabytes", type=click.IntRange(8), default=256, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@command
def scan(*, record: int, mixed: bool, megabytes: int, repeats: int, as_json: bool) -> None:
    """Reading to Arrow beside pyarrow on the same files, and a deep scrub beside plain SHA3."""
    result = scan_bench.scan(record, megabytes, repeats, mixed=mixed)
    print_nested("scan", result, as_json=as_json)


@bench.command()
@click.option("--logs", type=click.IntRange(1), default=1000, show_default=True)
@command
def memory(*, logs: int, as_json: bool) -> None:
    """Memory of open, idle logs."""
    result = run(lambda: memory_bench.memory(logs))
    print_nested("memory", result, as_json=as_json)


@bench.command()
@click.option("--fragments", type=click.IntRange(1), default=100_000, show_default=True)
@click.option(
    "--garbage", type=click.IntRange(1), default=1_000, show_default=True, help="To be collected."
)
@command
def collect(*, fragments: int, garbage: int, as_json: bool) -> None:
    """Requests that a collection makes, step by step."""
    result = run(lambda: collect_bench.collecting(fragments, garbage))
    print_nested("collect", result, as_json=as_json)


@bench.command()
@click.option("--fragments", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--streams", "names", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--per-fragment", type=click.IntRange(1), default=100, show_default=True)
@click.option("--reads", type=click.IntRange(1), default=500, show_default=True)
@command
def streams(*, fragments: int, names: int, per_fragment: int, reads: int, as_json: bool) -> None:
    """Fragments that reading one of many streams touches, beside those that hold it."""
    result = run(lambda: streams_bench.streams(fragments, names, per_fragment, reads))
    print_nested("streams", result, as_json=as_json)


@bench.command()
@click.option(
    "--rate", type=_POSITIVE, default=1_000, show_default=True, help="Appends per second."
)
@click.option(
    "--body", type=click.IntRange(0), default=100, show_default=True, help="Bytes of a record."
)
@click.option("--seconds", type=_POSITIVE, default=60, show_default=True, help="Of simulated time.")
@click.option("--seed", type=int, default=1, show_default=True)
@command
def tail(*, rate: float, body: int, seconds: float, seed: int, as_json: bool) -> None:
    """Append latency over a store with a slow tail: plain, and asked twice where it is slow."""
    result = tail_bench.tail(rate, body, seconds, seed)
    print_nested("tail", result, as_json=as_json)


def print_nested(title: str, result: dict[str, Any], *, as_json: bool) -> None:
    """The figures of a benchmark, one in a line."""
    if as_json:
        print_json(result)
        return
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in _flatten("", result):
        table.add_row(name, f"{value:,}" if isinstance(value, int | float) else str(value))
    console().print(table)


def _flatten(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [
        row for name, inner in value.items() for row in _flatten(f"{prefix} {name}".strip(), inner)
    ]


def _print_flat(result: dict[str, Any], names: tuple[str, ...]) -> None:
    console().print("  ".join(f"{name} {result[name]:,}" for name in names))
