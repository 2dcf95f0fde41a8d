"""What a merge holds in memory: ranges of ids and terms, not all of them."""

from __future__ import annotations

import io
import tracemalloc

import pyarrow as pa
import pytest
from pyroaring import BitMap

from cordwood.index import merge as merging
from cordwood.index import write
from cordwood.index.build import Builder, as_ids
from cordwood.index.merge import merge
from cordwood.index.segment import Segment, View
from cordwood.index.tokens import as_texts, tokenizer

DOCUMENTS = 60_000
FOLDER = b"a/folder/of/a/name/that/is/as/long/as/they/are/where/people/keep/many/files/"
"""Ids that an FST is chosen for, since they are much alike."""


def view_of(number, ids):
    """A segment of documents with few words each, on disk as it were."""
    builder = Builder(tokenizer("words"), frequencies=True)
    builder.add(as_ids(ids), as_texts([f"word{place % 7_000}" for place in range(len(ids))]))
    sink = io.BytesIO()
    builder.write(sink)
    return View(Segment(number, sink.getvalue(), f"segment.{number}"), BitMap())


def peak_bytes(views, tmp_path):
    """The most that a merge had allocated, by Python and numpy, and by Arrow."""
    folder = tmp_path / "spool"
    folder.mkdir()
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        with (tmp_path / "merged").open("wb") as sink:
            merge(views, sink, tmp_path / "idmap", folder)
        return tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@pytest.mark.parametrize("spread", ["mixed", "apart"])
def test_ids_are_merged_a_range_at_a_time(tmp_path, monkeypatch, spread):
    """All ids are several megabytes; what is held is a small part, also where one segment's ids
    all lie between two of the other's.
    """
    monkeypatch.setattr(merging, "IDS_AT_ONCE", 1_000)
    monkeypatch.setattr(merging, "TERMS_AT_ONCE", 1_000)
    monkeypatch.setattr(merging, "LIST_BYTES_AT_ONCE", 16_384)
    numbers = range(0, 2 * DOCUMENTS, 2)
    others = (number + 1 for number in numbers)
    if spread == "apart":
        others = (10 * DOCUMENTS + number for number in numbers)
    views = [
        view_of(1, [FOLDER + b"%08d" % number for number in numbers]),
        view_of(2, [FOLDER + b"%08d" % number for number in others]),
    ]
    assert "fst" == views[0].segment._sections.facts["id_form"]
    all_bytes = 2 * DOCUMENTS * (len(FOLDER) + 8)
    assert peak_bytes(views, tmp_path) < all_bytes / 2
    merged = Segment(3, (tmp_path / "merged").read_bytes(), "merged")
    assert 2 * DOCUMENTS == len(merged.ids)
    assert [] == merged.check()


def test_the_sample_of_ids_waits_on_disk(tmp_path):
    """Where there is a folder for it: a sixteenth of many ids is still many."""
    sample = write._Sample(tmp_path)
    ids = pa.array([b"%06d" % number for number in range(100)], pa.large_binary())
    for start in range(0, 100, 7):
        sample.of(write.IdBatch(ids.slice(start, 7), None))
    sample.ends.close()
    assert b"".join(b"%06d" % number for number in range(0, 100, 16)) == b"".join(sample.ids.read())
    assert {"sample", "sample.offsets"} == {path.name for path in tmp_path.iterdir()}
