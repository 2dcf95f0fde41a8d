"""The search index beside other engines: the same documents and queries, in one run.

Building is compared by CPU seconds, since cores are shared: the least of a few runs, in turn. A
query's time is the best of three, and a class has the mean of its queries. Queries are parsed
before, ours and others'. For the ten best we give ids, the others addresses of documents. Of what a
query finds without ranking, `documents` is the complete set of documents, and `ids` that of their
ids, made; tantivy-py has nothing of that kind but a count.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.cli.bench.corpus import Document, Length, documents
from cordwood.cli.bench.harness import stopwatch
from cordwood.cli.bench.peers import Peer, Tantivy, installed
from cordwood.cli.bench.questions import Classes, questions, tree_of
from cordwood.index.snapshot import Snapshot
from cordwood.sync.index import Index

PEERS = ("tantivy", "fts5", "bm25s")
SLOW_PEERS = {"fts5", "bm25s"}
"""They are built once, and asked a few queries of each class: theirs take milliseconds."""
SLOW_QUERIES = 5

PARTS = 8
"""Segments of the index in parts."""

BUILD_WANTED = {"short": 0.8, "long": 0.5}
"""Of tantivy's speed, at least."""
BEST_WANTED = 3.0
"""Of tantivy's time for the ten best, over all queries, at most."""

Told = Callable[[str], None]
"""Called with what is being done."""


def compare(
    lengths: Sequence[Length], megabytes: int, queries: int, repeats: int, told: Told
) -> dict[str, Any]:
    """All figures, by the length of documents, and what we want of them."""
    found: dict[str, Any] = {}
    for length in lengths:
        found[length] = _compare(length, megabytes, queries, repeats, told)
    return {**found, "bars": _bars(found)}


def _compare(
    length: Length, megabytes: int, queries: int, repeats: int, told: Told
) -> dict[str, Any]:
    """Build everywhere, then ask everywhere."""
    told(f"reading {length} documents")
    texts = documents(length, megabytes << 20)
    peers, missing = installed(PEERS)
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as folder:
        place = Path(folder)
        built = _build_all(place, texts, peers, repeats, told)
        with (
            Index(place / "one") as whole,
            Index(place / "eight") as parts,
            whole.snapshot() as one,
            parts.snapshot() as eight,
        ):
            facts = _facts(one, texts)
            for figures in built.values():
                _add_rates(figures, facts["tokens"], built.get("tantivy"))
            asked = _ask(one, eight, peers, questions(one, texts, queries), told)
    return {"corpus": facts, "missing": missing, "build": built, "queries": asked}


def _build_all(
    place: Path, texts: Sequence[Document], peers: Sequence[Peer], repeats: int, told: Told
) -> dict[str, dict[str, Any]]:
    """What building took, each engine's least CPU time."""
    built: dict[str, dict[str, Any]] = {}
    for attempt in range(repeats):
        told(f"cordwood builds, {attempt + 1} of {repeats}")
        _keep_least(built, "cordwood", _build(place / "one", texts, 1))
        for peer in peers:
            if peer.name not in SLOW_PEERS or not attempt:
                told(f"{peer.name} builds")
                _keep_least(built, peer.name, _build_peer(peer, place, texts))
    told("cordwood merges")
    ours = built["cordwood"]
    with Index(place / "one") as index:
        ours["segments"] = index.state().segments
        with stopwatch() as watch:
            index.merge()
            index.compact()
        ours["merge_cpu_s"] = round(watch.cpu_s, 3)
        ours["bytes"] = index.state().size_bytes
    ours["eight_cpu_s"] = _build(place / "eight", texts, PARTS)["cpu_s"]
    return built


def _keep_least(built: dict[str, dict[str, Any]], name: str, figures: dict[str, Any]) -> None:
    if name not in built or figures["cpu_s"] < built[name]["cpu_s"]:
        built[name] = figures


def _build(place: Path, texts: Sequence[Document], parts: int) -> dict[str, Any]:
    """Our index, in so many transactions, and what it took."""
    shutil.rmtree(place, ignore_errors=True)
    ids = pa.array([user_id for user_id, _ in texts], pa.large_binary())
    values = pa.array([text for _, text in texts], pa.large_string())
    step = -(-len(texts) // parts)
    with Index(place) as index:
        index.create()
        with stopwatch() as watch:
            for start in range(0, len(texts), step):
                with index.begin() as writing:
                    writing.add_arrow(ids[start : start + step], values[start : start + step])
    return {"cpu_s": round(watch.cpu_s, 3), "wall_s": round(watch.wall_s, 3)}


def _build_peer(peer: Peer, folder: Path, texts: Sequence[Document]) -> dict[str, Any]:
    place = folder / peer.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    with stopwatch() as watch:
        peer.build(texts, place)
    figures: dict[str, Any] = {"cpu_s": round(watch.cpu_s, 3), "wall_s": round(watch.wall_s, 3)}
    figures["bytes"] = peer.size_bytes()
    if isinstance(peer, Tantivy):
        figures["segments"] = peer.segments
    return figures


def _add_rates(figures: dict[str, Any], tokens: int, tantivy: dict[str, Any] | None) -> None:
    figures["tokens_per_cpu_s"] = round(tokens / figures["cpu_s"])
    figures["bytes_per_token"] = round(figures["bytes"] / tokens, 2)
    if tantivy is not None:
        figures["speed_of_tantivys"] = round(tantivy["cpu_s"] / figures["cpu_s"], 2)


def _facts(snapshot: Snapshot, texts: Sequence[Document]) -> dict[str, int]:
    segments = [view.segment for view in snapshot.views]
    return {
        "documents": len(texts),
        "characters": sum(len(text) for _, text in texts),
        "tokens": sum(segment.tokens for segment in segments),
        "terms": sum(segment.term_count for segment in segments),
        "postings": sum(segment.posting_count for segment in segments),
    }


def _ask(
    one: Snapshot, eight: Snapshot, peers: Sequence[Peer], classes: Classes, told: Told
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, asked in classes.items():
        if not asked:
            continue  # The corpus is too small to have such words.
        told(f"queries: {name}")
        trees = [tree_of(question) for question in asked]
        best = {
            "cordwood": _mean_us(one.search, trees),
            "cordwood_eight": _mean_us(eight.search, trees),
        }
        sets = {
            "documents": _mean_us(lambda tree: one.match(tree).documents, trees),
            "documents_eight": _mean_us(lambda tree: eight.match(tree).documents, trees),
            "ids": _mean_us(lambda tree: one.match(tree).to_arrow(), trees),
            "ids_eight": _mean_us(lambda tree: eight.match(tree).to_arrow(), trees),
        }
        ours = [one.match(tree).documents for tree in trees]
        equal = {}
        for peer in peers:
            some = asked[:SLOW_QUERIES] if peer.name in SLOW_PEERS else asked
            prepared = [peer.prepared(question) for question in some]
            if None in prepared:
                continue
            best[peer.name] = _mean_us(peer.best, prepared)
            counts = [peer.count(question) for question in prepared]
            if None not in counts:
                same = sum(mine == theirs for mine, theirs in zip(ours, counts, strict=False))
                equal[peer.name] = {"equal": same, "of": len(counts)}
            if isinstance(peer, Tantivy):
                sets["tantivy_count"] = _mean_us(peer.count, prepared)
        found[name] = {
            "queries": len(asked),
            "best_us": best,
            "sets_us": sets,
            "equal_counts": equal,
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


def _bars(found: dict[str, Any]) -> dict[str, Any]:
    """What was reached beside what we want; without tantivy nothing can be said."""
    bars: dict[str, Any] = {}
    if any("tantivy" in part["missing"] for part in found.values()):
        return bars
    for length, part in found.items():
        reached = part["build"]["cordwood"]["speed_of_tantivys"]
        bars[f"build, {length}"] = {"reached": reached, "at least": BUILD_WANTED[length]}
    rows = [row for part in found.values() for row in part["queries"].values()]

    def share(group: str, ours: str, theirs: str, chosen: Sequence[Any]) -> float:
        """Our mean of theirs, over all queries of these classes."""
        weights = [row["queries"] for row in chosen]
        means = [
            np.average([row[group][name] for row in chosen], weights=weights)
            for name in (ours, theirs)
        ]
        return round(float(means[0] / means[1]), 2)

    bars["ten best, all queries"] = {
        "reached": share("best_us", "cordwood", "tantivy", rows),
        "at most": BEST_WANTED,
    }
    bars["sets of documents, all queries"] = {
        "reached": share("sets_us", "documents", "tantivy_count", rows),
        "at most": 1.0,
    }
    for length, part in found.items():
        some = list(part["queries"].values())
        bars[f"ten best, {length}"] = {"reached": share("best_us", "cordwood", "tantivy", some)}
        bars[f"ten best, {length}, eight segments"] = {
            "reached": share("best_us", "cordwood_eight", "tantivy", some)
        }
        for name in ("documents", "documents_eight", "ids", "ids_eight"):
            bars[f"sets of {name.replace('_', ', ')}, {length}"] = {
                "reached": share("sets_us", name, "tantivy_count", some)
            }
    return bars
