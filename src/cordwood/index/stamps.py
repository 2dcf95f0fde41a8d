"""Whether many files are as they were: the system is asked of each, with little Python around it.

What a file was like is six words, as statx(2) gives them: inode, size, seconds and nanoseconds of
the last change at all, seconds and nanoseconds of the last change of content. For many files that
is a column of each word. Where the C library has statx it is called for a thousand files in a row
by C code alone (`map`, over a function of ctypes), and a column is compared at once; elsewhere, and
to find out which files differ, `os.stat` is asked one by one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from functools import cache
from itertools import repeat

SECOND_NS = 1_000_000_000

FILES_MAX = 1_024
"""So many files are compared at once."""

WORDS = (4, 5, 12, 13, 14, 15)
"""Where in statx's answer the six words are, counted in words."""

_ANSWER_WORDS = 32
_NO_FOLLOW = 0x100
_BASIC = 0x7FF


class _Statx:
    """The C library's statx, with room for answers."""

    def __init__(self) -> None:
        # It keeps the interpreter's lock: others would get it a million times a second for nothing.
        self._statx = ctypes.PyDLL(None).statx
        answers = (ctypes.c_uint64 * (_ANSWER_WORDS * FILES_MAX))()
        self._answers = memoryview(answers).cast("B").cast("Q")
        size = 8 * _ANSWER_WORDS
        self._places = [ctypes.byref(answers, size * place) for place in range(FILES_MAX)]

    def same(self, folder: int, paths: Sequence[bytes], columns: memoryview) -> bool:
        """See `same`."""
        asked = map(
            self._statx, repeat(folder), paths, repeat(_NO_FOLLOW), repeat(_BASIC), self._places
        )
        if any(asked):
            return False
        count = len(paths)
        answers = self._answers[: _ANSWER_WORDS * count]
        return all(
            answers[word::_ANSWER_WORDS] == columns[place * count : (place + 1) * count]
            for place, word in enumerate(WORDS)
        )


@cache
def _statx() -> _Statx | None:
    """None where there is no such call, or words are the other way round."""
    if sys.byteorder != "little" or not sys.platform.startswith("linux"):
        return None
    try:
        return _Statx()
    except (AttributeError, OSError):
        return None


def same(folder: int, paths: Sequence[bytes], columns: memoryview) -> bool:
    """Whether all of these are as they were; False if it is not known.

    Args:
        folder: a descriptor of the folder that paths are from.
        paths: at most `FILES_MAX`. Links are not followed at their end.
        columns: the first word of each file, the second of each, and so on.
    """
    native = _statx()
    return native is not None and native.same(folder, paths, columns)


def unlike(folder: int, paths: Sequence[bytes], columns: memoryview) -> list[int]:
    """The places of those that are not as they were, or not there."""
    count = len(paths)
    found = []
    for place, path in enumerate(paths):
        try:
            it = os.stat(path, dir_fd=folder, follow_symlinks=False)
        except OSError:
            found.append(place)
            continue
        if tuple(columns[place::count]) != words_of(it):
            found.append(place)
    return found


def words_of(it: os.stat_result) -> tuple[int, ...]:
    """The six words."""
    changed, written = divmod(it.st_ctime_ns, SECOND_NS), divmod(it.st_mtime_ns, SECOND_NS)
    words = (it.st_ino, it.st_size, *changed, *written)
    return tuple(word & 0xFFFFFFFF_FFFFFFFF for word in words)
