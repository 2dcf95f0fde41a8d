"""A compaction topic with a damaged file: what it says of a key is right, or it says nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from cordwood import sync
from cordwood.base.errors import CorruptionError

PAD = {"pad": bytes(300)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A topic of several extents, half of them compacted, with their indexes; and its state."""
    root = tmp_path_factory.mktemp("damage") / "topics"
    generator = np.random.default_rng(3)
    state = {}
    with sync.Topics(root, retains=False, compacts=False) as topics:
        topics.create("shop", "prices", extent_bytes=4096, compaction=True, tombstone_s=0)
        with topics.producer("shop", "prices") as producer:
            for number in range(60):
                key = b"k%d" % generator.integers(8)
                state[key] = None if generator.random() < 0.25 else b"%d" % number
                producer.send(state[key], key=key, headers=PAD)
                if number == 30:
                    topics.compact("shop", "prices")
        list(topics.latest_all("shop", "prices"))
    return root, state


def breaks(path, kind, place):
    """Damage a file."""
    data = bytearray(path.read_bytes())
    if kind == "cut":
        data = data[:place]
    else:
        data[place : place + 8] = bytes(byte ^ 0xA5 for byte in data[place : place + 8])
    path.write_bytes(data)


def files(root):
    """The files of the partition that hold something."""
    found = sorted((Path(root) / "shop/prices/0").iterdir())
    return [path.name for path in found if path.name.endswith((".wal", ".index"))]


@pytest.mark.parametrize("kind", ["cut", "flip"])
def test_no_damage_gives_an_old_record_or_stops_the_others(filled, tmp_path, kind):
    """In extents and indexes, at many places: asked before and after a compaction."""
    # EVIDENCE-OF: G-91
    root, state = filled
    told = 0
    for number, name in enumerate(files(root)):
        size = (root / "shop/prices/0" / name).stat().st_size
        for place in np.linspace(0, size - 9, 4).astype(int).tolist():
            copy = tmp_path / f"{number}-{place}"
            shutil.copytree(root, copy)
            breaks(copy / "shop/prices/0" / name, kind, place)
            for _ in range(2):
                with sync.Topics(copy, retains=False, compacts=False) as topics:
                    for key, value in state.items():
                        try:
                            found = topics.latest("shop", "prices", key)
                            assert value == (None if found is None else found.value)
                        except CorruptionError:
                            told += 1
                    topics.compact("shop", "prices")
            shutil.rmtree(copy)
    assert told > 0


@pytest.mark.parametrize("which", ["newest", "middle"])
def test_a_file_that_is_gone_is_told(filled, tmp_path, which):
    """No older record of a key is given for one that was in it, also after more was sent."""
    # EVIDENCE-OF: G-91
    root, state = filled
    shutil.copytree(root, tmp_path / "copy")
    folder = tmp_path / "copy/shop/prices/0"
    bases = sorted(int(path.stem) for path in folder.glob("*.wal"))
    gone = folder / f"{bases[-1] if which == 'newest' else bases[-2]}.wal"
    gone.unlink()
    told = 0
    for number in range(3):
        with sync.Topics(tmp_path / "copy", retains=False, compacts=False) as topics:
            for key, value in state.items():
                try:
                    found = topics.latest("shop", "prices", key)
                    assert value == (None if found is None else found.value)
                except CorruptionError:
                    told += 1
            with topics.producer("shop", "prices") as producer:
                assert 60 + number == producer.send(b"x", key=b"new").offset
            assert b"x" == topics.latest("shop", "prices", b"new").value
            assert topics.compact("shop", "prices").partitions[0].damaged
            with (
                pytest.raises(CorruptionError),
                topics.consumer("shop", "prices", timeout_s=0) as consumer,
            ):
                list(consumer)
    assert told > 0


def test_of_many_empty_extents_one_stays(tmp_path):
    """And a reader that is in one of those that go notices nothing."""
    with sync.Topics(tmp_path, retains=False, compacts=False) as topics:
        topics.create("shop", "prices", extent_bytes=4096, compaction=True)
        with topics.producer("shop", "prices") as producer:
            producer.send(b"stays", key=b"once", headers=PAD)
            for number in range(80):
                producer.send(b"%d" % number, key=b"again", headers=PAD)
        with topics.consumer("shop", "prices", timeout_s=0) as consumer:
            reading = iter(consumer)
            assert 0 == next(reading).offset
            topics.compact("shop", "prices")
            offsets = [record.offset for record in reading]
            assert sorted(set(offsets)) == offsets
            assert 80 == offsets[-1]
        names = [name for name in files(tmp_path) if name.endswith(".wal")]
        assert len(names) <= 4
        with topics.consumer("shop", "prices", timeout_s=0) as consumer:
            left = [record.offset for record in consumer]
            assert (0, 80) == (left[0], left[-1])
            assert len(left) < 12
