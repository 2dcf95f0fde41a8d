"""The JSON objects of a log: wal3's bytes exactly, and each invariant broken one by one."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.base.errors import Code, CorruptionError, UnsupportedError
from cordwood.base.limits import FRAGMENT_BYTES_MAX, MANIFEST_BYTES_MAX, NODE_DEPTH_MAX
from cordwood.base.setsum import PRIMES, Setsum
from cordwood.log import format as log_format
from cordwood.log import paths
from cordwood.log.cursors import CursorRecord
from cordwood.log.format import ZERO, Manifest, Node, Position, WriterTag

WHERE = "orders/manifest/MANIFEST"


def setsum_of(number):
    """A setsum of its own for each number."""
    return Setsum().insert(str(number).encode()).hexdigest()


def fragment_doc(seq_no, start, limit, **changes):
    """A fragment pointer as wal3 writes it."""
    return {
        "path": paths.fragment(seq_no),
        "seq_no": seq_no,
        "start": {"offset": start},
        "limit": {"offset": limit},
        "num_bytes": 100,
        "setsum": setsum_of(seq_no),
    } | changes


def node_pointer_doc(start, limit, depth=1, **changes):
    """A pointer to a node as wal3 writes it."""
    setsum = setsum_of(f"{start}-{limit}-{depth}")
    return {
        "setsum": setsum,
        "path_to_snapshot": paths.node(setsum),
        "depth": depth,
        "start": {"offset": start},
        "limit": {"offset": limit},
        "num_bytes": 200,
    } | changes


def balance(doc):
    """Make the sum right again after a change to the pointers."""
    children = [*doc["snapshots"], *doc["fragments"]]
    total = Setsum.sum([doc.get("collected", ZERO), *(child["setsum"] for child in children)])
    doc["setsum"] = total.hexdigest()
    return doc


def manifest_doc(nodes=None, fragments=None, **more):
    """A manifest with every invariant intact: two nodes, three fragments."""
    if nodes is None:
        nodes = [node_pointer_doc(1, 9, depth=2), node_pointer_doc(9, 11)]
    if fragments is None:
        fragments = [fragment_doc(7, 11, 12), fragment_doc(8, 12, 15), fragment_doc(9, 15, 16)]
    return balance(
        {
            "setsum": ZERO,
            "collected": ZERO,
            "acc_bytes": 700,
            "writer": "test",
            "snapshots": nodes,
            "fragments": fragments,
        }
        | more
    )


def node_doc(nodes=(), fragments=(), depth=1):
    """A node with every invariant intact."""
    doc = {
        "path": "",
        "depth": depth,
        "setsum": ZERO,
        "writer": "test",
        "snapshots": list(nodes),
        "fragments": list(fragments),
    }
    balance(doc)
    doc["path"] = paths.node(doc["setsum"])
    return doc


def dump(doc):
    """Compact JSON in field order, as wal3 writes it."""
    return json.dumps(doc, separators=(",", ":"), ensure_ascii=False).encode()


def decode(doc, kind=Manifest, where=WHERE):
    """Through the one decoder."""
    return log_format.decode(kind, doc if isinstance(doc, bytes) else dump(doc), where)


# Bytes.


def test_the_empty_manifest_has_wal3s_bytes():
    """An empty log is wal3's own test vector, byte for byte, both ways."""
    data = (
        b'{"setsum":"' + b"0" * 64 + b'","collected":"' + b"0" * 64 + b'","acc_bytes":0,'
        b'"writer":"init","snapshots":[],"fragments":[]}'
    )
    manifest = Manifest(setsum_hex=ZERO, acc_bytes=0, writer="init", nodes=(), fragments=())
    assert data == log_format.encode(manifest)
    assert manifest == decode(data)


def test_the_cursor_has_wal3s_bytes():
    """A cursor is wal3's own test vector, byte for byte, both ways."""
    data = b'{"position":{"offset":42},"epoch_us":12345,"writer":"test-writer"}'
    cursor = CursorRecord(Position(42), 12345, "test-writer")
    assert data == log_format.encode(cursor)
    assert cursor == decode(data, CursorRecord)


def test_a_full_manifest_has_wal3s_field_order():
    """Every field stands where wal3's structs have it, and nothing is between them."""
    doc = manifest_doc(initial_offset={"offset": 1}, initial_seq_no=1)
    data = dump(doc)
    assert data == log_format.encode(decode(data))
    assert [
        "setsum",
        "collected",
        "acc_bytes",
        "writer",
        "snapshots",
        "fragments",
        "initial_offset",
        "initial_seq_no",
    ] == list(json.loads(data))


def test_what_wal3_lacks_is_the_last_field():
    """The extension comes last, so that wal3 reads everything it knows before it."""
    doc = manifest_doc(cordwood={"format": 1, "features": ["gaps", "grace"], "grace_s": 60})
    data = dump(doc)
    manifest = decode(data)
    assert data == log_format.encode(manifest)
    assert "cordwood" == list(json.loads(data))[-1]
    assert (frozenset({"gaps", "grace"}), 60) == (manifest.features, manifest.grace_s)


def test_a_node_has_wal3s_bytes():
    """A node of fragments and a node of nodes come back byte for byte."""
    leaf = node_doc(fragments=[fragment_doc(1, 1, 3), fragment_doc(2, 3, 9)])
    upper = node_doc([node_pointer_doc(1, 9), node_pointer_doc(9, 11)], depth=2)
    for doc in (leaf, upper):
        assert dump(doc) == log_format.encode(decode(doc, Node))


def test_text_is_utf_8_and_not_escaped():
    """A writer's name with letters beyond ASCII is written as wal3 writes it."""
    data = dump(manifest_doc(writer='Jürgen "β" 木 \\ \x01'))
    assert "Jürgen" in data.decode()
    assert data == log_format.encode(decode(data))


def test_pretty_printed_json_is_read():
    """Whitespace and field order do not matter on reading; writing is compact."""
    doc = manifest_doc()
    pretty = json.dumps(dict(reversed(doc.items())), indent=2).encode()
    assert dump(doc) == log_format.encode(decode(pretty))


def test_a_manifest_without_collected_has_collected_nothing():
    """Old wal3 manifests have no field `collected`; it counts as zero."""
    doc = manifest_doc()
    del doc["collected"]
    assert ZERO == decode(doc).collected_hex


# Derived values.


def test_offsets_and_slots_follow_from_the_pointers():
    """Oldest and next are those of the first and last pointer."""
    manifest = decode(manifest_doc())
    assert (1, 16, 10) == (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no)


def test_a_fresh_log_begins_at_one():
    """Without pointers and initial values, offsets and slots begin at 1."""
    manifest = decode(manifest_doc([], []))
    assert (1, 1, 1, 1) == (
        manifest.oldest_offset,
        manifest.next_offset,
        manifest.first_seq_no,
        manifest.next_seq_no,
    )


def test_a_wholly_collected_log_goes_on_where_it_was():
    """Initial values keep the numbering of a log from which everything was collected."""
    manifest = decode(manifest_doc([], [], initial_offset={"offset": 77}, initial_seq_no=12))
    assert (77, 77, 12, 12) == (
        manifest.oldest_offset,
        manifest.next_offset,
        manifest.first_seq_no,
        manifest.next_seq_no,
    )


def test_collected_records_stay_in_the_sum():
    """The setsum covers what was collected, so it never goes back."""
    doc = manifest_doc(collected=setsum_of("gone"))
    assert doc["setsum"] == decode(doc).setsum_hex


def test_a_pointer_counts_its_records():
    """A pointer's range is half open."""
    fragment = decode(manifest_doc()).fragments[1]
    assert (12, 15, 3) == (fragment.start, fragment.limit, fragment.num_records)
    assert setsum_of(8) == fragment.setsum.hexdigest()


# Invariants, each broken alone.


def rule(number, mutate):
    """A case: the rule, and what breaks it."""
    return pytest.param(number, mutate, id=f"{number}-{mutate.__name__}")


def wrong_setsum(doc):
    """The total is another one."""
    doc["setsum"] = setsum_of("other")


def wrong_collected(doc):
    """Something was collected that the total does not know."""
    doc["collected"] = setsum_of("other")


def wrong_child_setsum(doc):
    """One fragment's sum was changed."""
    doc["fragments"][1]["setsum"] = setsum_of("other")


def upper_case_setsum(doc):
    """A setsum in capitals is not canonical."""
    doc["setsum"] = doc["setsum"].upper()


def short_setsum(doc):
    """A setsum has 64 digits."""
    doc["collected"] = "00"


def setsum_above_its_prime(doc):
    """A column at or above its prime is not canonical, though it would be equal modulo it."""
    doc["collected"] = PRIMES[0].to_bytes(4, "little").hex() + "0" * 56


def no_records(doc):
    """A fragment of nothing."""
    doc["fragments"] = [fragment_doc(7, 11, 11)]
    balance(doc)


def limit_before_start(doc):
    """A range that goes backwards."""
    doc["fragments"] = [fragment_doc(7, 11, 10)]
    balance(doc)


def negative_start(doc):
    """Offsets are not negative."""
    doc["snapshots"], doc["fragments"] = [], [fragment_doc(7, -1, 3)]
    balance(doc)


def offset_of_two_to_the_63(doc):
    """Offsets stay below 2^63."""
    doc["fragments"] = [fragment_doc(7, 11, 2**63)]
    balance(doc)


def offset_of_two_to_the_64(doc):
    """Offsets stay below 2^63, also where 64 bits are not enough."""
    doc["fragments"] = [fragment_doc(7, 11, 2**64 + 12)]
    balance(doc)


def offset_beyond_any_number(doc):
    """A number of a thousand digits is only a large number."""
    doc["fragments"] = [fragment_doc(7, 11, 10**1000)]
    balance(doc)


def negative_size(doc):
    """A file has no negative length."""
    doc["fragments"][0]["num_bytes"] = -1


def huge_size(doc):
    """A fragment's length is bounded."""
    doc["fragments"][0]["num_bytes"] = FRAGMENT_BYTES_MAX + 1


def negative_total_size(doc):
    """Bytes accumulate."""
    doc["acc_bytes"] = -1


def total_size_beyond_64_bits(doc):
    """wal3 has an unsigned 64-bit number there, and could not read more."""
    doc["acc_bytes"] = 2**64


def negative_initial_seq_no(doc):
    """Slots are not negative."""
    doc["initial_seq_no"] = -1


def initial_seq_no_beyond_64_bits(doc):
    """A slot's path has sixteen hex digits."""
    doc["initial_seq_no"] = 2**64


def initial_offset_out_of_range(doc):
    """An empty log cannot begin at 2^63."""
    doc["snapshots"], doc["fragments"] = [], []
    doc["initial_offset"] = {"offset": 2**63}
    balance(doc)


def nodes_with_a_hole(doc):
    """The second node starts later than the first ended."""
    doc["snapshots"] = [node_pointer_doc(1, 8), node_pointer_doc(9, 11)]
    balance(doc)


def nodes_that_overlap(doc):
    """The second node starts before the first ended."""
    doc["snapshots"] = [node_pointer_doc(1, 10), node_pointer_doc(9, 11)]
    balance(doc)


def fragments_with_a_hole(doc):
    """A fragment is missing in the middle."""
    del doc["fragments"][1]
    balance(doc)


def fragments_that_overlap(doc):
    """A fragment starts before the one before it ended."""
    doc["fragments"][1]["start"] = {"offset": 11}


def hole_between_nodes_and_fragments(doc):
    """The first fragment does not start where the last node ended."""
    del doc["fragments"][0]
    balance(doc)


def seq_no_twice(doc):
    """Two fragments in one slot."""
    doc["fragments"][1] |= {"seq_no": 7, "path": paths.fragment(7)}


def seq_no_that_falls(doc):
    """A later fragment in an earlier slot."""
    doc["fragments"][1] |= {"seq_no": 3, "path": paths.fragment(3)}


def negative_seq_no(doc):
    """Slots are not negative."""
    doc["fragments"] = [fragment_doc(7, 11, 12) | {"seq_no": -3}]
    balance(doc)


def initial_offset_above_the_oldest(doc):
    """The log says it begins later than it does."""
    doc["initial_offset"] = {"offset": 2}


def initial_offset_below_the_oldest(doc):
    """The log says it begins earlier than it does."""
    doc["initial_offset"] = {"offset": 0}


def path_of_another_slot(doc):
    """A fragment's path names another number."""
    doc["fragments"][0]["path"] = paths.fragment(6)


def path_of_no_slot(doc):
    """A fragment's path names no number."""
    doc["fragments"][0]["path"] = "log/x.parquet"


def path_of_another_node(doc):
    """A node's path ends in another setsum."""
    doc["snapshots"][0]["path_to_snapshot"] = paths.node(setsum_of("other"))


def node_path_elsewhere(doc):
    """A node lies under snapshot/."""
    pointer = doc["snapshots"][0]
    pointer["path_to_snapshot"] = "elsewhere/" + pointer["path_to_snapshot"]


def depth_zero(doc):
    """A node has a depth of at least one."""
    doc["snapshots"][0]["depth"] = 0


def depth_beyond_the_limit(doc):
    """Depth is bounded."""
    doc["snapshots"][0]["depth"] = NODE_DEPTH_MAX + 1


BROKEN_MANIFESTS = [
    rule("LOG-1", wrong_setsum),
    rule("LOG-1", wrong_collected),
    rule("LOG-1", wrong_child_setsum),
    rule("LOG-1", upper_case_setsum),
    rule("LOG-1", short_setsum),
    rule("LOG-1", setsum_above_its_prime),
    rule("LOG-2", no_records),
    rule("LOG-2", limit_before_start),
    rule("LOG-2", negative_start),
    rule("LOG-2", offset_of_two_to_the_63),
    rule("LOG-2", offset_of_two_to_the_64),
    rule("LOG-2", offset_beyond_any_number),
    rule("LOG-2", negative_size),
    rule("LOG-2", huge_size),
    rule("LOG-2", negative_total_size),
    rule("LOG-2", total_size_beyond_64_bits),
    rule("LOG-2", negative_initial_seq_no),
    rule("LOG-2", initial_seq_no_beyond_64_bits),
    rule("LOG-2", initial_offset_out_of_range),
    rule("LOG-3", nodes_with_a_hole),
    rule("LOG-3", nodes_that_overlap),
    rule("LOG-3", fragments_with_a_hole),
    rule("LOG-3", fragments_that_overlap),
    rule("LOG-3", hole_between_nodes_and_fragments),
    rule("LOG-4", seq_no_twice),
    rule("LOG-4", seq_no_that_falls),
    rule("LOG-4", negative_seq_no),
    rule("LOG-5", initial_offset_above_the_oldest),
    rule("LOG-5", initial_offset_below_the_oldest),
    rule("LOG-6", path_of_another_slot),
    rule("LOG-6", path_of_no_slot),
    rule("LOG-6", path_of_another_node),
    rule("LOG-6", node_path_elsewhere),
    rule("LOG-7", depth_zero),
    rule("LOG-7", depth_beyond_the_limit),
]


@pytest.mark.parametrize(("number", "mutate"), BROKEN_MANIFESTS)
def test_a_manifest_that_breaks_a_rule_is_refused_by_its_name(number, mutate):
    """The decoder raises CorruptionError that names the object and the rule."""
    doc = manifest_doc()
    decode(doc)
    mutate(doc)
    with pytest.raises(CorruptionError, match=rf"{WHERE}.*{number}\b") as caught:
        decode(doc)
    assert WHERE == caught.value.where


@pytest.mark.parametrize(("number", "mutate"), BROKEN_MANIFESTS)
def test_a_manifest_that_breaks_a_rule_is_never_written(number, mutate):
    """The encoder refuses what the decoder would refuse."""
    doc = manifest_doc()
    mutate(doc)
    manifest = log_format.msgspec.json.decode(dump(doc), type=Manifest)
    with pytest.raises(CorruptionError, match=rf"{number}\b"):
        log_format.encode(manifest)


def test_a_sum_that_does_not_balance_has_a_code_of_its_own():
    """A program can tell a setsum mismatch from other damage."""
    doc = manifest_doc(collected=ZERO)
    wrong_setsum(doc)
    with pytest.raises(CorruptionError) as caught:
        decode(doc)
    assert Code.SETSUM_MISMATCH == caught.value.code
    assert doc["setsum"] == caught.value.expected


def test_a_skipped_slot_is_written_only_with_the_feature():
    """LOG-4: numbers are consecutive unless `gaps` is declared; what wal3 wrote is read."""
    pointers = [fragment_doc(7, 11, 12), fragment_doc(9, 12, 15)]
    manifest = decode(manifest_doc(fragments=pointers))
    with pytest.raises(CorruptionError, match=r"LOG-4\b"):
        log_format.encode(manifest)
    declared = manifest_doc(fragments=pointers, cordwood={"format": 1, "features": ["gaps"]})
    assert dump(declared) == log_format.encode(decode(declared))


def test_a_root_of_nodes_only_is_read_and_not_written():
    """LOG-8: wal3 can leave a root without fragments; we never do."""
    manifest = decode(manifest_doc(fragments=[]))
    assert 11 == manifest.next_offset
    with pytest.raises(CorruptionError, match=r"LOG-8\b"):
        log_format.encode(manifest)


@pytest.mark.parametrize(
    "path",
    [
        "../other/FragmentSeqNo=0000000000000007.parquet",
        "/FragmentSeqNo=0000000000000007.parquet",
        "log/../../FragmentSeqNo=0000000000000007.parquet",
        "log//FragmentSeqNo=0000000000000007.parquet",
        "./FragmentSeqNo=0000000000000007.parquet",
        "..\\FragmentSeqNo=0000000000000007.parquet",
        "log/%2e%2e/FragmentSeqNo=0000000000000007.parquet",
        "log/\x00/FragmentSeqNo=0000000000000007.parquet",
        "log /FragmentSeqNo=0000000000000007.parquet",
        "s3://other/FragmentSeqNo=0000000000000007.parquet",
        "log/FragmentSeqNo=0000000000000007.parquet\n",
        "",
    ],
)
def test_a_path_that_leaves_the_log_breaks_log_6(path):
    """Whatever its spelling, a pointer cannot lead out of the log."""
    doc = manifest_doc()
    doc["fragments"][0]["path"] = path
    with pytest.raises(CorruptionError, match=r"LOG-6\b"):
        decode(doc)


def no_children(doc):
    """A node of nothing."""
    doc["fragments"] = []


def both_kinds_of_children(doc):
    """Nodes and fragments side by side."""
    doc["snapshots"] = [node_pointer_doc(1, 9)]


def node_of_another_sum(doc):
    """A node's setsum is not that of its children."""
    doc["setsum"] = setsum_of("other")
    doc["path"] = paths.node(doc["setsum"])


def node_of_another_name(doc):
    """A node's name is not its setsum."""
    doc["path"] = paths.node(setsum_of("other"))


def node_of_depth_zero(doc):
    """A node's depth is at least one."""
    doc["depth"] = 0


def node_too_deep(doc):
    """A node's depth is bounded."""
    doc["depth"] = NODE_DEPTH_MAX + 1


def node_with_a_hole(doc):
    """Children of a node are contiguous."""
    doc["fragments"] = [fragment_doc(1, 1, 3), fragment_doc(2, 4, 9)]
    balance(doc)


def node_with_a_slot_twice(doc):
    """Children of a node are in slots of their own."""
    doc["fragments"] = [fragment_doc(1, 1, 3), fragment_doc(1, 3, 9)]
    balance(doc)


@pytest.mark.parametrize(
    ("number", "mutate"),
    [
        rule("LOG-7", no_children),
        rule("LOG-7", both_kinds_of_children),
        rule("LOG-7", node_of_another_sum),
        rule("LOG-6", node_of_another_name),
        rule("LOG-7", node_of_depth_zero),
        rule("LOG-7", node_too_deep),
        rule("LOG-3", node_with_a_hole),
        rule("LOG-4", node_with_a_slot_twice),
    ],
)
def test_a_node_that_breaks_a_rule_is_refused_by_its_name(number, mutate):
    """A node is checked as a manifest is, on reading and on writing."""
    doc = node_doc(fragments=[fragment_doc(1, 1, 3), fragment_doc(2, 3, 9)])
    decode(doc, Node)
    mutate(doc)
    with pytest.raises(CorruptionError, match=rf"{number}\b"):
        decode(doc, Node)
    with pytest.raises(CorruptionError, match=rf"{number}\b"):
        log_format.encode(log_format.msgspec.json.decode(dump(doc), type=Node))


def test_a_node_lies_above_its_children():
    """LOG-7: a depth equal to a child's is refused; more than one above is accepted."""
    children = [node_pointer_doc(1, 9, depth=2), node_pointer_doc(9, 11, depth=1)]
    with pytest.raises(CorruptionError, match=r"LOG-7\b"):
        decode(node_doc(children, depth=2), Node)
    assert 5 == decode(node_doc(children, depth=5), Node).depth


def test_a_node_with_one_child_is_read():
    """wal3 makes chains of single children; they are accepted."""
    node = decode(node_doc([node_pointer_doc(1, 9)], depth=2), Node)
    assert node.pointer().setsum_hex == node.nodes[0].setsum_hex


def test_a_node_makes_the_pointer_its_parent_keeps():
    """Bounds, bytes and depth follow from the children."""
    node = decode(node_doc(fragments=[fragment_doc(1, 1, 3), fragment_doc(2, 3, 9)]), Node)
    pointer = node.pointer()
    assert (1, 9, 200, 1) == (pointer.start, pointer.limit, pointer.num_bytes, pointer.depth)
    assert (node.path, node.setsum_hex) == (pointer.path, pointer.setsum_hex)


# Written by something newer.


@pytest.mark.parametrize(
    "extension",
    [
        {"format": 2, "features": []},
        {"format": 0, "features": []},
        {"format": 1, "features": ["wormholes"]},
        {"format": 1, "features": ["gaps", "shards"]},
    ],
    ids=["newer format", "format zero", "unknown feature", "known and unknown feature"],
)
def test_a_newer_log_is_refused_and_says_so(extension):
    """LOG-9: an unknown format or feature is refused, never ignored."""
    with pytest.raises(UnsupportedError, match=r"LOG-9\b") as caught:
        decode(manifest_doc(cordwood=extension))
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize(
    "place",
    [
        lambda doc: doc,
        lambda doc: doc["cordwood"],
        lambda doc: doc["fragments"][0],
        lambda doc: doc["fragments"][0]["start"],
        lambda doc: doc["snapshots"][0],
        lambda doc: doc["snapshots"][0]["limit"],
    ],
    ids=["manifest", "extension", "fragment", "fragment start", "node pointer", "node limit"],
)
def test_an_unknown_field_is_refused(place):
    """A field we do not know may matter, and writing would erase it: it is refused everywhere."""
    doc = manifest_doc(cordwood={"format": 1, "features": ["gaps"]})
    place(doc)["sealed"] = True
    with pytest.raises(UnsupportedError, match="sealed"):
        decode(doc)


def test_an_unknown_field_of_a_node_or_a_cursor_is_refused():
    """The same holds for the other documents."""
    node = node_doc(fragments=[fragment_doc(1, 1, 3)]) | {"more": 1}
    cursor = {"position": {"offset": 1}, "epoch_us": 1, "writer": "w", "more": 1}
    for doc, kind in ((node, Node), (cursor, CursorRecord)):
        with pytest.raises(UnsupportedError, match="more"):
            decode(doc, kind)


@pytest.mark.parametrize(
    "extension",
    [
        {"format": 1, "features": ["grace"]},
        {"format": 1, "features": [], "grace_s": 60},
        {"format": 1, "features": ["grace"], "grace_s": 0},
        {"format": 1, "features": ["grace"], "grace_s": -600},
    ],
    ids=["feature alone", "value alone", "zero", "negative"],
)
def test_a_grace_that_means_nothing_is_refused(extension):
    """LOG-9: the grace interval comes with its feature, and is at least a second."""
    with pytest.raises(CorruptionError, match=r"LOG-9\b"):
        decode(manifest_doc(cordwood=extension))


def test_a_plain_log_has_no_features():
    """Without the extension a log has wal3's grace and no features."""
    manifest = decode(manifest_doc())
    assert (frozenset(), 600) == (manifest.features, manifest.grace_s)


# Not a document at all.


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"null",
        b"42",
        b'"text"',
        b"[]",
        b"{}",
        b"{",
        b"not json",
        b"PAR1\x15\x04\x15",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b"\x00" * 100,
        b'{"setsum":' * 100_000,
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda data: f"{data[:12]!r}x{len(data)}",
)
@pytest.mark.parametrize("kind", [Manifest, Node, CursorRecord])
def test_what_is_no_document_is_refused(kind, data):
    """Text that is not JSON, not an object, or nested without end is damage, never a crash."""
    with pytest.raises((CorruptionError, UnsupportedError)):
        decode(data, kind)


@pytest.mark.parametrize("cut", [1, 2, 10, 100, 500, 1000])
def test_a_truncated_manifest_is_refused(cut):
    """A manifest that lost its end is damage."""
    with pytest.raises(CorruptionError) as caught:
        decode(dump(manifest_doc())[:-cut])
    assert Code.NOT_A_LOG == caught.value.code


def test_text_behind_the_document_is_refused():
    """A second document in the same object is damage."""
    data = dump(manifest_doc())
    with pytest.raises(CorruptionError):
        decode(data + data)


def test_bytes_that_are_not_utf_8_are_refused():
    """Damaged text inside a valid document is damage."""
    data = dump(manifest_doc()).replace(b'"test"', b'"t\xffst"')
    with pytest.raises(CorruptionError):
        decode(data)


def test_half_a_surrogate_pair_is_refused():
    """JSON can spell text that UTF-8 cannot: it is not accepted."""
    data = dump(manifest_doc()).replace(b'"test"', b'"\\ud800"')
    with pytest.raises(CorruptionError):
        decode(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq_no", "0198c0de-1234-7abc-8def-0123456789ab"),
        ("seq_no", 7.5),
        ("seq_no", True),
        ("seq_no", None),
        ("num_bytes", "100"),
        ("start", 11),
        ("start", [11]),
        ("limit", {}),
        ("limit", {"offset": 1e3}),
        ("path", 7),
        ("setsum", None),
    ],
)
def test_a_field_of_another_type_is_refused(field, value):
    """A uuid where a number belongs (wal3's replicated mode) and the like are refused."""
    doc = manifest_doc()
    doc["fragments"][0][field] = value
    with pytest.raises((CorruptionError, UnsupportedError), match=field):
        decode(doc)


@pytest.mark.parametrize("field", ["setsum", "acc_bytes", "writer", "snapshots", "fragments"])
def test_a_missing_field_is_refused(field):
    """Only `collected` and the initial values may be absent."""
    doc = manifest_doc()
    del doc[field]
    with pytest.raises(CorruptionError, match=field):
        decode(doc)


def test_a_document_beyond_the_limit_is_not_even_parsed():
    """Size is checked first, so that damage cannot cost memory."""
    with pytest.raises(CorruptionError, match=f"{MANIFEST_BYTES_MAX + 1} bytes"):
        decode(b"\x00" * (MANIFEST_BYTES_MAX + 1))


@pytest.mark.parametrize("offset", [-1, 2**63, 2**64])
def test_a_cursor_out_of_range_is_refused(offset):
    """A cursor stands at an offset."""
    with pytest.raises(CorruptionError, match=str(offset)):
        decode({"position": {"offset": offset}, "epoch_us": 1, "writer": "w"}, CursorRecord)


@settings(max_examples=150)
@given(st.data())
def test_a_changed_byte_never_passes_as_another_manifest_of_the_same_log(data):
    """One byte changed at random gives the same meaning, an error, or what no sum covers."""
    before = dump(manifest_doc())
    at = data.draw(st.integers(0, len(before) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != before[at]))
    damaged = before[:at] + bytes([byte]) + before[at + 1 :]
    try:
        after = decode(damaged)
    except (CorruptionError, UnsupportedError):
        return
    intact = decode(before)
    assert intact.setsum_hex == after.setsum_hex
    assert [f.setsum_hex for f in intact.fragments] == [f.setsum_hex for f in after.fragments]
    assert [n.path for n in intact.nodes] == [n.path for n in after.nodes]
    assert [f.seq_no for f in intact.fragments] == [f.seq_no for f in after.fragments]


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_noise_is_refused(noise):
    """Random bytes are never a document, and never crash the decoder."""
    for kind in (Manifest, Node, CursorRecord):
        with pytest.raises((CorruptionError, UnsupportedError)):
            decode(noise, kind)


# The writer's tag.


ids = st.integers(0, 2**128 - 1).map("{:032x}".format)


@settings(max_examples=50)
@given(ids, ids, st.one_of(ids, st.just("")), st.integers(0, 2**63 - 1))
def test_a_tag_survives_the_writer_field(incarnation, write_id, tail_id, tail_us):
    """What our writers leave in the free text is read back."""
    tag = WriterTag(incarnation, write_id, tail_id, tail_us)
    assert tag == WriterTag.parse(str(tag))


def test_a_tag_has_this_text():
    """The text form is part of the format."""
    tag = WriterTag("a" * 32, "b" * 32, "c" * 32, 17)
    assert f"cordwood/1 log={'a' * 32} write={'b' * 32} tail={'c' * 32} at=17" == str(tag)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "init",
        "spanner init",
        str(WriterTag("a" * 32, "b" * 32, "c" * 32, 1)) + " ",
        str(WriterTag("a" * 32, "b" * 32, "c" * 32, 1)).replace("/1", "/2"),
        str(WriterTag("a" * 31, "b" * 32, "c" * 32, 1)),
        str(WriterTag("A" * 32, "b" * 32, "c" * 32, 1)),
        str(WriterTag("a" * 32, "b" * 32, "c" * 32, -1)),
        str(WriterTag("a" * 32, "b" * 32, "c" * 32, 10**20)),
    ],
)
def test_another_programs_text_is_no_tag(text):
    """A manifest that wal3 wrote last has no tag."""
    assert WriterTag.parse(text) is None


def test_decoding_does_not_change_what_it_was_given():
    """Documents are values."""
    # EVIDENCE-OF: G-21, LOG-7
    # EVIDENCE-OF: G-24, LOG-6
    # EVIDENCE-OF: G-23
    # EVIDENCE-OF: G-23, LOG-9
    # EVIDENCE-OF: LOG-8
    # EVIDENCE-OF: G-21
    # EVIDENCE-OF: G-21, LOG-1, LOG-2, LOG-3, LOG-4, LOG-5, LOG-6, LOG-7
    doc = manifest_doc()
    kept = copy.deepcopy(doc)
    assert decode(doc) == decode(doc)
    assert kept == doc
