"""The manifest tree: what append, fold and substitute keep, and how small the root stays."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from cordwood.base.errors import InternalError
from cordwood.base.setsum import Setsum
from cordwood.log import format as log_format
from cordwood.log import paths, tree
from cordwood.log.format import ZERO, Fragment, Manifest, NodePointer, Position, WriterTag

TAG = WriterTag("a" * 32, "b" * 32, "c" * 32, 1_700_000_000_000_000)
SETSUMS = [Setsum().insert(str(i).encode()).hexdigest() for i in range(1009)]
ROOT_BYTES_MAX = 16_000


def fake_fragment(seq_no, start, num_records=1):
    """A pointer with a setsum of its own; there is no such object."""
    return Fragment.of(
        paths.fragment(seq_no),
        seq_no,
        start,
        start + num_records,
        1_000_000,
        SETSUMS[seq_no % len(SETSUMS)],
    )


def fake_run(count, seq_no=1, start=1, num_records=1):
    """Neighbours."""
    return [fake_fragment(seq_no + i, start + i * num_records, num_records) for i in range(count)]


def manifest_of(count, **changes):
    """A flat manifest of so many fragments."""
    manifest = tree.append(tree.empty(TAG), fake_run(count), TAG)
    return msgspec.structs.replace(manifest, **changes)


def fold_all(manifest, fanout=tree.FANOUT, nodes=None):
    """Fold until nothing is left to fold, keeping the nodes made."""
    while made := tree.fold(manifest, manifest.writer, fanout):
        for node in made:
            smaller = tree.substitute(manifest, node)
            assert smaller is not None
            manifest = smaller
            if nodes is not None:
                nodes[node.path] = node
    return manifest


def leaves(pointers, nodes):
    """Every fragment below these pointers, oldest first."""
    for pointer in pointers:
        if isinstance(pointer, Fragment):
            yield pointer
        else:
            yield from leaves(nodes[pointer.path].children, nodes)


# The empty log.


def test_an_empty_log_is_plain():
    """With the default grace a new manifest has nothing that wal3 does not know."""
    manifest = tree.empty(TAG)
    assert UNSET is manifest.cordwood
    assert (1, 1, 1) == (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no)
    assert ZERO == manifest.setsum_hex


def test_another_grace_is_a_feature():
    """A grace of its own is kept in the manifest and declared."""
    manifest = tree.empty(TAG, grace_s=60)
    assert (60, {"grace"}) == (manifest.grace_s, manifest.features)


# Append.


def test_append_puts_fragments_behind_the_tail():
    """Offsets, slots, bytes and sum go on from where they were."""
    manifest = tree.append(tree.empty(TAG), fake_run(3, num_records=5), TAG)
    assert (1, 16, 4) == (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no)
    assert 3_000_000 == manifest.acc_bytes
    assert Setsum.sum(SETSUMS[1:4]).hexdigest() == manifest.setsum_hex
    assert frozenset() == manifest.features
    log_format.check_manifest(manifest, writing=True)


def test_append_does_not_change_the_manifest_it_was_given():
    """Manifests are values: the old one stays as it was."""
    before = manifest_of(2)
    kept = log_format.encode(before)
    tree.append(before, fake_run(1, seq_no=3, start=3), TAG)
    assert kept == log_format.encode(before)


def test_append_writes_the_new_tag():
    """The writer field is that of the new manifest."""
    tag = WriterTag("a" * 32, "d" * 32, "e" * 32, 5)
    assert str(tag) == tree.append(manifest_of(1), fake_run(1, 2, 2), tag).writer


def test_a_skipped_slot_declares_gaps():
    """A jump in slots, before or inside what is appended, turns the feature on."""
    before = tree.append(manifest_of(2), [fake_fragment(5, 3)], TAG)
    inside = tree.append(manifest_of(2), [fake_fragment(3, 3), fake_fragment(5, 4)], TAG)
    assert {"gaps"} == before.features == inside.features
    log_format.check_manifest(inside, writing=True)


def test_features_once_declared_stay():
    """A later append without a gap keeps the feature."""
    manifest = tree.append(manifest_of(2), [fake_fragment(5, 3)], TAG, ["columns"])
    later = tree.append(manifest, [fake_fragment(6, 4)], TAG)
    assert {"columns", "gaps"} == later.features


def test_a_feature_is_declared_once():
    """Features are a sorted set, so that equal manifests have equal bytes."""
    manifest = tree.with_features(tree.empty(TAG, grace_s=9), ["gaps", "columns"])
    assert ("columns", "gaps", "grace") == manifest.cordwood.features
    assert manifest is tree.with_features(manifest, ["gaps"])
    assert 9 == manifest.grace_s


@pytest.mark.parametrize(
    "fragment",
    [fake_fragment(3, 4), fake_fragment(3, 2), fake_fragment(2, 3), fake_fragment(1, 1)],
    ids=["hole", "overlap", "slot again", "again"],
)
def test_append_of_what_does_not_fit_is_our_own_bug(fragment):
    """A jump in offsets or a slot twice never reaches the store."""
    with pytest.raises(InternalError):
        tree.append(manifest_of(2), [fragment], TAG)


def test_append_goes_on_after_everything_was_collected():
    """The first fragment of a collected log takes the initial offset and slot."""
    collected = tree.empty(TAG)
    collected = msgspec.structs.replace(
        collected, initial_offset_position=Position(77), initial_seq_no=12
    )
    manifest = tree.append(collected, [fake_fragment(12, 77)], TAG)
    assert (77, 78, 13) == (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no)
    assert frozenset() == manifest.features


# Fold and substitute.


@pytest.mark.parametrize("count", range(tree.FANOUT + 1))
def test_a_short_root_is_not_folded(count):
    """Up to FANOUT fragments stay as they are; nothing is folded for its own sake."""
    assert [] == tree.fold(manifest_of(count), "w")


def test_one_fragment_more_is_folded():
    """Of FANOUT + 1 fragments the oldest FANOUT become a node, the newest stays."""
    manifest = manifest_of(tree.FANOUT + 1)
    (node,) = tree.fold(manifest, "w")
    assert manifest.fragments[:-1] == node.fragments
    assert (1, "w") == (node.depth, node.writer)
    folded = tree.substitute(manifest, node)
    assert (node.pointer(),) == folded.nodes
    assert manifest.fragments[-1:] == folded.fragments
    assert manifest.setsum_hex == folded.setsum_hex
    assert manifest.acc_bytes == folded.acc_bytes
    assert manifest.writer == folded.writer


def test_nodes_of_one_depth_are_folded_again():
    """FANOUT neighbours of depth one become one node of depth two, children first."""
    fanout = tree.FANOUT
    made = tree.fold(manifest_of(fanout * fanout + 1), "w")
    assert [1] * fanout + [2] == [node.depth for node in made]
    assert tuple(node.pointer() for node in made[:-1]) == made[-1].nodes


def test_taking_over_a_huge_flat_root_is_done_in_steps():
    """One fold asks for a bounded number of nodes, and the root gets there all the same."""
    manifest = manifest_of(3_000)
    assert tree.FOLD_NODES_MAX == len(tree.fold(manifest, "w"))
    folded = fold_all(manifest)
    assert ROOT_BYTES_MAX > len(log_format.encode(folded))


def test_every_node_has_at_least_two_children():
    """A lone child would have its parent's name; fold never makes one."""
    nodes = {}
    fold_all(manifest_of(600), nodes=nodes)
    assert {tree.FANOUT} == {len(node.children) for node in nodes.values()}
    assert all(len({c.depth for c in node.nodes}) <= 1 for node in nodes.values())


def test_a_node_that_does_not_fit_is_not_substituted():
    """Its children must be two or more neighbours of the root, and a fragment must stay."""
    manifest = manifest_of(6)
    run = manifest.fragments
    assert tree.substitute(manifest, tree.make_node(run[:4], "w")) is not None
    elsewhere = fake_run(6, seq_no=101)
    for children in (
        run,
        run[4:],
        run[:1],
        (run[0], run[2]),
        (*run[:3], elsewhere[3]),
        (*run[3:], *fake_run(2, seq_no=7, start=7)),
    ):
        assert tree.substitute(manifest, tree.make_node(children, "w")) is None


def test_equal_records_in_other_slots_do_not_fit():
    """Two fragments may have one range and one setsum; a node over the other one is not ours."""
    manifest = manifest_of(6)
    twin = msgspec.structs.replace(manifest.fragments[1], seq_no=99, path=paths.fragment(99))
    node = tree.make_node((manifest.fragments[0], twin), "w")
    ours = tree.make_node(manifest.fragments[:2], "w")
    assert node.path == ours.path
    assert tree.substitute(manifest, node) is None


def test_a_node_is_not_substituted_twice():
    """Once it is there it is a lone child of itself."""
    manifest = manifest_of(9)
    (node,) = tree.fold(manifest, "w")
    folded = tree.substitute(manifest, node)
    assert tree.substitute(folded, node) is None


def test_a_node_is_not_substituted_after_its_range_was_collected():
    """A node made before a collection does not bring back what was collected."""
    manifest = manifest_of(20)
    (node, *_) = tree.fold(manifest, "w")
    shorter = msgspec.structs.replace(manifest, fragments=manifest.fragments[3:])
    assert tree.substitute(shorter, node) is None


def test_a_node_with_fragments_before_it_is_not_substituted():
    """Nodes come before fragments: a node over later fragments has no place, and loses nothing."""
    manifest = manifest_of(2 * tree.FANOUT + 1)
    _, second, *_ = tree.fold(manifest, "w")
    assert tree.substitute(manifest, second) is None


@pytest.mark.parametrize("depth", [1, 2])
def test_a_name_that_is_taken_is_avoided_on_every_level(depth):
    """The node gets a child more, and the tree still folds to nothing but small levels."""
    fanout = tree.FANOUT
    manifest = manifest_of(fanout**2 + 2 * fanout + 1)
    made = tree.fold(manifest, "w")
    avoided = next(node for node in made if node.depth == depth)
    again = tree.fold(manifest, "w", taken={avoided.path})
    assert avoided.path not in {node.path for node in again}
    larger = next(node for node in again if node.depth == depth)
    assert fanout + 1 == len(larger.children)
    for node in again:
        manifest = tree.substitute(manifest, node) or pytest.fail("does not fit")
    log_format.check_manifest(manifest, writing=True)


def test_a_name_that_is_taken_waits_for_a_child_more():
    """With no child to spare the root stays as it is."""
    manifest = manifest_of(tree.FANOUT + 1)
    (node,) = tree.fold(manifest, "w")
    assert [] == tree.fold(manifest, "w", taken={node.path})


batches = st.lists(st.integers(1, 12), min_size=1, max_size=40)


@settings(max_examples=60)
@given(batches, st.integers(2, 9), st.integers(1, 4), st.data())
def test_folding_conserves_the_log(sizes, fanout, num_records, data):
    """Whatever is folded when, sum, order, contiguity and the newest fragment are kept."""
    manifest, nodes, everything = tree.empty(TAG), {}, []
    waiting = []
    for size in sizes:
        run = fake_run(size, len(everything) + 1, manifest.next_offset, num_records)
        everything += run
        manifest = tree.append(manifest, run, TAG)
        before = manifest
        for node in waiting:
            manifest = tree.substitute(manifest, node) or manifest
        assert before.setsum_hex == manifest.setsum_hex
        waiting = []
        if data.draw(st.booleans(), label="fold"):
            waiting = tree.fold(manifest, "w", fanout)
            nodes |= {node.path: node for node in waiting}
            lost = data.draw(st.integers(0, len(waiting)), label="nodes that were not written")
            waiting = waiting[lost:]
        log_format.check_manifest(manifest, writing=True)
        assert run[-1] == manifest.fragments[-1]
        assert everything == list(leaves(tree.roots(manifest), nodes))
    for node in nodes.values():
        log_format.check_node(node)


@settings(max_examples=40)
@given(st.integers(1, 700), st.integers(2, 9))
def test_a_folded_root_is_a_number_in_base_fanout(count, fanout):
    """Fully folded, a root has fewer than `fanout` nodes of each depth, in falling depth."""
    nodes = {}
    manifest = fold_all(manifest_of(count), fanout, nodes)
    depths = [node.depth for node in manifest.nodes]
    assert sorted(depths, reverse=True) == depths
    assert all(depths.count(depth) < fanout for depth in depths)
    assert 1 <= len(manifest.fragments) <= fanout
    assert fake_run(count) == list(leaves(tree.roots(manifest), nodes))


# How small the root stays.


def largest_root(count, per_manifest):
    """Append `count` fragments as a writer does; the largest root in bytes.

    Nodes are written while one manifest is in the air and go into the next one. Offsets begin high
    and files are large, so that numbers are as long as they get.
    """
    start = 10**12
    first = fake_run(per_manifest, 1, start)
    manifest = Manifest(
        setsum_hex=Setsum.sum([f.setsum_hex for f in first]).hexdigest(),
        acc_bytes=10**13,
        writer=str(TAG),
        nodes=(),
        fragments=tuple(first),
    )
    largest, length, waiting = manifest, 0, []
    for done in range(per_manifest, count, per_manifest):
        run = fake_run(per_manifest, done + 1, start + done)
        manifest = tree.append(manifest, run, TAG)
        for node in waiting:
            manifest = tree.substitute(manifest, node) or manifest
        waiting = tree.fold(manifest, manifest.writer)
        assert run[-1] is manifest.fragments[-1]
        estimate = 300 * len(manifest.nodes) + 250 * len(manifest.fragments)
        if estimate > length:
            largest, length = manifest, estimate
    log_format.check_manifest(manifest, writing=True)
    return len(log_format.encode(largest))


def test_the_root_stays_small_one_fragment_at_a_time():
    """100,000 appends, a manifest each: no manifest is larger than 16,000 bytes."""
    assert ROOT_BYTES_MAX >= largest_root(100_000, 1)


def test_the_root_stays_small_when_a_manifest_names_several():
    """200,000 appends, eight to a manifest as a full pipeline makes them."""
    assert ROOT_BYTES_MAX >= largest_root(200_000, 8)


def test_the_root_stays_small_when_a_manifest_names_as_many_as_it_may():
    """300,000 appends where every manifest names as many as a manifest may."""
    assert ROOT_BYTES_MAX >= largest_root(300_000, tree.APPENDED_MAX)


@pytest.mark.slow
def test_the_root_stays_small_at_a_million():
    """1,000,000 appends: still no manifest larger than 16,000 bytes."""
    assert ROOT_BYTES_MAX >= largest_root(1_000_000, tree.APPENDED_MAX)


# Selecting.


def test_overlapping_takes_what_holds_any_offset_of_the_range():
    """Ranges are half open: touching is not overlapping."""
    pointers = fake_run(4, num_records=10)
    assert pointers == tree.overlapping(pointers, 0, 100)
    assert pointers[1:3] == tree.overlapping(pointers, 11, 31)
    assert pointers[:1] == tree.overlapping(pointers, 10, 11)
    assert pointers[1:2] == tree.overlapping(pointers, 11, 12)
    assert [] == tree.overlapping(pointers, 41, 50)
    assert [] == tree.overlapping(pointers, 0, 1)


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(0, 200), st.integers(0, 200), st.integers(1, 3))
def test_overlapping_agrees_with_looking_at_every_offset(count, start, limit, num_records):
    """A pointer is selected exactly if some offset of the range lies in it."""
    pointers = fake_run(count, num_records=num_records)
    wanted = set(range(start, limit))
    expected = [p for p in pointers if wanted & set(range(p.start, p.limit))]
    assert expected == tree.overlapping(pointers, start, limit)


def test_an_empty_range_overlaps_nothing():
    """No offset is asked for, so no pointer holds one, not even in the middle of a fragment."""
    pointers = fake_run(4, num_records=10)
    assert [] == tree.overlapping(pointers, 15, 15)
    assert [] == tree.overlapping(pointers, 11, 11)
    assert [] == tree.overlapping(pointers, 25, 15)


def test_roots_are_nodes_then_fragments():
    """Oldest first."""
    manifest = fold_all(manifest_of(100))
    pointers = tree.roots(manifest)
    assert manifest.nodes + manifest.fragments == pointers
    assert isinstance(pointers[0], NodePointer)
    assert list(pointers) == sorted(pointers, key=lambda p: p.start)
