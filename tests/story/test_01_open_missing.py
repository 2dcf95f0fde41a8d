"""Story 01: a log that does not exist is said not to exist, and nothing is made by asking."""

from __future__ import annotations

import pytest

from cordwood import Code, NotFoundError


async def open_writer(log):
    """Open a writer."""
    async with log.writer():
        pass


async def open_reader(log):
    """Open a reader."""
    async with log.reader():
        pass


async def read_unopened(log):
    """Read without opening."""
    return [record async for record in log.reader().read()]


async def tail_unopened(log):
    """Follow without opening."""
    return [record async for record in log.reader().tail()]


@pytest.mark.parametrize(
    "ask",
    [
        open_writer,
        open_reader,
        read_unopened,
        tail_unopened,
        lambda log: log.state(),
        lambda log: log.scrub(),
        lambda log: log.scrub(deep=True),
        lambda log: log.manifest(),
        lambda log: log.reader().scan(),
        lambda log: log.reader().offset_at(0),
    ],
    ids=[
        "writer",
        "reader",
        "read",
        "tail",
        "state",
        "scrub",
        "deep scrub",
        "manifest",
        "scan",
        "offset_at",
    ],
)
async def test_a_missing_log_is_not_found(log, bucket, ask):
    """NotFoundError with the code no_such_log, the name and what to do; the store stays empty."""
    with pytest.raises(NotFoundError, match="orders") as caught:
        await ask(log)
    assert Code.NO_SUCH_LOG == caught.value.code
    assert "create" in caught.value.hint
    assert isinstance(caught.value, LookupError)
    assert [] == await bucket.keys()


async def test_naming_a_log_asks_nothing(log, bucket):
    """Neither the log nor its reader or writer touch the store before they are used."""
    log.reader()
    log.writer()
    assert [] == await bucket.keys()


async def test_a_missing_log_can_be_made_while_opening(log, bucket, bodies):
    """`create=True` makes it; the same call opens it the next time."""
    for body in (b"first", b"second"):
        async with log.writer(create=True) as writer:
            await writer.append(body)
    assert [b"first", b"second"] == await bodies(log)
    assert [1, 2] == await bucket.slots()
