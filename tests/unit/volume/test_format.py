"""The bytes of volumes: pinned, and refused wherever one of them is another."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from volume_desk import PAGE, bytes_of

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import (
    CorruptionError,
    FormatError,
    InternalError,
    InvalidInputError,
    UnsupportedError,
)
from cordwood.testing.handclock import HandClock
from cordwood.volume import paths
from cordwood.volume.filters import Fuse, build_fuse, make_filter, open_filter, range_start
from cordwood.volume.format import (
    NO_HASH,
    Commit,
    Manifest,
    Parent,
    Provenance,
    Tag,
    Watermark,
    decode_document,
    encode_document,
    open_commit,
    seal,
)
from cordwood.volume.ids import is_id, new_id
from cordwood.volume.pack import (
    FRAME_BYTES,
    PACK_BYTES_MAX,
    PackBuilder,
    build_packs,
    check_page_size,
    open_pack,
)
from cordwood.volume.pagesets import array_of, decode_pages, encode_pages, pages_of

LOG, PACK, CLIENT = f"{1:032x}", f"{2:032x}", f"{3:032x}"
NUMBERS = np.array([1, 2, 5, 9, *range(100, 300)], np.uint32)


def built(numbers=NUMBERS, size=PAGE, pack=PACK):
    """A pack of pages that say their numbers."""
    builder = PackBuilder(size)
    builder.add(numbers, b"".join(bytes_of(1, int(n), size) for n in numbers))
    return builder.finish(pack, LOG)


def commit(**changes):
    """A commit of that pack."""
    whole = Commit(
        LOG,
        7,
        bytes(31) + b"\1",
        1_700_000_000_000_000,
        "a message",
        Provenance(CLIENT, 12, f"{4:032x}"),
        PAGE,
        400,
        50,
        (built().pack,),
    )
    return replace(whole, **changes)


def manifest(**changes):
    """A manifest that uses every field."""
    whole = Manifest(
        log=LOG,
        page_size=4096,
        grace_s=600.0,
        created_us=1_700_000_000_000_000,
        nonce=f"{5:032x}",
        parent=Parent(PACK, 7, "ab" * 32),
        checkpoints=(8, 16, 32),
        watermark=Watermark(16, 1_700_000_000_000_001),
        collected=8,
    )
    return msgspec.structs.replace(whole, **changes)


def test_the_bytes_are_pinned():
    """What is in stores today is read for ever: these bytes may never change."""
    small = built(np.array([1, 2, 5], np.uint32))
    assert "43575041434b00000100000000020000030000000100000000000000" in small.data.hex()
    assert b"\x3a\x30\x00\x00" in small.data  # Roaring's cookie, of the set
    sealed = seal(commit(packs=(small.pack,), page_count=9, cut=3))
    expected_head = (
        b'{"log":"00000000000000000000000000000001","lsn":7,"parent_hash":"' + b"0" * 62 + b"01"
        b'","commit_hash":"","timestamp_us":1700000000000000,"message":"a message","provenance":'
        b'{"client":"00000000000000000000000000000003","watermark":12,"nonce":'
        b'"00000000000000000000000000000004"},"page_size":512,"page_count":9,"cut":3,"packs":'
        b'[{"id":"00000000000000000000000000000002","log":"00000000000000000000000000000001",'
        b'"own_bytes":22,"live_bytes":0,"frames":1}]}'
    )
    data = sealed.data
    assert b"CWCOMMIT\1\0\0\0" + len(expected_head).to_bytes(4, "little") == data[:16]
    assert expected_head == data[16 : 16 + len(expected_head)]
    body = data[16 + len(expected_head) : -32]
    assert encode_pages(small.pack.own) + small.pack.frames.encode() == body
    assert blake2b(data[:-32], digest_size=32).digest() == data[-32:] == sealed.commit.hash
    assert (
        b'{"tag":{"log":"00000000000000000000000000000001","nonce":'
        b'"00000000000000000000000000000005","format":1},"xxh3":"'
    ) == encode_document(Tag(LOG, f"{5:032x}"))[:-18]
    assert b'"condemned_us":null,"swept":false,"format":1}' in encode_document(manifest())


def test_a_commit_is_read_as_it_was_written():
    """Every field, every set, every table."""
    sealed = seal(commit())
    found = open_commit(sealed.data, "here")
    assert sealed.data == seal(replace(found, hash=b"")).data
    assert (sealed.commit.hash, 7, 400, 50, "a message") == (
        found.hash,
        found.lsn,
        found.page_count,
        found.cut,
        found.message,
    )
    (pack,) = found.packs
    assert NUMBERS.tolist() == array_of(pack.own).tolist() == array_of(found.pages).tolist()
    data = built().data
    for number in (1, 9, 100, 299):
        frame, at = pack.locate(number)
        stored = data[pack.starts[frame] : pack.starts[frame + 1]]
        plain = pack.open_frame(frame, stored)
        assert bytes_of(1, number) == plain[at * PAGE : (at + 1) * PAGE]
    frames, places = pack.locate_many(NUMBERS)
    assert [pack.locate(int(n)) for n in NUMBERS] == list(
        zip(frames.tolist(), places.tolist(), strict=True)
    )


def attack(data, decode):
    """Every byte another, every length shorter: refused, each time, by a clear error."""
    for place in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            damaged = data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]
            with pytest.raises(FormatError):
                decode(damaged, "here")
    for length in range(len(data)):
        with pytest.raises(FormatError):
            decode(data[:length], "here")
    with pytest.raises(FormatError):
        decode(data + b"\0", "here")


def test_a_commit_is_attacked_at_every_byte():
    """Damage never passes."""
    attack(seal(commit(packs=(built(NUMBERS[:40]).pack,))).data, open_commit)


def test_documents_are_attacked_at_every_byte():
    """A manifest and a tag."""
    attack(encode_document(manifest()), lambda data, where: decode_document(Manifest, data, where))
    attack(encode_document(Tag(LOG, PACK)), lambda data, where: decode_document(Tag, data, where))


def test_filters_are_attacked_at_every_byte():
    """Both kinds."""
    for numbers in (NUMBERS[:9], np.unique(np.random.default_rng(1).integers(1, 2**32, 90))):
        pack = built(numbers.astype(np.uint32)).pack
        one = seal(commit(packs=(pack,), page_count=2**32 - 1)).commit
        made = make_filter([one])
        assert isinstance(made.pages, Fuse) == (len(numbers) > 50)
        attack(made.encode(), open_filter)


def test_a_pack_is_attacked_at_every_byte():
    """Opened alone, head and footer are vouched for by the hash, each frame by its digest."""
    data = built(NUMBERS[:40]).data

    def decode(damaged, where):
        pack = open_pack(damaged, PACK)
        for frame in range(pack.num_frames):
            pack.open_frame(frame, damaged[pack.starts[frame] : pack.starts[frame + 1]])

    decode(data, "")
    attack(data, decode)


def test_a_pack_is_read_alone():
    """Without the commit that names it."""
    whole = built()
    found = open_pack(whole.data, PACK, LOG)
    assert whole.pack.frames.encode() == found.frames.encode()
    assert whole.pack.own == found.own


def rehashed(data, old, new):
    """A commit whose head says something else, with a hash that is right."""
    assert old in data
    head_bytes = int.from_bytes(data[12:16], "little")
    head = data[16 : 16 + head_bytes].replace(old, new)
    body = data[:12] + len(head).to_bytes(4, "little") + head + data[16 + head_bytes : -32]
    return body + blake2b(body, digest_size=32).digest()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"page_size":512', b'"page_size":513', "VOL-1"),
        (b'"page_size":512', b'"page_size":1024', "frames for"),
        (b'"cut":50', b'"cut":401', "VOL-1"),
        (b'"page_count":400', b'"page_count":200', "VOL-2"),
        (b'"parent_hash":"' + b"0" * 62 + b"01", b'"parent_hash":"' + b"0" * 64, "VOL-4"),
        (b'"commit_hash":""', b'"commit_hash":"' + b"1" * 64 + b'"', "VOL-4"),
        (b'"lsn":7', b'"lsn":0', "LSN 0"),
        (b'"frames":2', b'"frames":1000000000', "another length"),
        (b'"frames":2', b'"frames":-2', "another length"),
        (b'"own_bytes":', b'"own_bytes":9', "another length"),
        (b'{"log":"' + LOG.encode(), b'{"log":"../../../../../../../../etc/pass', "ids"),
        (b'{"id":"' + PACK.encode(), b'{"id":"../../../../../../../../etc/pass', "no such id"),
        (b'"message":"a message"', b'"message":"' + b"x" * 70_000 + b'"', "too long"),
        (b'"lsn":7', b'"lsn":7,"more":1', "head is damaged"),
    ],
)
def test_a_commit_with_a_right_hash_is_judged_all_the_same(old, new, why):
    """Whoever wrote it, what cannot be is refused, and no memory is taken for it."""
    with pytest.raises(CorruptionError, match=why):
        open_commit(rehashed(seal(commit()).data, old, new), "here")


def test_newer_versions_are_told_from_damage():
    """A commit of version 2 asks for an update."""
    data = seal(commit()).data
    body = data[:8] + b"\2\0\0\0" + data[12:-32]
    with pytest.raises(UnsupportedError, match="version 2"):
        open_commit(body + blake2b(body, digest_size=32).digest(), "here")


def test_what_cannot_be_is_not_written():
    """Our own mistakes are found before the store has them."""
    pack = built().pack
    for wrong in (
        {"cut": 500},
        {"packs": (pack, pack)},
        {"packs": (pack.keeping(pages_of([1])),)},
        {"parent_hash": NO_HASH},
        {"log": "app"},
    ):
        with pytest.raises(InternalError):
            seal(commit(**wrong))
    seal(commit(cut=0, checkpoint_of=bytes(32), packs=(pack.keeping(pages_of([1])),)))
    for wrong in (
        {"checkpoints": (16, 8)},
        {"checkpoints": (4, 16)},
        {"collected": 9},
        {"watermark": Watermark(9, 1)},
        {"parent": Parent(LOG, 7, "ab" * 32)},
        {"parent": Parent(PACK, 7, "../" * 32)},
        {"page_size": 100},
        {"swept": True},
    ):
        with pytest.raises(InternalError):
            encode_document(manifest(**wrong))


@pytest.mark.parametrize("size", [512, 4096, 65536])
def test_frames_hold_64_kib(size):
    """Whatever the page size; the last frame has the rest."""
    count = 3 * FRAME_BYTES // size + 1
    whole = built(np.arange(1, count + 1, dtype=np.uint32), size)
    assert 4 == whole.pack.num_frames
    assert [FRAME_BYTES] * 3 + [size] == [whole.pack.plain_bytes(f) for f in range(4)]


def test_what_does_not_compress_is_stored_as_it_is():
    """No frame is longer than its pages."""
    noise = np.random.default_rng(3).bytes(40 * PAGE)
    builder = PackBuilder(PAGE)
    builder.add(np.arange(1, 41, dtype=np.uint32), noise)
    pack, data = builder.finish(PACK, LOG)
    assert [40 * PAGE] == pack.frames.stored.tolist()
    assert noise == pack.open_frame(0, data[pack.starts[0] : pack.starts[1]])


def test_a_large_push_makes_several_packs():
    """Of 64 MiB of pages at most, one after the other, whatever the batches are."""
    size = 65536
    most = PACK_BYTES_MAX // size
    zeros = bytes(size) * 300
    batches = ((np.arange(n, n + 300, dtype=np.uint32), zeros) for n in range(1, 2_400, 300))
    ids = (f"{n:032x}" for n in range(1, 100))
    packs = [pack for pack, _ in build_packs(size, batches, ids, LOG)]
    assert [most, most, 2_400 - 2 * most] == [len(pack.own) for pack in packs]
    assert list(range(1, 2_401)) == [n for pack in packs for n in array_of(pack.own).tolist()]


@given(st.sets(st.integers(1, 2**32 - 1), max_size=300))
def test_sets_are_read_as_they_were_written(numbers):
    """And equal sets have equal bytes."""
    pages = pages_of(sorted(numbers))
    assert pages == decode_pages(encode_pages(pages), "here")
    assert encode_pages(pages) == encode_pages(pages_of(sorted(numbers)))


@given(st.sets(st.integers(1, 2**32 - 1), min_size=1, max_size=2_000))
def test_a_fuse_filter_has_no_false_negative(numbers):
    """Asked one by one, as a walk asks."""
    fuse = build_fuse(np.array(sorted(numbers), np.uint32))
    assert fuse is not None
    assert all(number in fuse for number in numbers)


def test_a_fuse_filter_says_perhaps_of_few():
    """About one page in 256 that is not there, at about ten bits a page."""
    rng = np.random.default_rng(11)
    numbers = np.unique(rng.integers(1, 2**31, 20_000, dtype=np.uint32))
    fuse = build_fuse(numbers)
    others = rng.integers(2**31, 2**32, 20_000, dtype=np.uint32)
    assert 0.001 < sum(int(n) in fuse for n in others) / len(others) < 0.008
    assert len(fuse.slots) < 1.35 * len(numbers)


def test_a_filter_knows_the_smallest_cut():
    """A page above it may have been cut off: the walk must look."""
    one = seal(commit(cut=30)).commit
    other = seal(commit(cut=60, lsn=8, packs=())).commit
    made = make_filter([one, other])
    assert [True, True, False, True] == [made.may_decide(page) for page in (5, 31, 30, 9)]
    assert [1, 1, 33] == [range_start(lsn) for lsn in (1, 32, 33)]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "/etc", "a\0", "ä", "x" * 129, "-x", " ", "a\n", None, 7]
)
def test_names_that_are_paths_are_refused(name):
    """And all others that some store or file system would take for something else."""
    with pytest.raises(InvalidInputError, match="cannot name a volume"):
        paths.tag(name)


def test_names_and_numbers():
    """Keys are in the order of LSNs; what is no LSN is none."""
    assert "tags/app.v1" == paths.tag("app.v1")
    assert sorted(map(paths.lsn_text, (9, 10, 255, 256))) == list(
        map(paths.lsn_text, (9, 10, 255, 256))
    )
    texts = ["0" * 16, "f" * 16, "0" * 15 + "A", "0" * 15, "0" * 15 + "a"]
    assert [None, None, None, None, 10] == [paths.lsn_of(text) for text in texts]
    for size in (0, 511, 513, 131072, "4096", None, 4096.5):
        with pytest.raises(InvalidInputError):
            check_page_size(size)


def test_ids_are_in_the_order_of_time():
    """Twelve digits of milliseconds, twenty of chance."""
    clock, entropy = HandClock(), SeededEntropy(1)
    first = new_id(clock, entropy)
    clock.pass_s(0.002)
    second = new_id(clock, entropy)
    assert first < second
    assert is_id(first)
    assert int(first[:12], 16) == 1_700_000_000_123
    assert not is_id("../" * 10)
