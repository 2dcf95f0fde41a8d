"""Other search engines, as they are used from Python, each where it is installed.

They are built and asked in this process. Each query is a list of words and whether all of them are
wanted or any.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from cordwood.cli.bench.corpus import Document
from cordwood.cli.bench.questions import Question

HEAP_BYTES = 1_000_000_000
"""So much that tantivy writes one segment."""


class Peer(Protocol):
    """An engine with an index of the corpus."""

    name: str

    def build(self, documents: Sequence[Document], folder: Path) -> None:
        """Index documents."""
        ...

    def prepared(self, question: Question) -> Any:
        """The question as the engine wants it; None if it cannot ask that."""
        ...

    def best(self, prepared: Any) -> Any:
        """The ten best documents."""
        ...

    def count(self, prepared: Any) -> int | None:
        """How many documents there are, if it can say."""
        ...

    def size_bytes(self) -> int:
        """What the index takes."""
        ...


class Tantivy:
    """tantivy-py, one thread."""

    name = "tantivy"

    def build(self, documents: Sequence[Document], folder: Path) -> None:
        """See `Peer`. Ids are kept with the documents, and not searched."""
        import tantivy  # noqa: PLC0415 - optional

        self._folder = folder
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("body", stored=False, index_option="freq")
        builder.add_bytes_field("id", stored=True, indexed=False)
        self._index = tantivy.Index(builder.build(), path=str(folder))
        writer = self._index.writer(HEAP_BYTES, 1)
        for user_id, text in documents:
            made = tantivy.Document()
            made.add_text("body", text)
            made.add_bytes("id", user_id)
            writer.add_document(made)
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        self._searcher = self._index.searcher()

    @property
    def segments(self) -> int:
        """How many it has."""
        return int(self._searcher.num_segments)

    def prepared(self, question: Question) -> Any:
        """See `Peer`."""
        return self.asked(question.text)

    def asked(self, text: str) -> Any:
        """A query as people write it; NOT stands at most once, between two operands."""
        wanted, _, unwanted = text.partition(" NOT ")
        query = f"+{wanted} -{unwanted}" if unwanted else text
        return self._index.parse_query(query, ["body"])

    def best(self, prepared: Any) -> Any:
        """See `Peer`: addresses of documents, not their ids."""
        return self._searcher.search(prepared, 10, count=False).hits

    def count(self, prepared: Any) -> int | None:
        """See `Peer`."""
        found: Any = self._searcher.search(prepared, 1, count=True)
        return int(found.count)

    def size_bytes(self) -> int:
        """See `Peer`."""
        return sum(file.stat().st_size for file in self._folder.iterdir())


class Fts5:
    """SQLite's FTS5: contentless, without positions."""

    name = "fts5"

    def build(self, documents: Sequence[Document], folder: Path) -> None:
        """See `Peer`. Ids are numbers."""
        self._path = folder / "fts5.db"
        self._database = sqlite3.connect(self._path)
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(
            "CREATE VIRTUAL TABLE found USING fts5(body, content='', detail=column, "
            "tokenize='unicode61 remove_diacritics 0')"
        )
        with self._database:
            self._database.executemany(
                "INSERT INTO found (rowid, body) VALUES (?, ?)",
                ((number, text) for number, (_, text) in enumerate(documents, 1)),
            )

    def prepared(self, question: Question) -> Any:
        """See `Peer`."""
        return self.asked(question.text)

    def asked(self, text: str) -> Any:
        """A query as people write it; words in quotes are never taken for syntax."""
        return (re.sub(r"\w+", lambda found: _quoted(found[0]), text),)

    def best(self, prepared: Any) -> Any:
        """See `Peer`."""
        sql = "SELECT rowid FROM found WHERE found MATCH ? ORDER BY rank LIMIT 10"
        return self._database.execute(sql, prepared).fetchall()

    def count(self, prepared: Any) -> int | None:
        """See `Peer`."""
        sql = "SELECT count(*) FROM found WHERE found MATCH ?"
        return int(self._database.execute(sql, prepared).fetchone()[0])

    def size_bytes(self) -> int:
        """See `Peer`."""
        return self._path.stat().st_size


class Bm25s:
    """bm25s: scores of all documents, made when it is built; any of the words."""

    name = "bm25s"

    def build(self, documents: Sequence[Document], folder: Path) -> None:
        """See `Peer`."""
        import bm25s  # noqa: PLC0415 - optional

        texts = [text for _, text in documents]
        pattern = r"[^\W_]+"
        tokens = bm25s.tokenize(texts, True, pattern, None, show_progress=False)
        self._found = bm25s.BM25()
        self._found.index(tokens, show_progress=False)
        self._folder = folder
        self._found.save(str(folder))

    def prepared(self, question: Question) -> Any:
        """See `Peer`."""
        return None if question.is_all and len(question.words) > 1 else [list(question.words)]

    def best(self, prepared: Any) -> Any:
        """See `Peer`."""
        return self._found.retrieve(prepared, k=10, show_progress=False)

    def count(self, prepared: Any) -> int | None:
        """See `Peer`: it cannot."""
        del prepared
        return None

    def size_bytes(self) -> int:
        """See `Peer`."""
        return sum(file.stat().st_size for file in self._folder.iterdir())


def _quoted(word: str) -> str:
    return word if word in {"AND", "OR", "NOT"} else f'"{word}"'


def installed(wanted: Sequence[str]) -> tuple[list[Peer], list[str]]:
    """Those of the engines that are here, and the names of those that are not."""
    here: list[Peer] = []
    if "tantivy" in wanted and find_spec("tantivy"):
        here.append(Tantivy())
    if "fts5" in wanted and _has_fts5():
        here.append(Fts5())
    if "bm25s" in wanted and find_spec("bm25s"):
        here.append(Bm25s())
    names = {peer.name for peer in here}
    return here, [name for name in wanted if name not in names]


def _has_fts5() -> bool:
    with suppress(sqlite3.Error):
        sqlite3.connect(":memory:").execute("CREATE VIRTUAL TABLE t USING fts5(body)")
        return True
    return False
