"""Damage: every byte of every file flipped, every file cut short or missing. No wrong answer."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import xxhash
from pyroaring import BitMap

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import CorruptionError, FormatError
from cordwood.index.build import Builder, as_ids
from cordwood.index.draft import Draft, entries, idmaps_for
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder
from cordwood.index.home import Files
from cordwood.index.sections import _TRAILER, BLOCK, MAGIC
from cordwood.index.segment import Segment, View
from cordwood.index.shelf import Shelf
from cordwood.index.snapshot import Snapshot
from cordwood.index.tokens import as_texts, tokenizer
from cordwood.store.url import Store

FLIPS = [0x01, 0xFF]
WORDS = ["red", "green", "blue", "common"]


def written(engine, added, deleted=()):
    """A transaction."""
    writing = Writing(engine)
    if deleted:
        writing.delete(list(deleted))
    writing.add([one for one, _ in added], [text for _, text in added])
    return writing.commit()


def make(engine):
    """An index with every kind of file: tombstones, an idmap that is needed, numbers."""
    engine.create("words", frequencies=True, exist_ok=False)
    written(engine, [(b"a", "red common"), (b"b", "green common"), (b"c", "blue")])
    written(engine, [(b"d", "red red common")], [b"b"])
    engine.close()
    engine.compact()  # The delete becomes a tombstone.
    written(engine, [(b"e", "green")])
    with engine.visiting() as (visit, snapshot):
        views = [view for view in snapshot.views if not view.deleted]
        numbers = tuple(view.segment.number for view in views)
        started = engine.home.commit(visit, Draft(start=numbers), Files({}, {}))
        written(engine, [], [b"e"])  # So that the merge has something to carry over.
        engine._merge(visit, views, started)
    engine.new_id("mine")
    engine.close()


def answers(root):
    """All that an index says, read anew."""
    engine = Engine(Folder(root, entropy=SeededEntropy("again")))
    try:
        with engine.visiting() as (visit, snapshot):
            matched = [sorted(snapshot.match(word)) for word in WORDS]
            ranked = [snapshot.search(word, 3) for word in WORDS]
            found = snapshot.documents_of(as_ids([b"a", b"b", b"c", b"d", b"e"]))
            # A delete from before the merge, as it would be committed now.
            state = visit.state
            draft = Draft(deleted={number: {1} for number in state.dead})
            with engine.home._told("read"):
                needed = idmaps_for(draft, state)
                idmaps = {number: engine.home._idmap(number, Files({}, {})) for number in needed}
            moved = {
                number: idmaps[dead.into].moved(number, [1]).tolist()
                for number, dead in state.dead.items()
            }
            assert entries(Draft(), state, {}) == []
        return matched, ranked, found, moved, snapshot.number, snapshot.marks
    finally:
        engine.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An index, and what it says."""
    root = str(tmp_path_factory.mktemp("damage") / "index")
    make(Engine(Folder(root, entropy=SeededEntropy("damage"))))
    return root, answers(root)


@pytest.fixture
def damaged(whole, tmp_path):
    """A copy to damage, and what it should say."""
    root, right = whole
    copied = str(tmp_path / "copy")
    shutil.copytree(root, copied)
    return copied, right


def files_of(root):
    """Names of files with something in them."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.getsize(path):
                found.append(os.path.relpath(path, root))
    return sorted(found)


def put(path, data):
    """Another file in its place: who has the old one mapped keeps it."""
    with open(f"{path}.other", "wb") as file:
        file.write(data)
    os.replace(f"{path}.other", path)


def is_found(root, right):
    """Whether the damage is seen; if not, every answer is right."""
    try:
        got = answers(root)
    except FormatError:
        return True
    assert right == got
    return False


def checked(root):
    """What a check says, which never raises for damage."""
    engine = Engine(Folder(root))
    try:
        return list(engine.check().errors)
    finally:
        engine.close()


def test_there_is_every_kind_of_file(whole):
    """The other tests mean something; and the whole index is fine."""
    root, right = whole
    names = files_of(root)
    for kind in ("config", "transaction.log", "ids/segments", "ids/user-mine"):
        assert kind in names
    for suffix in (".idx", ".tomb", ".idmap"):
        assert any(name.endswith(suffix) for name in names)
    assert [[b"a", b"d"], [], [b"c"], [b"a", b"d"]] == right[0]
    assert 2 == len(right[3])
    assert [] == checked(root)


@pytest.mark.parametrize("flip", FLIPS)
def test_every_byte_of_every_file(damaged, flip):
    """Flipped: found, or harmless. And what a search does not meet, a check does."""
    # EVIDENCE-OF: G-84
    root, right = damaged
    merged = {f"segment.{number}.idx" for number in right[3]}
    for name in files_of(root):
        path = os.path.join(root, name)
        data = Path(path).read_bytes()
        stride = 11 if name.endswith(".idx") else 1
        unseen = []
        for place in range(0, len(data), stride):
            changed = bytearray(data)
            changed[place] ^= flip
            put(path, bytes(changed))
            if not is_found(root, right) and not (place % 5 or checked(root)):
                unseen.append(place)
        put(path, data)
        harmless = set(range(32, 64)) if name == "transaction.log" else set()
        if name in merged:
            harmless = set(range(len(data)))  # Nobody reads it any more.
        if name.startswith("ids/"):
            harmless = set(range(32))  # Each number is there four times.
        assert set(unseen) <= harmless, name
    assert right == answers(root)


def test_every_file_cut_short(damaged):
    """At every byte, or nearly: found, or harmless."""
    # EVIDENCE-OF: G-84
    root, right = damaged
    for name in files_of(root):
        path = os.path.join(root, name)
        data = Path(path).read_bytes()
        sizes = {*range(70), *range(0, len(data), 29), *range(len(data) - 50, len(data))}
        for size in sorted(size for size in sizes if 0 <= size < len(data)):
            put(path, data[:size])
            is_read = not name.endswith(".idx") or int(name.split(".")[1]) not in right[3]
            assert not is_read or is_found(root, right) or checked(root), (name, size)
        put(path, data)


def test_every_file_missing(damaged):
    """Is found; but for the numbers of a user, which nothing else speaks of."""
    # EVIDENCE-OF: G-84
    root, right = damaged
    for name in files_of(root):
        path = os.path.join(root, name)
        os.rename(path, f"{path}.away")
        found = is_found(root, right) or checked(root)
        is_read = not name.endswith(".idx") or int(name.split(".")[1]) not in right[3]
        assert bool(found) == (is_read and name != "ids/user-mine"), name
        os.rename(f"{path}.away", path)
    assert right == answers(root)


def test_commits_on_a_damaged_ledger_are_refused(damaged):
    """Nothing is written behind damage."""
    root, _ = damaged
    path = os.path.join(root, "transaction.log")
    data = bytearray(Path(path).read_bytes())
    data[100] ^= 1
    put(path, bytes(data))
    engine = Engine(Folder(root))
    for call in (engine.newest, engine.compact, lambda: engine.merge(tiered=False)):
        with pytest.raises(CorruptionError, match="damaged at byte"):
            call()
    assert bytes(data) == Path(path).read_bytes()


def segment_of(tokens, frequencies, count):
    """The bytes of a segment, of the table form or, with many ids, of the FST form."""
    builder = Builder(tokenizer(tokens), frequencies=frequencies)
    ids = [b"doc/with/a/long/name/%06d" % number for number in range(count)]
    texts = [f"w{number % 7} common {'rare' if number == 3 else ''}" for number in range(count)]
    builder.add(as_ids([*ids, ids[0]]), as_texts([*texts, "twice common common"]))
    sink = io.BytesIO()
    builder.write(sink)
    return sink.getvalue()


def said(data):
    """What a segment says, in all ways of asking."""
    segment = Segment(1, data, "segment")
    snapshot = Snapshot([View(segment, BitMap())], None, 0, {})
    terms = [(term, segment.open(value)) for term, value in segment.terms.items()]
    docs = snapshot.documents_of(as_ids([b"doc/with/a/long/name/000003", b"none"]))
    ids = segment.ids.table().to_pylist()
    lengths = segment.lengths.tolist() if segment.frequencies else None
    return (
        [(term, str(one)) for term, one in terms if not hasattr(one, "members")],
        docs,
        ids,
        lengths,
    )


@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize(("frequencies", "count"), [(True, 3), (False, 3), (True, 80), (False, 80)])
def test_every_byte_of_a_segment(frequencies, count, flip):
    """Whichever form it has: refused when it is opened or read, or found by a check."""
    # EVIDENCE-OF: G-84
    data = segment_of("words", frequencies, count)
    right = said(data)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= flip
        with pytest.raises(FormatError):
            assert right == said(bytes(changed))
            wrong = Segment(1, bytes(changed), "segment").check()
            assert wrong
            raise CorruptionError(wrong[0])


def test_a_segment_cut_short_at_every_byte():
    """Is refused when it is opened, from the first byte to the last but one."""
    data = segment_of("words", True, 3)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            Segment(1, data[:size], "segment")


def forged(data, section, place, value):
    """The segment with other bytes in a section, and with checksums that are right for them."""
    body, directory, _, _, _ = _TRAILER.unpack(data[-_TRAILER.size :])
    begin = json.loads(data[directory : -_TRAILER.size])["sections"][section][0] + place
    changed = bytearray(data[:body])
    changed[begin : begin + len(value)] = value
    blocks = [bytes(changed[at : at + BLOCK]) for at in range(0, body, BLOCK)]
    sums = struct.pack(f"<{len(blocks)}Q", *map(xxhash.xxh3_64_intdigest, blocks))
    end = sums + data[directory:-16]
    return bytes(changed) + end + struct.pack("<Q", xxhash.xxh3_64_intdigest(end)) + MAGIC


@pytest.mark.parametrize("value", [b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\x40"])
@pytest.mark.parametrize(("count", "section"), [(3, "ids.offsets"), (80, "ids.sample.offsets")])
def test_offsets_that_somebody_forged_do_not_end_the_process(count, section, value):
    """Arrow trusts them, and reads whatever memory they lead to."""
    data = segment_of("words", True, count)
    width = 4 if count == 3 else 8
    assert said(data) == said(forged(data, section, 0, bytes(width)))
    for place in range(3):
        wrong = forged(data, section, (place + 1) * width - 4, value)
        segment = Segment(1, wrong, "segment")
        with pytest.raises(CorruptionError, match="cannot be"):
            segment.ids.of_document(1)
        with pytest.raises(CorruptionError, match="cannot be"):
            assert segment.ids._table is None
            segment.ids.get(1)


def test_objects_of_a_store(tmp_path):
    """On a store as in a folder: no wrong answer, and a check reads the store's own objects."""
    # EVIDENCE-OF: G-84
    store = Store("memory:~damage")
    make(Engine(Shelf(store, "index", cache=str(tmp_path / "made"))))
    objects = store._store()._objects
    names = [key for key in objects if "/segment." in key or key.endswith("/config")]
    assert {"idx", "tomb", "idmap", "index/config"} == {name.rpartition(".")[2] for name in names}

    def found(place):
        """Whether the damage is seen by a machine that has nothing yet, and by one that has all."""
        seen = []
        for cache in (f"{place}", "made"):
            engine = Engine(Shelf(store, "index", cache=str(tmp_path / cache)))
            try:
                assert {b"a", b"d"} == set(engine.newest().match("red"))
                assert set() == set(engine.newest().match("green"))
                seen.append(not engine.check().ok)
            except FormatError:
                seen.append(True)
            finally:
                engine.close()
        assert seen[0] == seen[1]
        return seen[0]

    assert not found("whole")
    harmless = set()
    for name in names:
        entry = objects[name]
        for place in (*range(0, len(entry.data), 97), None):
            data = bytearray(entry.data)
            if place is not None:
                data[place] ^= 0xFF
            objects[name] = entry._replace(data=bytes(data if place is not None else b""))
            if not found(f"{name} {place}".replace("/", "-")):
                harmless.add(name)
        objects[name] = entry
    # The two that were merged.
    assert 2 == len(harmless)
    assert all(name.endswith(".idx") for name in harmless)
