"""Pins of reads: names that are used again, who renews them, and when they end."""

from __future__ import annotations

import subprocess
import sys
import threading

import msgspec
import pytest

from cordwood import AlreadyExistsError, CollectedError, Log, Store, sync
from cordwood.base.clock import SeededEntropy
from cordwood.log.pins import NAMES_MIN
from cordwood.spark import pins
from cordwood.spark.options import Frozen, parse
from cordwood.spark.pins import KeptPin, Renewal, make_pin
from cordwood.spark.plan import plan
from cordwood.spark.splits import Hold
from cordwood.testing.handclock import HandClock


@pytest.fixture
async def log():
    """A log with ten records."""
    made = Log(Store("memory:"), "log")
    async with made.writer(create=True) as writer:
        await writer.append_many([b"x"] * 10)
    return made


async def test_names_of_ended_pins_are_used_again(log):
    """A thousand reads one after the other leave a handful of objects, not a thousand."""
    entropy = SeededEntropy(1)
    for _ in range(200):
        pin = await make_pin(log, 1, 11, 60, entropy=entropy)
        await pin.release()
    left = [meta.key async for meta in log.store.list("log/pin/")]
    assert len(left) <= NAMES_MIN


async def test_reads_at_the_same_time_have_pins_of_their_own(log):
    """The set of names grows with them."""
    entropy = SeededEntropy(2)
    made = [await make_pin(log, 1, 11, 60, entropy=entropy) for _ in range(60)]
    assert len({pin.name for pin in made}) == 60
    assert len((await log.state()).pins) == 60


async def test_it_gives_up_where_every_name_is_taken(log, monkeypatch):
    """With an error that says so, instead of trying for ever."""
    monkeypatch.setattr("cordwood.log.pins.NAMES_GROWTH", 1)
    monkeypatch.setattr("cordwood.log.pins.NAMES_MIN", 1)
    await make_pin(log, 1, 11, 60)
    with pytest.raises(AlreadyExistsError, match="more pins"):
        await make_pin(log, 1, 11, 60)


async def etag_of(log, name):
    """Changes when a pin is renewed."""
    return (await log.store.head(f"log/pin/{name}.json")).etag


async def test_a_task_renews_when_a_third_of_the_time_has_passed(log):
    """Not before, and not again for every task of the same process."""
    clock = HandClock()
    pin = await make_pin(log, 1, 11, 60)
    hold = Hold(pin.name, 60, clock.now_us(), by_tasks=True)
    first = await etag_of(log, pin.name)
    clock.pass_s(19)
    await Renewal(log, hold, clock=clock).renew_if_due()
    assert await etag_of(log, pin.name) == first
    clock.pass_s(2)
    await Renewal(log, hold, clock=clock).renew_if_due()
    renewed = await etag_of(log, pin.name)
    assert renewed != first
    await Renewal(log, hold, clock=clock).renew_if_due()
    assert await etag_of(log, pin.name) == renewed


async def test_a_task_of_an_ended_pin_goes_on(log):
    """Reading shows whether anything is gone; the pin itself is not worth an error."""
    clock = HandClock()
    pin = await make_pin(log, 1, 11, 60)
    hold = Hold(pin.name, 60, clock.now_us(), by_tasks=True)
    await pin.release()
    clock.pass_s(1_000)
    await Renewal(log, hold, clock=clock).renew_if_due()
    with pytest.raises(CollectedError):
        await log.pinned(pin.name)


def test_the_driver_renews_until_it_releases(tmp_path, monkeypatch):
    """On the background loop, again and again; afterwards the pin has ended."""
    monkeypatch.setattr("cordwood.log.pins.RENEWALS", 10_000)
    log = Log(Store(str(tmp_path)), "log")
    blocking = sync.Log(log.store, "log")
    with blocking.writer(create=True) as writer:
        writer.append(b"x")
    pin = pins.portal.current().run(make_pin(log, 1, 2, 60))
    path = tmp_path / "log" / "pin" / f"{pin.name}.json"
    first = path.read_bytes()
    kept = KeptPin(log, pin)
    pause = threading.Event()
    for _ in range(500):
        if path.read_bytes() != first:
            break
        pause.wait(0.02)
    assert path.read_bytes() != first
    kept.release()
    kept.release()
    with pytest.raises(CollectedError):
        blocking.pinned(pin.name)


ENDS = """
import sys

from cordwood import Log, Store
from cordwood.base import portal
from cordwood.spark.pins import KeptPin, make_pin

log = Log(Store(sys.argv[1]), "log")
pin = portal.current().run(make_pin(log, 1, 2, 60))
KeptPin(log, pin)
print(pin.name)
"""


def test_a_driver_that_ends_releases_its_pins(tmp_path):
    """At the end of its process, also on a directory, which is written by threads."""
    log = sync.Log(Store(str(tmp_path)), "log")
    with log.writer(create=True) as writer:
        writer.append(b"x")
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    with pytest.raises(CollectedError):
        log.pinned(done.stdout.strip())


async def test_tasks_leave_the_pins_of_read_log_to_the_driver(tmp_path):
    """Two who renew one pin would refuse each other: the driver's would be the last."""
    log = Log(f"file://{tmp_path}", "log")
    async with log.writer(create=True) as writer:
        await writer.append_many([b"x"] * 10)
    pin = await make_pin(log, 1, 11, 60)
    frozen = msgspec.json.encode([Frozen("log", 1, 11, pin.name)]).decode()
    (split,) = await plan(parse({"path": log.url, "frozen": frozen}))
    assert [False] == [work.hold.by_tasks for work in split.works]
    (split,) = await plan(parse({"path": log.url}))
    assert [True] == [work.hold.by_tasks for work in split.works]
