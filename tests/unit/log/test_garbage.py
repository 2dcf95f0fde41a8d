"""GARBAGE: wal3's bytes, our field behind them, phases, and what it does to a manifest."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cordwood import CorruptionError, UnsupportedError
from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.cut import Cut
from cordwood.log.format import ZERO, Fragment, Manifest, NodePointer, Position, decode, encode
from cordwood.log.garbage import (
    Garbage,
    GarbageExtension,
    Phase,
    apply,
    empty,
    is_applied,
)

WAL3_EMPTY = (
    b'{"snapshots_to_drop":[],"snapshots_to_make":[],"snapshot_for_root":null,'
    b'"fragments_to_drop_start":0,"fragments_to_drop_limit":0,"fragments_are_uuids":false,'
    b'"setsum_to_discard":"' + b"0" * 64 + b'","first_to_keep":{"offset":1}}'
)
NONCE = "0123456789abcdef0123456789abcdef"
WAL3_FIELDS = [
    "snapshots_to_drop",
    "snapshots_to_make",
    "snapshot_for_root",
    "fragments_to_drop_start",
    "fragments_to_drop_limit",
    "fragments_are_uuids",
    "setsum_to_discard",
    "first_to_keep",
]
REAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "wal3" / "MANIFEST"


def fragment(number, records=1):
    """Fragment `number` of a log whose fragments have `records` records each."""
    setsum = Setsum().insert(b"%d" % number)
    start = 1 + (number - 1) * records
    return Fragment.of(
        paths.fragment(number), number, start, start + records, 10, setsum.hexdigest()
    )


def manifest_of(*pointers):
    """A manifest with this root."""
    return Manifest(
        setsum_hex=Setsum.sum([p.setsum_hex for p in pointers]).hexdigest(),
        acc_bytes=1000,
        writer="somebody",
        nodes=tuple(p for p in pointers if isinstance(p, NodePointer)),
        fragments=tuple(p for p in pointers if isinstance(p, Fragment)),
    )


def garbage_of(cut, first_seq_no=1):
    """The garbage of a cut, as `mark` writes it."""
    return Garbage(
        nodes_to_drop=tuple(
            [p for p in cut.dropped if isinstance(p, NodePointer)] + list(cut.replaced)
        ),
        nodes_to_make=tuple(cut.made),
        node_for_root=cut.node_for_root,
        drop_start=first_seq_no,
        drop_limit=cut.first_seq_no,
        discard_hex=cut.discarded.hexdigest(),
        first_to_keep=Position(cut.first_to_keep),
        cordwood=GarbageExtension(NONCE, Phase.MARKED, "etag"),
    )


# Bytes.


def test_wal3s_empty_garbage_is_read_and_given_back_byte_for_byte():
    """The exact object that wal3 takes for empty."""
    garbage = decode(Garbage, WAL3_EMPTY, "gc/GARBAGE")
    assert Phase.EMPTY is garbage.phase
    assert not garbage.is_pending
    assert not garbage.is_foreign
    assert "" == garbage.nonce
    assert encode(garbage, "gc/GARBAGE") == WAL3_EMPTY


def test_our_empty_garbage_is_wal3s_with_one_field_behind_it():
    """wal3 passes over fields that it does not know, so it takes ours for empty."""
    data = encode(empty(NONCE), "gc/GARBAGE")
    behind = b',"cordwood":{"nonce":"' + NONCE.encode() + b'","phase":"empty","manifest":"",'
    assert data == WAL3_EMPTY[:-1] + behind + b'"format":1}}'
    assert not decode(Garbage, data, "x").is_pending


def test_no_two_empty_garbages_have_the_same_bytes():
    """On S3 equal bytes have equal etags: a compare-and-swap could not tell them apart."""
    assert encode(empty("a"), "x") != encode(empty("b"), "x")


def test_a_garbage_has_wal3s_fields_in_wal3s_order():
    """Pointers, made nodes and numbers as wal3 writes them; ours comes last."""
    one, two, three = (fragment(n) for n in (1, 2, 3))
    made = tree.make_node([two, three], "w")
    old = tree.make_node([one, two, three], "w")
    cut = Cut(2, 2, (made.pointer(), fragment(4)), [one], [old.pointer()], [made])
    document = json.loads(encode(garbage_of(cut), "x"))
    assert [*WAL3_FIELDS, "cordwood"] == list(document)
    assert ["setsum", "path_to_snapshot", "depth", "start", "limit", "num_bytes"] == list(
        document["snapshots_to_drop"][0]
    )
    assert ["path", "depth", "setsum", "writer", "snapshots", "fragments"] == list(
        document["snapshots_to_make"][0]
    )
    assert made.path == document["snapshot_for_root"]["path_to_snapshot"]
    assert (1, 2) == (document["fragments_to_drop_start"], document["fragments_to_drop_limit"])
    assert {"offset": 2} == document["first_to_keep"]
    assert one.setsum_hex == document["setsum_to_discard"]


def test_wal3s_optional_field_is_kept_in_its_place():
    """With uuids there is one field more, between limit and flag."""
    text = WAL3_EMPTY.replace(
        b'"fragments_are_uuids":false',
        b'"fragments_to_drop_uuid_limit":"u","fragments_are_uuids":true',
    )
    garbage = decode(Garbage, text, "x")
    assert encode(garbage, "x") == text
    assert garbage.is_foreign


def test_a_garbage_of_wal3_is_foreign_and_pending():
    """Nobody of ours touches it, and nothing new may rely on what it names."""
    text = WAL3_EMPTY.replace(b'"first_to_keep":{"offset":1}', b'"first_to_keep":{"offset":7}')
    garbage = decode(Garbage, text, "x")
    assert garbage.is_foreign
    assert garbage.is_pending
    assert Phase.MARKED is garbage.phase


def test_the_older_form_without_the_flag_is_read():
    """wal3 takes an absent flag for false."""
    text = WAL3_EMPTY.replace(b'"fragments_are_uuids":false,', b"")
    assert not decode(Garbage, text, "x").is_pending


@pytest.mark.parametrize("length", [0, 1, 20, 150, len(WAL3_EMPTY) - 1])
def test_half_a_garbage_is_damage(length):
    """A file that was cut short is refused, also the empty one."""
    with pytest.raises(CorruptionError):
        decode(Garbage, WAL3_EMPTY[:length], "gc/GARBAGE")


def test_a_newer_garbage_is_refused():
    """Another format, or a field nobody knows."""
    newer = msgspec.structs.replace(
        empty("n"), cordwood=GarbageExtension("n", Phase.EMPTY, format=2)
    )
    with pytest.raises(UnsupportedError):
        decode(Garbage, msgspec.json.encode(newer), "x")
    with pytest.raises(UnsupportedError):
        decode(Garbage, WAL3_EMPTY[:-1] + b',"new":1}', "x")


@pytest.mark.parametrize(
    "change",
    [
        {"drop_start": 5, "drop_limit": 4},
        {"first_to_keep": Position(-1)},
        {"first_to_keep": Position(2**63)},
        {
            "nodes_to_drop": (
                NodePointer(ZERO, "snapshot/SNAPSHOT.other", 1, Position(1), Position(2), 1),
            )
        },
    ],
)
def test_what_cannot_be_is_refused(change):
    """Neither written nor used."""
    wrong = msgspec.structs.replace(empty("n"), **change)
    with pytest.raises(CorruptionError):
        encode(wrong, "x")
    with pytest.raises(CorruptionError):
        decode(Garbage, msgspec.json.encode(wrong), "x")


def test_a_phase_changes_nothing_else():
    """The same garbage, the same nonce."""
    garbage = msgspec.structs.replace(
        empty(NONCE), first_to_keep=Position(5), cordwood=GarbageExtension(NONCE, Phase.MARKED, "e")
    )
    later = garbage.in_phase(Phase.UNLINKED)
    assert later.nonce == NONCE
    assert later.in_phase(Phase.MARKED) == garbage


# What it does to a manifest.


def test_fragments_of_the_root_go():
    """The sum of what goes moves to `collected`; the log's own sum stays."""
    pointers = [fragment(n) for n in range(1, 6)]
    manifest = manifest_of(*pointers)
    cut = Cut(3, 3, tuple(pointers[2:]), pointers[:2])
    after = apply(manifest, garbage_of(cut))
    assert after.fragments == tuple(pointers[2:])
    assert (3, 3, 3) == (after.oldest_offset, after.initial_offset, after.first_seq_no)
    assert after.setsum_hex == manifest.setsum_hex
    assert after.collected_hex == cut.discarded.hexdigest()
    assert after.acc_bytes == manifest.acc_bytes
    assert decode(Manifest, encode(after), "x") == after


def test_everything_goes_and_the_numbers_go_on():
    """An empty log keeps its next offset and its next slot."""
    pointers = [fragment(n, records=10) for n in range(1, 4)]
    manifest = manifest_of(*pointers)
    after = apply(manifest, garbage_of(Cut(31, 4, (), pointers)))
    assert (31, 31) == (after.oldest_offset, after.next_offset)
    assert (4, 4) == (after.first_seq_no, after.next_seq_no)
    assert after.collected_hex == after.setsum_hex


def test_applied_twice_is_none():
    """What is past it does not fit it."""
    pointers = [fragment(n) for n in range(1, 6)]
    garbage = garbage_of(Cut(3, 3, tuple(pointers[2:]), pointers[:2]))
    after = apply(manifest_of(*pointers), garbage)
    assert is_applied(after, garbage)
    assert apply(after, garbage) is None


def test_a_manifest_folded_over_the_cut_does_not_fit():
    """The node that straddles it is not one that the garbage knows."""
    pointers = [fragment(n) for n in range(1, 10)]
    garbage = garbage_of(Cut(3, 3, tuple(pointers[2:]), pointers[:2]))
    node = tree.make_node(pointers[:8], "w")
    assert apply(manifest_of(node.pointer(), pointers[8]), garbage) is None


def test_a_manifest_folded_up_to_the_cut_fits():
    """A node over exactly what goes adds up to the same."""
    pointers = [fragment(n) for n in range(1, 10)]
    garbage = garbage_of(Cut(9, 9, tuple(pointers[8:]), pointers[:8]))
    node = tree.make_node(pointers[:8], "w")
    after = apply(manifest_of(node.pointer(), pointers[8]), garbage)
    assert after.fragments == (pointers[8],)
    assert after.nodes == ()


def test_a_manifest_that_grew_fits():
    """What was appended since stays."""
    pointers = [fragment(n) for n in range(1, 10)]
    garbage = garbage_of(Cut(3, 3, tuple(pointers[2:5]), pointers[:2]))
    assert apply(manifest_of(*pointers), garbage).fragments == tuple(pointers[2:])


def test_another_log_does_not_fit():
    """Same ranges, other records: the sums differ."""
    pointers = [fragment(n) for n in range(1, 6)]
    garbage = garbage_of(Cut(3, 3, tuple(pointers[2:]), pointers[:2]))
    other = msgspec.structs.replace(pointers[0], setsum_hex=fragment(77).setsum_hex)
    assert apply(manifest_of(other, *pointers[1:]), garbage) is None


def test_a_shorter_log_does_not_fit():
    """A manifest that ends before the cut was put back by somebody."""
    pointers = [fragment(n) for n in range(1, 6)]
    garbage = garbage_of(Cut(5, 5, tuple(pointers[4:]), pointers[:4]))
    assert apply(manifest_of(*pointers[:2]), garbage) is None


@pytest.mark.data
def test_a_real_manifest_of_wal3_loses_its_oldest_nodes():
    """A cut of a manifest that production wrote: sums, ranges and numbers hold."""
    if not REAL.is_file():
        pytest.skip(f"the real wal3 files are not here: {REAL} does not exist")
    manifest = decode(Manifest, REAL.read_bytes(), "MANIFEST")
    dropped, kept = list(manifest.nodes[:100]), manifest.nodes[100:]
    cut = Cut(kept[0].start, 204_801, (*kept, *manifest.fragments), dropped)
    after = apply(manifest, garbage_of(cut, manifest.first_seq_no))
    assert after.nodes == kept
    assert after.oldest_offset == kept[0].start
    assert decode(Manifest, encode(after), "x") == after
