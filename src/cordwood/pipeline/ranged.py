"""An object as a file that is read in parts: for a Parquet reader that wants a few columns."""

from __future__ import annotations

import io
from collections.abc import Callable

from cordwood.store.api import Buffer

TAIL_BYTES = 64 * 1024
"""The end is read at once and kept: a Parquet file begins there."""


class RangedFile(io.RawIOBase):
    """Reads what is asked for, when it is asked for."""

    def __init__(self, read: Callable[[int, int], Buffer], num_bytes: int) -> None:
        """`read` gives the bytes from a place on, so many."""
        super().__init__()
        self._read = read
        self._num_bytes = num_bytes
        self._at = 0
        self._tail_at = max(0, num_bytes - TAIL_BYTES)
        # One byte more than there should be: a longer object is noticed as well.
        self._tail = bytes(read(self._tail_at, num_bytes - self._tail_at + 1))
        if len(self._tail) != num_bytes - self._tail_at:
            raise OSError(f"it has not {num_bytes} bytes")

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence, self._num_bytes)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """So many bytes, fewer where it ends."""
        limit = self._num_bytes if size < 0 else min(self._num_bytes, self._at + size)
        start, self._at = self._at, max(self._at, limit)
        if start >= self._tail_at:
            return self._tail[start - self._tail_at : limit - self._tail_at]
        return bytes(self._read(start, limit - start))
