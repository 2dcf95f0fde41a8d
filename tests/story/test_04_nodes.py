"""Story 04: append until a node appears, and on until the tree has levels."""

from __future__ import annotations

import json

from cordwood import Options, Setsum
from cordwood.log import paths, tree
from cordwood.log.format import encode
from cordwood.log.tree import FANOUT

ONE_BY_ONE = Options(batch_interval_s=0)


async def append_one_by_one(log, count):
    """So many fragments of one record each."""
    async with log.writer(create=True, options=ONE_BY_ONE) as writer:
        for n in range(count):
            await writer.append(b"%d" % n)


def nodes_of(keys):
    """The node objects among the keys."""
    return [key for key in keys if key.startswith("snapshot/")]


async def test_up_to_a_full_level_there_is_no_node(log, bucket):
    """FANOUT fragments stay in the root, and no node is written."""
    await append_one_by_one(log, FANOUT)
    manifest = await bucket.manifest()
    assert ([], FANOUT) == (manifest["snapshots"], len(manifest["fragments"]))
    assert [] == nodes_of(await bucket.keys())


async def test_the_first_node_appears(log, bucket):
    """The ninth manifest has the node written, the tenth names it: exactly this tree."""
    await append_one_by_one(log, FANOUT + 2)
    manifest = await bucket.manifest()
    (pointer,) = manifest["snapshots"]
    assert [9, 10] == [fragment["seq_no"] for fragment in manifest["fragments"]]
    assert [pointer["path_to_snapshot"]] == nodes_of(await bucket.keys())
    node = json.loads(await bucket.get(pointer["path_to_snapshot"]))
    assert ["path", "depth", "setsum", "writer", "snapshots", "fragments"] == list(node)
    assert (1, [], list(range(1, 9))) == (
        node["depth"],
        node["snapshots"],
        [fragment["seq_no"] for fragment in node["fragments"]],
    )
    setsum = Setsum.sum([fragment["setsum"] for fragment in node["fragments"]]).hexdigest()
    assert {
        "setsum": setsum,
        "path_to_snapshot": paths.node(setsum),
        "depth": 1,
        "start": {"offset": 1},
        "limit": {"offset": 9},
        "num_bytes": sum(fragment["num_bytes"] for fragment in node["fragments"]),
    } == pointer


async def test_the_tree_grows_levels(log, bucket, bodies):
    """After FANOUT squared appends there is a node of depth two, and everything is still read."""
    count = FANOUT * FANOUT + FANOUT + 2
    await append_one_by_one(log, count)
    manifest = await bucket.manifest()
    assert [2, 1] == [pointer["depth"] for pointer in manifest["snapshots"]]
    assert [b"%d" % n for n in range(count)] == await bodies(log)
    report = await log.scrub(deep=True)
    assert ([], count, FANOUT + 2) == (report.errors, report.fragments, report.nodes)


async def test_folding_changes_neither_sum_nor_bytes(log, bucket):
    """Setsum and accumulated bytes are those of all fragments, folded or not."""
    count = 3 * FANOUT
    await append_one_by_one(log, count)
    async with log.reader() as reader:
        found = await reader.scan()
    manifest = await bucket.manifest()
    assert count == len(found)
    assert Setsum.sum([f.setsum_hex for f in found]).hexdigest() == manifest["setsum"]
    assert sum(f.num_bytes for f in found) == manifest["acc_bytes"]
    assert sum(f.num_bytes for f in found) == (await log.state()).bytes


async def leave_node(log, bucket, data=None):
    """Put the node that the log needs next, or something else under its name."""
    (node,) = tree.fold(await log.manifest(), "a writer that crashed")
    data = encode(node) if data is None else data
    await bucket.put(node.path, data)
    return node.path, data


async def test_a_node_left_by_a_crashed_writer_is_used(log, bucket, bodies):
    """An object that has a node's name counts after its content was compared: no error, no copy."""
    await append_one_by_one(log, FANOUT + 1)
    path, data = await leave_node(log, bucket)
    await append_one_by_one(log, 3)
    assert [path] == [p["path_to_snapshot"] for p in (await bucket.manifest())["snapshots"]]
    assert data == await bucket.get(path)
    assert FANOUT + 4 == len(await bodies(log))


async def test_a_damaged_object_under_a_nodes_name_is_never_named(log, bucket, bodies):
    """A node with a child more takes its place; nothing is lost and appends go on."""
    await append_one_by_one(log, FANOUT + 1)
    path, _ = await leave_node(log, bucket, b"{}")
    async with log.writer() as writer:
        for _ in range(4):
            await writer.append(b"more")
    (pointer,) = (await bucket.manifest())["snapshots"]
    assert path != pointer["path_to_snapshot"]
    assert FANOUT + 5 == len(await bodies(log))
    assert (await log.scrub(deep=True)).ok


async def test_large_batches_fold_as_well(log, bucket, bodies):
    """Fragments that arrive several to a manifest end in the same kind of tree."""
    async with log.writer(create=True, options=Options(batch_bytes=40)) as writer:
        answers = [writer.append(b"%06d" % n) for n in range(400)]
        assert list(range(1, 401)) == [await answer for answer in answers]
    assert 400 == len(await bodies(log))
    manifest = await bucket.manifest()
    assert 200 <= len(await bucket.slots())
    assert 40 > len(manifest["fragments"]) + len(manifest["snapshots"])
