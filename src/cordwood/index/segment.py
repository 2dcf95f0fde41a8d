"""An open segment: terms to posting lists, documents to ids and lengths.

A `View` is a segment as one snapshot sees it: without the documents that were deleted by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import ducer
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from cordwood.base.errors import CorruptionError
from cordwood.index.ids import Ids
from cordwood.index.postings import Lists, Long, read_shorts
from cordwood.index.sections import known_sections
from cordwood.index.sets import (
    LONG,
    SHORT_BYTES_MAX,
    Short,
    Single,
    long_bytes,
    read_short,
    read_single,
)

Postings = Single | Short | Long


class Segment:
    """One immutable file of documents."""

    def __init__(self, number: int, data: Any, name: str) -> None:
        """Over all bytes of the file, mapped or read.

        Raises:
            CorruptionError: it is damaged.
            UnsupportedError: it is of a newer kind.
        """
        self.number = number
        self.name = name
        self._sections = known_sections(data, name)
        facts = self._sections.facts
        self.tokenizer: str = facts["tokenizer"]
        self.frequencies: bool = facts["frequencies"]
        self.documents: int = facts["documents"]
        self.tokens: int = facts["tokens"]
        self.most_per_id: int = facts["most"]
        """No id has more documents."""
        self.term_count: int = facts["terms"]
        self.posting_count: int = facts["postings"]
        self.size_bytes = self._sections.size_bytes
        self.ids = Ids(self._sections)
        self.terms: Any = ducer.Map(self._sections.whole("terms"))
        """The dictionary: terms to values. Its bytes were checked: damaged, it would not say so."""
        self.scratch: list[npt.NDArray[np.float32]] = []
        """Arrays of zeros, one place for each document, for who ranks next."""

    @cached_property
    def lengths(self) -> npt.NDArray[Any]:
        """How many tokens each document has: that of document d is at d."""
        raw = self._sections.whole("lengths")
        width = len(raw) // max(1, self.documents)
        found = np.frombuffer(raw, "<u2" if width == 2 else "<u4")
        return np.concatenate([np.zeros(1, found.dtype), found])

    def find(self, term: bytes) -> Postings | None:
        """The documents of a term."""
        value = self.terms.get(term)
        return None if value is None else self.open(value)

    def find_prefix(self, prefix: bytes) -> Iterator[Postings]:
        """The documents of each term that begins so."""
        for _, value in self.terms.starts_with(prefix):
            yield self.open(value)

    def open(self, value: int) -> Postings:
        """The posting list that a value of the dictionary leads to."""
        single = read_single(value)
        if single is not None:
            return single
        place = value >> 2
        if not value & 2:
            data = self._sections.part("postings", place, SHORT_BYTES_MAX)
            return read_short(data, frequencies=self.frequencies)
        head = LONG.unpack(self._sections.part("postings", place, LONG.size))
        rest = self._sections.part("postings", place + LONG.size, long_bytes(head))
        return Long(head, rest)

    def open_all(self, values: npt.NDArray[np.uint64]) -> Lists:
        """The posting lists of values of terms that follow each other."""
        counts = np.ones(len(values), np.int64)
        is_single = (values & np.uint64(1)).astype(np.bool_)
        is_long = ~is_single & ((values & np.uint64(2)) > 0)
        is_short = ~is_single & ~is_long
        shorts = self._open_shorts(
            (values[~is_single] >> np.uint64(2)).astype(np.int64), is_short[~is_single]
        )
        counts[is_short] = np.diff(shorts.starts)
        longs = [listed(self.open(value)) for value in values[is_long].tolist()]
        counts[is_long] = [len(docs) for docs, _ in longs]
        starts = np.concatenate([[0], np.cumsum(counts)])
        docs = np.empty(int(starts[-1]), np.uint32)
        tfs = np.ones(len(docs), np.uint32)
        single = values[is_single]
        docs[starts[:-1][is_single]] = single >> np.uint64(32)
        tfs[starts[:-1][is_single]] = ((single >> np.uint64(1)) & np.uint64(0x7FFFFFFF)) + 1
        within = np.repeat(is_short, counts)
        docs[within] = shorts.docs
        if shorts.tfs is not None:
            tfs[within] = shorts.tfs
        for start, (some, often) in zip(starts[:-1][is_long].tolist(), longs, strict=True):
            docs[start : start + len(some)] = some
            tfs[start : start + len(some)] = often
        return Lists(starts, docs, tfs if self.frequencies else None)

    def _open_shorts(self, places: npt.NDArray[np.int64], is_short: npt.NDArray[np.bool_]) -> Lists:
        """The short ones of records at rising places: each ends where the next begins."""
        starts = places[is_short]
        if not len(starts):
            return Lists(np.zeros(1, np.int64), np.empty(0, np.uint32), None)
        limits = np.append(places[1:], places[-1] + SHORT_BYTES_MAX)[is_short]
        first = int(starts[0])
        data = self._sections.part("postings", first, int(limits[-1]) - first)
        return read_shorts(data, starts - first, limits - first, frequencies=self.frequencies)

    def check(self) -> list[str]:
        """Read all of it; what is wrong."""
        wrong = self._sections.check()
        if not wrong:
            try:
                wrong += self._disagreements()
            except CorruptionError as error:
                wrong.append(error.message)
        return wrong

    def _disagreements(self) -> Iterator[str]:
        """What its parts say of each other, where they differ."""
        if len(self.terms) != self.term_count:
            yield f"segment {self.name} has {len(self.terms)} terms, not {self.term_count}"
        count = tokens = 0
        for postings in map(self.open, self.terms.values()):
            docs, tfs = listed(postings)
            count += len(docs)
            tokens += int(tfs.sum(dtype=np.int64))
            if int(docs[0]) < 1 or int(docs[-1]) > self.documents or (np.diff(docs) <= 0).any():
                yield f"segment {self.name} has a list of documents that is out of order"
                return
        if count != self.posting_count:
            yield f"segment {self.name} has {count} postings, not {self.posting_count}"
        if self.frequencies and tokens != self.tokens:
            yield f"segment {self.name} has {tokens} tokens, not {self.tokens}"
        ids = self.ids.table()
        if len(ids) != len(self.ids):
            yield f"segment {self.name} has {len(ids)} ids, not {len(self.ids)}"


def listed(postings: Postings) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Documents and how often each has the term, as arrays (1 where frequencies are not kept)."""
    if isinstance(postings, Single):
        return np.array([postings.doc]), np.array([postings.tf], np.uint32)
    if isinstance(postings, Short):
        docs = np.array(postings.docs)
        tfs = np.array(postings.tfs or [1] * len(docs), np.uint32)
        return docs, tfs
    return postings.docs(), postings.tfs()


class View:
    """A segment without the documents deleted by some moment."""

    def __init__(self, segment: Segment, deleted: BitMap) -> None:
        """`deleted` is the view's own and is not changed any more."""
        self.segment = segment
        self.deleted = deleted
        self.documents = segment.documents - len(deleted)

    @cached_property
    def tokens(self) -> int:
        """The sum of the lengths of its documents."""
        if not self.deleted or not self.segment.frequencies:
            return self.segment.tokens
        gone = np.frombuffer(self.deleted.to_array(), np.uint32)
        return self.segment.tokens - int(self.segment.lengths[gone].sum(dtype=np.int64))

    @cached_property
    def is_gone(self) -> npt.NDArray[np.bool_] | None:
        """Whether document d was deleted, at d; None if none was."""
        if not self.deleted:
            return None
        mask = np.zeros(self.segment.documents + 1, np.bool_)
        mask[np.frombuffer(self.deleted.to_array(), np.uint32)] = True
        return mask

    @cached_property
    def everything(self) -> BitMap:
        """All its documents."""
        return BitMap(range(1, self.segment.documents + 1)) - self.deleted

    def count(self, postings: Postings) -> int:
        """How many of its documents are in the list."""
        if isinstance(postings, Long):
            if not self.deleted:
                return postings.count
            return postings.count - postings.members().intersection_cardinality(self.deleted)
        docs = [postings.doc] if isinstance(postings, Single) else postings.docs
        if not self.deleted:
            return len(docs)
        return sum(doc not in self.deleted for doc in docs)
