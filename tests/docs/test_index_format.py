"""The page of the index format is enough to read an index: this reader knows nothing else."""

from __future__ import annotations

import itertools
import struct

import msgspec
import pytest
import xxhash
from pyroaring import BitMap

from cordwood import sync


@pytest.fixture
def root(tmp_path):
    """An index with tombstones, an idmap and a delete that the ledger speaks of."""
    index = sync.Index(tmp_path / "index")
    index.create("words")
    with index.begin() as first:
        for name in (b"a", b"b", b"c"):
            first.add(name, "red " + name.decode())
    with index.begin() as second:
        second.add(b"d", "red red")
        second.delete(b"b")
    index.compact()
    with index.snapshot():  # It keeps the segments that are merged.
        index.merge()
        with index.begin() as third:
            third.delete(b"a")
            third.add(b"e", "late")
        index.new_id("mine")
        index.compact()
        index.close()
        yield tmp_path / "index"


def xxh3(data):
    """As eight bytes."""
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def frames(data):
    """Payloads of a ledger file, by section 7.1."""
    magic, salt, last, digest, synced, hint = struct.unpack_from("<8sQQ8sQ8s", data)
    assert b"CWLEDG\x02\n" == magic
    assert digest == xxh3(data[:24])
    assert hint == xxh3(struct.pack("<QQ", salt, synced))
    assert (synced, bytes(16)) == (len(data), data[48:64])
    place, link = 64, xxhash.xxh3_64_intdigest(struct.pack("<Q", salt))
    while place < len(data):
        head = struct.unpack_from("<IIQQQQII", data, place)
        mark, length, before, number, claimed, _, kind, span = head
        assert ((salt ^ salt >> 32) & 0xFFFFFFFF | 1, link) == (mark, before)
        assert (0, 1) == (kind, span)
        assert claimed <= place
        end = place + 48 + (length + 7) // 8 * 8
        (link,) = struct.unpack_from("<Q", data, end)
        assert link == xxhash.xxh3_64_intdigest(struct.pack("<QQ", salt, place) + data[place:end])
        payload = data[place + 48 : place + 48 + length]
        yield number, last, msgspec.msgpack.decode(payload, strict=False)
        place = end + 8


def segment(data):
    """The directory and the sections of a segment, by section 3."""
    sums, directory, length, digest, magic = struct.unpack("<QQQ8s8s", data[-40:])
    assert b"CWSEG\x01\r\n" == magic == data[:8]
    assert (len(data), xxh3(data[sums:-16])) == (length, digest)
    assert data[sums:directory] == b"".join(
        xxh3(data[at : min(at + 65_536, sums)]) for at in range(0, sums, 65_536)
    )
    facts = msgspec.json.decode(data[directory:-40])
    places = facts.pop("sections")
    assert all(begin % 64 == 0 for begin, _ in places.values())
    return facts, {name: data[begin : begin + size] for name, (begin, size) in places.items()}


def test_a_reader_made_from_the_page(root):
    """Ledger, segments, tombstones, idmaps, numbers and config say what was done."""
    # EVIDENCE-OF: G-84
    config = msgspec.json.decode((root / "config").read_bytes(), type=dict[str, msgspec.Raw])
    assert xxhash.xxh3_64_hexdigest(bytes(config["index"])).encode() in bytes(config["xxh3"])
    found = list(frames((root / "transaction.log").read_bytes()))
    assert list(range(len(found))) == [number for number, _, _ in found]
    live, deleted, merged = {}, {}, {}
    for _, last, transaction in found:
        assert transaction["id"] > 0
        assert last >= 0
        for entry in transaction["entries"]:
            if entry["type"] in {"add", "end"}:
                live[entry["segment"]] = entry
                for old in entry.get("merged", ()):
                    merged[old] = entry["segment"]
            elif entry["type"] == "delete":
                for number, docs in entry["documents"].items():
                    deleted.setdefault(number, set()).update(BitMap.deserialize(docs))
    assert 2 == len(merged)
    ids = set()
    for number in live.keys() - merged.keys():
        facts, parts = segment((root / f"segment.{number}.idx").read_bytes())
        assert "table" == facts["id_form"]
        offsets = struct.unpack(f"<{facts['ids'] + 1}i", parts["ids.offsets"])
        names = [parts["ids"][a:b] for a, b in itertools.pairwise(offsets)]
        gone = deleted.get(number, set())
        ids |= {name for place, name in enumerate(names, 1) if place not in gone}
    assert {b"c", b"d", b"e"} == ids


def test_tombstones_idmaps_and_numbers_by_the_page(root):
    """Byte for byte, by sections 5, 6 and 8."""
    (tomb,) = root.glob("segment.*.tomb")
    data = tomb.read_bytes()
    assert (b"\0\0\xff\0", xxh3(data[:-8])) == (data[:-8], data[-8:])
    (idmap,) = root.glob("segment.*.idmap")
    data = idmap.read_bytes()
    assert xxh3(data[:-8]) == data[-8:]
    (count,) = struct.unpack_from("<Q", data)
    pairs = [struct.unpack_from("<QQ", data, 8 + 16 * place) for place in range(count)]
    moved = {number: struct.unpack_from("<4I", data, place) for number, place in pairs[:1]}
    assert 2 == count
    assert (0, 1, 0, 2) in moved.values()
    for name in ("segments", "user-mine"):
        words = struct.unpack("<4Q", (root / "ids" / name).read_bytes())
        assert (65,) * 4 == words
