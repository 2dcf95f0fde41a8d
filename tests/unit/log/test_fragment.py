"""Fragments: the way there and back, every kind of damage, and files that others wrote."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.base import kernels
from cordwood.base.errors import Code, CorruptionError
from cordwood.base.setsum import Setsum
from cordwood.log import fragment as fragments
from cordwood.log import paths
from cordwood.log.format import ZERO, Fragment
from cordwood.log.records import content_of_bodies, content_of_rows

STAMP = 1_234_567_890_123_456
COMPRESSIONS = ["none", "snappy", "lz4", "zstd"]


def full_content():
    """Two records with everything a record can have."""
    return content_of_rows(
        [b"one", b""],
        keys=[b"k", None],
        headers=[{"a": b"1", "b": b""}, None],
        streams=["s", None],
        num_bytes=0,
    )


def make(content=None, start=1, seq_no=1, compression="snappy", claims=None):
    """A fragment of ours: its pointer and its bytes. `claims`: what its link says instead."""
    content = content or content_of_bodies([b"one", b"two"])
    table = fragments.build_table(content, start, STAMP)
    link = fragments.Link(
        id="a" * 32,
        start=start,
        limit=start + len(content),
        at=STAMP,
        setsum=Setsum.of_fragment(table).hexdigest(),
        prev_id="b" * 32,
        prev_setsum=ZERO,
    )
    link = msgspec.structs.replace(link, **claims or {})
    _, data = fragments.encode(table, compression, lambda _: (link, ""))
    return fragments.pointer(link, seq_no, len(data)), data


def foreign_table(offsets=(1, 2), stamps=None, bodies=(b"one", b"two"), **columns):
    """The three plain columns as another program would make them, and more."""
    stamps = [STAMP] * len(offsets) if stamps is None else stamps
    return pa.table(
        {
            "offset": pa.array(offsets, pa.uint64()),
            "timestamp_us": pa.array(stamps, pa.uint64()),
            "body": pa.array(bodies, pa.binary()),
        }
        | columns
    )


def parquet(table, **options):
    """The bytes of a Parquet file with pyarrow's defaults: dictionaries, statistics, snappy."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def pointer_to(table, data, start=1):
    """The pointer another program's manifest would have; a zero sum where there is none."""
    try:
        setsum = Setsum.of_fragment(table).hexdigest()
    except ValueError:
        setsum = ZERO
    return Fragment.of(paths.fragment(1), 1, start, start + table.num_rows, len(data), setsum)


def parquet_file(data):
    """The file as Parquet sees it."""
    return pq.ParquetFile(pa.BufferReader(data))


# There and back.


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("content", [content_of_bodies([b"", b"x" * 999]), full_content()])
def test_a_fragment_comes_back(content, compression):
    """Every column survives, under every compression, with its offsets and its one timestamp."""
    pointer, data = make(content, start=7, compression=compression)
    expected = fragments.build_table(content, 7, STAMP)
    assert expected.to_pydict() == fragments.decode(data, pointer).to_pydict()
    assert expected.to_pydict() == fragments.decode(data, pointer, verify=False).to_pydict()


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=20),
    st.integers(0, 2**63 - 30),
    st.integers(0, 2**63 - 1),
    st.sampled_from(COMPRESSIONS),
)
def test_any_bodies_come_back(bodies, start, stamp, compression):
    """Whatever the bodies, the offsets and the time."""
    table = fragments.build_table(content_of_bodies(bodies), start, stamp)
    setsum = Setsum.of_fragment(table).hexdigest()
    link = fragments.Link("a" * 32, start, start + len(bodies), stamp, setsum, "b" * 32, ZERO)
    _, data = fragments.encode(table, compression, lambda _: (link, ""))
    pointer = fragments.pointer(link, 1, len(data))
    assert table.to_pydict() == fragments.decode(data, pointer).to_pydict()
    inspected, found = fragments.inspect(data, "slot")
    assert table.to_pydict() == inspected.to_pydict()
    assert link == msgspec.structs.replace(found, xxh3=link.xxh3)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    "content",
    [
        content_of_bodies([hashlib.sha3_256(b"%d" % n).digest()[:3] for n in range(20_000)]),
        content_of_bodies([b""] * 50_000),
        content_of_bodies([hashlib.shake_256(b"%d" % n).digest(100_000) for n in range(20)]),
        content_of_rows([b""] * 5_000, headers=[{"": b"", "a": b""}] * 5_000, num_bytes=0),
        content_of_rows([b""] * 5_000, streams=["s", None] * 2_500, num_bytes=0),
    ],
    ids=["tiny bodies", "no bodies", "noise", "empty headers", "streams"],
)
def test_data_that_does_not_compress_comes_back(content, compression):
    """The room for a file is enough for every shape of records, whatever the compression."""
    pointer, data = make(content, compression=compression)
    read = fragments.decode(data, pointer)
    assert content.body.to_pylist() == read.column("body").to_pylist()


def test_a_pointer_says_what_the_link_says():
    """Path, slot, range, length and sum."""
    pointer, data = make(start=5, seq_no=4096)
    assert paths.fragment(4096) == pointer.path
    assert (4096, 5, 7) == (pointer.seq_no, pointer.start, pointer.limit)
    assert len(data) == pointer.num_bytes


def test_equal_records_make_equal_bytes():
    """Encoding depends on its arguments alone."""
    assert make() == make()


def test_a_fragment_is_plain_parquet():
    """wal3 and Spark read it: required columns of the right types, no dictionary, one row group."""
    _, data = make(content_of_bodies([b"x"] * 100))
    file = parquet_file(data)
    columns = [file.schema.column(i) for i in range(3)]
    kinds = [(c.name, c.physical_type, str(c.logical_type)) for c in columns]
    assert [
        ("offset", "INT64", "Int(bitWidth=64, isSigned=false)"),
        ("timestamp_us", "INT64", "Int(bitWidth=64, isSigned=false)"),
        ("body", "BYTE_ARRAY", "None"),
    ] == kinds
    assert [0, 0, 0] == [column.max_definition_level for column in columns]
    group = file.metadata.row_group(0)
    assert 1 == file.metadata.num_row_groups
    for i in range(3):
        assert not {"RLE_DICTIONARY", "PLAIN_DICTIONARY"} & set(group.column(i).encodings)
    assert "DELTA_BINARY_PACKED" in group.column(0).encodings


def test_a_small_fragment_costs_few_bytes():
    """The fixed cost of a fragment stays below that of wal3's own writer."""
    _, data = make(content_of_bodies([b"1234"]))
    assert 1044 > len(data)


def test_a_footer_fits_into_one_look():
    """The link of the largest schema lies in the bytes that a time lookup reads."""
    pointer, data = make(full_content())
    tail = data[-fragments.FOOTER_PEEK_BYTES :]
    link = fragments.read_footer_link(tail, pointer.path)
    assert ("a" * 32, STAMP) == (link.id, link.at)
    assert link == fragments.read_footer_link(data[-1000:], pointer.path)


def test_a_footer_that_was_cut_off_gives_no_link():
    """Too few bytes are no error: the caller reads the whole file."""
    pointer, data = make()
    assert fragments.read_footer_link(data[-20:], pointer.path) is None
    assert fragments.read_footer_link(b"", pointer.path) is None


def test_the_link_is_one_entry_of_the_footer():
    """Under the key `cordwood` a JSON object with these fields in this order."""
    _, data = make()
    (entry,) = parquet_file(data).metadata.metadata.items()
    assert b"cordwood" == entry[0]
    fields = ["id", "start", "limit", "at", "setsum", "prev_id", "prev_setsum", "xxh3"]
    assert fields == list(json.loads(entry[1]))


# Damage.


@pytest.fixture(scope="module", params=["plain", "full"])
def small(request):
    """A small fragment, and its records."""
    pointer, data = make(full_content() if request.param == "full" else None)
    return pointer, data


def test_every_flipped_bit_is_found(small):
    """Each bit of each byte, read by pointer or found in a slot: CorruptionError, nothing else."""
    pointer, data = small
    step = 1 if len(data) < 1000 else 3
    for bit in range(0, 8 * len(data), step):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            fragments.decode(bytes(damaged), pointer)
        with pytest.raises(CorruptionError):
            fragments.inspect(bytes(damaged), "slot")


def test_every_truncation_is_found(small):
    """However much of the end is missing, also everything."""
    pointer, data = small
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            fragments.decode(data[:length], pointer)
        with pytest.raises(CorruptionError):
            fragments.inspect(data[:length], "slot")


def test_every_missing_start_is_found(small):
    """However much of the beginning is missing."""
    _, data = small
    for length in range(1, len(data)):
        with pytest.raises(CorruptionError):
            fragments.inspect(data[length:], "slot")


@pytest.mark.parametrize("more", [b"\x00", b"PAR1", b"x" * 1000])
def test_bytes_behind_the_end_are_found(more):
    """A file that grew is not the file."""
    pointer, data = make()
    with pytest.raises(CorruptionError):
        fragments.decode(data + more, pointer)
    with pytest.raises(CorruptionError):
        fragments.inspect(data + more, "slot")


def test_zeroed_pages_are_found():
    """A hole of zeros anywhere, as a disk leaves it."""
    pointer, data = make(content_of_bodies([bytes([i]) * 50 for i in range(1, 40)]))
    for at in range(0, len(data) - 64, 64):
        damaged = data[:at] + bytes(64) + data[at + 64 :]
        with pytest.raises(CorruptionError):
            fragments.decode(damaged, pointer)


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_noise_is_found(noise):
    """Random bytes, also between the magic numbers."""
    for data in (noise, b"PAR1" + noise + b"PAR1"):
        with pytest.raises(CorruptionError):
            fragments.inspect(data, "slot")


def test_another_fragment_under_the_same_pointer_is_found():
    """A valid file with other records is not what the pointer says."""
    pointer, data = make(content_of_bodies([b"one", b"two"]))
    _, other = make(content_of_bodies([b"one", b"owt"]))
    assert len(data) == len(other)
    with pytest.raises(CorruptionError) as caught:
        fragments.decode(other, pointer)
    assert Code.SETSUM_MISMATCH == caught.value.code
    assert pointer.path == caught.value.where


def test_records_in_another_place_are_found():
    """A pointer that gives the records other offsets than the file does is not believed."""
    pointer, data = make(start=1)
    for start in (0, 2, 1000):
        moved = Fragment.of(pointer.path, 1, start, start + 2, len(data), pointer.setsum_hex)
        with pytest.raises(CorruptionError):
            fragments.decode(data, moved)


def test_another_number_of_records_is_found():
    """A pointer whose range is not as long as the file."""
    pointer, data = make()
    for limit in (2, 4):
        longer = Fragment.of(pointer.path, 1, 1, limit, len(data), pointer.setsum_hex)
        with pytest.raises(CorruptionError):
            fragments.decode(data, longer)


def test_another_length_is_found_before_anything_is_parsed():
    """The pointer's length is compared first."""
    pointer, data = make()
    shorter = msgspec.structs.replace(pointer, num_bytes=len(data) - 1)
    with pytest.raises(CorruptionError, match=f"{len(data) - 1} bytes"):
        fragments.decode(data, shorter)
    with pytest.raises(CorruptionError, match=f"{len(data) - 1} bytes"):
        fragments.decode(data, shorter, verify=False)


def test_a_link_that_does_not_fit_its_records_is_found():
    """Sum and range of the link are checked when a fragment is found in a slot."""
    for claims in ({"setsum": ZERO}, {"limit": 99}, {"start": 0}):
        _, data = make(claims=claims)
        with pytest.raises(CorruptionError):
            fragments.inspect(data, "slot")


def test_a_link_that_names_other_offsets_than_the_records_have_is_found():
    """A link may not move its records: start and the first record's offset agree."""
    _, data = make(start=1, claims={"start": 6, "limit": 8})
    with pytest.raises(CorruptionError):
        fragments.inspect(data, "slot")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b'{"id":1}', b'{"id":"a"}', b"\xff", b'{"id":"\xff"}'],
    ids=repr,
)
def test_a_link_that_is_none_is_found(text):
    """What stands under our key and is no link is damage."""
    with pytest.raises(CorruptionError):
        fragments.read_link({fragments.LINK_KEY: text}, "slot")


def test_a_file_without_our_key_has_no_link():
    """Another program's."""
    assert fragments.read_link({b"ARROW:schema": b"x"}, "slot") is None


def test_a_link_without_a_checksum_is_found():
    """Whoever has our link has our checksum: a file that lost it is damaged."""
    _, data = make()
    with pytest.raises(CorruptionError, match="checksum"):
        fragments.check_checksum(data.replace(b'"xxh3":"', b'"3hxx":"'), "slot")


def test_unverified_reads_still_meet_broken_files():
    """Without verification only what Parquet itself notices is found, and never another error."""
    pointer, data = make()
    for byte in range(len(data)):
        damaged = bytearray(data)
        damaged[byte] ^= 0x10
        with suppress(CorruptionError):
            fragments.decode(bytes(damaged), pointer, verify=False)


# Files that others wrote.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "snappy", "use_dictionary": True, "write_statistics": True},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "gzip"},
        {"compression": "none", "use_dictionary": False},
        {"store_schema": False},
        {"version": "1.0", "write_page_index": True},
        {"row_group_size": 1},
    ],
    ids=repr,
)
def test_a_foreign_fragment_is_read(options):
    """wal3's and other writers' files are read whatever their encodings are."""
    table = foreign_table()
    data = parquet(table, **options)
    assert table.to_pydict() == fragments.decode(data, pointer_to(table, data)).to_pydict()
    inspected, link = fragments.inspect(data, "slot")
    assert (None, table.to_pydict()) == (link, inspected.to_pydict())


def test_a_foreign_fragment_gets_a_pointer():
    """Start, limit and sum follow from its records."""
    table = foreign_table(offsets=(41, 42))
    data = parquet(table)
    pointer = fragments.foreign_pointer(fragments.inspect(data, "slot")[0], 9, len(data))
    expected = Fragment.of(
        paths.fragment(9), 9, 41, 43, len(data), Setsum.of_fragment(table).hexdigest()
    )
    assert expected == pointer


def test_a_wide_body_without_its_schema_is_read():
    """The stored Arrow schema makes the type; without it large_binary is plain BYTE_ARRAY."""
    table = foreign_table(body=pa.array([b"one", b"two"], pa.large_binary()))
    data = parquet(table, store_schema=False)
    assert table.to_pydict() == fragments.decode(data, pointer_to(table, data)).to_pydict()


@pytest.mark.parametrize(
    "table",
    [
        foreign_table(body=pa.array([b"one", b"two"], pa.large_binary())),
        foreign_table(body=pa.array(["one", "two"])),
        foreign_table(body=pa.array([b"one", b"one"]).dictionary_encode()),
        foreign_table(body=pa.array([b"on", b"tw"], pa.binary(2))),
        foreign_table(body=pa.array([1, 2])),
        foreign_table(offset=pa.array([1, 2], pa.int64())),
        foreign_table(offset=pa.array([1, 2], pa.uint32())),
        foreign_table(timestamp_us=pa.array([1, 1], pa.timestamp("us"))),
        foreign_table().drop_columns(["offset"]),
        foreign_table().drop_columns(["timestamp_us"]),
        foreign_table().drop_columns(["body"]),
        foreign_table().append_column("relative_offset", pa.array([0, 1], pa.uint64())),
        foreign_table().append_column("body", pa.array([b"x", b"y"])),
        foreign_table(bodies=(b"one", None)),
        foreign_table(offsets=(None, 2)),
        foreign_table(offsets=(1, None)),
        foreign_table(stamps=(STAMP, None)),
        foreign_table(key=pa.array(["k", "k"])),
        foreign_table(stream=pa.array([b"s", b"s"])),
        foreign_table(headers=pa.array(["h", "h"])),
        pa.table({"x": [1]}),
    ],
    ids=[
        "wide body",
        "text body",
        "dictionary body",
        "fixed body",
        "number body",
        "signed offset",
        "short offset",
        "timestamp type",
        "no offset",
        "no timestamp",
        "no body",
        "both offsets",
        "two bodies",
        "null body",
        "null first offset",
        "null last offset",
        "null timestamp",
        "text key",
        "binary stream",
        "text headers",
        "something else",
    ],
)
def test_a_parquet_file_that_is_no_fragment_is_damage(table):
    """A readable file with the wrong columns or with nulls is a CorruptionError everywhere."""
    data = parquet(table)
    with pytest.raises(CorruptionError):
        fragments.decode(data, pointer_to(table, data))
    try:
        inspected, _ = fragments.inspect(data, "slot")
        assert fragments.foreign_pointer(inspected, 1, len(data)) is None
    except CorruptionError:
        pass


def test_a_foreign_fragment_with_two_times_gets_no_pointer():
    """A fragment has one timestamp; wal3 refuses to read one with several, so none is adopted."""
    data = parquet(foreign_table(stamps=(STAMP, STAMP + 1)))
    assert fragments.foreign_pointer(fragments.inspect(data, "slot")[0], 1, len(data)) is None


@pytest.mark.parametrize("offsets", [(), (1, 3), (2, 1), (1, 1)], ids=repr)
def test_a_foreign_fragment_with_holes_gets_no_pointer(offsets):
    """Offsets that do not follow each other, or none at all, cannot be adopted."""
    table = foreign_table(offsets, bodies=[b"x"] * len(offsets))
    data = parquet(table)
    assert fragments.foreign_pointer(fragments.inspect(data, "slot")[0], 1, len(data)) is None


def test_every_flipped_bit_of_a_foreign_fragment_is_found_or_harmless():
    """Without our checksum the sum decides: the same records, or CorruptionError, nothing else."""
    table = foreign_table()
    data = parquet(table)
    pointer = pointer_to(table, data)
    for byte in range(len(data)):
        for bit in (0, 3, 7):
            damaged = bytearray(data)
            damaged[byte] ^= 1 << bit
            try:
                read = fragments.decode(bytes(damaged), pointer)
            except CorruptionError:
                continue
            assert table.to_pydict() == read.to_pydict()


def test_every_truncation_of_a_foreign_fragment_is_found():
    """However much of the end is missing."""
    table = foreign_table()
    data = parquet(table)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            fragments.inspect(data[:length], "slot")


# Relative offsets.


def relative_table(*names):
    """wal3's uuid form: offsets count from the fragment's start."""
    columns = foreign_table((0, 1)).rename_columns(["relative_offset", "timestamp_us", "body"])
    return columns.select(list(names)) if names else columns


def test_relative_offsets_become_absolute():
    """A reader sees the log's offsets, whatever the file has."""
    table = relative_table()
    data = parquet(table)
    read = fragments.decode(data, pointer_to(table, data, start=41))
    expected = {"offset": [41, 42], "timestamp_us": [STAMP] * 2, "body": [b"one", b"two"]}
    assert expected == read.to_pydict()


def test_relative_offsets_in_another_column_order_become_absolute():
    """Columns are found by name; a file with them in another order loses nothing."""
    table = relative_table("timestamp_us", "body", "relative_offset")
    data = parquet(table)
    read = fragments.decode(data, pointer_to(table, data, start=41))
    expected = {"offset": [41, 42], "timestamp_us": [STAMP] * 2, "body": [b"one", b"two"]}
    assert expected == read.select(["offset", "timestamp_us", "body"]).to_pydict()
    assert {"offset", "timestamp_us", "body"} == set(read.schema.names)


def test_relative_offsets_that_do_not_count_from_zero_are_damage():
    """Relative offsets are 0, 1, 2 and so on."""
    table = foreign_table((5, 6)).rename_columns(["relative_offset", "timestamp_us", "body"])
    data = parquet(table)
    with pytest.raises(CorruptionError):
        fragments.decode(data, pointer_to(table, data))


def test_a_relative_fragment_in_a_slot_is_never_adopted():
    """It does not say where it belongs."""
    # EVIDENCE-OF: G-20
    # EVIDENCE-OF: G-20
    data = parquet(relative_table())
    assert fragments.foreign_pointer(fragments.inspect(data, "slot")[0], 1, len(data)) is None


@pytest.mark.parametrize("count", [3_000, 40, 2])
@pytest.mark.parametrize("kernel", ["numba", "hashlib"])
def test_a_large_fragment_is_hashed_in_pieces(kernel, count):
    """By several threads, with the same sum and the same bytes."""
    if kernel == "numba":
        pytest.importorskip("numba")
    bodies = [bytes([n % 256]) * (3 * 2**20 // count) for n in range(count)]
    table = fragments.build_table(content_of_bodies(bodies), 1, STAMP)

    def vouch(setsum):
        return fragments.Link("a" * 32, 1, count + 1, STAMP, setsum, "b" * 32, ZERO), ""

    before = kernels.use_kernel(kernel)
    try:
        link, data = fragments.encode(table, "none", vouch)
    finally:
        kernels.use_kernel(before)
    assert link.setsum == Setsum.of_fragment(table).hexdigest()
    assert isinstance(data, memoryview)
    assert data.readonly
    pointer = fragments.pointer(link, 1, len(data))
    fragments.check(data, pointer)
    assert fragments.decode(data, pointer).column("body").to_pylist() == bodies
