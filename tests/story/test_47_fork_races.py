"""Forking step by step, with a collection, a crash or another fork between any two steps."""

from __future__ import annotations

import itertools

import pytest

import cordwood
from cordwood.log import paths
from cordwood.store.memory import MemoryStore
from cordwood.testing.filling import fill
from cordwood.testing.handclock import FlyingClock

OPERATIONS = ("get", "get_range", "head", "put", "delete", "sync")


class Steps:
    """A store over another one that stops before every request to let a test do something."""

    def __init__(self, hooked, inner):
        """Nothing to do yet."""
        self.count = 0
        self.before = {}
        """By the number of the request: what to await before it is sent."""

        async def step(call, *_):
            self.count += 1
            for action in self.before.get(self.count, ()):
                await action()
            return await call()

        self.store = cordwood.Store.over(hooked(inner, **dict.fromkeys(OPERATIONS, step)))


@pytest.fixture
def memory():
    """A store whose time flies."""
    return MemoryStore(FlyingClock())


@pytest.fixture
def log_of(memory):
    """`log_of(name)`: a log in the store itself, without steps."""
    return lambda name: cordwood.Log(cordwood.Store.over(memory), name)


async def count_steps(hooked, memory, parent, start):
    """How many requests a fork takes that nobody disturbs."""
    steps = Steps(hooked, memory)
    child = cordwood.Log(steps.store, "undisturbed")
    await cordwood.Log(steps.store, parent).fork(child, start)
    count = steps.count
    incarnation = (await child.manifest()).writer.split()[1].removeprefix("log=")
    await forget(memory, "undisturbed")
    holds = [m.key async for m in memory.list() if m.key.endswith(paths.fork(incarnation))]
    await memory.delete(holds)
    return count


async def forget(memory, *logs):
    """Delete everything of these logs."""
    for log in logs:
        keys = [meta.key async for meta in memory.list(f"{log}/")]
        await memory.delete(keys)


def keep(memory):
    """Remember what the store holds; call the result to put it back."""
    objects, keys = dict(memory._objects), list(memory._keys)

    def put_back():
        memory._objects, memory._keys = dict(objects), list(keys)

    return put_back


def after(number, bodies):
    """The records from an offset on."""
    return bodies[number - 1 :]


@pytest.mark.parametrize("start", [None, 6])
async def test_a_collection_between_any_two_steps(hooked, memory, log_of, bodies, start):
    """Mark, unlink and sweep may each come before any request: the fork is whole, or is refused."""
    # EVIDENCE-OF: G-48
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 20)
    num_steps = await count_steps(hooked, memory, "orders", start)
    assert 7 <= num_steps <= 16
    outcomes = set()
    expected = await bodies(parent)
    await parent.cursors.init("done", 12)
    put_back = keep(memory)
    points = itertools.combinations_with_replacement(range(1, num_steps + 2), 3)
    for mark, unlink, sweep in points:
        put_back()
        steps = Steps(hooked, memory)
        for point, action in ((mark, parent.mark), (unlink, parent.unlink), (sweep, parent.sweep)):
            steps.before.setdefault(point, []).append(action)
        forked = cordwood.Log(steps.store, "orders")
        try:
            await forked.fork(cordwood.Log(steps.store, "trial"), start)
        except cordwood.CollectedError:
            outcomes.add("refused")
            assert start is not None
            assert [] == [meta.key async for meta in memory.list("orders/fork/")]
            continue
        for action in (parent.collect, parent.collect):
            await action(wait_s=0)
        oldest = (await child.state()).oldest_offset
        outcomes.add(oldest)
        assert after(oldest, expected) == await bodies(child)
        assert (await child.scrub(deep=True)).ok
        assert (await parent.scrub(deep=True)).ok
    assert ({"refused", 6} if start else {1, 12}) <= outcomes


async def test_collections_of_a_chain_between_any_two_steps(hooked, memory, log_of, bodies):
    """A fork of a fork is whole, whenever the two above it collect and let go."""
    # EVIDENCE-OF: G-48
    oak, elm = await prepare_chain(memory, log_of)
    ash = log_of("ash")
    num_steps = await count_steps(hooked, memory, "elm", None)
    expected = await bodies(elm)
    put_back = keep(memory)
    wholes = 0
    for first, second, third in itertools.product(range(1, num_steps + 2), repeat=3):
        put_back()
        steps = Steps(hooked, memory)
        # The parent collects in two goes, its sweep lets go of the grandparent's files; and the
        # grandparent frees what nobody holds.
        for point, action in ((first, elm.mark), (first, elm.unlink), (second, elm.sweep)):
            steps.before.setdefault(point, []).append(action)
        steps.before.setdefault(third, []).append(oak.sweep)
        await cordwood.Log(steps.store, "elm").fork(cordwood.Log(steps.store, "ash"))
        await elm.collect(wait_s=0)
        await oak.collect(wait_s=0)
        oldest = (await ash.state()).oldest_offset
        wholes += oldest == 1
        assert after(oldest, expected) == await bodies(ash)
        assert (await ash.scrub(deep=True)).ok
    assert wholes > 0


async def prepare_chain(memory, log_of):
    """Two logs, the second a fork of the first, which has collected all that the second shares."""
    await forget(memory, "oak", "elm", "ash")
    oak, elm = log_of("oak"), log_of("elm")
    await fill(oak, 10, "oak")
    await oak.fork(elm)
    await fill(elm, 4, "elm")
    await oak.cursors.init("done", 11)
    await oak.collect()
    await elm.cursors.init("done", 9)
    return oak, elm


async def test_a_hold_is_seen_by_a_sweep_that_began_before_it(hooked, memory, log_of, bodies):
    """A grandparent that lists holds, then sees its child's raised, looks for new ones again."""
    # EVIDENCE-OF: G-48
    oak, elm = await prepare_chain(memory, log_of)
    expected = await bodies(elm)

    async def get(call, key):
        # The listing is over; only now the fork of the fork is made, and its parent lets go.
        if key.startswith("oak/fork/") and not await exists(memory, "ash/" + paths.MANIFEST):
            await elm.fork(log_of("ash"))
            await elm.collect()
        return await call()

    await cordwood.Log(cordwood.Store.over(hooked(memory, get=get)), "oak").sweep()
    await oak.collect()
    assert expected == await bodies(log_of("ash"))


async def exists(memory, key):
    """Whether there is such an object."""
    return [] != [meta.key async for meta in memory.list(key) if meta.key == key]


class CrashError(Exception):
    """The process ends here."""


async def crash():
    """End here."""
    raise CrashError


async def test_a_crash_between_any_two_steps(hooked, memory, log_of, bodies):
    """An unborn log cannot be used and says so; to fork again finishes it, and nothing is left."""
    # EVIDENCE-OF: G-48
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 20)
    expected = await bodies(parent)
    num_steps = await count_steps(hooked, memory, "orders", 6)
    unborn = 0
    for number in range(1, num_steps + 1):
        steps = Steps(hooked, memory)
        steps.before[number] = [crash]
        with pytest.raises(CrashError):
            await cordwood.Log(steps.store, "orders").fork(cordwood.Log(steps.store, "trial"), 6)
        if await exists(memory, "trial/" + paths.MANIFEST):
            unborn += 1
            with pytest.raises(cordwood.StateError, match="destroy it, and fork again"):
                await child.state()
            with pytest.raises(cordwood.StateError):
                await child.writer().open()
        await parent.fork(child, 6)
        oldest = (await child.state()).oldest_offset
        assert after(oldest, expected) == await bodies(child)
        await parent.cursors.init(f"n{number}", 1)
        await parent.collect()
        await forget(memory, "trial")
    assert unborn >= 5
    # No fork is left, and so no hold counts.
    for name, witness in (await parent.cursors.list()).items():
        await parent.cursors.save(name, 21, witness)
    assert [] == (await parent.collect()).held
    assert [] == [meta.key async for meta in memory.list("orders/log/")]


async def test_two_fork_onto_one_name(hooked, memory, log_of, bodies):
    """Whenever the second comes, one of them makes the fork, of its own parent, and one is told."""
    # EVIDENCE-OF: G-48
    oak, elm = log_of("oak"), log_of("elm")
    await fill(oak, 5, "oak")
    await fill(elm, 7, "elm")
    past = {"oak": await bodies(oak), "elm": await bodies(elm)}
    num_steps = await count_steps(hooked, memory, "oak", None)
    winners = []
    for number in range(1, num_steps + 2):
        steps = Steps(hooked, memory)
        told = []

        async def second(told=told):
            try:
                await elm.fork(log_of("both"))
            except cordwood.AlreadyExistsError as error:
                told.append(error)

        steps.before[number] = [second]
        try:
            await cordwood.Log(steps.store, "oak").fork(cordwood.Log(steps.store, "both"))
        except (cordwood.ContendedError, cordwood.AlreadyExistsError) as error:
            told.append(error)
        if number > num_steps:
            await second()
        assert 1 == len(told)
        child = log_of("both")
        winners.append(child.objects.name_of((await child.manifest()).ancestors[0]))
        assert past[winners[-1]] == await bodies(child)
        await forget(memory, "both")
    assert {"oak", "elm"} == set(winners)


async def test_a_lost_parent_is_noticed(hooked, memory, log_of):
    """A parent that was destroyed, and perhaps made anew, while it was forked is not shared."""
    for anew in (False, True):
        await forget(memory, "orders", "trial")
        parent = log_of("orders")
        await fill(parent, 3)

        async def put(call, key, data, mode, anew=anew):
            answer = await call()
            if key.startswith("orders/fork/"):
                await forget(memory, "orders")
                if anew:
                    await fill(log_of("orders"), 3)
            return answer

        store = cordwood.Store.over(hooked(memory, put=put))
        with pytest.raises((cordwood.StateError, cordwood.NotFoundError)):
            await cordwood.Log(store, "orders").fork(cordwood.Log(store, "trial"))
        with pytest.raises(cordwood.StateError, match="begun and not finished"):
            await log_of("trial").state()
