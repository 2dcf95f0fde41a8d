"""Segments that many processes build and one commits: documents from anywhere, once.

Whoever builds is told where the index is (`Stage`, which travels), writes segments there that
nobody knows yet, and hands back what they are (`Part`). The one who began then commits them all in
one transaction. A part that is not committed is swept: from a folder at the end, from a store by
age.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import InvalidInputError
from cordwood.index.build import Builder, as_ids
from cordwood.index.draft import Draft
from cordwood.index.engine import SEGMENT_BYTES, Engine
from cordwood.index.folder import Folder
from cordwood.index.home import Files
from cordwood.index.ledger import AddSegment
from cordwood.index.shelf import Shelf
from cordwood.index.tokens import as_texts, tokenizer
from cordwood.store.url import Store


class Part(msgspec.Struct, frozen=True):
    """A segment that waits for its commit."""

    segment: int
    documents: int
    size_bytes: int
    path: str = ""
    """Its file, for an index in a folder."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where to build, for any process. It holds no secrets: a store is opened by its URL."""

    tokenizer: str
    frequencies: bool
    spool: str = ""
    """The folder for files, for an index in a folder."""
    store: str = ""
    prefix: str = ""
    segment_bytes: int = SEGMENT_BYTES

    def build(self, batches: Iterable[tuple[Any, Any]]) -> Iterator[Part]:
        """Segments of documents: ids and texts, as Arrow arrays or lists. Blocks."""
        cutter = tokenizer(self.tokenizer)
        builder = Builder(cutter, frequencies=self.frequencies)
        for ids, texts in batches:
            keys, values = as_ids(ids), as_texts(texts, takes_bytes=cutter.takes_bytes)
            if len(keys) != len(values):
                raise InvalidInputError(f"{len(keys)} ids came with {len(values)} documents")
            builder.add(keys, values)
            if builder.size_bytes >= self.segment_bytes:
                yield self._keep(builder)
                builder = Builder(cutter, frequencies=self.frequencies)
        if builder.documents:
            yield self._keep(builder)

    def _keep(self, builder: Builder) -> Part:
        # Chance, not the folder's file of numbers: this may be another machine.
        number = int(SYSTEM_ENTROPY.token()[:15], 16) + 1
        sink = io.BytesIO()
        facts = builder.write(sink)
        data = sink.getvalue()
        path = ""
        if self.spool:
            path = f"{self.spool}/segment.{number}"
            Path(path).write_bytes(data)
        else:
            key = f"{self.prefix}segment.{number}.idx"
            asyncio.run(Store(self.store).put(key, data, "create"))
        return Part(number, facts.documents, len(data), path)


@contextmanager
def staging(engine: Engine) -> Iterator[Stage]:
    """A stage for an index, as long as the block goes on."""
    home = engine.home
    config = engine.config
    tokenizer(config.tokenizer)  # One of the user's own does not travel.
    if isinstance(home, Shelf):
        yield Stage(config.tokenizer, config.frequencies, store=home.store_url, prefix=home.prefix)
        return
    assert isinstance(home, Folder)
    with home.spool() as folder:
        yield Stage(config.tokenizer, config.frequencies, spool=str(folder))


def commit_parts(
    engine: Engine,
    parts: Sequence[Part],
    *,
    marks: Mapping[str, bytes] | None = None,
    expected: Mapping[str, bytes | None] | None = None,
    since_s: float | None = None,
) -> int | None:
    """Let all parts join in one transaction; its number, or None if there is nothing to do.

    `since_s` is when the first was begun, by the monotonic clock (`Files`).
    """
    if not parts and not marks:
        return None
    added = tuple(AddSegment(part.segment, part.documents, part.size_bytes) for part in parts)
    files = {part.segment: Path(part.path) for part in parts if part.path}
    with engine.visiting() as (visit, _):
        draft = Draft(added=added, marks=dict(marks or {}), expected=dict(expected or {}))
        return engine.home.commit(visit, draft, Files(files, {}, since_s))
