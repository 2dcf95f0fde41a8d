"""Segments of a store, kept in a folder of this machine.

A segment never changes, so a file that is there is right, if it is whole: that is checked where it
is opened (sections.py), and one that is not is fetched again. What was not used for longest goes
when the folder grows beyond its limit.

The folder is its user's alone: whole is not the same as genuine, and another user of the machine
could have put a segment there. One that is not ours is not used.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from cordwood.base.errors import CorruptionError
from cordwood.index.sections import Sections

LIMIT_BYTES = 10 << 30


class SegmentCache:
    """The segments of one index."""

    def __init__(self, folder: str | None, name: str, *, limit_bytes: int = LIMIT_BYTES) -> None:
        """Under `folder`, or the system's folder for what may be lost; no I/O.

        Of a store in memory nothing is kept: it is no nearer here.
        """
        self._is_off = name.startswith("memory:")
        self._base = Path(folder or tempfile.gettempdir()) / f"cordwood-cache-{os.getuid()}"
        self._folder = self._base / hashlib.sha256(name.encode()).hexdigest()[:32]
        self._limit_bytes = limit_bytes

    def find(self, number: int) -> Any:
        """A segment's bytes, mapped, if they are here and whole; else None."""
        with suppress(OSError, CorruptionError, ValueError):
            if self._is_ours:
                return self._mapped(self._folder / f"{number}.idx")
        return None

    def keep(self, number: int, data: bytes) -> Any:
        """Keep a segment that was fetched; its bytes, mapped."""
        if self._is_off or not self._is_ours:
            return data
        self._write(self._folder / f"{number}.idx", data)
        found = self.find(number)
        return data if found is None else found  # No folder to be had: then from memory.

    @cached_property
    def _is_ours(self) -> bool:
        """Whether nobody else can have put something there."""
        try:
            self._base.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self._base.lstat()
        except OSError:
            return False
        return (
            stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o22
        )

    def forget(self, numbers: Iterable[int]) -> None:
        """Segments that are gone."""
        for number in numbers:
            with suppress(OSError):
                (self._folder / f"{number}.idx").unlink()

    def _mapped(self, path: Path) -> memoryview:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            view = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)
        if wrong := Sections(view, path.name).check():
            raise CorruptionError(wrong[0])
        with suppress(OSError):
            os.utime(path)
        return view

    def _write(self, path: Path, data: bytes) -> None:
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(len(data))
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                try:
                    file.write(data)
                    file.flush()
                except OSError:
                    os.unlink(file.name)
                    raise
            os.replace(file.name, path)

    def _make_room(self, size_bytes: int) -> None:
        found = []
        for entry in os.scandir(self._folder):
            with suppress(OSError):
                known = entry.stat()
                found.append((known.st_mtime, known.st_size, entry.path))
        total = size_bytes + sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._limit_bytes:
                return
            with suppress(OSError):
                os.unlink(path)
                total -= size
