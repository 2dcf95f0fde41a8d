"""Bodies hashed where they lie: the same answer as by decoding, for any fragment and damage."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base import kernels
from cordwood.base.errors import Code, CorruptionError
from cordwood.base.setsum import Setsum
from cordwood.log import fragment as fragments
from cordwood.log import pages
from cordwood.log.format import ZERO, Fragment
from cordwood.log.records import content_of_bodies, content_of_rows

STAMP = 1_234_567_890_123_456
COMPRESSIONS = ["none", "snappy", "lz4", "zstd"]
IN_PLACE = ["none", "snappy", "zstd"]


@pytest.fixture(autouse=True, params=["numba", "hashlib"])
def kernel(request):
    """Run the test with each kernel."""
    if request.param == "numba":
        pytest.importorskip("numba")
    before = kernels.use_kernel(request.param)
    yield request.param
    kernels.use_kernel(before)


@pytest.fixture
def never_decoded(monkeypatch):
    """A fragment that is decoded fails the test."""

    def refuse(_data, where, _num_records):
        raise AssertionError(where)

    monkeypatch.setattr(fragments, "_parse", refuse)


def make(content, compression="none"):
    """A fragment of ours: its pointer and its bytes."""
    table = fragments.build_table(content, 7, STAMP)
    setsum = Setsum.of_fragment(table).hexdigest()
    link = fragments.Link("a" * 32, 7, 7 + len(content), STAMP, setsum, "b" * 32, ZERO)
    _, data = fragments.encode(table, compression, lambda _: (link, ""))
    return fragments.pointer(link, 1, len(data)), data


def mixed_bodies(count, size_max, seed=1):
    """Bodies of random sizes."""
    chance = np.random.default_rng(seed)
    return [chance.bytes(int(size)) for size in chance.integers(0, size_max, count)]


@pytest.mark.usefixtures("never_decoded")
@pytest.mark.parametrize("kernel", ["numba"], indirect=True)
@pytest.mark.parametrize("compression", IN_PLACE)
@pytest.mark.parametrize(
    "bodies",
    [
        [b""],
        [b"one"],
        [b"", b"two", b""],
        [b"x" * 136] * 9,
        mixed_bodies(4_000, 2_000),
        mixed_bodies(3, 3 * 2**20),
    ],
    ids=["empty", "one", "few", "equal", "several pages", "large"],
)
def test_a_whole_fragment_passes_without_being_decoded(bodies, compression):
    """Also one whose column has several pages."""
    pointer, data = make(content_of_bodies(bodies), compression)
    fragments.check(data, pointer)
    fragments.check(memoryview(data), pointer)


@pytest.mark.usefixtures("never_decoded")
@pytest.mark.parametrize("kernel", ["hashlib"], indirect=True)
@pytest.mark.parametrize("compression", IN_PLACE)
@pytest.mark.parametrize(
    "bodies",
    [[b"x" * 136] * 20, [b"y" * 1000] * 4_000, mixed_bodies(4_000, 3_000)],
    ids=["equal", "several pages", "long"],
)
def test_without_the_vector_kernel_only_some_are_not_decoded(bodies, compression):
    """Those of one size, and long ones."""
    pointer, data = make(content_of_bodies(bodies), compression)
    fragments.check(data, pointer)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_flipped_bit_is_found(compression):
    """As by decoding."""
    pointer, data = make(content_of_bodies([b"one", b"two"]), compression)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(CorruptionError):
            fragments.check(bytes(damaged), pointer)


def sealed(data):
    """The same with a checksum that holds; None if there is no place for it."""
    footer = fragments._footer(data)
    at = -1 if footer is None else footer.rfind(fragments._CHECKSUM_MARK)
    if at < 0:
        return None
    at += len(data) - 8 - len(footer) + len(fragments._CHECKSUM_MARK)
    rest = fragments._CHECKSUM_BLANK + data[at + 16 :]
    return data[:at] + xxhash.xxh3_64_hexdigest(data[:at] + rest).encode() + data[at + 16 :]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_footer_does_harm(compression):
    """Whatever it says, and though its checksum was made to hold: no error but the one."""
    pointer, data = make(content_of_bodies([b"one" * 20, b"two" * 20] * 40), compression)
    length = int.from_bytes(data[-8:-4], "little")
    for place in range(len(data) - 8 - length, len(data) - 8):
        for value in {*(data[place] ^ flipped for flipped in (1, 2, 16, 127, 255)), 0, 0x24, 40}:
            forged = bytearray(data)
            forged[place] = value
            whole = sealed(bytes(forged))
            if whole is not None:
                with suppress(CorruptionError):
                    fragments.check(whole, pointer)


@pytest.mark.parametrize("rows", [2**31 - 1, 2**40, 31, 29, 0, -1])
def test_a_row_group_that_claims_other_rows_is_found_before_there_is_room_for_them(rows):
    """Room for two thousand million records would end the process."""
    pointer, data = make(content_of_bodies([b"x"] * 30))
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    place = footer.rindex(b"\x16\x3c", 0, footer.index(b"cordwood"))  # its 30 rows
    footer = footer[:place] + b"\x16" + zigzag(rows) + footer[place + 2 :]
    forged = sealed(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    pointer = msgspec.structs.replace(pointer, num_bytes=len(forged))
    for look in (
        lambda: fragments.check(forged, pointer),
        lambda: fragments.decode(forged, pointer),
        lambda: list(fragments.decode_batches(forged, pointer, ["body"], 10)),
        lambda: fragments.inspect(forged, "x"),
    ):
        with pytest.raises(CorruptionError, match="row groups"):
            look()


def zigzag(number):
    """As Thrift writes it."""
    number, digits = (number << 1) ^ (number >> 63), []
    while number >= 128:
        number, digits = number >> 7, [*digits, number & 127 | 128]
    return bytes([*digits, number])


def test_a_file_that_claims_too_many_records_is_not_opened(monkeypatch):
    """Also where there is no pointer that knows better."""
    pointer, data = make(content_of_bodies([b"x"] * 30))
    monkeypatch.setattr(fragments, "FRAGMENT_RECORDS_MAX", 29)
    with pytest.raises(CorruptionError, match="at most"):
        fragments.inspect(data, pointer.path)


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_a_page_that_ends_too_soon_is_found(compression):
    """Though its checksum was made to hold, and memory may hold what is missing."""
    pointer, data = make(content_of_bodies([b"x" * 100] * 400), compression)
    column = pages.Bodies.find(fragments._footer(data), len(data))
    *_, header_bytes = pages._header(data[column.start : column.start + 256])
    page = data[column.start + header_bytes : column.end]
    codec = pa.Codec(compression)
    short = codec.compress(codec.decompress(page, 41_600)[:4_000], asbytes=True)
    forged = sealed(data.replace(page, short + bytes(len(page) - len(short))))
    for _ in range(3):
        fragments.check(data, pointer)
        with pytest.raises(CorruptionError):
            fragments.check(forged, pointer)


def test_a_header_with_a_text_for_a_number_is_unusual():
    """Or with a structure."""
    for wrong in ("18", "1c"):
        with pytest.raises(pages.UnusualError):
            pages._header(bytes.fromhex(f"1500{wrong}0015022c15021500150615060000"))


def test_a_header_of_another_encoding_is_unusual():
    """Of the values, or of levels, though there are none."""
    for encodings in ("150015061504", "150015041506", "150415061506"):
        with pytest.raises(pages.UnusualError):
            pages._header(bytes.fromhex(f"1500150215022c1502{encodings}0000"))
    ours = bytes.fromhex("1500150215022c15021500150615060000")
    assert (1, 1, 1, len(ours)) == pages._header(ours)


def test_what_a_reader_finds_has_the_last_word(monkeypatch):
    """If the sum of the bodies where they lie is another one, the fragment is decoded."""
    pointer, data = make(content_of_bodies([b"one", b"two"]))
    monkeypatch.setattr(pages.Bodies, "sum", lambda *_: Setsum.of_columns([1] * 8))
    fragments.check(data, pointer)


def test_other_lengths_are_found():
    """Before anything else is looked at."""
    pointer, data = make(content_of_bodies([b"one"]))
    for wrong in (data[:-1], data + b"x", b""):
        with pytest.raises(CorruptionError):
            fragments.check(wrong, pointer)


def test_a_pointer_to_other_records_is_found():
    """By the setsum, and by the offsets."""
    pointer, data = make(content_of_bodies([b"one", b"two"]))
    other = msgspec.structs.replace(pointer, setsum_hex="0" * 64)
    with pytest.raises(CorruptionError) as caught:
        fragments.check(data, other)
    assert caught.value.code is Code.SETSUM_MISMATCH
    moved = Fragment.of(pointer.path, 1, 8, 10, len(data), pointer.setsum_hex)
    with pytest.raises(CorruptionError):
        fragments.check(data, moved)


def test_other_columns_are_decoded():
    """Keys and headers are part of the item."""
    content = content_of_rows(
        [b"one", b""], keys=[b"k", None], headers=None, streams=None, num_bytes=0
    )
    pointer, data = make(content)
    fragments.check(data, pointer)
    damaged = msgspec.structs.replace(pointer, setsum_hex="0" * 64)
    with pytest.raises(CorruptionError):
        fragments.check(data, damaged)


def test_short_ones_of_many_sizes_are_checked_as_well():
    """Decoded or not, with the same answer."""
    pointer, data = make(content_of_bodies(mixed_bodies(50, 500)))
    fragments.check(data, pointer)
    other = msgspec.structs.replace(pointer, setsum_hex="0" * 64)
    with pytest.raises(CorruptionError):
        fragments.check(data, other)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": True},
        {"data_page_version": "2.0"},
        {"row_group_size": 2},
        {"compression": "gzip"},
        {"use_dictionary": False, "column_encoding": {"body": "DELTA_LENGTH_BYTE_ARRAY"}},
    ],
    ids=["dictionary", "second version", "row groups", "gzip", "other encoding"],
)
@pytest.mark.parametrize("nullable", [False, True])
def test_files_of_another_shape_are_left_to_the_decoder(options, nullable, monkeypatch):
    """They may be right, but not everything that Parquet can say is understood here."""
    table = fragments.build_table(content_of_bodies([b"one", b"two", b"two", b"three"]), 7, STAMP)
    schema = table.schema.set(2, pa.field("body", pa.binary(), nullable))
    pointer, data = linked(table.cast(schema), **options)
    decoded, parse = [], fragments._parse
    monkeypatch.setattr(fragments, "_parse", lambda *args: decoded.append(args) or parse(*args))
    fragments.check(data, pointer)
    assert decoded
    with pytest.raises(CorruptionError):
        fragments.check(data, msgspec.structs.replace(pointer, setsum_hex="0" * 64))


def linked(table, told=None, at=None, **options):
    """A file as another program might write it, with a link and a checksum of ours.

    `told`: the records that pointer and link tell of; the same if None. `at`: the time in the link.
    """
    told = table if told is None else told
    start, stamp = (told.column(name)[0].as_py() for name in ("offset", "timestamp_us"))
    stamp = stamp if at is None else at
    setsum = Setsum.of_fragment(told).hexdigest()
    link = fragments.Link("a" * 32, start, start + len(told), stamp, setsum, "b" * 32, ZERO)
    rows = options.pop("row_group_size", None)
    options = {"use_dictionary": False, "compression": "none", "store_schema": False, **options}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata({fragments.LINK_KEY: msgspec.json.encode(link)})
    data = sealed(sink.getvalue().to_pybytes())
    return fragments.pointer(link, 1, len(data)), data


@pytest.mark.usefixtures("never_decoded")
@pytest.mark.parametrize("kernel", ["numba"], indirect=True)
def test_a_file_of_the_same_shape_is_not_decoded():
    """What the tests around this one rely on."""
    table = fragments.build_table(content_of_bodies([b"one", b"two"]), 7, STAMP)
    pointer, data = linked(table)
    fragments.check(data, pointer)


@pytest.mark.parametrize(("start", "stamp"), [(8, STAMP), (7, STAMP + 1), (0, STAMP)])
def test_records_that_are_others_than_their_link_tells_are_found(start, stamp):
    """Though the sum is right for the offsets and the timestamp that are expected."""
    content = content_of_bodies([b"x" * 40] * 30)
    told = fragments.build_table(content, 7, STAMP)
    pointer, data = linked(fragments.build_table(content, start, stamp), told)
    for look in (fragments.check, fragments.decode):
        with pytest.raises(CorruptionError):
            look(data, pointer)


def test_records_with_several_timestamps_are_left_to_the_decoder():
    """Ours have one, and the link tells it."""
    table = fragments.build_table(content_of_bodies([b"x" * 40] * 30), 7, STAMP)
    stamps = pa.array(np.arange(STAMP, STAMP + 30, dtype=np.uint64))
    table = table.set_column(1, table.schema.field(1), stamps)
    pointer, data = linked(table)
    fragments.check(data, pointer)


@pytest.mark.parametrize("at", [-1, 2**64 - 1, STAMP + 1])
def test_a_link_with_another_time_is_left_to_the_decoder(at):
    """The records are what they are."""
    table = fragments.build_table(content_of_bodies([b"x" * 40] * 30), 7, STAMP)
    pointer, data = linked(table, at=at)
    fragments.check(data, pointer)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_nothing_but_our_own_code_sees_damage(compression, monkeypatch):
    """No decoder and no decompressor, before the checksum holds."""
    pointer, data = make(content_of_bodies([b"x" * 100] * 400), compression)

    def refuse(*_):
        raise AssertionError("it saw damaged bytes")

    for module, name in ((fragments, "_open"), (fragments, "_parse"), (pages, "_decompress")):
        monkeypatch.setattr(module, name, refuse)
    for place in range(4, len(data) - 8, max(1, len(data) // 500)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(CorruptionError, match="checksum"):
            fragments.check(bytes(damaged), pointer)


@pytest.mark.parametrize("count", [-1, 0, 3, 5, 2**28, 2**60])
def test_a_pointer_to_another_number_of_records_is_found(count):
    """Before there is room for so many."""
    pointer, data = make(content_of_bodies([b"x" * 40] * 4))
    other = Fragment.of(pointer.path, 1, 7, 7 + count, len(data), pointer.setsum_hex)
    with pytest.raises(CorruptionError, match="records"):
        fragments.check(data, other)


@pytest.mark.parametrize("start", [-5, 2**63, 2**64])
def test_a_pointer_to_offsets_that_cannot_be_is_found(start):
    """As by decoding."""
    pointer, data = make(content_of_bodies([b"x" * 40] * 4))
    other = Fragment.of(pointer.path, 1, start, start + 4, len(data), pointer.setsum_hex)
    with pytest.raises(CorruptionError):
        fragments.check(data, other)


def test_more_bodies_than_there_is_room_for_are_unusual():
    """A footer alone does not make room for them."""
    _, data = make(content_of_bodies([b"x" * 40] * 4))
    footer = fragments._footer(data)
    place = footer.index(b"\x19\x18\x04body")
    forged = footer[:place] + footer[place:].replace(b"\x16\x08", b"\x16" + zigzag(2**27), 1)
    pages.Bodies.find(footer, len(data))
    with pytest.raises(pages.UnusualError, match="room"):
        pages.Bodies.find(forged, len(data))
    forged = footer[:place] + footer[place:].replace(b"\x16\x08", b"\x16" + b"\xff" * 9_000, 1)
    with pytest.raises(pages.UnusualError, match="64 bits"):
        pages.Bodies.find(forged, len(data))


def test_the_checksum_passes_over_each_page_before_it_is_hashed(monkeypatch):
    """And over nothing that lies behind it: so it is near when it is hashed."""
    pointer, data = make(content_of_bodies([b"y" * 1024] * 4_000))
    passed, seen = [], []
    pass_over, find_pages = fragments._Checksum.pass_over, pages._pages

    def noted_pass(checksum, end):
        passed.append(end)
        pass_over(checksum, end)

    def noted_pages(array, *args):
        for page, count in find_pages(array, *args):
            seen.append((len(passed), passed[-1] - (page.ctypes.data - array.ctypes.data)))
            yield page, count

    monkeypatch.setattr(fragments._Checksum, "pass_over", noted_pass)
    monkeypatch.setattr(pages, "_pages", noted_pages)
    fragments.check(data, pointer)
    sizes = {size for _, size in seen}
    assert len(seen) > 2
    assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
    assert max(sizes) < 2**21


def test_what_nothing_vouches_for_is_not_hashed_in_place(monkeypatch):
    """Nor are records that have more than a body: their sum would be of no use."""
    keyed = content_of_rows([b"x" * 99] * 30, [b"k"] * 30, None, None, num_bytes=0)
    plain, compressed = (make(content_of_bodies([b"x" * 99] * 30), c)[1] for c in ("none", "zstd"))
    files = [data.replace(b"cordwood", b"kordwood") for data in (plain, compressed)]
    files = [data.replace(b'"xxh3":"', b'"xxi3":"') for data in files] + [make(keyed)[1]]
    monkeypatch.setattr(pages.Bodies, "sum", lambda *_: pytest.fail("it was hashed"))
    monkeypatch.setattr(fragments, "_compare", lambda *_: None)
    for data in files:
        fragments.check(data, Fragment.of("x", 1, 7, 37, len(data), ZERO))


@pytest.mark.usefixtures("never_decoded")
def test_relative_offsets_are_not_decoded():
    """Those of an upload are counted from zero."""
    content = content_of_bodies([b"x" * 99] * 30)
    table = fragments.build_table(content, 0, STAMP, relative=True)
    setsum = Setsum.of_fragment(table).hexdigest()
    link = fragments.Link("a" * 32, 0, 30, STAMP, setsum, "b" * 32, ZERO)
    _, data = fragments.encode(table, "none", lambda _: (link, ""))
    fragments.check(data, Fragment.of("x", 1, 500, 530, len(data), setsum))


@given(st.binary(max_size=64))
def test_no_header_does_harm(noise):
    """Whatever the bytes are, the answer is a header or `UnusualError`."""
    try:
        count, size, stored, header_bytes = pages._header(noise)
    except pages.UnusualError:
        return
    assert min(count, size, stored) >= 0
    assert header_bytes <= len(noise)
