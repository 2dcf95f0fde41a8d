"""A writer or a collector as a process of its own: `python -m cordwood.cli.stress.worker PLAN`.

It says on standard output, a line of JSON each, what is durable; and ends when its input ends.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from cordwood.cli.stress.work import Plan, collect, write
from cordwood.log.log import Log


def _say(facts: dict[str, int]) -> None:
    if facts:
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
        sys.stdout.flush()


async def _main(plan: Plan, role: str, life: int) -> None:
    log = Log.from_url(plan.url)
    loop = asyncio.get_running_loop()
    parent = loop.run_in_executor(None, sys.stdin.read)
    if role == "collector":
        await collect(log, _say, parent.done)
    else:
        await write(plan, log, role, life, _say, parent.done)
    await parent


if __name__ == "__main__":
    asyncio.run(_main(msgspec.json.decode(sys.argv[1], type=Plan), sys.argv[2], int(sys.argv[3])))
