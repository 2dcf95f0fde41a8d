"""Make `src/cordwood/index/letters.bin`: what counts as part of a word, for ever.

An index must cut a query as it cut its documents, perhaps years before and with another Python. So
the rules do not come from the running Python's tables: they are made once, by this, and kept. Two
arrays of little-endian u32 behind their lengths: the ends of runs of code points that are, in turn,
no part of a word and part of one (letters, numbers, marks); and pairs of code points, one that has
a lower case and that one. Characters whose lower case is several characters are left out there:
`tokens.py` lists the one there is.
"""

from __future__ import annotations

import struct
import sys
import unicodedata
from pathlib import Path

TARGET = Path(__file__).parent.parent / "src/cordwood/index/letters.bin"


def main() -> None:
    """Write the file."""
    ends, inside = [], False
    pairs: list[int] = []
    for point in range(sys.maxunicode + 1):
        is_word = unicodedata.category(chr(point))[0] in "LNM"
        if is_word != inside:
            ends.append(point)
            inside = is_word
        lower = chr(point).lower()
        if len(lower) == 1 and lower != chr(point):
            pairs += [point, ord(lower)]
    packed = b"".join(struct.pack(f"<I{len(part)}I", len(part), *part) for part in (ends, pairs))
    TARGET.write_bytes(packed)
    print(f"Unicode {unicodedata.unidata_version}: {len(packed)} bytes to {TARGET}")


if __name__ == "__main__":
    main()
