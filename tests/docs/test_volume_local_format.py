"""The page about a volume's directory is enough to read one."""

from __future__ import annotations

import json
import struct

import xxhash

from cordwood.testing.volumemodel import PAGE_BYTES, Version, commit, page_of
from cordwood.volume.local import Local

NO_CUT = (1 << 64) - 1


def head_of(data):
    """Sequence, salt and first entry, by section 2."""
    magic, size, zero, sequence, salt, first, digest = struct.unpack_from("<8sIIQQQQ", data)
    assert (b"CWWAL\x01\r\n", PAGE_BYTES, 0) == (magic, size, zero)
    assert digest == xxhash.xxh3_64_intdigest(data[:40])
    assert bytes(16) == data[48:64]
    return sequence, salt, first


def transactions(data, salt):
    """Entry, page count, cut and pages of each frame; and the checksum of the last."""
    place, link, found = 64, xxhash.xxh3_64_intdigest(struct.pack("<Q", salt)), []
    mark = (salt ^ salt >> 32) & 0xFFFFFFFF | 1
    while place + 56 < len(data) and struct.unpack_from("<I", data, place)[0] == mark:
        _, length, before, number, synced, _, _, span = struct.unpack_from("<IIQQQQII", data, place)
        assert (link, place) == (before, synced)
        body = data[place + 48 : place + 48 + length]
        page_count, cut, count, zero = struct.unpack_from("<QQII", body)
        assert (max(1, count), 0) == (span, zero)
        numbers = struct.unpack_from(f"<{count}I", body, 24)
        at = 24 + (4 * count + 7) // 8 * 8
        sums = struct.unpack_from(f"<{count}Q", body, at)
        at += 8 * count
        pages = {n: body[at + i * PAGE_BYTES :][:PAGE_BYTES] for i, n in enumerate(numbers)}
        assert list(sums) == [xxhash.xxh3_64_intdigest(page) for page in pages.values()]
        found.append((number, page_count, None if cut == NO_CUT else cut, pages))
        end = place + 48 + (length + 7) // 8 * 8
        (link,) = struct.unpack_from("<Q", data, end)
        place = end + 8
    return found, link


def document(path, name):
    """A document, by section 1."""
    data = path.read_bytes()
    read = json.loads(data)
    body = data[len(f'{{"{name}":') : data.rindex(b',"xxh3"')]
    assert read["xxh3"] == f"{xxhash.xxh3_64_intdigest(body):016x}"
    return read[name]


def test_a_reader_made_from_the_page(tmp_path):
    """Both WAL files, the base, its map and the documents say what was committed."""
    local = Local.open(str(tmp_path / "v"), PAGE_BYTES, switch_pages=8)
    version = Version()
    for number in range(1, 31):
        count = 9 + number % 4
        pages = {n: page_of(n, number) for n in (1, number % 9 + 1)}
        commit(local, pages, count, 7 if number == 25 else None)
        version = version.changed(pages, count, 7 if number == 25 else None)
    local.publish(3, b"\x07" * 32, 2, 5)
    local.close()
    wal = tmp_path / "v" / "wal"
    drained = document(wal / "drained", "drained")
    head = document(tmp_path / "v" / "head", "head")
    assert (3, "07" * 32, 2, 5, 1) == tuple(
        head[name] for name in ("lsn", "hash", "watermark", "published_count", "format")
    )
    files = [(wal / f"wal{k}.wal").read_bytes() for k in (0, 1)]
    heads = sorted((*head_of(data), k) for k, data in enumerate(files))
    assert drained["uses"] in (heads[1][0], heads[1][0] - 1)
    found = Version()
    base, lines = (wal / "base").read_bytes(), (wal / "base.map").read_bytes()
    for page in range(1, len(lines) // 16 + 1):
        entry, digest = struct.unpack_from("<QQ", lines, (page - 1) * 16)
        if entry:
            data = base[(page - 1) * PAGE_BYTES : page * PAGE_BYTES]
            assert digest == xxhash.xxh3_64_intdigest(data)
            assert entry <= drained["entry"]
            found.pages[page] = data
    counted = Version(found.pages, drained["page_count"])
    for _, count in drained["cuts"]:
        assert count < drained["page_count"]
    last = None
    for sequence, salt, first, which in heads:
        inside, checksum = transactions(files[which], salt)
        assert sequence % 2 == which
        assert inside == [] or inside[0][0] == first
        assert last is None or salt == last
        last = checksum
        if sequence >= drained["uses"]:
            for _, count, cut, pages in inside:
                counted = counted.changed(pages, count, cut)
    assert drained["uses"] > 1
    assert version.same_as(counted)
