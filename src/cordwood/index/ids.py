"""User ids of a segment: any bytes, in order, each with its documents.

The place of an id among the ids of its segment, from 0, is its *ordinal*. Documents are numbered
in the order of their ids, so the documents of an id lie together, and ordinals tell which.

They are kept in one of two ways (write.py chooses). As a *table* they are Arrow's own form of a
binary column, bytes and offsets: any id is found in no time. Names and paths, which share much with
their neighbours, are kept as an FST (ids to ordinals), with every sixteenth id in a table beside
it, from where the FST is walked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import ducer
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import CorruptionError
from cordwood.index.sections import Sections
from cordwood.index.write import ID_SAMPLE

_MANY = 32
"""From here on, ids of documents are listed all at once."""

_SEARCHED = 1_024
"""To look an id up in a table takes as long as to compare it with so many."""

_WALKED = 65_536
"""Ids that are handed out together."""


def _read_table(sections: Sections, name: str, count: int) -> pa.Array:
    """Binary values as an Arrow array, without a copy; offsets have 32 bits or 64."""
    data, offsets = sections.whole(name), sections.whole(f"{name}.offsets")
    kind = pa.binary() if len(offsets) == 4 * (count + 1) else pa.large_binary()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    try:
        found = pa.Array.from_buffers(kind, count, buffers)
        # Arrow trusts offsets, and so would read memory that is not ours: a checksum says that they
        # are as they were written, not by whom.
        found.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptionError(
            f"segment {sections.name} is damaged: its section {name} cannot be: {error}",
            where=sections.name,
            hint="bring the file back from a copy, or build the index again",
        ) from error
    return found


class Ids:
    """The ids of an open segment."""

    def __init__(self, sections: Sections) -> None:
        """Nothing is read until it is needed."""
        self._sections = sections
        self._count: int = sections.facts["ids"]
        self._documents: int = sections.facts["documents"]
        self._is_fst = sections.facts["id_form"] == "fst"
        self._table: pa.Array | None = None
        self._map: Any = None
        self._firsts: npt.NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        """How many different ids."""
        return self._count

    def find(self, user_id: bytes) -> int | None:
        """The ordinal of an id."""
        if self._is_fst:
            found: int | None = self._fst().get(user_id)
            return found
        return self._search(user_id)

    def find_all(self, wanted: pa.Array) -> npt.NDArray[np.int64]:
        """The ordinals of those ids, of many, that are here."""
        # An FST is asked for each: to list it takes longer, unless nearly all are wanted, and room.
        if (self._table is None and self._is_fst) or len(wanted) * _SEARCHED < self._count:
            found = map(self.find, wanted.to_pylist())
            return np.unique(np.array([place for place in found if place is not None], np.int64))
        table = self.table()
        hits = pc.index_in(table, wanted.cast(table.type))
        return np.flatnonzero(np.asarray(hits.is_valid()))

    def get(self, ordinal: int) -> bytes:
        """The id of an ordinal."""
        if self._table is None and self._is_fst:
            start = self._sample[ordinal // ID_SAMPLE].as_py()
            walk = self._fst().range(ge=start)
            key: bytes = next(itertools.islice(walk, ordinal % ID_SAMPLE, None))[0]
            return key
        one: bytes = self.table()[ordinal].as_py()
        return one

    def of_document(self, doc: int) -> bytes:
        """The id of a document."""
        firsts = self._first_docs()
        return self.get(doc - 1 if firsts is None else int(firsts.searchsorted(doc, "right")) - 1)

    def of_documents(self, docs: npt.NDArray[Any]) -> list[bytes]:
        """The ids of documents, one for each."""
        if len(docs) < _MANY:
            return list(map(self.of_document, docs.tolist()))
        found: list[bytes] = self.take(self.ordinals(docs)).to_pylist()
        return found

    def take(self, ordinals: npt.NDArray[Any]) -> pa.Array:
        """The ids of ordinals."""
        if self._table is None and self._is_fst and len(ordinals) < self._count // 256:
            return pa.array([self.get(ordinal) for ordinal in ordinals.tolist()], pa.binary())
        # From its buffer: an array that pyarrow looks at first makes it load pandas.
        places = np.ascontiguousarray(ordinals, np.int64)
        chosen = pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places)])
        return self.table().take(chosen)

    def walk(self, docs: npt.NDArray[Any]) -> Iterator[pa.LargeBinaryArray]:
        """The ids of rising documents, each once, some at a time.

        Unlike `take` it needs no room for all ids of an FST, and keeps none of them.
        """
        ordinals = self.ordinals(docs)
        if self.has_duplicates:
            ordinals = np.unique(ordinals)
        if self._table is not None or not self._is_fst or len(ordinals) < self._count // 256:
            for start in range(0, len(ordinals), _WALKED):
                yield self.take(ordinals[start : start + _WALKED]).cast(pa.large_binary())
            return
        wanted = np.zeros(self._count, np.bool_)
        wanted[ordinals] = True
        keys = itertools.compress(self._fst().keys(), wanted)
        for _ in range(0, len(ordinals), _WALKED):
            yield pa.array(itertools.islice(keys, _WALKED), pa.large_binary())

    def between(self, low: bytes | None, high: bytes | None) -> tuple[int, pa.Array]:
        """The ids from `low` on and before `high`, and the ordinal of the first."""
        if self._is_fst:
            pairs = list(self._fst().range(ge=low, lt=high))
            return (pairs[0][1] if pairs else 0), pa.array([key for key, _ in pairs], pa.binary())
        start = 0 if low is None else self._first_from(low)
        limit = self._count if high is None else self._first_from(high)
        return start, self.table().slice(start, limit - start)

    def table(self) -> pa.Array:
        """All ids, in order."""
        if self._table is None:
            if self._is_fst:
                self._table = pa.array(list(self._fst().keys()), pa.binary())
            else:
                self._table = _read_table(self._sections, "ids", self._count)
        return self._table

    def ordinals(self, docs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Whose documents these are."""
        firsts = self._first_docs()
        if firsts is None:
            return docs.astype(np.int64) - 1
        return np.searchsorted(firsts, docs, side="right") - 1

    def all_documents(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The documents of all these."""
        firsts = self._first_docs()
        if firsts is None:
            return ordinals + 1
        starts = firsts[ordinals].astype(np.int64)
        counts = firsts[ordinals + 1] - starts
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return places + np.arange(len(places))

    def documents(self, ordinal: int) -> tuple[int, int]:
        """The documents of an id: the first, and one past the last."""
        firsts = self._first_docs()
        if firsts is None:
            return ordinal + 1, ordinal + 2
        return int(firsts[ordinal]), int(firsts[ordinal + 1])

    @property
    def has_duplicates(self) -> bool:
        """Whether some id has more than one document."""
        return self._count < self._documents

    @cached_property
    def span(self) -> tuple[bytes, bytes]:
        """The first id and the last; there is one."""
        return self.get(0), self.get(self._count - 1)

    @cached_property
    def _sample(self) -> pa.Array:
        return _read_table(self._sections, "ids.sample", -(-self._count // ID_SAMPLE))

    def _first_docs(self) -> npt.NDArray[np.uint32] | None:
        if self._firsts is None and self.has_duplicates:
            self._firsts = np.frombuffer(self._sections.whole("ids.first"), "<u4")
        return self._firsts

    def _fst(self) -> Any:
        if self._map is None:
            self._map = ducer.Map(self._sections.whole("ids"))
        return self._map

    def _search(self, user_id: bytes) -> int | None:
        place = self._first_from(user_id)
        table = self.table()
        return place if place < len(table) and table[place].as_py() == user_id else None

    def _first_from(self, user_id: bytes) -> int:
        """The ordinal of the first id that is not lower."""
        table = self.table()
        low, high = 0, len(table)
        while low < high:
            middle = (low + high) // 2
            if table[middle].as_py() < user_id:
                low = middle + 1
            else:
                high = middle
        return low
