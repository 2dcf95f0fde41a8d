"""Notes of pushes under way: a collection keeps the packs of a push that said it may take long.

A pack is uploaded before the commit that names it. Until then a collection sees a pack that nothing
names, and deletes it once it is older than the grace. A small push is done long before that. One
that may not be puts a note first, `logs/{log}/pushes/{nonce}`, and deletes it after its commit::

    push     note ─▶ packs ─▶ commit ─▶ note away
    sweep    list packs ─▶ list notes ─▶ list and read commits ─▶ delete

Why no pack goes that a commit with a note names:

1.  The sweep did not list the pack: it is not deleted.
2.  It did, so the note was put before the sweep looked for notes. Either the note is still there,
    and the pack, which is younger, is kept;
3.  or it was deleted, after the commit was put and before the sweep looks at commits: the pack is
    named.

A note counts for a day by the store's clock, and a push with one gives up after half a day by its
own: so a push that died keeps nothing for ever. A sweep deletes older notes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from cordwood.base.clock import Clock
from cordwood.base.errors import StoreError
from cordwood.store.timekeeping import age_us
from cordwood.volume import paths
from cordwood.volume.remote import Remote, gather_some

NOTE_PAGES = 4_096
"""A push of more pages puts a note before it begins."""
NOTE_S = 24 * 3600
"""So long a note counts."""
_SKEW_US = 60_000_000
"""Two servers of one store may differ by this much in what time it is."""


class Watch:
    """How long something took, by the worse of both clocks.

    One stands still while a laptop sleeps, the other may be set.
    """

    def __init__(self, clock: Clock) -> None:
        """From now on."""
        self._clock = clock
        self._wall_us = clock.now_us()
        self._started_s = clock.monotonic_s()

    @property
    def elapsed_s(self) -> float:
        """Since it was made."""
        wall_s = (self._clock.now_us() - self._wall_us) / 1e6
        return max(wall_s, self._clock.monotonic_s() - self._started_s)


async def put_note(remote: Remote, log: str) -> str:
    """Say that a push is under way, before its packs are there; the note's nonce. One PUT."""
    nonce = remote.entropy.token()
    await remote.store.put(paths.note(log, nonce), b"", "overwrite")
    return nonce


async def drop_note(remote: Remote, log: str, nonce: str) -> None:
    """The commit is there, or never will be. One DELETE; if it fails, a sweep does it in a day."""
    if nonce:
        with suppress(StoreError):
            await remote.store.delete([paths.note(log, nonce)])


async def kept_since_us(remote: Remote, logs: Iterable[str], now_us: int) -> int | None:
    """Packs put at this time or later may be of a push under way; None if there is none.

    One LIST for each log. Notes that no longer count are deleted.
    """

    async def look(log: str) -> list[tuple[str, int]]:
        prefix = paths.notes(log)
        return [(meta.key, meta.modified_us) async for meta in remote.store.list(prefix)]

    found = [note for notes in await gather_some(look, logs) for note in notes]
    late = [key for key, put_us in found if age_us(put_us, now_us) > NOTE_S * 1_000_000]
    if late:
        await remote.store.delete(late)
    counting = [put_us for key, put_us in found if key not in set(late)]
    return min(counting) - _SKEW_US if counting else None
