"""The page about journals is enough to read one."""

from __future__ import annotations

import struct

import xxhash

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.journal.journal import Journal
from cordwood.store.disk import Disk


def frames(data, salt, base):
    """What an extent holds, by sections 2 and 3."""
    place, link, least = 64, xxhash.xxh3_64_intdigest(struct.pack("<Q", salt)), base
    while place < len(data):
        head = struct.unpack_from("<IIQQQQII", data, place)
        mark, length, before, number, synced, time, kind, span = head
        if mark != (salt ^ salt >> 32) & 0xFFFFFFFF | 1:
            return
        assert link == before
        assert number >= least
        assert synced <= place
        end = place + 48 + (length + 7) // 8 * 8
        (link,) = struct.unpack_from("<Q", data, end)
        assert link == xxhash.xxh3_64_intdigest(struct.pack("<QQ", salt, place) + data[place:end])
        yield number, span, kind, time, data[place + 48 : place + 48 + length], end + 8, link
        place, least = end + 8, number + span


def test_a_reader_made_from_the_page(tmp_path):
    """Extents, frames and the tail say what was appended."""
    journal = Journal(str(tmp_path), Disk(), SYSTEM_CLOCK, SYSTEM_ENTROPY, extent_bytes=4096)
    for number in range(0, 600, 2):
        with journal.turn() as turn:
            turn.append([b"%d" % number], span=2, time_us=number)
            turn.sync()
    bases = sorted(int(path.stem) for path in tmp_path.glob("*.wal"))
    assert len(bases) > 2
    found, last = [], None
    for base in bases:
        data = (tmp_path / f"{base}.wal").read_bytes()
        magic, salt, at, _, digest = struct.unpack_from("<8sQQQQ", data)
        assert (b"CWEXT\x01\r\n", base) == (magic, at)
        assert digest == xxhash.xxh3_64_intdigest(data[:32])
        assert bytes(24) == data[40:64]
        inside = list(frames(data, salt, base))
        entries = [one for one in inside if one[2] == 0]
        found += [(number, payload) for number, _, _, _, payload, _, _ in entries]
        if base != bases[-1]:
            assert (1, 0, entries[-1][3]) == (inside[-1][2], inside[-1][1], inside[-1][3])
            assert len(data) == inside[-1][5]
        last = salt, base, inside[-1]
    assert [(number, b"%d" % number) for number in range(0, 600, 2)] == found
    data = (tmp_path / "tail").read_bytes()
    slots = [struct.unpack_from("<12Q", data, at) for at in (0, 96)]
    assert all(
        slot[11] == xxhash.xxh3_64_intdigest(data[at : at + 88])
        for slot, at in zip(slots, (0, 96), strict=True)
    )
    newest = max(slots)
    assert slots[newest[0] % 2] == newest
    salt, base, (*_, end, checksum) = last
    here = (end, 600, checksum)
    assert (salt, base, *here, *here, 598, 0) == newest[1:11]
