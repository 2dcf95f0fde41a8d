"""`cordwood names`: find what somebody meant, by a name with typing errors in it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from cordwood.base.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from cordwood.cli.output import byte_progress, command, print_json, print_line
from cordwood.index import names as naming
from cordwood.sync import Index

BLOCK_BYTES = 8 << 20
"""So much of a file is read at a time."""


@click.group()
def names() -> None:
    """Search names that are not quite right."""


@names.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--index", "place", required=True, help="A folder that is not there yet.")
@click.option("--id", "key", default="id", show_default=True, help="The column of ids.")
@click.option(
    "--name",
    "columns",
    multiple=True,
    help="A column of names; several times for several. By default all but the ids.",
)
@command
def build(file: Path, *, place: str, key: str, columns: tuple[str, ...], as_json: bool) -> None:
    """Build an index of the names in FILE: .csv, .tsv, or .jsonl with one object per line.

    An id may have several names: in several columns, in several rows, or, in JSON, in a list. The
    index is there when all of FILE is in it; after a failure the command may be run again.
    """
    total = _check(file)
    index = Index(place)
    index.create(naming.TOKENIZER, exist_ok=True)
    if naming.MARK in index.state().marks:
        raise AlreadyExistsError(f"{place} has names in it", hint="name another folder")
    # If two build at once, the second is refused: names would be there twice.
    begun = index.begin(marks={naming.MARK: b"1"}, expected={naming.MARK: None})
    count = 0
    with byte_progress("reading", total, shown=not as_json) as progress, begun as txn:
        for table, done in rows_of(file):
            for ids, texts in columns_of(table, key, columns, file):
                keys, kept = naming.documents(ids, texts)
                txn.add_arrow(keys, kept)
                count += len(kept)
            progress(done)
    if as_json:
        print_json({"index": place, "names": count})
    else:
        click.echo(f"{count:,} names in {place}")


@names.command()
@click.argument("place", metavar="DIR")
@click.argument("text")
@click.option("-k", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many.")
@command
def search(place: str, text: str, *, k: int, as_json: bool) -> None:
    """Print the ids in the index at DIR whose names are most like TEXT, the best first."""
    with Index(place) as index, index.snapshot() as snapshot:
        if naming.MARK not in snapshot.marks:
            raise NotFoundError(
                f"{place} has no names in it", hint="`cordwood names build` makes such an index"
            )
        found = naming.search(snapshot, text, k)
    for one in found:
        if as_json:
            print_json(one._asdict() | {"score": round(one.score, 6)})
        else:
            print_line(f"{one.score:.3f}\t{one.id}\t{one.name}")


def _check(file: Path) -> int:
    """The size of a file that can be read."""
    if file.suffix.lower() not in {".csv", ".tsv", ".jsonl"}:
        raise InvalidInputError(
            f"{file}: its name ends in no form that we know", hint="use .csv, .tsv or .jsonl"
        )
    if not file.is_file():
        raise NotFoundError(f"{file} is not there")
    return file.stat().st_size


def rows_of(file: Path) -> Iterator[tuple[pa.Table, int]]:
    """The rows of a file, some at a time, and how much of it has been read.

    Raises:
        InvalidInputError: they cannot be read.
    """
    rows = _json_rows if file.suffix.lower() == ".jsonl" else _csv_rows
    try:
        with pa.OSFile(str(file), "rb") as source:
            for table in rows(source, file):
                yield table, source.tell()
    except (pa.ArrowInvalid, csv.Error) as error:
        raise InvalidInputError(f"{file}: {error}") from error


def _csv_rows(source: pa.NativeFile, file: Path) -> Iterator[pa.Table]:
    """All columns are texts: an id like 007 is no number."""
    is_csv = file.suffix.lower() == ".csv"
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        reader = (
            csv.reader(lines)
            if is_csv
            else csv.reader(lines, "excel-tab", quotechar=None, quoting=csv.QUOTE_NONE)
        )
        header = next(reader, [])
    if not header:
        return
    opened = pacsv.open_csv(
        source,
        read_options=pacsv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
        parse_options=pacsv.ParseOptions(
            delimiter="," if is_csv else "\t",
            quote_char='"' if is_csv else False,
            newlines_in_values=is_csv,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.large_string()),
            null_values=["\\N"],
            strings_can_be_null=True,
        ),
    )
    for batch in opened:
        yield pa.Table.from_batches([batch])


def _json_rows(source: pa.NativeFile, _: Path) -> Iterator[pa.Table]:
    rest = b""
    while data := source.read(BLOCK_BYTES):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield from _json_table(rest + data[:cut])
            rest = b""
        rest += data[cut:]
    yield from _json_table(rest)


def _json_table(lines: bytes) -> Iterator[pa.Table]:
    if not lines.strip():
        return
    table = _json(lines, None)
    # What looks like a date is made one, and is a name all the same.
    dates = {
        field.name: pa.list_(pa.string()) if pa.types.is_list(field.type) else pa.string()
        for field in table.schema
        if pa.types.is_temporal(getattr(field.type, "value_type", field.type))
    }
    yield _json(lines, pa.schema(dates.items())) if dates else table


def _json(lines: bytes, schema: pa.Schema | None) -> pa.Table:
    return pajson.read_json(
        pa.BufferReader(lines),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pajson.ParseOptions(explicit_schema=schema),
    )


def columns_of(
    table: pa.Table, key: str, columns: tuple[str, ...], file: Path
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Ids and names, a column of names at a time; a list is that many names."""
    for column in (key, *columns):
        if column not in table.schema.names:
            raise InvalidInputError(
                f"{file} has no column {column!r}", hint=f"it has {', '.join(table.schema.names)}"
            )
    ids = table.column(key).combine_chunks()
    for column in columns or [name for name in table.schema.names if name != key]:
        names_in = table.column(column).combine_chunks()
        if pa.types.is_list(names_in.type):
            yield ids.take(pc.list_parent_indices(names_in)), pc.list_flatten(names_in)
        else:
            yield ids, names_in
