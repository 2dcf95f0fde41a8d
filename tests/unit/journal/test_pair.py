"""Two files of frames that take turns: what a recovery makes of every state they can be left in."""

from __future__ import annotations

import pytest

from cordwood.base.errors import CorruptionError, InvalidInputError, UnsupportedError
from cordwood.journal import frames, pair
from cordwood.testing.crashdisk import CrashDisk

FIRST = pair.Head(512, 0, 77, 1)


class Files:
    """A pair on a disk in memory, and where its next frame goes."""

    def __init__(self):
        self.disk = CrashDisk()
        self.disk.mkdir("/p")
        pair.make(self.disk, "/p", FIRST)
        self.pair = pair.Pair(self.disk, "/p", 512)
        self.head, self.tail = FIRST, FIRST.start

    def append(self, *payloads):
        """Frames, one after the other, each synced."""
        for payload in payloads:
            parts, after = frames.framed(
                self.tail, [payload], number=self.tail.number, synced=self.tail.end
            )
            self.pair.put(self.head.sequence, parts, self.tail.end, after.end)
            self.pair.sync(self.head.sequence)
            self.tail = after

    def begin(self):
        """The head of the next use; frames still go to the other file."""
        head = self.pair.begin(
            self.head.sequence + 1, self.tail.checksum, self.tail.number, 1 << 20
        )
        self.pair.sync(head.sequence)
        return head

    def switch(self):
        """The next use."""
        self.head = self.begin()
        self.tail = self.head.start

    def recover(self, drained):
        """The payloads that count, and the use that is active."""
        found = []

        def visit(head, frame):
            found.append((head.sequence, bytes(frame.payload)))

        recovered = pair.recover(self.disk, "/p", 512, drained, visit)
        return found, recovered


def test_a_new_pair_has_nothing():
    """And one that is not there is none."""
    files = Files()
    found, recovered = files.recover(0)
    assert ([], FIRST, None) == (found, recovered.active, recovered.idle)
    files.disk.mkdir("/q")
    assert pair.recover(files.disk, "/q", 512, 0, lambda *_: None) is None


def test_both_files_count_until_one_is_drained():
    """In the order of their uses."""
    files = Files()
    files.append(b"a", b"b")
    files.switch()
    files.append(b"c")
    found, recovered = files.recover(0)
    assert [(0, b"a"), (0, b"b"), (1, b"c")] == found
    assert (files.head, files.tail, FIRST) == (recovered.active, recovered.tail, recovered.idle)
    found, recovered = files.recover(1)
    assert ([(1, b"c")], None) == (found, recovered.idle)


@pytest.mark.parametrize("more", [(), (b"c",)])
def test_a_switch_that_was_not_finished(more):
    """Frames that went to the old file since keep it active; without any, both will do."""
    files = Files()
    files.append(b"a", b"b")
    files.begin()
    files.append(*more)
    found, recovered = files.recover(0)
    assert [b"a", b"b", *more] == [payload for _, payload in found]
    assert (0 if more else 1) == recovered.active.sequence


def test_a_switch_before_any_frame():
    """The salt then comes from the salt before."""
    files = Files()
    files.begin()
    files.append(b"a")
    assert [(0, b"a")] == files.recover(0)[0]
    files.switch()
    files.append(b"b")
    assert [(0, b"a"), (1, b"b")] == files.recover(0)[0]


@pytest.mark.parametrize("size", [0, 20, 63])
def test_a_head_that_is_torn(size):
    """By a switch that was cut off: no frame is behind it, and it does not count."""
    files = Files()
    files.append(b"a")
    files.begin()
    files.disk.truncate("/p/wal1.wal", size)
    assert [(0, b"a")] == files.recover(0)[0]


def test_a_head_that_is_damaged():
    """Frames are behind it: refused."""
    files = Files()
    files.append(b"a")
    files.switch()
    files.append(b"b")
    files.disk.overwrite("/p/wal1.wal", b"x", 20)
    with pytest.raises(CorruptionError, match=r"wal1\.wal is damaged at byte 0.*the frame at 64"):
        files.recover(0)


@pytest.mark.parametrize(
    ("drained", "why"), [(2, "it should be in use"), (3, "it should be in use")]
)
def test_more_drained_than_there_is(drained, why):
    """A file is gone, or was put back from an old copy."""
    files = Files()
    files.append(b"a")
    files.switch()
    with pytest.raises(CorruptionError, match=why):
        files.recover(drained)


def test_less_drained_than_there_must_be():
    """A file was used again, so what was in it before was drained."""
    files = Files()
    for payload in (b"a", b"b", b"c"):
        files.append(payload)
        files.switch()
    with pytest.raises(CorruptionError, match="only 0 uses before 3 drained"):
        files.recover(0)
    assert [] == files.recover(3)[0]


def test_files_that_do_not_belong_together():
    """Exchanged, or from different times."""
    files = Files()
    files.append(b"a")
    files.switch()
    files.disk.rename("/p/wal1.wal", "/p/wal0.wal")
    files.disk.open("/p/wal1.wal", create=True)
    with pytest.raises(CorruptionError, match="its head is the other file's"):
        files.recover(1)
    files = Files()
    files.append(b"a")
    old = bytes(files.disk.read("/p/wal0.wal")[1])
    for _ in range(3):
        files.switch()
        files.append(b"b")
    files.disk.overwrite("/p/wal0.wal", old, 0)
    with pytest.raises(CorruptionError, match="it is use 0, beside 3"):
        files.recover(3)


def test_what_is_of_another_kind():
    """Of another page size, or of a newer version."""
    files = Files()
    with pytest.raises(InvalidInputError, match="pages of 512 bytes, not of 1024"):
        pair.recover(files.disk, "/p", 1024, 0, lambda *_: None)
    newer = pair.head_bytes(FIRST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "MAGIC", b"CWWAL\x02\r\n")
        newer = pair.head_bytes(FIRST)
    with pytest.raises(UnsupportedError, match="update cordwood"):
        pair.head_of(newer, "it")


def test_after_a_sync_that_failed_the_last_frame_is_written_again():
    """The system believes that it is on the disk. Without that suspicion nothing is written."""
    files = Files()
    files.append(b"a", b"b")
    content = bytes(files.disk.read("/p/wal0.wal")[1])
    steps = []
    for suspect in (False, True):
        before = files.disk.steps
        pair.recover(files.disk, "/p", 512, 0, lambda *_: None, suspect=suspect)
        steps.append(files.disk.steps - before)
    assert [1, 2] == steps
    assert content == bytes(files.disk.read("/p/wal0.wal")[1])


def test_room_is_kept_and_given_back():
    """A file that grew long is cut back when it is used again."""
    files = Files()
    files.append(*[bytes(5000)] * 300)
    files.switch()
    assert 1 << 20 < files.disk.stat("/p/wal0.wal").size_bytes
    files.append(b"b")
    files.switch()
    assert 1 << 20 == files.disk.stat("/p/wal0.wal").size_bytes
