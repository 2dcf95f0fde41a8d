"""The leases of an index: open handles, `handles/{tx}_{id}.active` (store/leases.py)."""

from __future__ import annotations

from cordwood.base.clock import Clock, Entropy
from cordwood.store import leases
from cordwood.store.leases import TTL_S, Lease
from cordwood.store.url import Store


class Leases(leases.Leases):
    """All leases of an index."""

    def __init__(
        self, store: Store, prefix: str, clock: Clock, entropy: Entropy, *, ttl_s: float = TTL_S
    ) -> None:
        """Under a prefix of a store; no I/O."""
        folder = f"{prefix}handles"
        super().__init__(store, folder, clock, entropy, what="the handle", ttl_s=ttl_s)

    async def take(self, number: int) -> Lease:
        """A lease on the state after a transaction. One PUT."""
        return await self.take_named(f"{number:020d}_{self._entropy.token()[:16]}.active")

    async def live(self) -> dict[str, int]:
        """The leases that count, and the states they are on; those that are over are removed."""
        found = {}
        for name in await self.live_names():
            number = name.partition("_")[0]
            if number.isdecimal():
                found[f"{self._folder}/{name}"] = int(number)
        return found
