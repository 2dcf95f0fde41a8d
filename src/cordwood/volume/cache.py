"""Pages at hand: decompressed frames in memory, stored frames in sparse files, the rest fetched.

A file `{directory}/{log}/segments/{pack}` has room for the whole pack from the start, and holes
where frames are not here yet (on a file system without holes it is a plain file)::

    magic     8   CWCACHED
    version   4   u32, 1
    frames    4   u32
    bytes     8   u64, of all frames together
    checksum  8   XXH3 of the above
    presence      a byte for each frame, 1 if it is here
    zeros         up to the next 4096 bytes
    frames        as in the pack, at the same distances

A frame's presence byte is written after the frame. The order in which a power cut keeps them does
not matter: a frame that is read from the file is checked each time, first by its digest, and one
that does not match is fetched again. So nothing is synced unless that is asked for, and any number
of processes may fill one file: all write the same bytes.

A disk that is full only keeps the cache from growing: pages are read from the store then.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import xxhash

from cordwood.base.errors import CorruptionError
from cordwood.journal.failures import error_of, told
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk, File
from cordwood.volume.folders import make_folders
from cordwood.volume.pack import HEAD as PACK_HEAD
from cordwood.volume.pack import Built, PackIndex, assembled, digest
from cordwood.volume.remote import Remote, gather_some

MAGIC = b"CWCACHED"
VERSION = 1
_HEAD = struct.Struct("<8sIIQ")
_CHECKSUM = struct.Struct("<Q")
_ALIGN = 4096
MEMORY_BYTES = 64 * 2**20
"""Decompressed frames in memory."""
FILES_MAX = 256
"""Files open at a time."""
PROVED_MAX = 200_000
"""Frames of which it is remembered that their bytes were right."""
WINDOW_MAX = 32
"""Frames that a read ahead asks for at most: 2 MiB of pages."""
STREAMS_MAX = 4
"""Places of a pack that are read on from by turns: a table, its index, the way down to both."""
RUN_BYTES_MAX = 4 * 2**20
"""What one request fetches at most when everything is fetched."""

Progress = Callable[[int], None]
"""Is told how many bytes were fetched."""


class PackCache:
    """The packs of a directory's volumes. `peek` never waits; `fetch` asks the store."""

    def __init__(
        self,
        remote: Remote,
        directory: str,
        disk: Disk | None = None,
        *,
        memory_bytes: int = MEMORY_BYTES,
        durable: bool = False,
    ) -> None:
        """No I/O.

        Args:
            remote: the store.
            directory: where the files are; each log has a folder there.
            disk: the operating system's files.
            memory_bytes: how much of decompressed frames is kept.
            durable: sync each file after frames were written: slower, and after a power cut they
                need not be fetched again.
        """
        self._remote = remote
        self._directory = directory
        self._disk = disk or Disk()
        self._durable = durable
        self._memory_bytes = memory_bytes
        self._used_bytes = 0
        self._lock = threading.Lock()
        """Of the count of bytes in memory; reading takes no lock."""
        self._frames: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._files: OrderedDict[str, _SparseFile] = OrderedDict()
        self._misses: dict[str, deque[tuple[int, int]]] = {}
        """Of each pack, for the last few reads: the frame behind what was fetched, and how many."""
        self._proved: dict[tuple[str, int], int] = {}
        """The XXH3 of stored frames that matched their digests."""
        self._settled: set[str] = set()
        """Packs whose files have durable names."""
        self.fetched_bytes = 0
        """From the store, since this was made."""
        self.unwritten = 0
        """Frames that could not be written to the disk."""

    def peek(self, pack: PackIndex, frame: int) -> bytes | None:
        """The pages of a frame, if they are in memory or on the disk. Blocking, and quick."""
        key = pack.id, frame
        plain = self._frames.get(key)
        if plain is not None:
            with suppress(KeyError):
                self._frames.move_to_end(key)
            return plain
        file = self._file(pack, create=False)
        if file is None:
            return None
        try:
            stored = file.read(frame)
            if stored is None:
                return None
            plain = self._opened(pack, frame, stored)
        except (CorruptionError, OSError):
            file.forget(frame)
            return None
        self._remember(key, plain)
        return plain

    def _opened(self, pack: PackIndex, frame: int, stored: Buffer) -> bytes:
        """The pages of a frame that was read from the disk.

        Its digest is asked once; from then on it is enough that nothing changed: that takes 1 us
        instead of 70.
        """
        key, found = (pack.id, frame), xxhash.xxh3_64_intdigest(stored)
        if self._proved.get(key) == found:
            return pack.inflate(frame, stored)
        plain = pack.open_frame(frame, stored)
        if len(self._proved) >= PROVED_MAX:
            self._proved.clear()
        self._proved[key] = found
        return plain

    async def fetch(self, pack: PackIndex, frame: int) -> bytes:
        """The pages of a frame; if it is not here, with those behind it in one request.

        A frame that is read right behind the last one fetched doubles how many are asked for. Two
        who want the same frame at the same moment may both fetch it.

        Raises:
            CorruptionError: the store's bytes are damaged, or the pack is gone.
        """
        plain = self.peek(pack, frame)
        if plain is not None:
            return plain
        window = self._window(pack, frame)
        limit = self._absent_until(pack, frame, window)
        self._misses[pack.id].append((limit, window))
        await self._bring(pack, frame, limit)
        plain = self._frames.get((pack.id, frame))
        # A memory that is too small for what was read ahead has let the first one go already.
        return plain if plain is not None else await self._again(pack, frame)

    def _window(self, pack: PackIndex, frame: int) -> int:
        """How many frames to ask for: more, if it goes on from one of the last few that were."""
        streams = self._misses.setdefault(pack.id, deque(maxlen=STREAMS_MAX))
        for stream in streams:
            behind, window = stream
            if behind <= frame <= behind + window:
                streams.remove(stream)
                return min(2 * window, WINDOW_MAX)
        return 1

    async def hydrate(
        self, pack: PackIndex, frames: npt.NDArray[np.int64], progress: Progress | None = None
    ) -> None:
        """Bring these frames to the disk, neighbours in one request.

        Raises:
            StoreError: the disk is full or fails; what was written stays.
        """
        wanted = np.unique(frames)
        with told("keep", f"pack {pack.id}"):
            file = self._file(pack, create=True)
        if file is not None:
            wanted = wanted[~file.present(wanted)]
        runs = _runs(pack, wanted)

        async def bring(run: tuple[int, int]) -> None:
            got = await self._bring(pack, *run, keep=False)
            if progress is not None:
                progress(got)

        await gather_some(bring, runs, 8)

    def add(self, pack: PackIndex, data: Buffer) -> None:
        """Write down a pack that is in the store, from its own bytes: a push need not read it."""
        self._write(pack, 0, pack.num_frames, memoryview(data)[PACK_HEAD.size :])

    def whole(self, pack: PackIndex) -> Built | None:
        """A pack as it was uploaded, if all of it is on the disk and undamaged."""
        file = self._file(pack, create=False)
        if file is None:
            return None
        stored: list[Buffer] = []
        for frame in range(pack.num_frames):
            found = file.read(frame)
            if found is None or digest(found) != pack.digest_of(frame):
                return None
            stored.append(found)
        return assembled(pack, stored)

    def present(self, pack: PackIndex, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these frames are on the disk."""
        file = self._file(pack, create=False)
        return np.zeros(len(frames), bool) if file is None else file.present(frames)

    def close(self) -> None:
        """Let the files go; the last who reads one closes it."""
        self._files.clear()

    # Inside.

    async def _again(self, pack: PackIndex, frame: int) -> bytes:
        stored = await self._get(pack, frame, frame + 1)
        return pack.open_frame(frame, stored)

    def _absent_until(self, pack: PackIndex, frame: int, window: int) -> int:
        """The frame behind the last of a few that follow `frame` and are not here."""
        limit = frame + 1
        file = self._file(pack, create=False)
        until = min(frame + window, pack.num_frames)
        if file is None:
            return max(limit, until)
        here = file.present(np.arange(limit, max(limit, until)))
        return limit + (int(np.argmax(here)) if here.any() else len(here))

    async def _bring(self, pack: PackIndex, start: int, limit: int, *, keep: bool = True) -> int:
        """Fetch frames in one request, prove each, write them down; how many bytes."""
        stored = await self._get(pack, start, limit)
        frames: list[Buffer] = [*_divided(pack, start, limit, stored)]
        for number in range(start, limit):
            try:
                plain = pack.open_frame(number, frames[number - start])
            except CorruptionError:
                # Once more: it may have been damaged on the way.
                frames[number - start] = await self._get(pack, number, number + 1)
                plain = pack.open_frame(number, frames[number - start])
                stored = b"".join(frames)
            if keep:
                self._remember((pack.id, number), plain)
        try:
            self._write(pack, start, limit, stored)
        except OSError as error:
            if not keep:
                raise error_of("keep", f"pack {pack.id}", error) from error
            # The page was read; that it is not kept costs a request the next time.
            self.unwritten += limit - start
        return len(stored)

    async def _get(self, pack: PackIndex, start: int, limit: int) -> Buffer:
        first, behind = int(pack.starts[start]), int(pack.starts[limit])
        stored = await self._remote.get_range(pack.id, first, behind - first)
        self.fetched_bytes += len(stored)
        if len(stored) != behind - first:
            raise CorruptionError(
                f"pack {pack.id}, frame {limit - 1}: the pack ends before it does",
                where=f"{pack.id}#{limit - 1}",
                hint="bring the pack back from a copy of the store",
            )
        return stored

    def _remember(self, key: tuple[str, int], plain: bytes) -> None:
        with self._lock:
            self._used_bytes += len(plain) - len(self._frames.pop(key, b""))
            self._frames[key] = plain
            while self._used_bytes > self._memory_bytes and len(self._frames) > 1:
                self._used_bytes -= len(self._frames.popitem(last=False)[1])

    def _write(self, pack: PackIndex, start: int, limit: int, stored: Buffer) -> None:
        file = self._file(pack, create=True)
        assert file is not None
        file.write(start, limit, stored)
        if self._durable:
            file.sync()
            if pack.id not in self._settled:
                self._disk.fsync_dir(os.path.join(self._directory, pack.log, "segments"))
                self._settled.add(pack.id)

    def _file(self, pack: PackIndex, *, create: bool) -> _SparseFile | None:
        file = self._files.get(pack.id)
        if file is None:
            folder = os.path.join(self._directory, pack.log, "segments")
            path = os.path.join(folder, pack.id)
            if create:
                make_folders(self._disk, folder)
            try:
                file = _SparseFile(self._disk.open(path, create=create), pack, create=create)
            except OSError:
                if create:
                    raise
                return None  # Not there, or not ours to open: the store has it.
            if not file.is_usable:
                return None
            self._files[pack.id] = file
            while len(self._files) > FILES_MAX:
                # Not closed here: another thread may be reading it, and closes it when it is done.
                self._files.popitem(last=False)
        return file


class _SparseFile:
    """What is here of one pack."""

    def __init__(self, file: File, pack: PackIndex, *, create: bool) -> None:
        self._file = file
        self._starts = pack.starts
        head = _HEAD.pack(MAGIC, VERSION, pack.num_frames, int(pack.starts[-1]))
        self._head = head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))
        self._presence_at = len(self._head)
        self._data_at = -(-(self._presence_at + pack.num_frames) // _ALIGN) * _ALIGN
        size = self._data_at + int(pack.starts[-1])
        is_known = bytes(file.read(0, len(self._head))) == self._head
        self.is_usable = is_known and file.stat().size_bytes >= size
        if not self.is_usable and create:
            # Another's file, a torn one, or a new one: nothing in it counts.
            file.write([self._head, bytes(self._data_at - self._presence_at)], 0)
            file.write([b"\0"], size - 1)
            self.is_usable = True

    def present(self, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these frames are here, by their presence bytes as they are now."""
        count = len(self._starts) - 1
        here = np.frombuffer(bytes(self._file.read(self._presence_at, count)), np.uint8)
        found: npt.NDArray[np.bool_] = here[frames] == 1
        return found

    def read(self, frame: int) -> Buffer | None:
        """The stored bytes of a frame, if it is here."""
        if bytes(self._file.read(self._presence_at + frame, 1)) != b"\1":
            return None
        start, limit = int(self._starts[frame]), int(self._starts[frame + 1])
        return self._file.read(self._data_at + start, limit - start)

    def write(self, start: int, limit: int, stored: Buffer) -> None:
        """Frames that follow one another, then that they are here."""
        size = int(self._starts[limit] - self._starts[start])
        self._file.write([memoryview(stored)[:size]], self._data_at + int(self._starts[start]))
        self._file.write([b"\1" * (limit - start)], self._presence_at + start)

    def forget(self, frame: int) -> None:
        """A frame is damaged."""
        with suppress(OSError):
            self._file.write([b"\0"], self._presence_at + frame)

    def sync(self) -> None:
        self._file.sync()


def _runs(pack: PackIndex, frames: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Frames as runs of neighbours, none longer than one request should be."""
    if not len(frames):
        return []
    offsets = pack.starts[frames] // RUN_BYTES_MAX
    breaks = np.flatnonzero((np.diff(frames) != 1) | (np.diff(offsets) != 0)) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks, [len(frames)])) - 1
    return list(zip(frames[firsts].tolist(), (frames[lasts] + 1).tolist(), strict=True))


def _divided(pack: PackIndex, start: int, limit: int, stored: Buffer) -> list[memoryview]:
    """The bytes of each frame."""
    view = memoryview(stored)
    ends = (pack.starts[start : limit + 1] - pack.starts[start]).tolist()
    return [view[a:b] for a, b in pairwise(ends)]
