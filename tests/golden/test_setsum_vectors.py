"""Record-level setsums that wal3 computes, through every way in which we come to one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordwood.base.setsum import Setsum
from cordwood.log import fragment as fragments
from cordwood.log import paths, tree
from cordwood.log.format import ZERO, Fragment
from cordwood.log.records import content_of_bodies

STAMP = 1_234_567_890_123_456
THREE = [b"\x01\x02\x03", b"\x04\x05\x06", b"\x07\x08\x09"]

ABSOLUTE = {
    "one record at 100": (
        100,
        STAMP,
        THREE[:1],
        "36484a70e5a11426140320bf0955fe4732bf8a956c2695586553ed9ee053d632",
    ),
    "three records from 100": (
        100,
        STAMP,
        THREE,
        "7751cc108d8a2a134d6e3c62d5a47499ca465d50d52841c8bf5c56e678e53320",
    ),
    "three records from 1": (
        1,
        STAMP,
        THREE,
        "cea837b99f9bd6e0175019e3c3fe73c1bc14a4c241a1f972d5f422cc2b4b1149",
    ),
    "one record at 4": (
        4,
        STAMP + 1,
        [b"abc"],
        "448707c78d7ab1e06a8a159a7aa89f4b6186c75796a7a9c77fafba1c3f5db6bf",
    ),
    "hello world": (
        1,
        1,
        [b"hello", b"world"],
        "0f1724701658aa712af102bc3d07065f34160445f3a1d5040c1b668cb77c28aa",
    ),
}

RELATIVE = {
    "three relative records": (
        THREE,
        "8ab4181e47a93dd5fb9d21f9bae97f6b89a8addc734d3b261fe039d63e90869c",
    ),
    "one relative record": (
        THREE[:1],
        "5a5d464629dc8d19455cf744e8fba68b5e693915f11c0fb35dcd73e1c904f46c",
    ),
}


@pytest.mark.parametrize(
    ("start", "stamp", "bodies", "expected"), ABSOLUTE.values(), ids=ABSOLUTE.keys()
)
def test_records_have_wal3s_setsum(start, stamp, bodies, expected):
    """From the table, and from the table that went through our own file."""
    table = fragments.build_table(content_of_bodies(bodies), start, stamp)
    assert expected == Setsum.of_fragment(table).hexdigest()
    link = fragments.Link(
        "a" * 32, start, start + len(bodies), stamp, expected, "b" * 32, prev_setsum=ZERO
    )
    _, data = fragments.encode(table, "snappy", lambda _: (link, ""))
    read = fragments.decode(data, fragments.pointer(link, 1, len(data)))
    assert expected == Setsum.of_fragment(read).hexdigest()


def test_a_record_is_hashed_as_offset_time_and_body():
    """The preimage of one record, written out."""
    preimage = bytes.fromhex("0000000000000064000462d53c8abac0010203")
    assert ABSOLUTE["one record at 100"][3] == Setsum().insert(preimage).hexdigest()


@pytest.mark.parametrize(("bodies", "expected"), RELATIVE.values(), ids=RELATIVE.keys())
def test_relative_records_have_wal3s_setsum(bodies, expected):
    """A relative file is summed as it is stored, and read at its absolute place."""
    table = pa.table(
        {
            "relative_offset": pa.array(range(len(bodies)), pa.uint64()),
            "timestamp_us": pa.array([STAMP] * len(bodies), pa.uint64()),
            "body": pa.array(bodies, pa.binary()),
        }
    )
    assert expected == Setsum.of_fragment(table).hexdigest()
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = sink.getvalue().to_pybytes()
    path = "log/Uuid=0198c0de-1234-7abc-8def-0123456789ab.parquet"
    pointer = Fragment.of(path, 1, 100, 100 + len(bodies), len(data), expected)
    read = fragments.decode(data, pointer)
    assert list(range(100, 100 + len(bodies))) == read.column("offset").to_pylist()


def test_a_node_over_two_fragments_has_wal3s_name():
    """Its setsum is the sum of its children's, and its name is its setsum."""
    first = Fragment.of(paths.fragment(1), 1, 1, 4, 1, ABSOLUTE["three records from 1"][3])
    second = Fragment.of(paths.fragment(2), 2, 4, 5, 1, ABSOLUTE["one record at 4"][3])
    node = tree.make_node([first, second], "test")
    expected = "17303f803d1688c1c2da2e7da0a7130d889b6b1a5e49a33a54a4dde823a9c708"
    assert f"snapshot/SNAPSHOT.{expected}" == node.path
