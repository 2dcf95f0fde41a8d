"""Story 52: who reads one stream does not touch what cannot hold it, and misses nothing."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

import cordwood
from cordwood.log import bulk, paths, sieve
from cordwood.testing.filling import settle
from cordwood.testing.handclock import FlyingClock


def touched(seen):
    """The fragments that were asked for, each once."""
    marks = ("FragmentSeqNo", "Uuid", "/shard")
    return {key for operation, key in seen.calls if any(mark in str(key) for mark in marks)}


async def read_stream(store, stream, name="orders", **options):
    """The offsets of one stream."""
    async with cordwood.Log(cordwood.Store.over(store), name).reader(**options) as reader:
        return [record.offset async for record in reader.read(stream=stream)]


async def fill(log, fragments, streams_of):
    """A fragment with a record for each stream of `streams_of(number)`; where each stream lies."""
    places = {}
    async with log.writer() as writer:
        for number in range(fragments):
            names = streams_of(number)
            offset = await writer.append_arrow(
                pa.table({"body": [b""] * len(names), "stream": pa.array(names, pa.string())})
            )
            for at, name in enumerate(names):
                places.setdefault(name, []).append(offset + at)
        await settle(writer)
    return places


@pytest.fixture
async def sparse(log, memory):
    """Two hundred fragments, each with the stream of its number, and a common one."""
    await log.create()
    await log.streams.open("common", *(f"s{n}" for n in range(200)))
    await fill(log, 200, lambda n: [f"s{n}", "common"])
    return log


async def test_one_of_ten_thousand_streams_in_a_thousand_fragments(log, memory, hooked, bucket):
    """No more than 2 % more fragments are touched than hold the streams asked for."""
    # EVIDENCE-OF: G-101
    await log.create()
    names = [f"stream-{n}" for n in range(10_000)]
    await log.streams.open(*names)
    chance = np.random.default_rng(7)
    # The first of them far more often than the last, which may be in one fragment alone.
    drawn = [(10_000 * chance.random(100) ** 2).astype(int) for _ in range(1_000)]
    places = await fill(log, 1_000, lambda n: sorted({names[i] for i in drawn[n]}))
    assert 16_000 > len(await bucket.get(paths.MANIFEST))
    async with log.reader() as reader:
        starts = [fragment.start for fragment in await reader.scan()]
    held = num_touched = 0
    for name in [names[i] for i in chance.integers(0, 10_000, 40)]:
        seen = hooked(memory)
        assert places.get(name, []) == await read_stream(seen, name)
        held += len(set(np.searchsorted(starts, places.get(name, []), "right")))
        num_touched += len(touched(seen))
    assert 0 < held <= num_touched <= 1.02 * held


async def test_whole_subtrees_are_passed_over(sparse, memory, hooked):
    """A stream in one fragment of two hundred: that fragment, and the nodes above it, are read."""
    for stream, offset in (("s3", 7), ("s120", 241), ("s199", 399)):
        seen = hooked(memory)
        assert [offset] == await read_stream(seen, stream)
        assert 1 == len(touched(seen))
        nodes = [key for _, key in seen.calls if "SNAPSHOT" in str(key)]
        assert len(nodes) <= 3
        assert len(seen.calls) < 30
    seen = hooked(memory)
    assert [] == await read_stream(seen, "never")
    assert set() == touched(seen)


async def test_a_reader_without_filters_misses_nothing(sparse, memory, bucket, hooked):
    """All filters deleted, cut off, turned into others', or each bit damaged: more is read."""
    # EVIDENCE-OF: G-101
    keys = [key for key in await bucket.keys() if key.startswith("filter/")]
    kept = {key: await bucket.get(key) for key in keys}
    assert 20 < len(keys)
    others = dict(zip(keys, [*keys[1:], keys[0]], strict=True))
    damages = [
        lambda key: None,
        lambda key: kept[key][:-1],
        lambda key: b"",
        lambda key: kept[others[key]],
        lambda key: kept[key].replace(b'"format":1', b'"format":2'),
        lambda key: json.dumps({**json.loads(kept[key]), "children": []}).encode(),
    ]
    for damage in damages:
        for key in keys:
            data = damage(key)
            await (bucket.delete(key) if data is None else bucket.put(key, data))
        assert [7] == await read_stream(memory, "s3")


async def test_a_flipped_bit_never_hides_a_record(sparse, memory, bucket):
    """In any byte of a filter object, and of the filters in the manifest."""
    # EVIDENCE-OF: G-101
    async with sparse.reader() as reader:
        (fragment,) = await reader.scan(stream="s3")
    manifest = await sparse.manifest()
    pointer = manifest.nodes[0]
    while pointer.depth > 1:
        node = await sparse.objects.read_node(pointer)
        pointer = next(child for child in node.children if child.limit > fragment.start)
    key = paths.filters(pointer.path)
    data = await bucket.get(key)
    for at in range(0, len(data), 11):
        await bucket.put(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert [7] == await read_stream(memory, "s3")


async def test_a_damaged_filter_in_the_manifest_is_no_filter(sparse, memory, bucket):
    """Its fragment is read."""
    document = await bucket.manifest()
    there = document["cordwood"]["filters"]
    assert 0 < len(there) <= 20
    for slot, text in there.items():
        for at in range(0, len(text), 5):
            letter = "B" if text[at] != "B" else "C"
            there[slot] = text[:at] + letter + text[at + 1 :]
            await bucket.put(paths.MANIFEST, json.dumps(document).encode())
            assert [399] == await read_stream(memory, "s199")
        there[slot] = text


async def test_fragments_of_an_earlier_version_are_read(log, memory, monkeypatch, hooked):
    """A log that has streams and no filters at all, and one that got them later."""
    await log.create()
    await log.streams.open("a", "b")
    with monkeypatch.context() as patch:
        # As it was before there were filters.
        patch.setattr("cordwood.log.folding.with_filters", lambda manifest, _: manifest)
        patch.setattr("cordwood.log.flight.footer_text", lambda *_: "")
        await fill(log, 40, lambda n: ["ab"[n % 2]])
    assert "streams" not in (await log.state()).features
    assert list(range(1, 41, 2)) == await read_stream(memory, "a")
    await fill(log, 40, lambda n: ["b"])
    seen = hooked(memory)
    assert list(range(1, 41, 2)) == await read_stream(seen, "a")
    assert 40 <= len(touched(seen)) < 60


async def test_two_writers_know_each_others_streams(memory, hooked):
    """Filters of nodes over fragments of both: what is not known is asked of the footers."""
    store = cordwood.Store.over(memory)
    logs = [cordwood.Log(store, "orders") for _ in range(2)]
    await logs[0].create()
    await logs[0].streams.open("mine", "theirs", "rare")
    async with logs[0].writer() as mine, logs[1].writer() as theirs:
        for number in range(60):
            await mine.append(b"", stream="rare" if number == 20 else "mine")
            await theirs.append(b"", stream="theirs")
        await settle(mine)
        await settle(theirs)
    seen = hooked(memory)
    assert [41] == await read_stream(seen, "rare")
    whole = {key for op, key in seen.calls if op == "get_range"}
    assert 1 == len(whole)


@pytest.mark.parametrize("told", [1, 1_024])
async def test_bulk_commits_have_filters(log, memory, hooked, bucket, monkeypatch, told):
    """Uploads of many tasks in one commit, folded at once; and a second one behind it.

    What an upload has too many streams to tell of is read from its footer.
    """
    monkeypatch.setattr(bulk, "STAGED_STREAMS_MAX", told)
    await log.create()
    await log.streams.open("common", *(f"s{n}" for n in range(120)))
    for batch in range(2):
        token = cordwood.Token("job", batch)
        staged = []
        for n in range(60):
            names = [f"s{60 * batch + n}", "common", None]
            staged.append(await log.stage(pa.table({"body": [b""] * 3, "stream": names}), token))
        await log.commit(staged, token)
    assert 10 < len([key for key in await bucket.keys() if key.startswith("filter/")])
    for stream, offset in (("s0", 1), ("s59", 178), ("s60", 181), ("s119", 358)):
        seen = hooked(memory)
        assert [offset] == await read_stream(seen, stream)
        # Of those in the root nothing is known if nothing was told.
        assert len(touched(seen)) <= (1 if told > 1 else 9)
    assert 120 == len(await read_stream(memory, "common"))
    assert (await log.scrub(deep=True)).ok


async def test_filters_go_with_what_they_describe(sparse, memory, bucket, hooked):
    """Collected nodes take their filters with them; the nodes that the cut made have filters."""
    # EVIDENCE-OF: G-103
    async with sparse.reader() as reader:
        first = (await reader.scan(1))[0].path
    await sparse.cursors.save("c", 300, await sparse.cursors.init("c", 1))
    await sparse.collect(wait_s=0)
    before = await bucket.keys()
    assert first in before
    memory._clock = later = FlyingClock()
    later.us = 4_000_000_000_000_000
    assert 100 < (await sparse.sweep()).deleted
    keys = await bucket.keys()
    assert first not in keys
    left = {key for key in keys if key.startswith("filter/")}
    assert {paths.filters(path) for path in await nodes_of(sparse)} == left
    assert 10 < len({key for key in before if key.startswith("filter/")} - left)
    for stream, offset in (("s199", 399), ("s150", 301), ("s170", 341)):
        seen = hooked(memory)
        assert [offset] == await read_stream(seen, stream)
        assert 1 == len(touched(seen))


async def nodes_of(log):
    """The paths of every node that the log names."""
    found, pending = [], list((await log.manifest()).nodes)
    while pending:
        pointer = pending.pop()
        found.append(pointer.path)
        pending += (await log.objects.read_node(pointer)).nodes
    return found


async def test_pins_forks_and_copies_skip_as_well(sparse, memory, hooked):
    """A copy has its filters, a fork finds its parent's, a pin reads what it holds."""
    # EVIDENCE-OF: G-103
    copied, forked = (cordwood.Log(sparse.store, name) for name in ("copied", "forked"))
    await sparse.copy(copied)
    await sparse.fork(forked)
    await sparse.pin("backup", 1, 300)
    for name in ("copied", "forked"):
        seen = hooked(memory)
        assert [7] == await read_stream(seen, "s3", name)
        # The newest fragments lie in the root, whose filters are not handed on.
        assert len(touched(seen)) <= 1 + 20
        assert 200 == len(await read_stream(memory, "common", name))
    seen = hooked(memory)
    assert [7] == await read_stream(seen, "s3", pin="backup")
    assert len(touched(seen)) <= 1 + 8


async def test_a_root_stays_small_whatever_its_streams(log, bucket, memory, hooked):
    """Fragments with a thousand streams each: filters that do not fit are left to the footers."""
    await log.create()
    names = [f"stream-{n}" for n in range(3_000)]
    await log.streams.open(*names)
    body = b"x" * 1_000
    async with log.writer(options=cordwood.Options(compression="none")) as writer:
        for number in range(20):
            some = names[number % 3 :: 3]
            table = pa.table({"body": [body] * 1_000, "stream": some})
            await writer.append_arrow(table)
        await settle(writer)
    assert 16_000 > len(await bucket.get(paths.MANIFEST))
    seen = hooked(memory)
    assert 7 == len(await read_stream(seen, "stream-1"))
    async with log.reader() as reader:
        assert 7 == len(await reader.scan(stream="stream-1"))


def test_no_more_filters_than_there_is_room_for():
    """Each fragment has its share; what is there already is kept without being known here."""
    from cordwood.log import tree
    from cordwood.log.filters import StreamSet
    from cordwood.log.format import ZERO, Fragment, WriterTag

    tag = WriterTag("0" * 32, "1" * 32, "0" * 32, 0)
    fragments = [Fragment.of(paths.fragment(n), n, n, n + 1, 1, ZERO) for n in range(1, 21)]
    manifest = tree.append(tree.empty(tag), fragments, tag)
    assert sieve.with_filters(manifest, {1: StreamSet.of([])}) is manifest
    known = {n: StreamSet.of(f"{n} {i}" for i in range(300)) for n in range(1, 21)}
    full = sieve.with_filters(manifest, known)
    texts = full.cordwood.filters
    assert {str(n) for n in range(1, 21)} == set(texts)
    assert 6_000 < sum(map(len, texts.values())) < sieve.FILTERS_BYTES_MAX
    sets = sieve.root_sets(full)
    assert all(sets[n].may_hold(f"{n} {i}") for n in sets for i in range(300))
    assert sieve.with_filters(full, {}) == full
