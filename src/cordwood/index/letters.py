"""Which characters make words, and their lower case: Unicode 14, the same everywhere for ever.

`letters.bin` holds the rules (tools/make_letters.py made it and says how it is laid out). They are
opened into arrays indexed by code point when the first text comes that is not ASCII.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

POINTS = 0x110000
"""How many code points there are."""

LONG_LOWER = "\u0130"
"""The one character whose lower case is more than one character."""


class Letters(NamedTuple):
    """Answers for every code point."""

    is_word: npt.NDArray[np.bool_]
    """Whether it is a letter, a number or a mark."""
    lower: npt.NDArray[np.uint32]
    """Its lower case; itself if it has none."""
    moves: npt.NDArray[np.bool_]
    """Whether its lower case takes another number of bytes in UTF-8 than it does."""


@functools.cache
def letters() -> Letters:
    """The rules, opened once."""
    raw = np.frombuffer(
        resources.files("cordwood.index").joinpath("letters.bin").read_bytes(), dtype="<u4"
    )
    ends = raw[1 : 1 + int(raw[0])]
    pairs = raw[2 + int(raw[0]) :].reshape(-1, 2)
    changes = np.zeros(POINTS, np.int8)
    changes[ends] = 1
    is_word = (np.cumsum(changes, dtype=np.int32) & 1).astype(np.bool_)
    lower = np.arange(POINTS, dtype=np.uint32)
    lower[pairs[:, 0]] = pairs[:, 1]
    moves = np.zeros(POINTS, np.bool_)
    moves[pairs[:, 0]] = utf8_length(pairs[:, 0]) != utf8_length(pairs[:, 1])
    moves[ord(LONG_LOWER)] = True
    return Letters(is_word, lower, moves)


def utf8_length(points: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
    """How many bytes each code point takes."""
    return np.searchsorted(np.array([0x80, 0x800, 0x10000]), points, side="right") + 1


def decode(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.intp]]:
    """The code points of valid UTF-8 whose first bytes lie at `starts`, and their lengths."""
    lead = data[starts].astype(np.uint32)
    lengths = 1 + (lead >= 0xC0).astype(np.intp) + (lead >= 0xE0) + (lead >= 0xF0)
    # The lead byte's own bits: 7, 5, 4 or 3 of them.
    points = lead & np.array([0, 0x7F, 0x1F, 0x0F, 0x07], np.uint32)[lengths]
    for place in (1, 2, 3):
        more = np.flatnonzero(lengths > place)
        if not len(more):
            break
        points[more] = (points[more] << np.uint32(6)) | (data[starts[more] + place] & 0x3F)
    return points, lengths


def encode(points: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.intp]]:
    """Code points as UTF-8, back to back, and how many bytes each took."""
    lengths = utf8_length(points)
    ends = np.cumsum(lengths)
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(4):
        # The byte `place` from the end: six bits under 10, but for a lead byte.
        some = np.flatnonzero(lengths > place)
        if not len(some):
            break
        length = lengths[some]
        bits = points[some] >> np.uint32(6 * place)
        mark = np.where(
            length == place + 1, np.array([0, 0, 0xC0, 0xE0, 0xF0], np.uint32)[length], 0x80
        )
        bits = np.where(length == place + 1, bits, bits & 0x3F)
        data[ends[some] - 1 - place] = bits | mark
    return data, lengths
