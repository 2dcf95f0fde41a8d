"""Real wal3 metadata, written in production by another program: read, balanced, given back.

The files are not part of this project; where they are absent the tests are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cordwood
from cordwood.base.setsum import Setsum
from cordwood.log import format as log_format
from cordwood.log import paths, tree
from cordwood.log.format import Manifest, Node
from cordwood.store.memory import MemoryStore

pytestmark = pytest.mark.data

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "wal3"


def read(name):
    """A file's bytes, where the folder is there."""
    if not FOLDER.is_dir():
        pytest.skip(f"the real wal3 files are not here: {FOLDER} does not exist")
    return (FOLDER / name).read_bytes()


@pytest.fixture(scope="module")
def manifest():
    """The real manifest of 440 kB, decoded."""
    return log_format.decode(Manifest, read("MANIFEST"), "MANIFEST")


@pytest.fixture(scope="module")
def snapshot_texts():
    """The thirteen snapshot objects, each as its own compact JSON."""
    documents = json.loads(read("bad_snapshots1.json"))
    return [json.dumps(d, separators=(",", ":"), ensure_ascii=False).encode() for d in documents]


def total(collected, pointers):
    """What the pointers and the collected part add up to."""
    return Setsum.sum([collected, *(pointer.setsum_hex for pointer in pointers)]).hexdigest()


def test_the_real_manifest_is_given_back_byte_for_byte(manifest):
    """Decoded and encoded, all 439,948 bytes are the same."""
    assert read("MANIFEST") == log_format.encode(manifest)


def test_the_real_manifest_is_what_its_readme_says(manifest):
    """693 nodes of depth one and 1,059 fragments."""
    assert (693, 1059) == (len(manifest.nodes), len(manifest.fragments))
    assert {1} == {node.depth for node in manifest.nodes}


def test_the_real_manifest_balances(manifest):
    """Collected, nodes and fragments add up to its setsum."""
    assert manifest.setsum_hex == total(manifest.collected_hex, tree.roots(manifest))
    assert manifest.setsum_hex.startswith("52de7c72")
    assert manifest.setsum_hex.endswith("05ba")


def test_part_of_the_real_manifest_adds_up_to_wal3s_own_vector(manifest):
    """The nodes below 900,883 have the sum that wal3's own test asserts."""
    older = [node for node in manifest.nodes if node.limit <= 900883]
    expected = "c921d21a0820be5d3b6f2d90942648f2853188bb0e3c6a22fe3dbd81c1e1c380"
    assert expected == total(log_format.ZERO, older)


def test_every_real_fragment_lies_where_we_would_put_it(manifest):
    """Paths, sequence numbers and offsets follow the rules we write by."""
    numbers = [fragment.seq_no for fragment in manifest.fragments]
    assert list(range(numbers[0], numbers[0] + len(numbers))) == numbers
    assert [paths.fragment(n) for n in numbers] == [f.path for f in manifest.fragments]


def test_the_real_manifest_folds_to_a_small_root(manifest):
    """Taken over, 440 kB become less than 16 kB, with the same sum and the same newest fragment."""
    folded = manifest
    while nodes := tree.fold(folded, "test"):
        for node in nodes:
            log_format.check_node(node)
            folded = tree.substitute(folded, node) or folded
    assert 16_000 > len(log_format.encode(folded))
    assert manifest.setsum_hex == folded.setsum_hex
    assert manifest.fragments[-1] == folded.fragments[-1]
    assert (manifest.oldest_offset, manifest.next_offset) == (
        folded.oldest_offset,
        folded.next_offset,
    )


async def test_a_real_log_goes_on_in_our_hands(manifest):
    """A writer opens the real manifest and appends the next offset in the next slot."""
    memory = MemoryStore()
    await memory.put("real/manifest/MANIFEST", read("MANIFEST"))
    log = cordwood.Log(cordwood.Store.over(memory), "real")
    async with log.writer() as writer:
        assert manifest.next_offset == await writer.append(b"from another program")
    after = await log.manifest()
    newest = after.fragments[-1]
    assert (manifest.next_seq_no, manifest.next_offset) == (newest.seq_no, newest.start)
    assert frozenset() == after.features
    grown = Setsum.from_hex(after.setsum_hex) - Setsum.from_hex(manifest.setsum_hex)
    assert newest.setsum == grown


def test_the_manifest_that_once_tripped_a_collector_balances():
    """It is pretty-printed; it is read, and compact JSON is written."""
    data = read("bad_manifest1.json")
    manifest = log_format.decode(Manifest, data, "bad_manifest1.json")
    assert manifest.setsum_hex == total(manifest.collected_hex, tree.roots(manifest))
    compact = json.dumps(json.loads(data), separators=(",", ":")).encode()
    assert compact == log_format.encode(manifest)


def test_the_snapshots_that_once_tripped_a_collector_balance(snapshot_texts):
    """All thirteen are read, add up, are named by their sum, and come back byte for byte."""
    assert 13 == len(snapshot_texts)
    for text in snapshot_texts:
        node = log_format.decode(Node, text, "bad_snapshots1.json")
        assert node.setsum_hex == total(log_format.ZERO, node.children)
        assert paths.node(node.setsum_hex) == node.path
        assert text == log_format.encode(node)


async def test_the_whole_real_tree_is_walked(snapshot_texts):
    """From that manifest through its nodes to every fragment, in order, without a hole."""
    memory = MemoryStore()
    data = read("bad_manifest1.json")
    await memory.put("real/manifest/MANIFEST", data)
    for text in snapshot_texts:
        await memory.put(f"real/{json.loads(text)['path']}", text)
    log = cordwood.Log(cordwood.Store.over(memory), "real")
    async with log.reader() as reader:
        found = await reader.scan()
    assert list(range(1, 19)) == [fragment.seq_no for fragment in found]
    assert [f.limit for f in found[:-1]] == [f.start for f in found[1:]]
    report = await log.scrub()
    assert ([], 18, 10_586) == (report.errors, report.fragments, report.records)
    assert json.loads(data)["setsum"] == report.setsum.hexdigest()
