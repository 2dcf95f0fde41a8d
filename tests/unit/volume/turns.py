"""Every order in which requests of two can reach a store: real code, one request at a time."""

from __future__ import annotations

import asyncio
import contextvars

from cordwood.testing.hooked import OPERATIONS, Hooked

_actor = contextvars.ContextVar("actor", default=None)
TICKS = 12
"""Turns of the loop after which whoever is going to ask for something has asked."""


class Turns:
    """Lets one request through at a time, of whom the plan says; others wait."""

    def __init__(self, inner, is_gated):
        """`is_gated(actor, operation, key)` says which requests take turns."""
        self._is_gated = is_gated
        self._waiting = {}
        self.store = Hooked(inner, **{name: self._hook(name) for name in OPERATIONS})

    def _hook(self, operation):
        async def gate(call, key, *rest):
            actor = _actor.get()
            if actor is not None and self._is_gated(actor, operation, key):
                turn = asyncio.get_running_loop().create_future()
                self._waiting.setdefault(actor, []).append(turn)
                await turn
            return await call()

        return gate

    async def run(self, actors, choose):
        """Run actors; `choose(step, ready)` says who of those that wait comes next.

        Returns:
            What was chosen at each step, and of whom; the results of the actors, errors included.
        """

        async def play(number, actor):
            _actor.set(number)
            try:
                return await actor()
            except Exception as error:
                return error

        tasks = [asyncio.create_task(play(n, actor)) for n, actor in enumerate(actors)]
        choices = []
        while True:
            for _ in range(TICKS):
                await asyncio.sleep(0)
            ready = sorted(number for number, turns in self._waiting.items() if turns)
            if not ready:
                break
            chosen = choose(len(choices), ready)
            choices.append((chosen, ready))
            self._waiting[chosen].pop(0).set_result(None)
        return choices, await asyncio.gather(*tasks)


def next_plan(choices):
    """The plan after this one, in depth first order; None after the last."""
    for step in range(len(choices) - 1, -1, -1):
        chosen, ready = choices[step]
        later = [number for number in ready if number > chosen]
        if later:
            return [taken for taken, _ in choices[:step]] + later[:1]
    return None
