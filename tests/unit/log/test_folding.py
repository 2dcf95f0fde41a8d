"""Nodes are written beside the hot path, kept until they are named, and never named too early."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.errors import AlreadyExistsError, StoreError
from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.folding import Folder
from cordwood.log.format import Fragment, Position, WriterTag
from cordwood.log.tasks import Tasks

TAG = WriterTag("i" * 32, "w" * 32, "t" * 32, 1)


def manifest_of(count):
    """A flat manifest of so many fragments of one record."""
    return tree.append(tree.empty(TAG), [fake_fragment(n) for n in range(1, count + 1)], TAG)


def fake_fragment(number):
    """A pointer to a fragment that is nowhere."""
    return Fragment(
        paths.fragment(number),
        number,
        Position(number),
        Position(number + 1),
        100,
        Setsum().insert(b"%d" % number).hexdigest(),
    )


class Nodes:
    """Stands in for a log's objects: writes wait until they are let through."""

    def __init__(self):
        """Nothing written."""
        self.gates = {}
        self.tried = []

    async def write_node(self, node):
        """Wait for the gate, then do as it says."""
        self.tried.append(node.path)
        gate = self.gates.setdefault(node.path, asyncio.get_running_loop().create_future())
        await gate

    async def let(self, *paths, error=None):
        """These writes end now."""
        for path in paths:
            gate = self.gates.pop(path)
            if error is None:
                gate.set_result(None)
            else:
                gate.set_exception(error)
        for _ in range(3):
            await asyncio.sleep(0)

    async def begun(self):
        """What is being written."""
        for _ in range(3):
            await asyncio.sleep(0)
        return list(self.gates)


@pytest.fixture
def nodes():
    """The objects."""
    return Nodes()


@pytest.fixture
async def folder(nodes):
    """A folder over them."""
    failures = []
    yield Folder(nodes, Tasks(failures.append).spawn)
    assert failures == []


async def test_nodes_are_named_one_by_one_as_they_become_durable(folder, nodes):
    """A slow one holds up its parent and what is behind it, not what is before it."""
    manifest = manifest_of(3 * tree.FANOUT + 1)
    folder.start(manifest)
    first, second, third = await nodes.begun()
    await nodes.let(first, third)
    assert [first] == [node.path for node in folder.apply(manifest).nodes]
    await nodes.let(second)
    folded = folder.apply(manifest)
    assert [first, second, third] == [node.path for node in folded.nodes]
    assert 1 == len(folded.fragments)


async def test_what_is_under_way_is_not_begun_again(folder, nodes):
    """The next manifest asks only for what is new."""
    folder.start(manifest_of(tree.FANOUT + 1))
    begun = await nodes.begun()
    folder.start(manifest_of(2 * tree.FANOUT + 1))
    assert 2 == len(await nodes.begun())
    await nodes.let(*begun)
    folder.start(manifest_of(2 * tree.FANOUT + 1))
    assert 2 == len(nodes.tried)


async def test_a_lost_swap_does_not_lose_a_node(folder, nodes):
    """A node fits every manifest that has its children, whoever wrote it."""
    manifest = manifest_of(tree.FANOUT + 1)
    folder.start(manifest)
    (path,) = await nodes.begun()
    await nodes.let(path)
    assert [path] == [node.path for node in folder.apply(manifest).nodes]
    theirs = tree.append(manifest, [fake_fragment(tree.FANOUT + 2)], TAG)
    folded = folder.apply(theirs)
    assert [path] == [node.path for node in folded.nodes]
    assert folded == folder.apply(folded)
    assert theirs == folder.apply(theirs), "named and durable: it is forgotten"


async def test_a_node_ahead_of_the_root_waits(folder, nodes):
    """Its children have landed; after a lost swap somebody may still name them."""
    folder.start(manifest_of(tree.FANOUT + 1))
    (path,) = await nodes.begun()
    await nodes.let(path)
    assert () == folder.apply(manifest_of(tree.FANOUT - 2)).nodes
    assert [path] == [node.path for node in folder.apply(manifest_of(tree.FANOUT + 1)).nodes]


async def test_a_parent_is_not_named_before_its_children(folder, nodes):
    """It was made over a node that never became durable: it never fits."""
    manifest = manifest_of(tree.FANOUT**2 + 1)
    folder.start(manifest)
    *children, parent = await nodes.begun()
    await nodes.let(*children[1:], parent)
    await nodes.let(children[0], error=StoreError("down"))
    assert manifest == folder.apply(manifest)


async def test_a_name_that_is_taken_is_not_tried_again(folder, nodes):
    """The next fold makes a node with a child more."""
    manifest = manifest_of(tree.FANOUT + 2)
    folder.start(manifest)
    (path,) = await nodes.begun()
    await nodes.let(path, error=AlreadyExistsError("another shape"))
    folder.start(manifest)
    (other,) = await nodes.begun()
    assert path != other
    await nodes.let(other)


async def test_a_store_that_refuses_is_left_alone_for_a_while(folder, nodes):
    """Each failure doubles the manifests that go by before the next try."""
    manifest = manifest_of(tree.FANOUT + 1)
    gaps = []
    for _ in range(8):
        passes = 0
        folder.start(manifest)
        while not await nodes.begun():
            passes += 1
            folder.start(manifest)
        gaps.append(passes)
        await nodes.let(*await nodes.begun(), error=StoreError("down"))
    assert [0, 2, 4, 8, 16, 32, 64, 64] == gaps
