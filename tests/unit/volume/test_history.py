"""Histories: what is pushed is read, by any path; what is missing or damaged is fetched again."""

from __future__ import annotations

import asyncio
import os
import tempfile

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from volume_desk import PAGE, Desk, bytes_of

from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    CorruptionError,
    NotFoundError,
)
from cordwood.volume import paths
from cordwood.volume.checkpoints import discover, make_checkpoint
from cordwood.volume.format import GRACE_S, Manifest, Parent
from cordwood.volume.history import History
from cordwood.volume.snapshot import changed_pages, path_of

ZEROS = bytes(PAGE)


async def test_a_volume_without_commits_has_no_pages(desk):
    """LSN 0, zeros wherever one looks."""
    log = await desk.volume()
    reader = await desk.reader(log)
    assert (0, 0) == (reader.snapshot.lsn, reader.snapshot.page_count)
    assert ZEROS == reader.peek(1) == await reader.read(9)


async def test_shrink_then_grow_reads_zeros(desk):
    """A page that was cut off is gone, also when the volume grows over it again."""
    log = await desk.volume()
    await desk.push(log, {n: bytes_of(1, n) for n in range(1, 9)})
    await desk.push(log, {2: bytes_of(2, 2)}, page_count=8, cut=3)
    expected = {n: bytes_of(1, n) if n < 4 else ZEROS for n in range(1, 9)}
    expected[2] = bytes_of(2, 2)
    assert expected == await desk.content(log)
    assert bytes_of(1, 7) == (await desk.content(log, 1))[7]


async def test_a_branch_goes_on_from_its_parent(desk):
    """LSNs continue; what the parent does later is not seen; `at` reaches into the parent."""
    log = await desk.volume()
    for n in range(1, 4):
        await desk.push(log, {n: bytes_of(n, n)})
    child = await desk.branch(log, 2, "experiment")
    await desk.push(log, {1: bytes_of(99, 1)})
    snapshot = await desk.push(child, {5: bytes_of(50, 5)})
    assert 3 == snapshot.lsn
    assert bytes_of(1, 1) == (await desk.content(child))[1]
    assert {1: bytes_of(1, 1)} == await desk.content(child, 1)
    assert bytes_of(99, 1) == (await desk.content(log))[1]
    other = Desk(os.path.join(desk.directory, "elsewhere"), desk.store, seed=2)
    assert await desk.content(child) == await other.content(child)


OPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"),
            st.integers(0, 3),
            st.sets(st.integers(1, 70), max_size=12),
            st.integers(0, 80),
            st.integers(0, 80),
        ),
        st.tuples(st.just("branch"), st.integers(0, 3), st.integers(0, 50)),
        st.tuples(st.just("checkpoint"), st.integers(0, 3), st.integers(0, 50)),
    ),
    min_size=4,
    max_size=60,
)


async def play(ops, directory):
    """Run operations on the store and on dictionaries, and compare all versions in the end."""
    desk = Desk(directory)
    first = await desk.volume()
    logs = [first]
    versions = {first: {0: ({}, 0)}}
    for step, op in enumerate(ops):
        log = logs[op[1] % len(logs)]
        known = versions[log]
        newest = max(known)
        if op[0] == "push":
            content, count = known[newest]
            _, _, pages, until, cut = op
            cut = min(cut, count)
            after = max(until, cut)
            written = {n: bytes_of(step, n) for n in pages if n <= after}
            kept = {n: data for n, data in content.items() if n <= cut}
            await desk.push(log, written, page_count=after, cut=cut)
            known[newest + 1] = ({**kept, **written}, after)
        elif op[0] == "branch" and len(logs) < 4:
            at = sorted(known)[op[2] % len(known)]
            child = await desk.branch(log, at, f"b{step}")
            logs.append(child)
            versions[child] = {lsn: v for lsn, v in known.items() if lsn <= at}
        elif op[0] == "checkpoint":
            base = ((await desk.history.refresh(log)).first - 1) or 1
            own = [lsn for lsn in known if lsn >= base]
            if own:
                reader = await desk.reader(log, own[op[2] % len(own)])
                await make_checkpoint(desk.history, reader, log)
    fresh = Desk(os.path.join(directory, "fresh"), desk.store, seed=9)
    for log, known in versions.items():
        for lsn in sorted({*list(known)[-2:], *list(known)[::5]}):
            content, count = known[lsn]
            reader = await fresh.reader(log, lsn)
            assert (lsn, count) == (reader.snapshot.lsn, reader.snapshot.page_count)
            expected = {n: content.get(n, ZEROS) for n in range(1, 82)}
            assert expected == {n: await reader.read(n) for n in range(1, 82)}
            version = await reader.resolve()
            found = {}
            async for numbers, data in reader.batches(version):
                found |= {int(n): data[i * PAGE : (i + 1) * PAGE] for i, n in enumerate(numbers)}
            assert content == found


@settings(max_examples=40)
@given(OPS)
def test_resolution_is_what_dictionaries_say(ops):
    """Pushes, cuts, branches of branches and checkpoints, one by one and all at once."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(ops, directory))


async def test_filters_are_made_and_change_nothing(desk):
    """After 70 commits there are two filters; a walk opens few commits, and finds the same."""
    log = await desk.volume()
    rng = np.random.default_rng(4)
    expected = {}
    for lsn in range(1, 71):
        number = int(rng.integers(1, 60)) if lsn < 40 else 1
        expected[number] = bytes_of(lsn, number)
        await desk.push(log, {number: expected[number]}, page_count=60, cut=60 if lsn > 1 else 0)
    folder = os.path.join(desk.directory, log, "commit-filter")
    assert 2 == len(os.listdir(folder))
    fresh = History(desk.remote, desk.directory)
    asked = []
    commit = fresh.commit
    fresh.commit = lambda log, lsn: asked.append(lsn) or commit(log, lsn)
    snapshot = fresh.snapshot(log, 70)
    asked.clear()
    old = next(n for n in range(2, 61) if n in expected)
    assert snapshot.find(old) is not None
    assert len(asked) < 50
    assert set(range(33, 65)).isdisjoint(asked)
    assert {n: expected.get(n, ZEROS) for n in range(1, 61)} == await desk.content(log)


@pytest.mark.parametrize("kind", ["commits", "checkpoints", "commit-filter", "manifest"])
async def test_a_damaged_local_file_is_fetched_again(desk, kind):
    """Every file of the local copy may be damaged or gone."""
    log = await desk.volume()
    for lsn in range(1, 41):
        await desk.push(log, {lsn: bytes_of(lsn, lsn)})
    await make_checkpoint(desk.history, await desk.reader(log, 5), log)
    expected = await desk.content(log)
    folder = os.path.join(desk.directory, log)
    places = [os.path.join(folder, kind)]
    if kind != "manifest":
        places = [os.path.join(folder, kind, name) for name in sorted(os.listdir(places[0]))]
    assert places
    for place in places[:-1]:
        desk.history.disk.overwrite(place, b"damaged", 40)
    os.unlink(places[-1])
    desk.history = History(desk.remote, desk.directory)
    assert expected == await desk.content(log)


async def test_a_commit_that_does_not_follow_is_refused(desk):
    """History is a chain: a commit with another parent is found out, whoever put it there."""
    log = await desk.volume()
    before = await desk.push(log, {1: bytes_of(1, 1)})
    before.hash = bytes(31) + b"\1"
    sealed, packs = desk.sealed(log, before, {1: bytes_of(2, 1)})
    for built in packs:
        await desk.remote.put_pack(built)
    await desk.remote.put_commit(sealed)
    with pytest.raises(CorruptionError, match="is not the commit that LSN 2"):
        await desk.history.fetch(log)


async def test_a_gap_is_refused(desk):
    """A commit that is missing in between is damage."""
    log = await desk.volume()
    for n in (1, 2, 3):
        await desk.push(log, {1: bytes_of(n, 1)})
    await desk.store.delete([paths.commit(log, 2)])
    other = Desk(os.path.join(desk.directory, "x"), desk.store)
    with pytest.raises(CorruptionError, match="commit 2 is missing"):
        await other.history.fetch(log)


async def test_versions_that_are_not_there(desk):
    """One clear error each."""
    log = await desk.volume()
    with pytest.raises(NotFoundError, match="has no LSN 1"):
        await desk.history.fetch(log, 1)
    with pytest.raises(NotFoundError, match="no log"):
        await desk.history.fetch("0" * 32)
    with pytest.raises(AlreadyExistsError, match="'app' means another volume"):
        await desk.volume()
    assert 1 == len(await desk.keys("logs/"))


async def test_two_pushes_of_one_lsn(desk):
    """One wins, the other is told; the winner may say so again."""
    log = await desk.volume()
    before = await desk.history.fetch(log)
    one, _ = desk.sealed(log, before, {})
    other, _ = desk.sealed(log, before, {})
    await desk.remote.put_commit(one)
    await desk.remote.put_commit(one)
    with pytest.raises(ConflictError, match="is another commit"):
        await desk.remote.put_commit(other)


async def test_a_place_that_was_collected_is_not_free(desk):
    """A commit put where another was collected is refused, though the key is free."""
    log = await desk.volume()
    before = await desk.history.fetch(log)
    late, _ = desk.sealed(log, before, {})
    for n in (1, 2, 3):
        await desk.push(log, {1: bytes_of(n, 1)})
    await make_checkpoint(desk.history, await desk.reader(log, 3), log)
    await desk.remote.swap(
        log, lambda now: msgspec.structs.replace(now, collected=3, checkpoints=(3,))
    )
    await desk.store.delete([paths.commit(log, 1), paths.commit(log, 2)])
    with pytest.raises(ConflictError):
        await desk.remote.put_commit(late)
    with pytest.raises(CollectedError, match="oldest version that is kept is 3"):
        await desk.history.fetch(log, 1)
    other = Desk(os.path.join(desk.directory, "x"), desk.store)
    assert {1: bytes_of(3, 1)} == await other.content(log)


async def test_a_checkpoint_nobody_announced_is_discovered(desk):
    """Its maker died between the two puts; one whose packs are gone is not added."""
    log = await desk.volume()
    for n in range(1, 5):
        await desk.push(log, {n: bytes_of(n, n)})
    for lsn in (2, 4):
        await make_checkpoint(desk.history, await desk.reader(log, lsn), log)
    await desk.remote.swap(log, lambda now: msgspec.structs.replace(now, checkpoints=()))
    checkpoint = (await desk.remote.get_checkpoint(log, 4)).commit
    gone = next(p.id for p in checkpoint.packs if 4 in p.live)
    data = (await desk.store.get(paths.pack(gone))).data
    await desk.store.delete([paths.pack(gone)])
    assert [] == await discover(desk.history, log)  # its maker may be at it
    desk.clock.pass_s(GRACE_S + 2)
    assert [2] == await discover(desk.history, log)
    await desk.store.put(paths.pack(gone), data)
    assert [4] == await discover(desk.history, log)
    assert (2, 4) == desk.history.manifest(log).checkpoints


async def test_a_checkpoint_reuses_what_is_mostly_live(desk):
    """Named again with what counts; what is mostly dead or small is written into one new pack."""
    log = await desk.volume()
    await desk.push(log, {n: bytes_of(1, n) for n in range(1, 301)})
    await desk.push(log, {n: bytes_of(2, n) for n in range(1, 21)})
    await desk.push(log, {n: bytes_of(3, n) for n in range(1, 20)})
    before = len(await desk.keys("segments/"))
    expected = await desk.content(log)
    made = await make_checkpoint(desk.history, await desk.reader(log), log)
    assert (1, 1) == (made.packs_reused, made.packs_written)
    assert before + 1 == len(await desk.keys("segments/"))
    fresh = Desk(os.path.join(desk.directory, "f"), desk.store)
    assert expected == await fresh.content(log)
    # The checkpoint is all that was needed.
    assert {"manifest", "checkpoints", "segments"} == {
        *os.listdir(os.path.join(fresh.directory, log))
    }


async def test_differences_are_found(desk):
    """Between any two versions, in both directions; a page cut off differs too."""
    log = await desk.volume()
    await desk.push(log, {n: bytes_of(1, n) for n in range(1, 9)})
    await desk.push(log, {2: bytes_of(2, 2)}, page_count=6, cut=6)
    one = await (await desk.reader(log, 1)).resolve()
    two = await (await desk.reader(log, 2)).resolve()
    none = await (await desk.reader(log, 0)).resolve()
    assert [2, 7, 8] == changed_pages(one, two).tolist() == changed_pages(two, one).tolist()
    assert [] == changed_pages(one, one).tolist()
    assert list(range(1, 9)) == changed_pages(none, one).tolist()


def manifest_of(log, parent=None, lsn=0, **rest):
    """A manifest for paths."""
    root = Parent(parent, lsn, "ab" * 32) if parent else None
    return Manifest(
        log=log, page_size=PAGE, grace_s=1.0, created_us=0, nonce=log, parent=root, **rest
    )


def test_branches_of_branches_take_no_recursion():
    """Five thousand deep, and a path that is as long; a circle is found."""
    manifests = {f"{0:032x}": manifest_of(f"{0:032x}")}
    for depth in range(1, 5_001):
        log, parent = f"{depth:032x}", f"{depth - 1:032x}"
        manifests[log] = manifest_of(log, parent, depth)
    path = path_of(manifests.__getitem__, f"{5_000:032x}", 5_001)
    assert (5_001, 5_001, None) == (len(path.spans), path.lsn, path.checkpoint)
    assert [(5_001, 5_001), (5_000, 5_000)] == [(s.low, s.high) for s in path.spans[:2]]
    assert 1 == path_of(manifests.__getitem__, f"{5_000:032x}", 1).lsn
    manifests[f"{0:032x}"] = manifest_of(f"{0:032x}", f"{9:032x}", 7)
    with pytest.raises(CorruptionError, match="never end"):
        path_of(manifests.__getitem__, f"{20:032x}", 20)


def test_a_path_ends_at_the_newest_checkpoint_below():
    """In the log itself, in the child at its branch point, or in the parent."""
    one, two = f"{1:032x}", f"{2:032x}"
    manifests = {
        one: manifest_of(one, checkpoints=(3, 9)),
        two: manifest_of(two, one, 7, checkpoints=(7, 12)),
    }

    def ends(lsn):
        path = path_of(manifests.__getitem__, two, lsn)
        assert lsn == path.lsn
        return path.checkpoint

    assert [(two, 12), (two, 7), (two, 7), (one, 3), (one, 3), None] == [
        ends(lsn) for lsn in (15, 8, 7, 6, 3, 2)
    ]
