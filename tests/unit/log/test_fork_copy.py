"""Forks and copies of any tree, at any offset; and the pieces they are made of."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood
from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import Code
from cordwood.log import format as log_format
from cordwood.log import paths, tree
from cordwood.log.format import SEAL, Ancestor, Extension, Manifest, Seal, WriterTag
from cordwood.log.objects import LogObjects
from cordwood.log.recovery import Tail, adopt, scan
from cordwood.store.memory import MemoryStore

TAG = WriterTag("a" * 32, "b" * 32, "a" * 32, 7)


async def fill(log, sizes, name):
    """A fragment for each size, of so many records."""
    async with log.writer(create=True) as writer:
        for number, size in enumerate(sizes):
            await writer.append_many([f"{name}{number}-{i}".encode() for i in range(size)])


async def refold(log, fanouts, entropy):
    """Fold the log's tree anew, with nodes of these sizes: a shape that a writer may not make."""
    objects = log.objects
    for fanout in fanouts:
        manifest, etag = await objects.load()
        for node in tree.fold(manifest, manifest.writer, fanout):
            try:
                await objects.write_node(node)
            except (cordwood.AlreadyExistsError, cordwood.CorruptionError):
                break  # the writer made one of this name, and another shape, which it never named
            manifest = tree.substitute(manifest, node) or manifest
        tag = WriterTag.parse(manifest.writer)._replace(write_id=entropy.token())
        await objects.swap(msgspec.structs.replace(manifest, writer=str(tag)), etag)


async def read(log):
    """Every record as (offset, timestamp, body)."""
    async with log.reader() as reader:
        return [(r.offset, r.timestamp_us, r.body) async for r in reader.read()]


SIZES = st.lists(st.integers(1, 4), min_size=0, max_size=24)


@settings(max_examples=15)
@given(
    sizes=SIZES,
    fanouts=st.lists(st.integers(2, 5), max_size=3),
    more=st.lists(st.integers(1, 3), max_size=12),
)
def test_at_every_offset(sizes, fanouts, more):
    """A fork, a fork of it and copies of both have the records from the offset's fragment on."""
    # EVIDENCE-OF: G-46, G-49
    asyncio.run(_check_every_offset(sizes, fanouts, more))


async def _check_every_offset(sizes, fanouts, more):
    entropy = SeededEntropy("trees")
    store = cordwood.Store.over(MemoryStore())
    log = cordwood.Log(store, "log")
    await fill(log, sizes, "r")
    await refold(log, fanouts, entropy)
    records = await read(log)
    limit = len(records) + 1
    starts = [sum(sizes[:i]) + 1 for i in range(len(sizes) + 1)]
    for start in [None, *range(1, limit + 1)]:
        name = f"at-{start}"
        child, second = cordwood.Log(store, name), cordwood.Log(store, f"{name}-again")
        beside = cordwood.Log(store, f"{name}-copy")
        away = cordwood.Log(cordwood.Store.over(MemoryStore()), "copy")
        await log.fork(child, start)
        oldest = (await child.manifest()).oldest_offset
        assert oldest in starts
        # Rounded down to a fragment, or to the one before where a node would be left with one.
        wanted = max(s for s in starts if s <= (start or 1))
        assert wanted == oldest or oldest == starts[starts.index(wanted) - 1]
        await fill(child, more, "c")
        await refold(child, fanouts, entropy)
        await child.fork(second, start)
        expected = await read(child)
        assert records[oldest - 1 :] == expected[: limit - oldest]
        assert sum(more) == len(expected) - (limit - oldest)
        for report in (await child.copy(beside, start), await second.copy(away)):
            assert len(expected) >= report.records
        for other in (child, second, beside, away):
            first = (await other.manifest()).oldest_offset
            assert expected[first - oldest :] == await read(other)
            assert (await other.scrub(deep=True)).ok
    assert records == await read(log)


# The first manifest.


def test_an_heir_is_not_sealed_and_has_nothing_collected():
    """Of the features those stay that the records need."""
    extension = Extension(features=("gaps", SEAL), seal=Seal("done", 1))
    manifest = msgspec.structs.replace(tree.empty(TAG), cordwood=extension, collected_hex="0" * 64)
    heir = tree.heir(manifest, (), 5, 3, TAG)
    assert {"gaps"} == heir.features
    assert heir.seal is None
    assert (5, 5, 3, 3) == (
        heir.oldest_offset,
        heir.next_offset,
        heir.next_seq_no,
        heir.first_seq_no,
    )
    log_format.encode(heir)


def test_an_heir_of_a_plain_log_is_plain():
    """A copy of a log without features has no extension; a fork always has one."""
    assert log_format.encode(tree.empty(TAG)) == log_format.encode(
        tree.heir(tree.empty(TAG), (), 1, 1, TAG)
    )
    fork = tree.heir(tree.empty(TAG), (), 1, 1, TAG, (Ancestor("../log", 1, 1),))
    assert ({"fork"}, False) == (fork.features, fork.is_unborn)


def test_limits_of_ancestors_do_not_fall():
    """They may be equal: a fork may be forked before it has anything of its own."""
    # EVIDENCE-OF: LOG-9
    both = (Ancestor("../a", 5, 2), Ancestor("../b", 5, 2))
    fork = tree.heir(tree.empty(TAG), (), 5, 2, TAG, both)
    assert fork == log_format.decode(Manifest, log_format.encode(fork), "x")
    for wrong in (Ancestor("../b", 4, 2), Ancestor("a/../b", 5, 2), Ancestor("/b", 5, 2)):
        fallen = tree.heir(tree.empty(TAG), (), 5, 2, TAG, (both[0], wrong))
        with pytest.raises(cordwood.CorruptionError, match="LOG-9"):
            log_format.encode(fallen)


# Where a node lies.


async def test_the_nearest_node_counts():
    """Of nodes of one name the fork's own is read, then its parent's, then those further up."""
    memory = MemoryStore()
    store = cordwood.Store.over(memory)
    logs = [cordwood.Log(store, name) for name in ("oak", "elm", "ash")]
    await fill(logs[0], [1] * 12, "r")
    for parent, child in pairwise(logs):
        await parent.fork(child)
    objects = LogObjects(memory, "ash")
    pointer = (await objects.load()).manifest.nodes[0]
    node = await objects.read_node(pointer)
    for name in ("elm", "ash"):
        named = msgspec.structs.replace(node, writer=name)
        await memory.put(f"{name}/{node.path}", log_format.encode(named), "create")
        assert name == (await objects.read_node(pointer)).writer
    await memory.put(f"ash/{node.path}", b"rubbish")
    assert "elm" == (await objects.read_node(pointer)).writer
    await memory.delete([f"elm/{node.path}", f"oak/{node.path}"])
    with pytest.raises(cordwood.CorruptionError, match="not a node") as found:
        await objects.read_node(pointer)
    await memory.delete([f"ash/{node.path}"])
    with pytest.raises(cordwood.CorruptionError, match="oak/snapshot") as missing:
        await objects.read_node(pointer)
    assert (Code.CORRUPT, Code.MISSING_OBJECT) == (found.value.code, missing.value.code)


async def test_a_fragment_of_the_parent_is_void_in_the_fork():
    """Even in the fork's own slot: what follows the parent's tail does not follow the fork."""
    # EVIDENCE-OF: G-46
    memory = MemoryStore()
    store = cordwood.Store.over(memory)
    parent, child = cordwood.Log(store, "oak"), cordwood.Log(store, "elm")
    await fill(parent, [1, 1], "r")
    await parent.fork(child)
    await fill(parent, [1], "later")
    data = (await memory.get("oak/" + paths.fragment(3))).data
    await memory.put("elm/" + paths.fragment(3), data, "create")
    manifest = await child.manifest()
    run = await scan(child.objects, manifest, {})
    assert ([], 4) == (run.adopted, run.tail.next_seq_no)
    assert Tail.of(manifest)._replace(next_seq_no=4) == run.tail
    assert manifest.fragments == adopt(manifest, run, SeededEntropy(1)).fragments


async def test_a_name_that_is_taken_costs_a_fragment_more():
    """Where a node that the fork needs cannot be written it begins a fragment earlier."""
    memory = MemoryStore()
    store = cordwood.Store.over(memory)
    log, first, second = (cordwood.Log(store, name) for name in ("oak", "elm", "ash"))
    await fill(log, [1] * 12, "r")
    await log.fork(first, 4)
    (node,) = [meta.key async for meta in memory.list("elm/snapshot/")]
    await memory.put(node.replace("elm/", "ash/"), b"rubbish", "create")
    await log.fork(second, 4)
    assert (4, 3) == tuple([(await fork.manifest()).oldest_offset for fork in (first, second)])
    assert (await read(log))[2:] == await read(second)
