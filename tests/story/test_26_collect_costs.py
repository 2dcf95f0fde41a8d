"""Story 26: what it costs to collect 1,000 fragments out of 100,000, counted at the store."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

import cordwood
from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.format import Fragment, Manifest, encode
from cordwood.store.memory import MemoryStore

COUNT = 100_000
LEVELS = 6
"""FANOUT ** 6 > 100,000."""


def fragment(number):
    """A pointer; the object behind it is a single byte."""
    setsum = Setsum().insert(b"%d" % number).hexdigest()
    return Fragment.of(paths.fragment(number), number, number, number + 1, 1, setsum)


def write_by_hand():
    """A log of 100,000 fragments and its tree, without a writer: collection reads no fragment."""
    tag = tree.WriterTag("a" * 32, "b" * 32, "c" * 32, 1)
    level = [fragment(n) for n in range(1, COUNT)]
    roots, kept = [], [fragment(COUNT)]
    objects = {}
    while len(level) >= tree.FANOUT:
        nodes = [
            tree.make_node(level[i : i + tree.FANOUT], "w")
            for i in range(0, len(level) - len(level) % tree.FANOUT, tree.FANOUT)
        ]
        rest = level[len(nodes) * tree.FANOUT :]
        if rest and isinstance(rest[0], Fragment):
            kept = rest + kept
        else:
            roots = rest + roots
        objects.update({node.path: node for node in nodes})
        level = [node.pointer() for node in nodes]
    roots = level + roots
    manifest = Manifest(
        setsum_hex=Setsum.sum([p.setsum_hex for p in (*roots, *kept)]).hexdigest(),
        acc_bytes=COUNT,
        writer=str(tag),
        nodes=tuple(roots),
        fragments=tuple(kept),
    )
    written = {f"orders/{path}": msgspec.json.encode(node) for path, node in objects.items()}
    written |= {f"orders/{paths.fragment(n)}": b"x" for n in range(1, COUNT + 1)}
    written[f"orders/{paths.MANIFEST}"] = encode(manifest)
    return written


class Counting(MemoryStore):
    """A memory that counts requests and deleted objects."""

    def __init__(self, clock):
        """None yet."""
        super().__init__(clock=clock)
        self.counts = Counter()
        self.nodes_read = 0

    async def get(self, key):
        """Count it."""
        self.counts["get"] += 1
        self.nodes_read += "/snapshot/" in key
        return await super().get(key)

    async def head(self, key):
        """Count it."""
        self.counts["head"] += 1
        return await super().head(key)

    async def put(self, key, data, mode="overwrite"):
        """Count it."""
        self.counts["put"] += 1
        return await super().put(key, data, mode)

    async def delete(self, keys):
        """Count requests and objects."""
        keys = list(keys)
        self.counts["delete"] += 1
        self.counts["deleted"] += len(keys)
        await super().delete(keys)

    async def list(self, prefix="", start_after=""):
        """Count it."""
        self.counts["list"] += 1
        async for meta in super().list(prefix, start_after):
            yield meta


@pytest.fixture(scope="module")
def written():
    """The objects of the large log."""
    return write_by_hand()


@pytest.fixture
async def counted(time, written):
    """A store with the large log."""
    store = Counting(time)
    for key in sorted(written):
        await MemoryStore.put(store, key, written[key])
    store.counts.clear()
    return store


@pytest.mark.parametrize("end", [1_001, 1_004, 999, 513])
async def test_a_collection_costs_its_deletes_and_a_few_requests_per_level(counted, time, end):
    """The size of the log does not matter, nor where the cut falls."""
    # EVIDENCE-OF: G-60
    log = cordwood.Log(cordwood.Store.over(counted), "orders")
    await log.cursors.init("jobs", end)
    counted.counts.clear()
    report = await log.collect(wait_s=0)
    first = Counter(counted.counts)
    assert end - 2 <= report.records <= end - 1
    # Nodes read: the path, and one in FANOUT of the nodes that go.
    gone = end / tree.FANOUT
    assert counted.nodes_read <= 3 * LEVELS + gone / tree.FANOUT * 1.2
    assert first["put"] <= LEVELS + 6
    assert first["list"] <= 6
    assert first["get"] - counted.nodes_read <= 16
    assert 0 == first["deleted"]
    time.pass_s(601)
    counted.counts.clear()
    await log.collect(wait_s=0)
    second = counted.counts
    # What is deleted: slots, nodes over them, and a few names that may not exist.
    assert end - 2 <= second["deleted"] <= end * 8 / 7 + 3 * LEVELS + 16
    assert second["delete"] <= end / 500 + 4
    assert second["put"] + second["get"] + second["head"] + second["list"] <= 40


async def test_a_collection_with_nothing_to_do_costs_a_dozen_requests(counted):
    """As often as one likes."""
    # EVIDENCE-OF: G-60
    log = cordwood.Log(cordwood.Store.over(counted), "orders")
    await log.cursors.init("jobs", 1)
    counted.counts.clear()
    await log.collect(wait_s=0)
    assert 16 >= sum(counted.counts.values())
    assert 0 == counted.counts["put"]


async def test_all_of_it_goes_in_passes(counted, time):
    """A hundred thousand fragments, ten thousand at a time, with sums that balance every time."""
    log = cordwood.Log(cordwood.Store.over(counted), "orders")
    await log.cursors.init("jobs", COUNT + 1)
    passes = 0
    while (await log.state()).oldest_offset <= COUNT:
        await log.collect(wait_s=0)
        time.pass_s(601)
        await log.sweep()
        passes += 1
        assert passes < 20
    assert 10 <= passes
    assert (await log.scrub()).ok
    left = [m.key async for m in counted.list("orders/") if "/gc/" not in m.key]
    assert ["orders/cursor/jobs.json", f"orders/{paths.MANIFEST}"] == left
