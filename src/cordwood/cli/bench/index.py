"""The search index beside other engines: the same documents and queries, in one run.

Building is compared by CPU seconds, since cores are shared. A query's time is the best of three,
and a class has the mean of its queries. Queries are parsed before, ours and others'. For the ten
best we give ids, the others addresses of documents. `ids` is the complete set of ids, made;
`documents` the set of documents, from which it is made when somebody looks; tantivy-py has nothing
of that kind but a count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.cli.bench.corpus import Document, Length, documents
from cordwood.cli.bench.harness import stopwatch
from cordwood.cli.bench.peers import Peer, Question, Tantivy, installed
from cordwood.index.query import And, Or, Query, Term
from cordwood.index.snapshot import Snapshot
from cordwood.sync.index import Index

REACH = {"short": 0.8, "long": 0.5, "ranked": 3.0}
"""Of tantivy's speed of building, at least; of its time for the ten best, at most."""

PEERS = ("tantivy", "fts5", "bm25s")
SLOW_PEERS = {"fts5", "bm25s"}
"""They are asked a few queries of each class: theirs take milliseconds."""
SLOW_QUERIES = 5

PARTS = 8
"""Segments of the index in parts."""

Classes = dict[str, list[Question]]
Told = Callable[[str], None]
"""Called with what is being done."""


def compare(
    length: Length, megabytes: int, queries: int, peers: Sequence[str], told: Told
) -> dict[str, Any]:
    """Build everywhere, then ask everywhere."""
    told(f"reading {length} documents")
    texts = documents(length, megabytes << 20)
    here, missing = installed(peers)
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as folder:
        told("cordwood builds")
        whole, build = _build(Path(folder), "one", texts, 1)
        parts, build_parts = _build(Path(folder), "eight", texts, PARTS)
        with whole.snapshot() as one, parts.snapshot() as eight:
            facts = _facts(one, texts)
            built = {"cordwood": build | {"cpu_s_eight": build_parts["cpu_s"]}}
            for peer in here:
                told(f"{peer.name} builds")
                built[peer.name] = _build_peer(peer, Path(folder), texts)
            for figures in built.values():
                _add_rates(figures, facts["tokens"], built.get("tantivy"))
            classes = questions(one, texts, queries)
            asked = _ask(one, eight, here, classes, told)
        whole.close()
        parts.close()
    return {
        "corpus": facts,
        "missing": missing,
        "build": built,
        "queries": asked,
        "bars": _bars(length, built, asked),
    }


def _build(
    folder: Path, name: str, texts: Sequence[Document], parts: int
) -> tuple[Index, dict[str, Any]]:
    """Our index, in so many segments, with what it took."""
    index = Index(folder / name)
    index.create()
    ids = pa.array([user_id for user_id, _ in texts], pa.large_binary())
    values = pa.array([text for _, text in texts], pa.large_string())
    step = -(-len(texts) // parts)
    with stopwatch() as watch:
        for start in range(0, len(texts), step):
            with index.begin() as writing:
                writing.add_arrow(ids[start : start + step], values[start : start + step])
    figures: dict[str, Any] = {"cpu_s": watch.cpu_s, "wall_s": watch.wall_s}
    if parts == 1:
        figures["segments"] = index.state().segments
        with stopwatch() as watch:
            index.merge()
            index.compact()
        figures["merge_cpu_s"] = watch.cpu_s
    figures["bytes"] = index.state().size_bytes
    return index, figures


def _build_peer(peer: Peer, folder: Path, texts: Sequence[Document]) -> dict[str, Any]:
    place = folder / peer.name
    place.mkdir()
    with stopwatch() as watch:
        peer.build(texts, place)
    figures = {"cpu_s": watch.cpu_s, "wall_s": watch.wall_s, "bytes": peer.size_bytes()}
    if isinstance(peer, Tantivy):
        figures["segments"] = peer.segments
    return figures


def _add_rates(figures: dict[str, Any], tokens: int, tantivy: dict[str, Any] | None) -> None:
    figures["tokens_per_cpu_s"] = round(tokens / figures["cpu_s"])
    figures["bytes_per_token"] = round(figures["bytes"] / tokens, 2)
    if tantivy is not None:
        figures["speed_of_tantivys"] = round(tantivy["cpu_s"] / figures["cpu_s"], 2)


def _facts(snapshot: Snapshot, texts: Sequence[Document]) -> dict[str, Any]:
    segments = [view.segment for view in snapshot.views]
    return {
        "documents": len(texts),
        "characters": sum(len(text) for _, text in texts),
        "tokens": sum(segment.tokens for segment in segments),
        "terms": sum(segment.term_count for segment in segments),
        "postings": sum(segment.posting_count for segment in segments),
    }


def questions(snapshot: Snapshot, texts: Sequence[Document], count: int) -> Classes:
    """Queries of eleven classes, by how many documents have their words.

    hi: at least 2 % of the documents; mid: 0.05 % to 1 %; lo: 2 to 50 documents. natural: words
    that follow each other in a document, whatever they are.
    """
    chance = np.random.default_rng(1)
    words, counts = _vocabulary(snapshot)
    share = counts / snapshot.documents
    groups = {
        "hi": words[share >= 0.02],
        "mid": words[(share >= 0.0005) & (share < 0.01)],
        "lo": words[(counts >= 2) & (counts <= 50)],
    }

    def drawn(*names: str, is_all: bool) -> list[Question]:
        """Different words of these groups."""
        if any(len(groups[name]) < len(names) for name in names):
            return []
        found: list[Question] = []
        while len(found) < count:
            chosen = tuple(str(chance.choice(groups[name])) for name in names)
            if len(set(chosen)) == len(chosen):
                found.append(Question(chosen, is_all))
        return found

    return {
        "single hi": drawn("hi", is_all=True),
        "single mid": drawn("mid", is_all=True),
        "single lo": drawn("lo", is_all=True),
        "and hi hi": drawn("hi", "hi", is_all=True),
        "and hi mid": drawn("hi", "mid", is_all=True),
        "and hi lo": drawn("hi", "lo", is_all=True),
        "and 3 natural": _natural(texts, chance, count, 3, is_all=True),
        "or hi hi": drawn("hi", "hi", is_all=False),
        "or hi mid": drawn("hi", "mid", is_all=False),
        "or mid mid": drawn("mid", "mid", is_all=False),
        "or 5 natural": _natural(texts, chance, count, 5, is_all=False),
    }


def _vocabulary(snapshot: Snapshot) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.int64]]:
    """Words of plain letters, and how many documents of the first segment have each."""
    segment = snapshot.views[0].segment
    terms = list(segment.terms.keys())
    counts = np.diff(segment.open_all(np.array(list(segment.terms.values()), np.uint64)).starts)
    plain = np.array([term.isalpha() and term.isascii() and 2 < len(term) < 20 for term in terms])
    words = np.array([term.decode() for term, kept in zip(terms, plain, strict=True) if kept])
    return words, counts[plain]


def _natural(
    texts: Sequence[Document],
    chance: np.random.Generator,
    count: int,
    length: int,
    *,
    is_all: bool,
) -> list[Question]:
    found: list[Question] = []
    for number in chance.permutation(len(texts)).tolist():
        words = [word for word in texts[number].text.lower().split() if _is_plain(word)]
        if len(words) < length:
            continue
        start = int(chance.integers(len(words) - length + 1))
        chosen = tuple(words[start : start + length])
        if len(set(chosen)) == length:
            found.append(Question(chosen, is_all))
        if len(found) == count:
            break
    return found


def _is_plain(word: str) -> bool:
    return word.isalpha() and word.isascii() and 1 < len(word) < 20


def tree_of(question: Question) -> Query:
    """The question as our tree."""
    terms = tuple(Term(word.encode()) for word in question.words)
    if len(terms) == 1:
        return terms[0]
    return And(terms) if question.is_all else Or(terms)


def _ask(
    one: Snapshot, eight: Snapshot, peers: Sequence[Peer], classes: Classes, told: Told
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, asked in classes.items():
        if not asked:
            continue
        told(f"queries: {name}")
        trees = [tree_of(question) for question in asked]
        best = {
            "cordwood": _mean_us(one.search, trees),
            "cordwood_eight": _mean_us(eight.search, trees),
        }
        sets = {
            "ids": _mean_us(lambda tree: one.match(tree).to_arrow(), trees),
            "ids_eight": _mean_us(lambda tree: eight.match(tree).to_arrow(), trees),
            "documents": _mean_us(lambda tree: one.match(tree).documents, trees),
            "documents_eight": _mean_us(lambda tree: eight.match(tree).documents, trees),
        }
        agreeing = {}
        for peer in peers:
            some = asked[:SLOW_QUERIES] if peer.name in SLOW_PEERS else asked
            prepared = [peer.prepared(question) for question in some]
            if any(question is None for question in prepared):
                continue
            best[peer.name] = _mean_us(peer.best, prepared)
            if isinstance(peer, Tantivy):
                sets["tantivy_count"] = _mean_us(peer.count, prepared)
            counts = [peer.count(question) for question in prepared]
            ours = [one.match(tree).documents for tree in trees]
            if None not in counts:
                equal = sum(a == b for a, b in zip(ours, counts, strict=False))
                agreeing[peer.name] = f"{equal} of {len(counts)}"
        found[name] = {
            "queries": len(asked),
            "best_us": best,
            "sets_us": sets,
            "equal_counts": agreeing,
        }
        if "tantivy" in best:
            found[name]["of_tantivys"] = round(best["cordwood"] / best["tantivy"], 2)
    return found


def _mean_us(ask: Callable[[Any], object], prepared: Sequence[Any], times: int = 3) -> float:
    """The mean, over queries, of each one's best time."""
    clock = SYSTEM_CLOCK.monotonic_s
    total_s = 0.0
    for question in prepared:
        best_s = float("inf")
        for _ in range(times):
            start_s = clock()
            ask(question)
            best_s = min(best_s, clock() - start_s)
        total_s += best_s
    return round(total_s / len(prepared) * 1e6, 1)


def _bars(length: Length, built: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """What we want to reach, and what was reached; nothing without tantivy."""
    if "tantivy" not in built:
        return {}

    def mean(group: str, name: str) -> float:
        weights = [one["queries"] for one in asked.values()]
        values = [one[group][name] for one in asked.values()]
        return float(np.average(values, weights=weights))

    theirs = mean("best_us", "tantivy")
    counting = mean("sets_us", "tantivy_count")
    return {
        "build_speed_of_tantivys": built["cordwood"]["speed_of_tantivys"],
        "build_speed_wanted": REACH[length],
        "best_us_mean": round(mean("best_us", "cordwood"), 1),
        "best_us_mean_tantivy": round(theirs, 1),
        "best_of_tantivys": round(mean("best_us", "cordwood") / theirs, 2),
        "best_eight_of_tantivys": round(mean("best_us", "cordwood_eight") / theirs, 2),
        "best_wanted": REACH["ranked"],
        "ids_of_tantivys_count": round(mean("sets_us", "ids") / counting, 2),
        "documents_of_tantivys_count": round(mean("sets_us", "documents") / counting, 2),
        "documents_eight_of_tantivys_count": round(
            mean("sets_us", "documents_eight") / counting, 2
        ),
        "sets_wanted": 1.0,
    }


@contextmanager
def quiet() -> Iterator[Told]:
    """Tells nobody."""
    yield lambda _: None
