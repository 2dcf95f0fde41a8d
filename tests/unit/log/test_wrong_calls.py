"""What is given in the wrong kind is refused with one clear error, and nothing is done."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import cordwood
from cordwood import InvalidInputError, Limits, Setsum, sync
from cordwood.store.api import Match

CALLS = {
    "read": lambda log, wrong: log.reader().read(1, wrong),
    "read a stream": lambda log, wrong: log.reader().read(1, wrong, stream="s"),
    "scan": lambda log, wrong: log.reader().scan(1, wrong),
    "scan a stream": lambda log, wrong: log.reader().scan(1, wrong, stream="s"),
    "fetch": lambda log, wrong: log.reader().fetch(wrong),
    "fetch_bytes": lambda log, wrong: log.reader().fetch_bytes(wrong),
    "scrub": lambda log, wrong: log.scrub(limits=wrong),
    "copy": lambda log, wrong: log.copy(wrong),
    "fork": lambda log, wrong: log.fork(wrong),
    "migrate": lambda log, wrong: log.migrate(wrong),
    "find_write": lambda log, wrong: log.find_write(wrong),
    "writer": lambda log, wrong: log.writer(options=wrong),
    "save": lambda log, wrong: log.cursors.save("c", 1, wrong),
    "delete": lambda log, wrong: log.cursors.delete("c", wrong),
}
"""Each takes one thing of a kind of its own."""

NUMBERS = {
    "tail": lambda log, wrong: log.reader().tail(wrong),
    "offset_at": lambda log, wrong: log.reader().offset_at(wrong),
    "start": lambda log, wrong: log.scrub(start=wrong),
    "sample": lambda log, wrong: log.scrub(sample=wrong),
    "max_share": lambda log, wrong: log.collect(max_share=wrong),
    "grace_s": lambda log, wrong: log.collect(grace_s=wrong),
    "rate": lambda log, wrong: log.collect(rate=wrong),
}
"""Each takes a number that is not negative."""


@pytest.fixture
async def log(tmp_path):
    """A log with a few records."""
    made = cordwood.Log(tmp_path, "a")
    async with made.writer(create=True) as writer:
        await writer.append_many([b"one", b"two"])
    return made


async def done(result):
    """What a call gives, however it gives it."""
    if inspect.isawaitable(result):
        return await result
    return [item async for item in result] if inspect.isasyncgen(result) else result


@pytest.mark.parametrize("call", CALLS)
async def test_another_kind(log, call):
    """The error says what was expected, and what came."""
    before = await log.state()
    for wrong in (None, "x", -1, 1.5, b"y", [], object()):
        with pytest.raises(InvalidInputError, match=r" is a \w+, not "):
            await done(CALLS[call](log, wrong))
    assert before == await log.state()


@pytest.mark.parametrize("call", NUMBERS)
async def test_no_number(log, call):
    """Nor is what is no number compared with one."""
    for wrong in ("x", -1, b"y", [], float("nan")):
        with pytest.raises(InvalidInputError, match=r"number|is a int"):
            await done(NUMBERS[call](log, wrong))


async def test_twins_are_not_mixed(log):
    """Who does it is told what to do."""
    blocking = sync.Log(log.store, "b")
    with pytest.raises(InvalidInputError, match=r"cordwood\.sync"):
        await log.copy(blocking)
    for call in (blocking.copy, blocking.fork, blocking.migrate, sync.scrub_log):
        with pytest.raises(InvalidInputError, match=r"cordwood\.sync"):
            call(log)
    for wrong in ([log], "logs", None):
        with pytest.raises(InvalidInputError):
            sync.scrub_logs(wrong)
        with pytest.raises(InvalidInputError):
            sync.compact(wrong, sync.Table(log.store, "t"))


async def test_a_name_in_place_of_names(log):
    """A text is not taken for its letters."""
    for wrong in ("a", None, 1, [1]):
        with pytest.raises(InvalidInputError):
            await cordwood.collect_logs(log.store, wrong)
    for wrong in ("key", None, 1, [1]):
        with pytest.raises(InvalidInputError):
            await log.store.delete(wrong)


async def test_a_scrub_by_time(log):
    """It cannot be done, and is not passed over in silence."""
    with pytest.raises(InvalidInputError, match="by time"):
        await log.scrub(limits=Limits(start_time_us=1))


@pytest.mark.parametrize("mode", ["match", "Create", None, "etag-1", 1, []], ids=repr)
async def test_a_mode_that_is_none(log, mode):
    """It would be taken for `overwrite`: who forgot Match would replace somebody's object."""
    etag = await log.store.put("k", b"mine", "create")
    with pytest.raises(InvalidInputError, match=r"there is no mode .* Match"):
        await log.store.put("k", b"other", mode)
    assert (b"mine", etag) == await log.store.get("k")
    await log.store.put("k", b"other", Match(etag))


@pytest.mark.parametrize("wrong", [None, "text", 5, True, [1]], ids=repr)
async def test_an_object_that_is_no_bytes(log, wrong):
    """A number would become as many zeros."""
    with pytest.raises(InvalidInputError, match="an object is bytes"):
        await log.store.put("k", wrong)
    with pytest.raises(InvalidInputError):
        await log.store.get(None if wrong == "text" else wrong)
    with pytest.raises(InvalidInputError):
        await log.store.get_range("k", "0", 1)
    with pytest.raises(InvalidInputError):
        log.store.list(None)


@pytest.mark.parametrize("wrong", [None, "x", 1, []], ids=repr)
def test_a_setsum_of_what_is_no_bytes(wrong):
    """Texts have bytes only once they are encoded."""
    with pytest.raises(InvalidInputError):
        Setsum().insert(b"a", wrong)
    with pytest.raises(InvalidInputError):
        Setsum.from_hex(wrong)


async def test_a_path_names_a_log(log, tmp_path):
    """As it names a store; what else is no text does not."""
    assert log == cordwood.Log.from_url(Path(tmp_path) / "a")
    assert "a" == sync.Log.from_url(Path(tmp_path) / "a").name
    assert "t" == cordwood.Table(Path(tmp_path), "t").name
    for wrong in (None, 1, b"file:///a/b"):
        with pytest.raises(InvalidInputError, match="a log's URL"):
            cordwood.Log.from_url(wrong)
