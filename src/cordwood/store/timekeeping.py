"""What time it is by a store's own clock, and how old its objects are.

Whoever takes something for old, and deletes it, asks the store: two machines' clocks may differ by
more than any interval that is worth waiting for.
"""

from __future__ import annotations

from contextlib import suppress

from cordwood.base.clock import Entropy
from cordwood.base.errors import Code, NotFoundError, StoreError
from cordwood.store.api import ObjectStore


async def store_time_us(
    store: ObjectStore, key: str, entropy: Entropy, *, surely: bool = False
) -> int:
    """The time of an object that is put under `key`. One PUT, one HEAD; `surely`, a DELETE more.

    A directory gives each put of a name a later time than the one before had. Where its clock was
    ahead once, the answer stays ahead until the clock catches up, or the object is deleted. So who
    takes something for old, and acts on that, asks `surely`.
    """
    while True:
        if surely:
            await _delete(store, key)
        await store.put(key, entropy.token().encode(), "overwrite")
        # Not there: somebody else asks at this moment, and surely.
        with suppress(NotFoundError):
            return (await store.head(key)).modified_us


async def _delete(store: ObjectStore, key: str) -> None:
    try:
        await store.delete([key])
    except StoreError as error:
        # Whoever may only write has to take the other answer.
        if error.code is not Code.STORE_DENIED:
            raise


def age_us(modified_us: int, now_us: int) -> int:
    """How long ago something was written, at least. Some stores keep whole seconds."""
    is_whole = modified_us % 1_000_000 == 0
    return now_us - modified_us - (1_000_000 if is_whole else 0)
