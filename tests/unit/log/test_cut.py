"""Cutting a tree at every place: what stays, what goes, what is read, and that a garbage agrees."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded by hypothesis

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.cut import nodes_below, plan_cut
from cordwood.log.format import Fragment, Manifest, Node, NodePointer, Position, decode, encode
from cordwood.log.garbage import Garbage, GarbageExtension, Phase, apply
from cordwood.log.objects import LogObjects
from cordwood.store.memory import MemoryStore

DEPTH_MAX = 4


class Counting(MemoryStore):
    """A memory that counts GETs."""

    def __init__(self):
        """None yet."""
        super().__init__()
        self.gets = 0

    async def get(self, key):
        """Count it."""
        self.gets += 1
        return await super().get(key)


class World:
    """A tree, and the objects behind it."""

    def __init__(self):
        """Nothing yet."""
        self.store = Counting()
        self.objects = LogObjects(self.store, "log")
        self.nodes = {}
        self.fragments = []
        self.seq_no = 1
        self.offset = 1

    def fragment(self, records, gap=0):
        """The next fragment."""
        self.seq_no += gap
        setsum = Setsum().insert(b"%d" % self.seq_no).hexdigest()
        made = Fragment.of(
            paths.fragment(self.seq_no),
            self.seq_no,
            self.offset,
            self.offset + records,
            7 * self.seq_no,
            setsum,
        )
        self.seq_no += 1
        self.offset += records
        self.fragments.append(made)
        return made

    def node(self, children):
        """A node over these."""
        made = tree.make_node(children, "w")
        self.nodes[made.path] = made
        return made.pointer()

    def manifest(self, roots):
        """The manifest with this root, and its nodes in the store."""
        for node in self.nodes.values():
            asyncio.run(self.store.put(f"log/{node.path}", encode(node)))
        return Manifest(
            setsum_hex=Setsum.sum([f.setsum_hex for f in self.fragments]).hexdigest(),
            acc_bytes=1,
            writer="w",
            nodes=tuple(p for p in roots if isinstance(p, NodePointer)),
            fragments=tuple(p for p in roots if isinstance(p, Fragment)),
            cordwood=tree.with_features(tree.empty(TAG), ["gaps"]).cordwood,
        )

    def leaves(self, pointers, made=()):
        """Every fragment below these, oldest first."""
        known = {**self.nodes, **{node.path: node for node in made}}
        found = []
        for pointer in pointers:
            if isinstance(pointer, Fragment):
                found.append(pointer)
            else:
                found += self.leaves(known[pointer.path].children, made)
        return found


TAG = tree.WriterTag("a" * 32, "b" * 32, "a" * 32, 0)


@st.composite
def worlds(draw):
    """Trees as Cordwood folds them, as wal3 does, and as several cuts leave them."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    fan_max = draw(st.sampled_from([2, 8, 8, 40]))
    single = draw(st.booleans())
    world = World()

    def grow(depth):
        if depth == 0:
            gap = chance.choice([0, 0, 0, 2])
            return world.fragment(chance.choice([1, 1, 3, 10]), gap)
        low = 1 if single and depth == 1 else 2
        return world.node([grow(depth - 1) for _ in range(chance.randint(low, fan_max))])

    depths = sorted((chance.randint(1, 2 if fan_max > 8 else 3) for _ in range(3)), reverse=True)
    roots = [grow(depth) for depth in depths[: chance.randint(0, 3)]]
    roots += [world.fragment(chance.choice([1, 5])) for _ in range(chance.randint(1, 9))]
    return world, world.manifest(roots)


def garbage_of(cut, manifest, nodes=()):
    """What `mark` writes for a cut."""
    return Garbage(
        nodes_to_drop=(*nodes, *cut.replaced),
        nodes_to_make=tuple(cut.made),
        node_for_root=cut.node_for_root,
        drop_start=manifest.first_seq_no,
        drop_limit=cut.first_seq_no,
        discard_hex=cut.discarded.hexdigest(),
        first_to_keep=Position(cut.first_to_keep),
        cordwood=GarbageExtension("n", Phase.MARKED, "e"),
    )


def check(world, manifest, offset, cut):
    """Everything that must hold of a cut."""
    fragments = world.fragments
    keep = [f for f in fragments if f.limit > offset]
    kept = world.leaves(cut.kept, cut.made)
    gone = world.leaves(cut.dropped)
    # Nothing that is needed goes; order and contiguity hold; one fragment more stays at most.
    assert gone + kept == fragments
    assert kept[len(kept) - len(keep) :] == keep
    assert cut.first_to_keep <= offset
    assert cut.first_to_keep == (kept[0].start if kept else manifest.next_offset)
    assert cut.first_to_keep in {f.start for f in fragments} | {manifest.next_offset}
    assert cut.first_seq_no == (kept[0].seq_no if kept else manifest.next_seq_no)
    # Sums.
    assert cut.discarded == Setsum.sum([f.setsum_hex for f in gone] or [Setsum().hexdigest()])
    total = cut.discarded + Setsum.from_hex(cut.setsum_hex)
    assert total.hexdigest() == manifest.setsum_hex
    for node in cut.made:
        assert 2 <= len(node.children)
        assert decode(Node, encode(node), "x") == node
    # The garbage says the same.
    garbage = decode(Garbage, encode(garbage_of(cut, manifest), "x"), "x")
    after = apply(manifest, garbage)
    assert after is not None
    assert tree.roots(after) == cut.kept
    assert decode(Manifest, encode(after), "x") == after
    assert apply(after, garbage) is None


@given(worlds())
@settings(max_examples=30)
def test_a_cut_at_every_offset_keeps_what_it_must(given_world):
    """Sums, order, contiguity, at least two children, and only one path is read."""
    # EVIDENCE-OF: G-57, G-60
    world, manifest = given_world
    starts = [f.start for f in world.fragments] + [f.limit - 1 for f in world.fragments]
    offsets = sorted({*starts, 0, 1, manifest.next_offset, manifest.next_offset + 5})

    async def cut_everywhere():
        for offset in offsets:
            world.store.gets = 0
            cut = await plan_cut(world.objects, manifest, offset, "w")
            # One path down to the cut, and one to the first slot that stays.
            assert 2 * DEPTH_MAX >= world.store.gets
            if cut is None:
                # Nothing could go: the first fragment is needed, or would leave one alone.
                assert 1 >= len([f for f in world.fragments if f.limit <= offset])
            else:
                check(world, manifest, offset, cut)
                behind = [f for f in world.fragments if f.limit > offset]
                assert len(behind) + 1 >= len(world.leaves(cut.kept, cut.made))

    asyncio.run(cut_everywhere())


@given(worlds(), st.integers(1, 40), st.randoms())
@settings(max_examples=40)
def test_cut_after_cut_frees_everything(given_world, budget, chance):
    """With a budget, again and again, on trees that earlier cuts left: all goes in the end."""
    world, manifest = given_world

    async def cut_all():
        nonlocal manifest
        for _ in range(10 * len(world.fragments)):
            offset = chance.choice([manifest.next_offset, chance.randint(0, manifest.next_offset)])
            cut = await plan_cut(world.objects, manifest, offset, "w", budget)
            if cut is None:
                if not tree.roots(manifest):
                    return
                continue
            check(world, manifest, offset, cut)
            for node in cut.made:
                world.nodes[node.path] = node
                await world.objects.write_node(node)
            manifest = apply(manifest, garbage_of(cut, manifest))
            world.fragments = world.leaves(tree.roots(manifest))
            world_total = Setsum.sum([f.setsum_hex for f in world.fragments])
            manifest_total = Setsum.from_hex(manifest.setsum_hex)
            assert manifest_total - Setsum.from_hex(manifest.collected_hex) == world_total
            manifest = rebased(manifest)
        raise AssertionError("it never ends")

    asyncio.run(cut_all())


def rebased(manifest):
    """The same log with nothing collected, so that sums of what is left can be compared."""
    left = Setsum.from_hex(manifest.setsum_hex) - Setsum.from_hex(manifest.collected_hex)
    return tree.msgspec.structs.replace(
        manifest, setsum_hex=left.hexdigest(), collected_hex=Setsum().hexdigest()
    )


@given(worlds(), st.integers(2, 12))
@settings(max_examples=30)
def test_a_manifest_folded_since_fits_rightly_or_not_at_all(given_world, fanout):
    """A garbage made before a fold never takes more or less than it says."""
    world, manifest = given_world
    folded = manifest
    for node in tree.fold(manifest, "w", fanout):
        folded = tree.substitute(folded, node) or folded
        world.nodes[node.path] = node
    before = world.leaves(tree.roots(manifest))

    async def cut_everywhere():
        for fragment in world.fragments:
            cut = await plan_cut(world.objects, manifest, fragment.start, "w")
            after = cut and apply(folded, garbage_of(cut, manifest))
            if after is not None:
                left = world.leaves(tree.roots(after), cut.made)
                assert left == [f for f in before if f.start >= cut.first_to_keep]
                assert decode(Manifest, encode(after), "x") == after

    asyncio.run(cut_everywhere())


def deep_world(levels):
    """A full tree of so many levels, and one fragment behind it."""
    world = World()

    def grow(depth):
        if depth == 0:
            return world.fragment(1)
        return world.node([grow(depth - 1) for _ in range(tree.FANOUT)])

    root = grow(levels)
    return world, world.manifest([root, world.fragment(1)])


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_a_cut_reads_and_makes_one_node_per_level(levels):
    """However large what goes is."""
    # EVIDENCE-OF: G-60
    world, manifest = deep_world(levels)

    async def cut():
        world.store.gets = 0
        return await plan_cut(world.objects, manifest, tree.FANOUT**levels - 3, "w")

    found = asyncio.run(cut())
    assert levels == world.store.gets
    assert levels >= len(found.made)
    assert levels == len(found.replaced)


@pytest.mark.parametrize("budget", [1, 2, 7, 8, 9, 63, 64, 65, 500])
def test_a_budget_bounds_what_goes(budget):
    """In a tree of Cordwood's own no more fragments go than allowed, and at least one does."""
    world, manifest = deep_world(3)
    cut = asyncio.run(plan_cut(world.objects, manifest, 512, "w", budget))
    assert 1 <= len(world.leaves(cut.dropped)) <= budget + 1
    check(world, manifest, 512, cut)


def test_a_node_that_is_emptied_by_a_budget_goes_whole():
    """A small node counts as a full one; when all its children go, so does it."""
    world = World()
    first = world.node([world.fragment(1) for _ in range(3)])
    second = world.node([world.fragment(1) for _ in range(8)])
    manifest = world.manifest([first, second, world.fragment(1)])
    cut = asyncio.run(plan_cut(world.objects, manifest, 12, "w", 4))
    assert [first] == cut.dropped
    assert [] == cut.replaced
    check(world, manifest, 12, cut)


def test_nodes_below_are_all_of_them():
    """Each once; only nodes with nodes below them are read."""
    world, manifest = deep_world(3)
    world.store.gets = 0
    found = asyncio.run(nodes_below(world.objects, tree.roots(manifest)))
    assert sorted(world.nodes) == sorted(pointer.path for pointer in found)
    assert 1 + 8 == world.store.gets


def test_a_log_that_nobody_may_cut_is_left():
    """Before the first record there is nothing."""
    world, manifest = deep_world(2)
    for offset in (0, 1):
        assert asyncio.run(plan_cut(world.objects, manifest, offset, "w")) is None
