"""From documents to a segment, over whole arrays: no code here runs once for each token.

1. Documents are put into the order of their ids, and numbered from 1 in that order.
2. Their texts are cut a slice at a time, small enough for the processor's cache; the tokens are
   numbered by Arrow, and the numbers put into the order of the terms.
3. A counting sort turns (document, term) round into (term, documents).
4. Lists are encoded (postings.py) and written with the dictionary of terms, an FST.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import InvalidInputError, LimitError
from cordwood.index import postings
from cordwood.index.sections import Sink
from cordwood.index.tokens import Cut, Tokenizer
from cordwood.index.write import Facts, SegmentWriter, TermBatch, counted

SLICE_BYTES = 1 << 18
"""So much text is cut at a time: what that takes stays in the processor's cache."""

DOCUMENTS_MAX = (1 << 32) - 2
"""A document's number has 32 bits; 0 is none."""


class Builder:
    """Gathers documents and writes them as one segment."""

    def __init__(self, cutter: Tokenizer, *, frequencies: bool) -> None:
        """An empty one."""
        self._cutter = cutter
        self._frequencies = frequencies
        self._texts: list[pa.LargeBinaryArray] = []
        self._text_ids: list[pa.LargeBinaryArray] = []
        self._term_ids: list[pa.LargeBinaryArray] = []
        self._terms: list[pa.LargeListArray] = []
        self.documents = 0
        self.size_bytes = 0
        """Bytes of text so far: what decides how much memory writing takes."""

    def add(self, ids: pa.LargeBinaryArray, texts: pa.LargeBinaryArray) -> None:
        """More documents."""
        self._text_ids.append(ids)
        self._texts.append(texts)
        self._count(ids, _bytes_of(texts))

    def add_terms(self, ids: pa.LargeBinaryArray, terms: pa.LargeListArray) -> None:
        """More documents, whose terms somebody else has made."""
        self._term_ids.append(ids)
        self._terms.append(terms)
        self._count(ids, _bytes_of(terms.flatten()))

    def discard(self, ids: pa.LargeBinaryArray) -> None:
        """Forget the documents of these ids that were added so far."""
        for mine, values in ((self._text_ids, self._texts), (self._term_ids, self._terms)):
            for place, some in enumerate(mine):
                gone = pc.is_in(some, value_set=ids)
                if pc.any(gone).as_py():
                    kept = pc.invert(gone)
                    self.documents -= pc.sum(gone).as_py()
                    mine[place], values[place] = some.filter(kept), values[place].filter(kept)

    def _count(self, ids: pa.LargeBinaryArray, size_bytes: int) -> None:
        self.documents += len(ids)
        self.size_bytes += size_bytes + _bytes_of(ids)
        if self.documents > DOCUMENTS_MAX:
            raise LimitError(f"a segment holds at most {DOCUMENTS_MAX} documents")

    def write(self, sink: Sink) -> Facts:
        """Write the segment; the builder is spent."""
        ids = pa.concat_arrays([*self._text_ids, *self._term_ids])
        order = np.asarray(pc.sort_indices(ids))
        ids = ids.take(pa.array(order))
        cut = self._mixed(order) if self._terms else self._cut_in_order(order)
        codes, terms = _numbered(cut.tokens, self._cutter if not self._terms else None)
        lists = inverted(codes, cut.counts, len(terms), frequencies=self._frequencies)
        writer = SegmentWriter(sink, tokenizer=self._cutter.name, frequencies=self._frequencies)
        writer.ids([counted(ids)])
        if self._frequencies:
            writer.lengths(cut.counts.astype(np.uint32))
        writer.terms([TermBatch(terms, lists)])
        return writer.finish()

    def _cut_in_order(self, order: npt.NDArray[Any]) -> Cut:
        texts = pa.concat_arrays(self._texts)
        self._texts.clear()
        if not _is_rising(order):
            texts = texts.take(pa.array(order))
        return cut_slices(self._cutter, texts)

    def _mixed(self, order: npt.NDArray[Any]) -> Cut:
        """Texts and ready terms together: all tokens as terms, document by document."""
        cuts: list[Cut] = []
        if self._texts:
            cut = cut_slices(self._cutter, pa.concat_arrays(self._texts))
            coded = cut.tokens.dictionary_encode().combine_chunks()
            spelled = self._cutter.spell(coded.dictionary)
            cuts.append(Cut(spelled.take(coded.indices), cut.counts))
        for terms in self._terms:
            counts = np.asarray(pc.list_value_length(terms)).astype(np.intp)
            cuts.append(Cut(terms.flatten().cast(pa.large_binary()), counts))
        tokens = pa.concat_arrays([cut.tokens for cut in cuts])
        counts = np.concatenate([cut.counts for cut in cuts])
        starts = (np.cumsum(counts) - counts)[order]
        counts = counts[order]
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        places += np.arange(len(places))
        return Cut(pa.chunked_array([tokens.take(pa.array(places))]), counts)


def as_ids(ids: pa.Array | pa.ChunkedArray | Sequence[bytes]) -> pa.LargeBinaryArray:
    """User ids as one Arrow array.

    Raises:
        InvalidInputError: these are no bytes, or one is null.
    """
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    elif not isinstance(ids, pa.Array):
        if not isinstance(ids, Iterable):
            raise InvalidInputError(f"ids are a {type(ids).__name__}", hint="give a list of bytes")
        for one in ids:
            if not isinstance(one, bytes | bytearray | memoryview):
                raise InvalidInputError(
                    f"an id is a {type(one).__name__}",
                    hint="give bytes, as in b'id' or name.encode()",
                )
        ids = pa.array([bytes(one) for one in ids], pa.large_binary())
    if ids.null_count:
        raise InvalidInputError(f"{ids.null_count} of {len(ids)} ids are null")
    try:
        return ids.cast(pa.large_binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"ids are {ids.type}", hint="give bytes or strings") from error


def slices_of(texts: pa.LargeBinaryArray, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of texts of about a size, each of one text at least."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :][: len(texts) + 1]
    start = 0
    while start < len(texts):
        limit = int(np.searchsorted(offsets, offsets[start] + size_bytes, side="right")) - 1
        limit = min(max(limit, start + 1), len(texts))
        yield start, limit
        start = limit


def cut_slices(cutter: Tokenizer, texts: pa.LargeBinaryArray) -> Cut:
    """Cut texts a slice at a time; the tokens are chunked."""
    chunks, counts = [], [np.empty(0, np.intp)]
    for start, limit in slices_of(texts, SLICE_BYTES):
        cut = cutter.cut(texts.slice(start, limit - start))
        chunks.append(cut.tokens)
        counts.append(cut.counts)
    if not chunks:
        chunks = [cutter.cut(texts).tokens]
    return Cut(pa.chunked_array(chunks), np.concatenate(counts))


def _numbered(
    tokens: pa.ChunkedArray, cutter: Tokenizer | None
) -> tuple[npt.NDArray[np.int32], pa.LargeBinaryArray]:
    """Tokens as numbers of their terms, and the terms, in order."""
    coded = tokens.dictionary_encode()
    if not coded.num_chunks or not len(coded):
        return np.empty(0, np.int32), pa.array([], pa.large_binary())
    terms = coded.chunk(0).dictionary
    if cutter is not None:
        terms = cutter.spell(terms)
    order = np.asarray(pc.sort_indices(terms))
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in coded.chunks])
    return rank[codes], terms.take(pa.array(order))


def inverted(
    codes: npt.NDArray[np.int32], counts: npt.NDArray[np.intp], terms: int, *, frequencies: bool
) -> postings.Lists:
    """For each term its documents, rising, and how often each has it."""
    # A search needs none of it, and it takes longer to load than many a search does.
    from scipy import sparse  # noqa: PLC0415

    shape = (terms, len(counts))
    docs = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    ones = np.ones(len(codes), np.int32)
    matrix = sparse.coo_matrix((ones, (codes, docs)), shape=shape, copy=False).tocsr()
    matrix.sum_duplicates()
    return postings.Lists(
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.uint32) + np.uint32(1),
        matrix.data.astype(np.uint32) if frequencies else None,
    )


def _is_rising(order: npt.NDArray[Any]) -> bool:
    return bool((order == np.arange(len(order))).all())


def _bytes_of(values: pa.LargeBinaryArray) -> int:
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset :][: len(values) + 1]
    return int(offsets[-1] - offsets[0]) if len(values) else 0
