"""The pool: opens once, closes at rest, stays within its bound, survives failures."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Code, Fleet, StateError, StoreError
from cordwood.base.clock import LoopClock
from cordwood.base.errors import InvalidInputError, NotFoundError
from cordwood.log import paths
from cordwood.testing.simloop import simulate

MANIFEST = f"log-1/{paths.MANIFEST}"


def opens(memory, name="log-1"):
    """How often a log was opened: each open reads the slot behind the end."""
    return sum(op == "get" and key.startswith(f"{name}/log/") for op, key in memory.calls)


async def test_concurrent_uses_open_a_log_once(memory, store):
    """A hundred appends at once share one writer, and keep their order."""
    # EVIDENCE-OF: G-53
    async with Fleet(store, "m1", create=True) as fleet:
        offsets = await asyncio.gather(*(fleet.append("log-1", b"%d" % n) for n in range(100)))
        assert list(range(1, 101)) == offsets
        assert (1, 1) == (opens(memory), fleet.num_open)


async def test_opening_and_closing_costs_two_requests(memory, store):
    """The manifest and the empty slot; a log that may have to be made costs one more."""
    async with Fleet(store, "m1", create=True) as fleet:
        await fleet.append("log-1", b"x")
    for create, expected in ((False, 2), (True, 3)):
        memory.calls.clear()
        async with Fleet(store, "m1", create=create) as fleet, fleet.writer("log-1"):
            pass
        assert expected == len(memory.calls), memory.calls


async def test_no_more_than_the_bound_are_open(store):
    """The log at rest for longest makes room; everything appended is durable."""
    # EVIDENCE-OF: G-53
    most = 0
    async with Fleet(store, "m1", create=True, max_open=3) as fleet:

        async def write(name):
            nonlocal most
            async with fleet.writer(name) as writer:
                await writer.append(name.encode())
                most = max(most, sum(e.has_place for e in fleet._pool._entries.values()))

        await asyncio.gather(*(write(f"log-{n % 20}") for n in range(200)))
        assert 3 >= fleet.num_open
    assert 3 == most
    for n in range(20):
        log = cordwood.Log(store, f"log-{n}")
        assert 10 == (await log.state()).records


async def test_the_least_recently_used_goes_first(store):
    """Not the first that was opened."""
    async with Fleet(store, "m1", create=True, max_open=2) as fleet:
        for name in ("a", "b", "a", "c"):
            await fleet.append(name, b"x")
        assert ["a", "c"] == sorted(fleet._pool._entries)


async def test_a_log_in_use_is_not_closed(store):
    """Who finds all places taken waits until one is given back."""
    # EVIDENCE-OF: G-53
    async with Fleet(store, "m1", create=True, max_open=1) as fleet:
        async with fleet.writer("a") as writer:
            other = asyncio.ensure_future(fleet.append("b", b"x"))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not other.done()
            assert 1 == await writer.append(b"y")
        assert 1 == await other
        assert ["b"] == list(fleet._pool._entries)


async def test_what_was_not_awaited_is_durable_when_the_log_is_closed(store):
    """Closing drains."""
    async with Fleet(store, "m1", create=True, max_open=1) as fleet:
        async with fleet.writer("a") as writer:
            future = writer.append(b"x")
        await fleet.append("b", b"y")
        assert 1 == await future


async def test_an_open_that_fails_leaves_nothing_behind(memory, store):
    """Everybody who waited is told; the next one opens again."""
    # EVIDENCE-OF: G-53
    async with Fleet(store, "m1", max_open=1) as fleet:
        results = await asyncio.gather(
            *(fleet.append("log-1", b"x") for _ in range(5)), return_exceptions=True
        )
        assert {NotFoundError} == {type(result) for result in results}
        await cordwood.Log(store, "log-1").create()
        assert 1 == await fleet.append("log-1", b"x")


async def test_cancelling_one_user_does_not_harm_another(memory, store):
    """The opening belongs to the pool."""
    gate = asyncio.Event()

    async def hold(key):
        if key == MANIFEST:
            await gate.wait()

    async with Fleet(store, "m1", create=True) as fleet:
        memory.before_put = hold
        one = asyncio.ensure_future(fleet.append("log-1", b"x"))
        two = asyncio.ensure_future(fleet.append("log-1", b"y"))
        for _ in range(10):
            await asyncio.sleep(0)
        one.cancel()
        gate.set()
        assert 1 == await two


async def test_a_broken_writer_is_replaced(store):
    """A writer that broke down is closed to its users, and opened anew for the next."""
    async with Fleet(store, "m1", create=True) as fleet:
        async with fleet.writer("a") as writer:
            await writer.append(b"x")
            writer._pipeline._break_down(RuntimeError("bug"))
            assert not writer.is_open
            assert 2 == await fleet.append("a", b"y")
        assert 3 == await fleet.append("a", b"z")


async def test_a_closed_fleet_takes_nothing(store):
    """And says so."""
    fleet = Fleet(store, "m1", create=True)
    await fleet.append("a", b"x")
    await fleet.close()
    with pytest.raises(StateError) as error:
        await fleet.append("a", b"x")
    assert Code.CLOSED is error.value.code


async def test_closing_waits_for_what_is_in_use(store):
    """An append under way when the fleet is closed still arrives."""
    fleet = Fleet(store, "m1", create=True)
    appends = [asyncio.ensure_future(fleet.append(f"log-{n}", b"x")) for n in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(fleet.close(), *appends)
    assert [1] * 20 == [append.result() for append in appends]
    assert 0 == fleet.num_open


def test_an_idle_log_is_closed_by_itself():
    """After `idle_s` without use, to the second; one that is used stays."""
    # EVIDENCE-OF: G-53

    async def main():
        async with Fleet("memory:", "m1", create=True, idle_s=10.0, clock=LoopClock()) as fleet:
            await fleet.append("a", b"x")
            await asyncio.sleep(6)
            await fleet.append("b", b"x")
            seen = [sorted(fleet._pool._entries)]
            await asyncio.sleep(5)
            seen.append(sorted(fleet._pool._entries))
            await asyncio.sleep(6)
            seen.append(sorted(fleet._pool._entries))
            await fleet.append("a", b"y")
            async with fleet.writer("b"):
                await asyncio.sleep(100)
                seen.append(sorted(fleet._pool._entries))
            return seen

    assert [["a", "b"], ["b"], [], ["b"]] == simulate(1, main)


@pytest.mark.parametrize(
    "wrong", [{"max_open": 0}, {"max_open": 1.5}, {"idle_s": -1.0}, {"idle_s": float("nan")}]
)
def test_what_cannot_work_is_refused(wrong):
    """When the fleet is made, not later."""
    with pytest.raises(InvalidInputError):
        Fleet("memory:", "m1", **wrong)


@pytest.mark.parametrize("member", ["", "a/b", "..", "a b", None])
def test_a_member_has_a_plain_name(member):
    """It becomes a folder in the store."""
    with pytest.raises(InvalidInputError):
        Fleet("memory:", member)


async def test_the_fleets_own_logs_are_not_for_users(store):
    """What begins with fleet/ is refused."""
    async with Fleet(store, "m1", create=True) as fleet:
        with pytest.raises(InvalidInputError, match="belongs to the fleet"):
            await fleet.append("fleet/m1/dirty", b"x")


async def test_a_mark_that_cannot_be_written_fails_the_append(memory, store):
    """Nothing of the log was written, and the next append works."""
    # EVIDENCE-OF: G-52
    is_broken = True

    async def refuse(key):
        if is_broken and key.startswith("fleet/"):
            raise StoreError("the store is full", code=Code.STORE_FULL)

    async with Fleet(store, "m1", create=True) as fleet:
        await cordwood.Log(store, "log-1").create()
        memory.before_put = refuse
        with pytest.raises(StoreError, match=r"nothing was written.*could not be marked") as error:
            await fleet.append("log-1", b"x")
        assert Code.STORE_FULL is error.value.code
        assert not [key for op, key in memory.calls if op == "put" and key.startswith("log-1/log/")]
        is_broken = False
        assert 1 == await fleet.append("log-1", b"x")
