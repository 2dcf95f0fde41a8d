"""The life of a log with bulk commits: processes that stage, die, stage again, and commit once.

Beside everybody of testing/lifesim.py there are producers. Each commits one batch after the other,
every batch with records of its own, and begins a batch anew when it was killed in the middle of it
or did not hear what became of it: it cannot know. Uploads are swept when they are a few seconds
old, so that sweeps meet slow commits. The auditor demands as well

A7  a record of a batch is in the log once at most; once its commit was acknowledged, it is where
    that said, with the other records of its batch, in their order.

In the end no upload is left that no manifest names.
"""

from __future__ import annotations

import asyncio
from unittest import mock

import pyarrow as pa

from cordwood.base.errors import StateError, StoreError
from cordwood.log import format as formats
from cordwood.log import tree
from cordwood.log.bulk import Token
from cordwood.log.chain.options import Protocol
from cordwood.log.format import Manifest
from cordwood.log.log import Log
from cordwood.testing.lifesim import Climate, Ledger, LifeSimulation
from cordwood.testing.verdict import ModelBrokenError


class BulkSimulation(LifeSimulation):
    """One seed's run."""

    def __init__(
        self, seed: int, climate: Climate | None = None, protocol: Protocol = "cas"
    ) -> None:
        """Prepare; `run` does it."""
        super().__init__(seed, climate, protocol)
        self._graces = self.chance.choice([4, 8, 20])
        self._num_producers = self.chance.choice([1, 2, 3])
        self._batches: dict[str, int] = {}
        """The next batch of each producer."""
        self._places: dict[bytes, int] = {}
        self.commits = 0

    def run(self) -> Ledger:
        """Run in simulated time; uploads age quickly."""
        with mock.patch.object(formats, "STAGED_GRACES", self._graces):
            return super().run()

    def _cast(self) -> list[tuple[object, int]]:  # type: ignore[override]
        return [*super()._cast(), (self._producer, self._num_producers)]

    async def _producer(self, log: Log, name: str) -> None:
        mine = name.partition(".")[0]
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.05, 2.0))
            batch = self._batches.setdefault(mine, 0)
            token = Token(mine, batch, name)
            uploads = _records(mine, batch)
            for records in uploads:
                self.ledger.bodies.update(records)
            try:
                staged = [
                    await log.stage(pa.table({"body": records}), token) for records in uploads
                ]
            except StoreError:
                continue
            if self.chance.random() < 0.2:
                await asyncio.sleep(self.chance.uniform(0.0, 2.0) * self._age_s)
            try:
                done = await log.commit(staged, token)
            except StateError as error:
                # Staged too long ago: begin again.
                self.ledger.note(f"commit of {mine} {batch}: {error.message[:60]}")
                continue
            self._batches[mine] = batch + 1
            self.commits += 1
            self.ledger.note(f"committed {mine} {batch} at {done.offset}, new: {done.is_new}")
            bodies = [body for records in uploads for body in records]
            for offset, body in enumerate(bodies, done.offset):
                self.ledger.acknowledged[offset] = body

    @property
    def _age_s(self) -> float:
        """How old an upload is when it is swept."""
        return float(self._graces * self.climate.grace_s)

    @property
    def _quiet_s(self) -> float:  # type: ignore[override]
        """Until the last upload that nobody committed is old enough to go."""
        return 60.0 + 2.0 * self._age_s

    async def _audit_log(self, manifest: Manifest) -> None:
        await super()._audit_log(manifest)
        for fragment in await self._fragments(tree.roots(manifest)):
            for offset, body in enumerate(self._bodies(fragment), fragment.start):
                if body.startswith(b"producer") and self._places.setdefault(body, offset) != offset:
                    raise ModelBrokenError(
                        f"A7: {body!r} is at {self._places[body]} and at {offset}"
                    )


def _records(producer: str, batch: int) -> list[list[bytes]]:
    """The records of a batch: the same whenever it is made."""
    sizes = [1 + (batch + i) % 3 for i in range(1 + batch % 4)]
    return [
        [f"{producer}:{batch}:{part}:{i}".encode() for i in range(size)]
        for part, size in enumerate(sizes)
    ]
