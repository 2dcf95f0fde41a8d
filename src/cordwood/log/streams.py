"""Streams: many small logs in one. A record may belong to a stream, which must be open for that.

`log.streams` opens, closes and lists them; what is open is in the roll (log/roll.py), and how
writers know of it is in log/watch.py. Records of all streams lie in one order, in the same
fragments; who reads one stream passes over fragments that cannot hold it (log/sieve.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import Code, InvalidInputError, LimitError, NotFoundError
from cordwood.log.format import Manifest
from cordwood.log.objects import LogObjects
from cordwood.log.roll import Decide, Roll, Stream, change_roll
from cordwood.log.seal import sealed
from cordwood.log.watch import RollWatch, shown

NAME_BYTES_MAX = 4_096
METADATA_BYTES_MAX = 64 * 1024
STREAMS_MAX = 1_000_000
"""Of one log: the roll is held in memory."""


class Streams:
    """The streams of one log: `log.streams`."""

    def __init__(
        self, objects: LogObjects, clock: Clock, entropy: Entropy, watch: RollWatch
    ) -> None:
        """No I/O. `watch` is shared with the log's writers: what we change they know at once."""
        self._objects = objects
        self._clock = clock
        self._entropy = entropy
        self._watch = watch

    async def open(self, *names: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Open streams, all or none of them: from now on records may belong to them.

        One PUT, however many they are; none if they are open already. A stream that was closed
        goes on where it was.

        Args:
            names: of the streams.
            metadata: what is kept with each of them, as JSON; without it, what there is stays.

        Raises:
            InvalidInputError: a name or the metadata cannot be one.
            StateError: the log is sealed.
        """
        kept = None if metadata is None else _checked(metadata)
        for name in names:
            _check_name(name)

        def decide(roll: Roll) -> dict[str, Stream]:
            wanted: dict[str, Stream] = {}
            for name in names:
                there = roll.streams.get(name)
                before: dict[str, Any] = {} if there is None else there.metadata
                after = before if kept is None else kept
                if there is None or not there.open or before != after:
                    wanted[name] = Stream(True, after, self._clock.now_us())
            if len(roll.streams) + len(wanted) > STREAMS_MAX:
                raise LimitError(
                    f"log {self._objects.name!r} would have more than {STREAMS_MAX} streams",
                    hint="go on in another log",
                )
            return wanted

        await self._change(decide)

    async def close(self, *names: str) -> None:
        """Close streams, all or none of them: no more records are taken. One PUT.

        Their records stay. A writer elsewhere may take records for ten seconds more; log/watch.py
        says how that is counted. To close what is closed changes nothing.

        Raises:
            NotFoundError: there never was such a stream.
        """

        def decide(roll: Roll) -> dict[str, Stream]:
            now_us = self._clock.now_us()
            there = {name: self._find(roll, name) for name in names}
            return {n: Stream(False, s.metadata, now_us) for n, s in there.items() if s.open}

        await self._change(decide)

    async def list(self, *, closed: bool = False) -> dict[str, Stream]:
        """The streams that are open, by name; with `closed`, all there ever were.

        One GET and one LIST; the first time a GET more for each of the latest changes.
        """
        roll = await self._watch.look()
        return {name: s for name, s in sorted(roll.streams.items()) if closed or s.open}

    async def meta(self, name: str, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The metadata of a stream, open or closed; with `metadata`, set it first.

        Raises:
            NotFoundError: there never was such a stream.
        """
        if metadata is not None:
            kept = _checked(metadata)

            def decide(roll: Roll) -> dict[str, Stream]:
                there = self._find(roll, name)
                is_same = there.metadata == kept
                return {} if is_same else {name: Stream(there.open, kept, self._clock.now_us())}

            await self._change(decide)
            return kept
        return dict(self._find(await self._watch.look(), name).metadata)

    async def _change(self, decide: Decide) -> None:
        started_s = self._clock.monotonic_s()
        name = self._objects.name

        def check(manifest: Manifest) -> None:
            if manifest.seal is not None:
                raise sealed(name, manifest.seal)

        roll = await change_roll(self._objects, self._entropy, self._watch.roll, check, decide)
        self._watch.keep(roll, started_s)

    def _find(self, roll: Roll, name: str) -> Stream:
        _check_name(name)
        if name not in roll.streams:
            raise NotFoundError(
                f"log {self._objects.name!r} has no stream {shown(name)}",
                hint="open it with log.streams.open(name)",
            )
        return roll.streams[name]


def _check_name(name: object) -> None:
    try:
        size = len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= NAME_BYTES_MAX:
        raise InvalidInputError(
            f"{shown(name)} cannot name a stream",
            hint=f"a name is text of 1 to {NAME_BYTES_MAX} bytes",
        )


def _checked(metadata: object) -> dict[str, Any]:
    """The metadata as it will be read: what JSON makes of it."""
    try:
        data = msgspec.json.encode(metadata)
        kept = msgspec.json.decode(data, type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInputError(f"a stream's metadata is a JSON object: {error}") from error
    if len(data) > METADATA_BYTES_MAX:
        raise LimitError(
            f"a stream's metadata has {len(data)} bytes, the limit is {METADATA_BYTES_MAX}",
            code=Code.TOO_LARGE,
            hint="keep it as an object of its own, and its name here",
        )
    return kept
