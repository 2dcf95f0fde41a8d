"""Writing a segment: from its parts in order, so that a merge needs little memory.

Ids come first, a batch at a time, then lengths, then terms with their lists, a batch at a time. The
file does not depend on how they were cut into batches: a merge of segments is, byte for byte, the
segment that a fresh build of the same documents writes.

What cannot be written in order (the offsets of ids, and the dictionaries, which end a section only
when all is known) waits in a folder of its own, or in memory where none is given.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ducer
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.index import postings
from cordwood.index.sections import FORMAT, SectionWriter, Sink

ID_SAMPLE = 16
"""Every so many ids are kept in full beside an FST of ids."""

_TRIED = 4_096
"""So many ids, the first, are tried as an FST to decide how ids are kept."""

_COPY_BYTES = 1 << 20


class Facts(NamedTuple):
    """What a segment says of itself."""

    documents: int
    ids: int
    terms: int
    postings: int
    tokens: int
    """The sum of the lengths of its documents."""
    most: int
    """The most documents that one id has."""


class IdBatch(NamedTuple):
    """Ids, rising and different, and how many documents each has."""

    ids: pa.LargeBinaryArray
    counts: npt.NDArray[Any]


class TermBatch(NamedTuple):
    """Terms, rising and different, and their lists."""

    terms: pa.LargeBinaryArray
    lists: postings.Lists


def counted(ids: pa.LargeBinaryArray) -> IdBatch:
    """Each different id among ids in order, and how often it is there."""
    is_new = np.ones(len(ids), np.bool_)
    if len(ids) > 1:
        is_new[1:] = np.asarray(pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1)))
    firsts = np.flatnonzero(is_new)
    counts = np.diff(np.append(firsts, len(ids)))
    return IdBatch(ids if len(firsts) == len(ids) else ids.take(pa.array(firsts)), counts)


class SegmentWriter:
    """Writes a segment, each of its methods called once, from top to bottom."""

    def __init__(
        self, sink: Sink, *, tokenizer: str, frequencies: bool, spool: Path | None = None
    ) -> None:
        """`spool` is an empty folder for what has to wait."""
        self._file = SectionWriter(sink)
        self._spool = spool
        self._about = {"format": FORMAT, "tokenizer": tokenizer, "frequencies": frequencies}
        self._lengths: npt.NDArray[np.uint32] | None = None
        self._documents = self._ids = self._terms = self._postings = self._tokens = 0
        self._most = 1

    def ids(self, batches: Iterable[IdBatch]) -> None:
        """All ids. Their documents are numbered from 1, in this order."""
        counted = self._counted(batches)
        first = _gathered(counted, _TRIED)
        is_fst = _is_alike([batch.ids for batch in first])
        offsets = _Spooled(self._spool, "offsets")
        firsts = _Spooled(self._spool, "firsts")
        self._file.begin("ids")
        place, number = 0, 1

        def rest() -> Iterator[IdBatch]:
            nonlocal place, number
            for batch in itertools.chain(first, counted):
                ends = number + np.cumsum(batch.counts)
                firsts.write((ends - batch.counts).astype("<u4").tobytes())
                number = int(ends[-1])
                if not is_fst:
                    begins, place = _offsets(batch.ids, place)
                    offsets.write(begins.tobytes())
                yield batch

        if is_fst:
            sample = _Sample(self._spool)
            keys = _keyed(map(sample.of, rest()))
            _copy(ducer_bytes(keys, self._spool, "ids.fst"), self._file)
            for name, waiting in (("ids.sample", sample.ids), ("ids.sample.offsets", sample.ends)):
                self._file.begin(name)
                for part in waiting.read():
                    self._file.write(part)
                waiting.close()
        else:
            for batch in rest():
                self._file.write(_bytes_of(batch.ids))
            offsets.write(np.array([place], "<i8").tobytes())
            self._file.begin("ids.offsets")
            kind = "<i4" if place < 1 << 31 else "<i8"
            for part in offsets.read():
                self._file.write(np.frombuffer(part, "<i8").astype(kind).tobytes())
        if self._ids < self._documents:
            firsts.write(np.array([self._documents + 1], "<u4").tobytes())
            self._file.begin("ids.first")
            for part in firsts.read():
                self._file.write(part)
        offsets.close()
        firsts.close()
        self._about["id_form"] = "fst" if is_fst else "table"

    def lengths(self, lengths: npt.NDArray[np.uint32]) -> None:
        """How many tokens each document has; left out where frequencies are not kept."""
        self._lengths = lengths
        self._tokens = int(lengths.sum(dtype=np.int64))
        self._file.begin("lengths")
        fits = not len(lengths) or int(lengths.max()) < 1 << 16
        for start in range(0, len(lengths), _COPY_BYTES):
            part = lengths[start : start + _COPY_BYTES]
            self._file.write(part.astype("<u2" if fits else "<u4").tobytes())

    def terms(self, batches: Iterable[TermBatch]) -> None:
        """All terms, with their lists."""
        self._file.begin("postings")
        fst = ducer_bytes(self._listed(batches), self._spool, "terms.fst")
        self._file.begin("terms")
        _copy(fst, self._file)

    def finish(self) -> Facts:
        """The end."""
        facts = Facts(
            self._documents, self._ids, self._terms, self._postings, self._tokens, self._most
        )
        self._file.finish({**self._about, **facts._asdict()})
        return facts

    def _counted(self, batches: Iterable[IdBatch]) -> Iterator[IdBatch]:
        for batch in batches:
            if not len(batch.ids):
                continue
            self._ids += len(batch.ids)
            self._documents += int(batch.counts.sum())
            self._most = max(self._most, int(batch.counts.max()))
            yield batch

    def _listed(self, batches: Iterable[TermBatch]) -> Iterator[tuple[bytes, int]]:
        """Write the lists; terms with their values."""
        place = 0
        for batch in batches:
            encoded = postings.encode(batch.lists, self._lengths, place)
            self._file.write(encoded.records)
            place += len(encoded.records)
            self._terms += len(batch.terms)
            self._postings += len(batch.lists.docs)
            yield from zip(batch.terms.to_pylist(), encoded.values.tolist(), strict=True)


class _Sample:
    """Every sixteenth id."""

    def __init__(self, folder: Path | None) -> None:
        self.ids = _Spooled(folder, "sample")
        self.ends = _Spooled(folder, "sample.offsets")
        self.ends.write(bytes(8))
        self._seen = self._end = 0

    def of(self, batch: IdBatch) -> IdBatch:
        """Take from a batch what belongs to the sample."""
        first = -self._seen % ID_SAMPLE
        chosen = batch.ids.take(pa.array(np.arange(first, len(batch.ids), ID_SAMPLE)))
        if len(chosen):
            ends = self._end + np.cumsum(np.asarray(pc.binary_length(chosen)), dtype="<i8")
            self.ids.write(bytes(_bytes_of(chosen)))
            self.ends.write(ends.tobytes())
            self._end = int(ends[-1])
        self._seen += len(batch.ids)
        return batch


class _Spooled:
    """Bytes that wait: in a file of a folder, or in memory."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._path = None if folder is None else folder / name
        self._file: Any = None if self._path is None else self._path.open("wb")
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if self._file is None:
            self._parts.append(data)
        else:
            self._file.write(data)

    def read(self) -> Iterator[bytes]:
        """All of it, once, in parts of a length that 8 divides."""
        if self._file is None or self._path is None:
            yield b"".join(self._parts)
            return
        self.close()
        with self._path.open("rb") as file:
            while part := file.read(_COPY_BYTES):
                yield part

    def close(self) -> None:
        """No more is written."""
        if self._file is not None:
            self._file.close()


def ducer_bytes(items: Iterable[tuple[bytes, int]], folder: Path | None, name: str) -> Any:
    """An FST of rising keys, as a buffer or, in a folder, as a file."""
    if folder is None:
        return ducer.Map.build(":memory:", items)
    path = folder / name
    ducer.Map.build(str(path), items)
    return path


def _copy(source: Any, target: SectionWriter) -> None:
    if not isinstance(source, Path):
        target.write(source)
        return
    with source.open("rb") as file:
        while part := file.read(_COPY_BYTES):
            target.write(part)
    source.unlink()


def _keyed(batches: Iterable[IdBatch]) -> Iterator[tuple[bytes, int]]:
    number = 0
    for batch in batches:
        yield from zip(batch.ids.to_pylist(), range(number, number + len(batch.ids)), strict=True)
        number += len(batch.ids)


def _gathered(batches: Iterator[IdBatch], count: int) -> list[IdBatch]:
    """The first batches, until there are so many ids."""
    found: list[IdBatch] = []
    while sum(len(batch.ids) for batch in found) < count:
        batch = next(batches, None)
        if batch is None:
            break
        found.append(batch)
    return found


def _is_alike(arrays: list[pa.LargeBinaryArray]) -> bool:
    """Whether an FST would take less than half the room of a table, by the first ids."""
    if not arrays:
        return False
    some = pa.concat_arrays(arrays).slice(0, _TRIED)
    if len(some) < 2 * ID_SAMPLE:
        return False
    keys = zip(some.to_pylist(), range(len(some)), strict=True)
    tried = memoryview(ducer.Map.build(":memory:", keys)).nbytes
    raw = pc.sum(pc.binary_length(some)).as_py()
    return bool(tried + raw / ID_SAMPLE < (raw + 4 * len(some)) / 2)


def _offsets(ids: pa.LargeBinaryArray, place: int) -> tuple[npt.NDArray[np.int64], int]:
    """Where each id will begin, if the first begins at `place`; and where the last ends."""
    offsets = np.frombuffer(ids.buffers()[1], np.int64)[ids.offset :][: len(ids) + 1]
    moved = offsets - (offsets[0] - place)
    return moved[:-1], int(moved[-1])


def _bytes_of(ids: pa.LargeBinaryArray) -> memoryview:
    offsets = np.frombuffer(ids.buffers()[1], np.int64)[ids.offset :][: len(ids) + 1]
    data = ids.buffers()[2]
    return memoryview(data if data is not None else b"")[int(offsets[0]) : int(offsets[-1])]


def spool_folder(beside: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder for what has to wait, which goes when it is closed."""
    return tempfile.TemporaryDirectory(prefix=".spool-", dir=os.fspath(beside))
