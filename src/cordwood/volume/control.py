"""The state of a volume's directory, in memory that all its processes share.

::

    0   magic           32  u64 drained       256   slot 0: state, XXH3
    8   u64 ready       40  u64 base          768   slot 1
    16  u64 turn        48  u64 poisoned
    24  u64 writing

The state is written to one slot while the other one counts; then `turn`, one word, says that it is
the new one: the slot of a turn is `turn % 2`. A reader that was overtaken by two turns sees by the
checksum, and by the turn in the slot, that it has to look again.

`writing` is the turn that a writer is about to make, zero when it is done: who finds it, with the
lock, knows that a writer died, and takes back what that one may have left. `drained` is how many
uses of the WAL files are in the base, `base` changes whenever the base does; both belong to who
holds CHECKPOINT. `poisoned` says that a sync failed.

Nothing here is ever synced, and nothing has to be: who opens the directory alone makes it anew from
the files. `ready` is written last.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from cordwood.base.errors import CorruptionError
from cordwood.store.disk import Disk

MAGIC = b"CWCTRL\x01\n"
SIZE_BYTES = 4096
_SLOTS = (256, 768)
_READY, _TURN, _WRITING, _DRAINED, _BASE, _POISONED = range(1, 7)
_POISON = 0x6E6F73696F70
_STATE = struct.Struct("<19Q32s")
_SUM = struct.Struct("<Q")
_LOOKS = 1_000
"""So often a slot is read before it counts as damaged: two turns within each look are unlikely."""


class State(NamedTuple):
    """What a snapshot is made of."""

    turn: int
    sequence: int
    """The use of the active WAL file; see `journal/pair.py`."""
    entry: int
    """The last one."""
    first: int
    """The first entry of the active file."""
    end: int
    checksum: int
    salt: int
    """Where the next frame goes, and what it links to."""
    idle_first: int
    idle_entry: int
    """The first and the last entry of the idle file."""
    idle_end: int
    idle_count: int
    """How many pages the volume had when the idle file was left."""
    cuts_start: int
    cuts_limit: int
    """Which cuts count."""
    cuts_round: int
    """Changes when their place in memory is used again."""
    lsn: int
    """The published version that lies below."""
    watermark: int
    """Entries up to this one are in it, or were discarded."""
    page_count: int
    published_count: int
    """How many pages the published version has."""
    epoch: int
    """Changes when the head moved, and with a local commit that pages do not tell of."""
    hash: bytes
    """Of the published version's commit."""


class Control:
    """The memory, as one handle sees it."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Map it."""
        self._shared = disk.share(path, SIZE_BYTES)
        self._path = path
        self._view = self._shared.view
        self._words = self._view[:256].cast("Q")
        self._last: State | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a recovery finished it."""
        return bytes(self._view[:8]) == MAGIC and self._words[_READY] == 1

    @property
    def is_poisoned(self) -> bool:
        """Whether a sync failed, and nobody may write."""
        return self._words[_POISONED] == _POISON

    @property
    def drained(self) -> int:
        """How many uses of the WAL files are in the base."""
        return self._words[_DRAINED]

    @drained.setter
    def drained(self, uses: int) -> None:
        self._words[_DRAINED] = uses

    @property
    def base(self) -> int:
        """Changes with the base."""
        return self._words[_BASE]

    @base.setter
    def base(self, value: int) -> None:
        self._words[_BASE] = value

    @property
    def times(self) -> tuple[int, int, int]:
        """The turn, and what else a snapshot is made of: it changes whenever one would."""
        words = self._words
        return words[_TURN], words[_DRAINED], words[_BASE]

    def is_at(self, times: tuple[int, int, int]) -> bool:
        """Whether these are still the `times`."""
        words, (turn, drained, base) = self._words, times
        return words[_TURN] == turn and words[_DRAINED] == drained and words[_BASE] == base

    def begin(self) -> None:
        """Begin a recovery: from here on this counts for nothing."""
        self._shared.reserve(0, SIZE_BYTES)
        self._words[_READY] = 0

    def make(self, state: State, drained: int) -> None:
        """End a recovery."""
        self._view[:SIZE_BYTES] = bytes(SIZE_BYTES)
        self._words[_DRAINED] = drained
        self.publish(state)
        self._view[:8] = MAGIC
        self._words[_READY] = 1

    def read(self) -> State:
        """The state that counts now.

        Raises:
            CorruptionError: something else wrote here.
        """
        last = self._last
        if last is not None and self._words[_TURN] == last.turn:
            return last
        for _ in range(_LOOKS):
            turn = self._words[_TURN]
            at = _SLOTS[turn & 1]
            data = bytes(self._view[at : at + _STATE.size + _SUM.size])
            body = data[: _STATE.size]
            if xxhash.xxh3_64_intdigest(body) == _SUM.unpack_from(data, _STATE.size)[0]:
                state = State._make(_STATE.unpack(body))
                if state.turn == turn:
                    self._last = state
                    return state
        raise CorruptionError(
            f"{self._path} does not match its checksum",
            where=self._path,
            hint="close all that use the directory; who opens it next makes the file anew",
        )

    def publish(self, state: State) -> State:
        """Let another state count: the last step of whoever holds WRITE."""
        state = state._replace(turn=state.turn + 1)
        body = _STATE.pack(*state)
        at = _SLOTS[state.turn & 1]
        whole = body + _SUM.pack(xxhash.xxh3_64_intdigest(body))
        self._view[at : at + len(whole)] = whole
        self._words[_TURN] = state.turn
        self._last = state
        return state

    def begin_writing(self, state: State) -> None:
        """Say that the next turn is under way."""
        self._words[_WRITING] = state.turn + 1

    def end_writing(self) -> None:
        """Say that it was made, or that nothing is left of it."""
        self._words[_WRITING] = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether a writer died, and had not made the turn that it was about to make."""
        return self._words[_WRITING] > self._words[_TURN]

    def poison(self) -> None:
        """Nobody may write until all have closed the directory, and one opened it alone."""
        self._words[_POISONED] = _POISON

    def close(self) -> None:
        """Close the file."""
        self._shared.close()
