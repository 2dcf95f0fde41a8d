"""Documents on the command line: from lines or files, a batch at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from cordwood.base.errors import InvalidInputError
from cordwood.cli.output import print_json, print_line, text_of
from cordwood.cli.source import tell_terminal

if TYPE_CHECKING:
    from cordwood.index.snapshot import Hit  # It needs an extra, and topics say things too.

BATCH, BATCH_BYTES = 4_096, 32 << 20
"""So many documents are handed on at a time, or so much text: it is held in memory meanwhile."""


def batches_of(
    source: BinaryIO, files: tuple[Path, ...]
) -> Iterator[tuple[list[bytes], list[str | bytes]]]:
    """Ids and texts: of files, or of lines."""
    if not files:
        tell_terminal(source)
    pairs: Iterable[tuple[bytes, str | bytes]] = _of_files(files) if files else _of_lines(source)
    ids: list[bytes] = []
    texts: list[str | bytes] = []
    size = 0
    for user_id, text in pairs:
        ids.append(user_id)
        texts.append(text)
        size += len(text)
        if len(ids) == BATCH or size >= BATCH_BYTES:
            yield ids, texts
            ids, texts, size = [], [], 0
    if ids:
        yield ids, texts


def _of_lines(source: BinaryIO) -> Iterator[tuple[bytes, str | bytes]]:
    """JSON objects with id and text, or an id, a tab and a text; one on each line."""
    for number, raw in enumerate(source, 1):
        line = raw.rstrip(b"\r\n")
        if not line:
            continue
        if line.startswith(b"{"):
            yield _of_object(line, number)
            continue
        user_id, tab, text = line.partition(b"\t")
        if not tab:
            raise InvalidInputError(
                f"line {number} is no document",
                hint='write {"id": "…", "text": "…"}, or an id, a tab and a text',
            )
        yield user_id, text


def _of_object(line: bytes, number: int) -> tuple[bytes, str]:
    try:
        found: Any = json.loads(line)
        user_id, text = found["id"], found["text"]
        if isinstance(text, str) and type(user_id) in {str, int}:
            return str(user_id).encode(), text
        why = "id and text are strings"  # What is null is no text: it would be found as "None".
    except KeyError as error:
        why = f"it has no {error}"
    except (ValueError, RecursionError) as error:
        why = str(error)
    raise InvalidInputError(
        f"line {number} is no document: {why}", hint='write {"id": "…", "text": "…"}'
    )


def _of_files(paths: tuple[Path, ...]) -> Iterator[tuple[bytes, bytes]]:
    for path in paths:
        inside = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for one in inside:
            yield str(one).encode(errors="surrogateescape"), one.read_bytes()


def show_hits(hits: Iterable[Hit], *, as_json: bool) -> None:
    """The best first."""
    for hit in hits:
        if as_json:
            print_json({"id": text_of(hit.id), "score": hit.score})
        else:
            print_line(f"{hit.score:8.3f}  {text_of(hit.id)}")


def show_ids(ids: Iterable[bytes], *, as_json: bool) -> None:
    """All of them, in order; how many, where it disturbs no program."""
    count = 0
    for user_id in sorted(ids):
        count += 1
        if as_json:
            print_json({"id": text_of(user_id)})
        else:
            print_line(text_of(user_id))
    if not as_json:
        click.echo(f"{count:,} found", err=True)
