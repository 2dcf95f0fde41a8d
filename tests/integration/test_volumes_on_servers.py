"""The same volumes on a real S3 server, a real Azure server, and in a directory."""

from __future__ import annotations

import numpy as np
import pytest

import cordwood
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import AlreadyExistsError, ConflictError, ContendedError
from cordwood.volume.branches import create_branch, create_volume
from cordwood.volume.cache import PackCache
from cordwood.volume.checkpoints import make_checkpoint
from cordwood.volume.collect import Collector
from cordwood.volume.format import NO_HASH, Commit, Provenance, seal
from cordwood.volume.history import History
from cordwood.volume.pack import PackBuilder
from cordwood.volume.reader import PageReader
from cordwood.volume.remote import Remote
from cordwood.volume.tags import delete_tag, set_tag

PAGE = 4096


@pytest.fixture(
    params=[
        "file",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("azure", marks=pytest.mark.azure),
    ]
)
def remote(request, tmp_path):
    """Volumes under a fresh prefix."""
    if request.param == "file":
        store = cordwood.Store(f"file://{tmp_path}/store")
    else:
        server = request.getfixturevalue(request.param)
        store = cordwood.Store(f"{server.url}/{SYSTEM_ENTROPY.token()}", **server.options)
    return Remote(store, SYSTEM_CLOCK, SYSTEM_ENTROPY)


def sealed_after(remote, log, before, numbers):
    """A commit that writes these pages, and its pack."""
    builder = PackBuilder(PAGE)
    text = f"version {before.lsn + 1}".encode()
    builder.add(np.array(numbers, np.uint32), text.ljust(PAGE) * len(numbers))
    built = builder.finish(remote.new_id(), log)
    who = Provenance(remote.entropy.token(), 0, remote.entropy.token())
    count = max(before.page_count, *numbers)
    return (
        seal(
            Commit(
                log,
                before.lsn + 1,
                before.hash or NO_HASH,
                remote.clock.now_us(),
                "",
                who,
                PAGE,
                count,
                before.page_count,
                (built.pack,),
            )
        ),
        built,
    )


async def test_a_volume_lives_on_every_store(remote, tmp_path):
    """Push, read by range, branch, checkpoint, tags, conflicts, collection."""
    log = (await create_volume(remote, "app", page_size=PAGE, grace_s=0.001)).log
    history = History(remote, str(tmp_path / "one"))
    for numbers in (list(range(1, 400)), [7], [8, 9]):
        sealed, built = sealed_after(remote, log, await history.fetch(log), numbers)
        await remote.put_pack(built)
        await remote.put_commit(sealed)
        await remote.put_commit(sealed)
    other, _ = sealed_after(remote, log, await history.fetch(log, 2), [1])
    with pytest.raises(ConflictError):
        await remote.put_commit(other)
    snapshot = await history.fetch(log)
    cache = PackCache(remote, str(tmp_path / "one"))
    reader = PageReader(snapshot, history, cache, PAGE)
    texts = [(await reader.read(page)).strip() for page in (1, 7, 8, 400)]
    assert [b"version 1", b"version 2", b"version 3", bytes(PAGE)] == texts
    assert 0 < cache.fetched_bytes < 10_000
    with pytest.raises(AlreadyExistsError):
        await create_branch(remote, log, snapshot, "app")
    branch = await create_branch(remote, log, await history.fetch(log, 2), "branch")
    assert 2 == (await history.fetch(branch.log)).lsn
    seen = await remote.get_tag("branch")
    await set_tag(remote, "branch", log, seen=seen)
    with pytest.raises(ContendedError):
        await set_tag(remote, "branch", branch.log, seen=seen)
    await make_checkpoint(history, reader, log)
    await delete_tag(remote, "branch")
    removed, collected = set(), set()
    for _ in range(2_000):
        # Some stores keep whole seconds, and the grace is at least one of them there.
        report = await Collector(remote, keep_s=0).collect()
        removed |= set(report.removed)
        collected |= set(report.collected)
        if removed and collected:
            break
    assert ({branch.log}, {log}) == (removed, collected)
    fresh = History(remote, str(tmp_path / "two"))
    page = PageReader(await fresh.fetch(log), fresh, PackCache(remote, str(tmp_path / "two")), PAGE)
    assert b"version 3" == (await page.read(9)).strip()
    assert 3 == page.snapshot.lsn
