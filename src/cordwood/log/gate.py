"""The gate of a writer: records of streams that must be asked about wait in line, and keep order.

An append is a plain function, and whether a stream is open may have to be asked of the store. So::

    append ──(admitted, nobody waits)──────────────────────▶ queue
           └─(else)──▶ line ──(the roll is looked at)──┬──▶ queue
                                                       └──▶ refused

1. Records reach the queue in the order of the calls. While somebody waits everybody does, also who
   has no stream.
2. Who waits is judged by a look at the roll that began after its append was called.
3. While records of streams come, the roll is looked at in good time, beside them: a writer at work
   does not wait every few seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cordwood.base.errors import CordwoodError
from cordwood.log.flight import not_written
from cordwood.log.watch import FRESH_S, RollWatch


@dataclass(slots=True, eq=False)
class _Ticket:
    """One append in line."""

    names: Collection[str]
    enter: Callable[[], None]
    refuse: Callable[[BaseException], None]
    is_judged: bool = False
    """Whether a look at the roll that began after it came has ended."""
    fault: CordwoodError | None = None
    """Why there was no look."""


class Gate:
    """Lets records into the queue of one writer."""

    def __init__(self, watch: RollWatch) -> None:
        """Nobody waits."""
        self._watch = watch
        self.line: deque[_Ticket] = deque()
        """Who waits; while it is empty, records without a stream need not ask here."""
        self._serving: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    def passes(self, names: Collection[str]) -> bool:
        """Whether records of these streams may go to the queue at once."""
        if self.line:
            return False
        if names:
            age_s = self._watch.age_s
            if age_s > FRESH_S or not self._watch.knows(names):
                return False
            if age_s > FRESH_S / 2 and self._refreshing is None:
                self._refreshing = asyncio.ensure_future(self._refresh())
        return True

    def wait(
        self,
        names: Collection[str],
        enter: Callable[[], None],
        refuse: Callable[[BaseException], None],
    ) -> None:
        """Get in line: one of the two is called when it is known which."""
        self.line.append(_Ticket(names, enter, refuse))
        if self._serving is None:
            self._serving = asyncio.ensure_future(self._serve())

    async def flush(self) -> None:
        """Wait until everybody who is in line now has entered or was refused."""
        if self.line:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.wait((), lambda: _reach(reached), lambda _: _reach(reached))
            await reached

    async def stop(self, error: BaseException) -> None:
        """Refuse everybody who is still in line, and look no more."""
        tasks = [task for task in (self._serving, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self.line:
            self.line.popleft().refuse(error)

    async def _serve(self) -> None:
        try:
            while self.line:
                ticket = self.line[0]
                if not ticket.is_judged and not self._watch.admits(ticket.names):
                    await self._judge()
                self.line.popleft()
                error = ticket.fault or self._watch.refusal(ticket.names)
                if error is None:
                    ticket.enter()
                else:
                    ticket.refuse(error)
        finally:
            self._serving = None

    async def _judge(self) -> None:
        """Look at the roll for everybody who is in line now."""
        tickets = list(self.line)
        fault: CordwoodError | None = None
        try:
            await self._watch.look()
        except CordwoodError as error:
            fault = not_written(error)
        for ticket in tickets:
            ticket.is_judged = True
            ticket.fault = fault if ticket.names else None

    async def _refresh(self) -> None:
        try:
            await self._watch.look()
        except CordwoodError:
            # Whoever comes when the last look is too old waits for the next, and is told.
            pass
        finally:
            self._refreshing = None


def _reach(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
