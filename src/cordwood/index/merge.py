"""Several segments become one, without the documents deleted meanwhile, in bounded memory.

1. Ids are merged a range of ids at a time. That gives each document its new number, which goes into
   the idmap: the table that maps documents of the old segments to the new one, kept on disk.
2. Lengths follow that table into a file, and from there into the segment.
3. Terms are merged a range of terms at a time: lists are decoded, renumbered through the idmap, put
   into order by a counting sort, and encoded.

What is held in memory at once is one range: of each segment some ten thousand ids or terms, or some
megabytes of lists, whichever is less; a single term's list is held as a whole. The rest is mapped
from files, but for two bytes or four for each document, its length, and one if any were deleted.

An idmap is ``u64 segments``, then for each ``u64 its id, u64 where its block begins``, then the
blocks: for every document of the old segment, from number 0 on, its new number as u32, or 0 if it
was deleted; at the end the XXH3 of it all as u64.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from cordwood.base.errors import CorruptionError
from cordwood.index import postings
from cordwood.index.sections import Sink
from cordwood.index.segment import Segment, View
from cordwood.index.write import Facts, IdBatch, SegmentWriter, TermBatch, counted

IDS_AT_ONCE = 65_536
"""No more ids of each segment are merged at a time."""

TERMS_AT_ONCE = 16_384
LIST_BYTES_AT_ONCE = 4 << 20
"""A range of terms ends when a segment has so many, or so many bytes of lists."""

_FILL_BYTES = 1 << 20

Map = npt.NDArray[np.uint32]
Range = tuple[bytes | None, bytes | None]
Progress = Callable[[int, int], None]


def merge(
    views: Sequence[View],
    sink: Sink,
    idmap: Path,
    spool: Path,
    progress: Progress | None = None,
) -> Facts:
    """Write one segment from several, and the idmap; `spool` is an empty folder beside them.

    `progress` is called after each range, with how many are done and how many there are.
    """
    first = views[0].segment
    segments = [view.segment for view in views]
    of_ids, of_terms = list(_id_ranges(views)), list(_term_ranges(segments))
    steps = _Steps(len(of_ids) + len(of_terms), progress)
    frequencies = first.frequencies
    maps = _new_maps(views, idmap)
    writer = SegmentWriter(sink, tokenizer=first.tokenizer, frequencies=frequencies, spool=spool)
    writer.ids(_merged_ids(views, maps, steps.over(of_ids)))
    if frequencies:
        writer.lengths(_lengths(views, maps, spool))
    ranges = steps.over(of_terms)
    writer.terms(_merged_terms(segments, maps, ranges, frequencies=frequencies))
    for part in maps:
        part.flush()
    _seal(idmap)
    return writer.finish()


class _Steps:
    """How far a merge is."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0

    def over(self, ranges: Sequence[Range]) -> Iterator[Range]:
        """These ranges; each is done when the next one is asked for."""
        for one in ranges:
            yield one
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total)


def _seal(path: Path) -> None:
    """End the idmap with its checksum."""
    digest = xxhash.xxh3_64()
    with path.open("r+b") as file:
        while part := file.read(1 << 20):
            digest.update(part)
        file.write(digest.intdigest().to_bytes(8, "little"))


def _new_maps(views: Sequence[View], path: Path) -> list[np.memmap[Any, Any]]:
    """The idmap's file with its head, and its blocks, all zero so far."""
    head = 8 + 16 * len(views)
    sizes = [4 * (view.segment.documents + 1) for view in views]
    places = list(itertools.accumulate(sizes, initial=head))
    pairs = ((view.segment.number, place) for view, place in zip(views, places, strict=False))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(views)) + b"".join(struct.pack("<QQ", *p) for p in pairs))
        _fill(file, places[-1] - head)
    return [
        np.memmap(path, "<u4", "r+", place, (size // 4,))
        for place, size in zip(places, sizes, strict=False)
    ]


def _fill(file: BinaryIO, size_bytes: int) -> None:
    """Write zeros where a file is to be mapped.

    Were it only made longer, a full disk would be found out when the mapped memory is written: by a
    signal that ends the process.
    """
    places = range(0, size_bytes, _FILL_BYTES)
    file.writelines(bytes(min(_FILL_BYTES, size_bytes - place)) for place in places)


class IdMap:
    """An idmap that was read."""

    def __init__(self, data: Any, name: str) -> None:
        """Over all its bytes.

        Raises:
            CorruptionError: it is not whole.
        """
        self._name = name
        raw = memoryview(data).cast("B")
        raw, digest = raw[:-8], bytes(raw[-8:])
        if xxhash.xxh3_64_intdigest(raw).to_bytes(8, "little") != digest:
            raise CorruptionError(
                f"{name} is damaged: it does not match its checksum",
                where=name,
                hint="bring it back from a copy",
            )
        try:
            (count,) = struct.unpack_from("<Q", raw)
            pairs = [struct.unpack_from("<QQ", raw, 8 + 16 * number) for number in range(count)]
            limits = [place for _, place in pairs[1:]] + [len(raw)]
            self._blocks = {
                number: np.frombuffer(raw[place:limit], "<u4")
                for (number, place), limit in zip(pairs, limits, strict=True)
            }
        except (struct.error, ValueError, OverflowError) as error:
            raise CorruptionError(f"idmap {name} is not whole: {error}", where=name) from error

    def __contains__(self, segment: int) -> bool:
        return segment in self._blocks

    def moved(self, segment: int, docs: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
        """The new numbers of documents that were not deleted before the merge."""
        try:
            found: npt.NDArray[np.uint32] = self._blocks[segment][docs]
        except (KeyError, IndexError) as error:
            raise CorruptionError(
                f"{self._name} is of another merge: it does not know segment {segment}",
                where=self._name,
                hint="bring it back from a copy",
            ) from error
        return found[found > 0]


def _merged_ids(
    views: Sequence[View], maps: Sequence[Map], ranges: Iterator[Range]
) -> Iterator[IdBatch]:
    """All ids in order, and the documents renumbered on the way."""
    number = 1
    for low, high in ranges:
        parts, sources, docs = [], [], []
        for place, view in enumerate(views):
            start, keys = view.segment.ids.between(low, high)
            ordinals, mine = _live(view, start, start + len(keys))
            parts.append(keys.take(pa.array(ordinals - start)).cast(pa.large_binary()))
            sources.append(np.full(len(mine), place, np.int32))
            docs.append(mine)
        ids = pa.concat_arrays(parts)
        # Equal ids keep the order of their segments, and within one that of their documents.
        order = np.asarray(pc.sort_indices(ids))
        of, old = np.concatenate(sources)[order], np.concatenate(docs)[order]
        new = np.arange(number, number + len(order), dtype=np.uint32)
        for place, into in enumerate(maps):
            mine = of == place
            into[old[mine]] = new[mine]
        number += len(order)
        yield counted(ids.take(pa.array(order)))


def _id_ranges(views: Sequence[View]) -> Iterator[Range]:
    """Ranges of ids, from the first to the last, none with too many of any segment."""
    cuts: set[bytes] = set()
    for view in views:
        ids = view.segment.ids
        cuts.update(ids.get(cut) for cut in range(IDS_AT_ONCE, len(ids), IDS_AT_ONCE))
    edges: list[bytes | None] = [None, *sorted(cuts), None]
    return itertools.pairwise(edges)


def _live(view: View, start: int, limit: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Of ids by ordinal, the documents that were not deleted, and whose they are."""
    ids = view.segment.ids
    if start == limit:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    docs = np.arange(ids.documents(start)[0], ids.documents(limit - 1)[1])
    if view.is_gone is not None:
        docs = docs[~view.is_gone[docs]]
    return ids.ordinals(docs), docs


def _lengths(views: Sequence[View], maps: Sequence[Map], spool: Path) -> npt.NDArray[np.uint32]:
    """The lengths of the new documents, in a mapped file."""
    total = sum(view.documents for view in views)
    if not total:
        return np.empty(0, np.uint32)
    with (spool / "lengths").open("wb") as file:
        _fill(file, 4 * total)
    lengths = np.memmap(spool / "lengths", np.uint32, "r+", shape=(total,))
    for view, moved in zip(views, maps, strict=True):
        for start in range(0, len(moved), IDS_AT_ONCE):
            some = slice(start, start + IDS_AT_ONCE)
            kept = np.flatnonzero(moved[some])
            lengths[moved[some][kept] - 1] = view.segment.lengths[some][kept]
    return lengths


def _merged_terms(
    segments: Sequence[Segment],
    maps: Sequence[Map],
    ranges: Iterator[Range],
    *,
    frequencies: bool,
) -> Iterator[TermBatch]:
    """All terms that still have documents, in order."""
    documents = max((int(part.max(initial=0)) for part in maps), default=0)
    for low, high in ranges:
        gathered = [_gather(segment, low, high, frequencies) for segment in segments]
        terms = pa.concat_arrays([part.terms for part in gathered]).dictionary_encode()
        if not len(terms):
            continue
        order = np.asarray(pc.sort_indices(terms.dictionary))
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        numbers = rank[np.asarray(terms.indices)]
        rows, columns, data = [], [], []
        at = 0
        for part, moved in zip(gathered, maps, strict=True):
            of = np.repeat(numbers[at : at + len(part.terms)], part.counts)
            at += len(part.terms)
            new = moved[part.docs]
            kept = np.flatnonzero(new)
            rows.append(of[kept])
            columns.append(new[kept].astype(np.int64) - 1)
            data.append(part.tfs[kept])
        lists = _ordered(rows, columns, data, (len(order), documents), frequencies=frequencies)
        counts = np.diff(lists.starts)
        kept = np.flatnonzero(counts)
        starts = np.append(lists.starts[kept], lists.starts[-1])
        yield TermBatch(
            terms.dictionary.take(pa.array(order[kept])),
            postings.Lists(starts, lists.docs, lists.tfs),
        )


def _ordered(
    rows: list[Any],
    columns: list[Any],
    data: list[Any],
    shape: tuple[int, int],
    *,
    frequencies: bool,
) -> postings.Lists:
    """Postings by term and document."""
    from scipy import sparse  # noqa: PLC0415 - see build.py

    places = (np.concatenate(rows), np.concatenate(columns))
    matrix = sparse.coo_matrix((np.concatenate(data), places), shape=shape).tocsr()
    matrix.sum_duplicates()
    return postings.Lists(
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.uint32) + np.uint32(1),
        matrix.data.astype(np.uint32) if frequencies else None,
    )


class _Gathered(NamedTuple):
    """The lists of a range of terms in one segment."""

    terms: pa.LargeBinaryArray
    counts: npt.NDArray[np.int64]
    docs: npt.NDArray[Any]
    tfs: npt.NDArray[Any]


def _gather(
    segment: Segment, low: bytes | None, high: bytes | None, frequencies: bool
) -> _Gathered:
    pairs = list(segment.terms.range(ge=low, lt=high))
    terms = pa.array([term for term, _ in pairs], pa.large_binary())
    values = np.array([value for _, value in pairs], np.uint64)
    lists = segment.open_all(values)
    tfs = lists.tfs if lists.tfs is not None else np.ones(len(lists.docs), np.uint32)
    return _Gathered(terms, np.diff(lists.starts), lists.docs, tfs)


def _term_ranges(segments: Sequence[Segment]) -> Iterator[Range]:
    """Ranges of terms, from the first to the last, none with too much of any segment."""
    cuts: set[bytes] = set()
    for segment in segments:
        cuts.update(_term_cuts(segment))
    edges: list[bytes | None] = [None, *sorted(cuts), None]
    return itertools.pairwise(edges)


def _term_cuts(segment: Segment) -> Iterator[bytes]:
    count = begin = 0
    for term, value in segment.terms.items():
        count += 1
        place = begin if value & 1 else value >> 2
        if count > TERMS_AT_ONCE or place - begin > LIST_BYTES_AT_ONCE:
            yield term
            count, begin = 1, place
