"""`cordwood demo`: the whole pipeline on a local directory, in a minute or so.

Two writers append what happens to the orders of a small shop to a log for each town. Dirty logs say
which logs changed; a roll-up picks them; a compaction makes a table of the newest state of every
order; a query asks it something; collection frees the logs; a scrub proves the whole. Where there
is a Java runtime the heavy steps run on Spark, else in this process: the jobs are the same.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import msgspec
import pyarrow as pa
import pyarrow.json as pj

from cordwood.base import portal
from cordwood.base.errors import AlreadyExistsError, InternalError
from cordwood.cli.output import console, print_json, printing_command, size
from cordwood.fleet.select import Policy
from cordwood.pipeline.engine import fastest
from cordwood.pipeline.reports import RunReport
from cordwood.sync import Fleet, Log, Pipeline, Store, Table, scrub_log, survey

TOWNS = ("Narvik", "Oslo", "Riga", "Turku")
GOODS = ("axe", "saw", "wedge", "maul", "gloves", "chain", "file", "rope")
ORDERS = 12_000
"""Orders; each has two or three events."""

EVENTS_PER_BATCH = 500
LATE_EVENTS = 50
GRACE_S = 1
"""The logs' grace interval: short, so that one can see how it ends."""

STEP = "[bold]{}[/]"


def events(writer: int) -> Iterator[tuple[str, bytes, bytes]]:
    """What one of two writers has to say: town, order, event. The same every time.

    An order is placed, most are paid, some are cancelled: then the event is empty, a tombstone.
    """
    mine = range(1 + writer, ORDERS + 1, 2)
    for status in ("placed", "paid"):
        for number in mine:
            if status == "paid" and number % 5 == 0:
                continue
            order = {
                "order": number,
                "item": GOODS[number * 7 % len(GOODS)],
                "price": 5 + number * 13 % 90,
                "status": status,
            }
            yield _town(number), b"%d" % number, msgspec.json.encode(order)
    for number in mine:
        if number % 10 == 0:
            yield _town(number), b"%d" % number, b""


def _town(number: int) -> str:
    return TOWNS[number * 3 % len(TOWNS)]


def newest() -> dict[tuple[str, bytes], bytes]:
    """What the table has to hold in the end."""
    found: dict[tuple[str, bytes], bytes] = {}
    for writer in (0, 1):
        found |= {(f"orders/{town}", key): body for town, key, body in events(writer)}
    return {key: body for key, body in found.items() if body}


@click.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cordwood-demo"),
    show_default=True,
    help="Where to put the demonstration's files; replaced if they are those of an earlier run.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "local", "spark"]),
    default="auto",
    show_default=True,
    help="auto: Spark if it can run here.",
)
@printing_command
def demo(directory: Path, *, engine: str, as_json: bool) -> None:
    """Show the whole pipeline on a directory: writers, dirty logs, compaction, query, proof."""
    say = _silence if as_json else console().print
    store = _prepare(directory)
    engine, missing = _choose(engine, store)
    if missing:
        say(f"[yellow]{missing}.[/] The same jobs run in this process instead.\n")
    say(f"{STEP.format('1. Append')}: two writers, {len(TOWNS)} logs, one for each town")
    count = _append(store)
    dirty = survey(store).dirty
    say(f"   {count:,} events in {store.url}/orders/")
    say(f"{STEP.format('2. Dirty logs')}: what the writers marked, without asking every log")
    for one in dirty:
        say(f"   {one.log}: {one.num_records:,} records, {size(one.num_bytes)}")
    pipeline = Pipeline(
        store,
        table="tables/orders",
        mode="upsert",
        policy=Policy(min_records=100),
        quiet_s=0.0,
        scrub="off",
        engine=engine,
    )
    say(f"{STEP.format('3. Pipeline')}: roll up, compact with engine {engine}, collect")
    report = pipeline.run()
    _tell_run(say, report)
    table = Table(store, "tables/orders")
    say(f"{STEP.format('4. Query')}: the newest state of every order, in {table.url}")
    answer = _query(table, engine)
    for town, orders, revenue in answer:
        say(f"   {town:<8} {orders:>6,} orders, {revenue:>9,} paid")
    say(f"{STEP.format('5. Collect')}: once the grace interval is over, the old files go")
    late = _append_late(store)
    freed = _run_until_collected(pipeline)
    say(f"   {freed:,} objects deleted; {late:,} events that came late are too few to compact")
    say(f"{STEP.format('6. Prove')}: logs and table are what was appended")
    facts = _prove(store, table, report, engine)
    verdict = "balance" if facts["logs_ok"] else "DO NOT BALANCE"
    say(f"   logs {verdict}: what was collected, and {facts['left']:,} records read now")
    say(f"   table {'equal to' if facts['equal'] else 'DIFFERENT from'} what the writers said last")
    say(f"\nThe files are in {directory.resolve()}. Try it yourself:")
    for words in (
        f"table show {table.url}",
        f"table read {table.url} -n 3",
        f"log show {store.url}/orders/Oslo",
        f"pipeline status {store.url}",
    ):
        say(f"  {_program()} {words}")
    if as_json:
        print_json({"engine": engine, "missing": missing, "events": count, **facts})
    if not (facts["logs_ok"] and facts["equal"] and not report.errors):
        raise InternalError("the demonstration failed")


def _prepare(directory: Path) -> Store:
    """An empty store, in place of the one of an earlier run."""
    marker = directory / "cordwood-demo.txt"
    if directory.exists() and any(directory.iterdir()):
        if not marker.exists():
            raise AlreadyExistsError(
                f"{directory} has files that are not a demonstration's",
                hint="choose another with --directory",
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    marker.write_text("Made by `cordwood demo`; may be deleted.\n", encoding="utf-8")
    return Store(str(directory.resolve()))


def _choose(name: str, store: Store) -> tuple[str, str]:
    """The engine, and what is missing for Spark if that is why it is not Spark."""
    if name != "auto":
        return name, ""
    does, missing = portal.current().run(fastest([store]))
    return does.name, missing


def _append(store: Store) -> int:
    """Both writers at once; each in a thread, with a dirty log of its own."""
    for town in TOWNS:
        Log(store, f"orders/{town}").create(grace_s=GRACE_S)

    def write(number: int) -> int:
        count = 0
        waiting: dict[str, list[tuple[bytes, bytes]]] = {town: [] for town in TOWNS}

        def flush(town: str) -> None:
            keys, bodies = zip(*waiting[town], strict=True)
            fleet.append_arrow(f"orders/{town}", pa.table({"key": keys, "body": bodies}))
            waiting[town].clear()

        with Fleet(store, f"writer-{number}") as fleet:
            for town, key, body in events(number):
                waiting[town].append((key, body))
                count += 1
                if len(waiting[town]) == EVENTS_PER_BATCH:
                    flush(town)
            for town in TOWNS:
                if waiting[town]:
                    flush(town)
        return count

    with ThreadPoolExecutor(2) as threads:
        return sum(threads.map(write, (0, 1)))


def _tell_run(say: Any, report: RunReport) -> None:
    for one in report.chosen:
        say(f"   {one.log} was chosen because of {', '.join(one.reasons)}")
    for done in report.compacted:
        say(
            f"   {done.records:,} records became {done.kept:,} rows ({done.tombstones:,} orders "
            f"cancelled) in {done.files} files, {size(done.bytes)}"
        )
        say(f"   what was read is what the logs say: setsum {done.setsum}")
    say(f"   {sum(one.records for one in report.collected):,} records taken out of the logs")


def _query(table: Table, engine: str) -> list[tuple[str, int, int]]:
    """Orders of each town, and what was paid: by Spark SQL, or by Arrow."""
    if engine == "spark":
        from cordwood.spark import read_table, session  # noqa: PLC0415 - only if it is there

        read_table(session(), table.url).createOrReplaceTempView("orders")
        rows = session().sql(
            "SELECT substring(log, 8) AS town, count(*), "
            "  sum(if(event.status = 'paid', event.price, 0)) "
            "FROM (SELECT log, from_json(CAST(body AS STRING), 'price INT, status STRING') AS event"
            "      FROM orders) GROUP BY log ORDER BY log"
        )
        return [(row[0], row[1], int(row[2])) for row in rows.collect()]
    rows = table.to_arrow(["log", "body"])
    parsed = pj.read_json(pa.BufferReader(b"\n".join(rows.column("body").to_pylist())))
    paid = pa.compute.equal(parsed.column("status"), "paid")
    amounts = pa.compute.if_else(paid, parsed.column("price"), 0)
    by_town = pa.table({"log": rows.column("log"), "paid": amounts}).group_by("log")
    found = by_town.aggregate([([], "count_all"), ("paid", "sum")]).sort_by("log")
    return [
        (row["log"].removeprefix("orders/"), row["count_all"], row["paid_sum"])
        for row in found.to_pylist()
    ]


def _append_late(store: Store) -> int:
    """A few more events for every town."""
    with Fleet(store, "writer-late") as fleet:
        for town in TOWNS:
            fleet.append_many(f"orders/{town}", [b'{"status":"late"}'] * LATE_EVENTS)
    return LATE_EVENTS * len(TOWNS)


def _run_until_collected(pipeline: Pipeline) -> int:
    """Run until nothing waits for its grace interval any more; how many objects were deleted."""
    deleted = 0
    for report in pipeline.every(GRACE_S):
        deleted += sum(one.deleted for one in report.collected)
        if deleted and not report.waiting:
            break
    return deleted


def _prove(store: Store, table: Table, report: RunReport, engine: str) -> dict[str, Any]:
    """Every log by its setsum, the table against what was appended."""
    logs = [scrub_log(Log(store, f"orders/{town}"), engine=engine) for town in TOWNS]
    rows = table.to_arrow(["log", "key", "body"])
    columns = (rows.column(name).to_pylist() for name in ("log", "key", "body"))
    found = {(log, key): body for log, key, body in zip(*columns, strict=True)}
    return {
        "rows": rows.num_rows,
        "left": sum(log.records for log in logs),
        "records": report.records,
        "setsum": report.compacted[0].setsum if report.compacted else "",
        "table": table.url,
        "logs_ok": all(log.ok for log in logs) and table.scrub() == [],
        "equal": found == newest() and len(found) == rows.num_rows,
    }


def _program() -> str:
    """How this command was called, so that what we print can be copied."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "cordwood" else "python -m cordwood"


def _silence(_: object) -> None:
    """With --json only the result is printed."""
