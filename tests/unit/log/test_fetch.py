"""Where fragments are decoded: large ones beside the event loop, whatever makes them large."""

from __future__ import annotations

import threading

import pytest

from cordwood import Log, Options
from cordwood.log import fragment as fragments


@pytest.fixture
def decoding(monkeypatch):
    """The threads that decode, or check."""
    threads = []

    def noted(function):
        def call(*args, **kwargs):
            threads.append(threading.current_thread())
            return function(*args, **kwargs)

        return call

    for name in ("decode", "check", "check_in_steps"):
        monkeypatch.setattr(fragments, name, noted(getattr(fragments, name)))
    return threads


@pytest.mark.parametrize(
    ("bodies", "is_large"),
    [([b""] * 20_000, True), ([bytes(300_000)], True), ([b"", b"a"], False)],
    ids=["many", "long", "small"],
)
@pytest.mark.parametrize("place", ["memory", "directory"])
async def test_large_fragments_do_not_hold_up_the_loop(tmp_path, decoding, place, bodies, is_large):
    """Also those of empty records, of which a compressed file has many in a few bytes."""
    log = Log("memory:" if place == "memory" else tmp_path.as_uri(), "log")
    options = Options(compression="zstd" if len(bodies) > 1 else "none")
    async with log.writer(create=True, options=options) as writer:
        await writer.append_many(bodies)
    async with log.reader() as reader:
        assert bodies == [record.body async for record in reader.read()]
    assert (await log.scrub(deep=True)).ok
    assert {is_large} == {thread is not threading.main_thread() for thread in decoding}
    assert 2 <= len(decoding)
