"""The setsum: a checksum of a set of records that can be added and subtracted.

A setsum is eight columns of 32 bits, each a number modulo its own prime just below 2^32. An item
(any bytes) is hashed with SHA3-256; the eight little-endian 32-bit numbers of the digest, each
reduced modulo its column's prime, are the item's columns. Then::

    insert = add the item's columns         sum of two setsums  = setsum of the union
    remove = subtract them                  difference          = setsum of what was taken away
    the empty set = eight zeros             order               = does not matter

It counts: an item inserted twice is not the item inserted once. Written down, a setsum is its eight
columns as little-endian 32-bit numbers, 32 bytes, as text 64 lower-case hexadecimal digits::

    empty item   a7ffc6f8 bf1ed766 51c14756 a061d662 f580ff4d e43b49fa 82d80a4b 80f8434a
    column       0        1        2        3        4        5        6        7

Validity: 32 bytes are a setsum if and only if every column is below its prime. Decoders here refuse
anything else, upper-case digits too, so that equal sums are equal texts. (The inverse of a zero
column is zero, never the prime.)

What is hashed for a record of a fragment, as one item:

* A fragment with the three plain columns: offset (8 bytes, big-endian) ‖ timestamp in microseconds
  (8 bytes, big-endian) ‖ body. The offset is the number stored in the fragment.
* A fragment that has any of the columns stream, key and headers, even if all of their values are
  null: offset ‖ timestamp ‖ stream ‖ key ‖ headers ‖ body, where each of the three is

      absent (null, or no such column)    00
      stream, key                         01 ‖ length (8 bytes, big-endian) ‖ bytes
      headers                             01 ‖ count (8) ‖ per header: length (8) ‖ name
                                                                     ‖ length (8) ‖ value

What a setsum does not cover: the order of records except through their offsets, the path and the
encoding of the file, and any other column. It finds damage and mistakes, it is no proof against
someone who may choose the records.

This module holds the value. `cordwood.base.items` makes items of Arrow columns and
`cordwood.base.kernels` hashes them; both give plain columns, not yet reduced. Two kernels compute
the same sums: `cordwood.base.plain`, hashlib once per record; and `cordwood.base.keccak` (the
`cordwood[fast]` extra), several times as fast but slow to load. `CORDWOOD_KERNEL` in the
environment chooses, see `use_kernel`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cordwood.base import items
from cordwood.base.errors import InvalidInputError
from cordwood.base.kernels import kernel_name, use_kernel

# pyarrow is imported where it is used: who only compares and adds setsums need not wait for it.
if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DIGEST_BYTES", "PRIMES", "Setsum", "kernel_name", "use_kernel"]

PRIMES = (
    4294967291,
    4294967279,
    4294967231,
    4294967197,
    4294967189,
    4294967161,
    4294967143,
    4294967111,
)
"""The modulus of each column."""

DIGEST_BYTES = 32
"""A setsum written down."""

_COLUMNS = struct.Struct("<8I")
_EMPTY = (0,) * 8
_PRIMES_ROW = np.array(PRIMES, np.uint32)


class Setsum:
    """The sum of a set of items; see the module for what that means.

    `insert` and `remove` change it in place, so it cannot be a dictionary key; every operator makes
    a new one. An empty setsum is false. As text, `str`, it is its `hexdigest`.

    It equals another setsum of the same value, and the text of its own `hexdigest`, because that is
    what the pointers of a manifest hold: `Setsum.from_hex(x) == x`. Any other text, upper-case
    digits too, is not equal.
    """

    __slots__ = ("_columns",)

    _columns: tuple[int, ...]  # eight numbers, each below its prime

    def __init__(self) -> None:
        """The sum of nothing."""
        self._columns = _EMPTY

    @classmethod
    def of_columns(cls, columns: Iterable[int]) -> Self:
        """From eight numbers, each reduced modulo its column's prime.

        Raises:
            InvalidInputError: if there are not eight.
        """
        numbers = tuple(columns)
        if len(numbers) != len(PRIMES):
            raise InvalidInputError(f"a setsum has 8 columns, {len(numbers)} were given")
        made = cls()
        made._columns = tuple([n % prime for n, prime in zip(numbers, PRIMES, strict=True)])
        return made

    @classmethod
    def from_digest(cls, digest: bytes) -> Self:
        """From the 32 bytes of `digest`.

        Raises:
            InvalidInputError: if it has another length, or a column is not below its prime.
        """
        if len(digest) != DIGEST_BYTES:
            raise InvalidInputError(f"a setsum has 32 bytes, {len(digest)} were given")
        made = cls()
        made._columns = _COLUMNS.unpack(digest)
        for index, (number, prime) in enumerate(zip(made._columns, PRIMES, strict=True)):
            if number >= prime:
                raise InvalidInputError(
                    f"setsum {digest.hex()}: column {index} is {number}, not below {prime}"
                )
        return made

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """From the 64 lower-case hexadecimal digits of `hexdigest`.

        Raises:
            InvalidInputError: if the text is anything else, or a column is not below its prime.
        """
        try:
            digest = bytes.fromhex(text)
        except (TypeError, ValueError):
            digest = b""
        if len(digest) != DIGEST_BYTES or digest.hex() != text:
            raise InvalidInputError(f"a setsum is 64 lower-case hexadecimal digits, not {text!r}")
        return cls.from_digest(digest)

    @classmethod
    def sum(cls, digests: Iterable[str]) -> Self:
        """The sum of setsums given as `hexdigest` text; of none, the empty one.

        Raises:
            InvalidInputError: if one of them is not a setsum, as `from_hex`.
        """
        texts = list(digests)
        joined = "".join(texts)
        try:
            raw = bytes.fromhex(joined)
        except ValueError:
            raw = b""
        if raw.hex() != joined or not {2 * DIGEST_BYTES}.issuperset(map(len, texts)):
            raw = b""
        rows = np.frombuffer(raw, "<u4").reshape(-1, len(PRIMES))
        if len(rows) != len(texts) or (rows >= _PRIMES_ROW).any():
            for text in texts:
                cls.from_hex(text)  # it says what is wrong, and with which
        return cls.of_columns(rows.sum(axis=0, dtype=np.uint64).tolist())

    @classmethod
    def of_fragment(cls, table: pa.Table | pa.RecordBatch) -> Self:
        """The setsum of a fragment's records: one item per row, as the module says.

        The columns are `offset` or `relative_offset` (uint64), `timestamp_us` (uint64) and `body`
        (binary or large_binary), none with nulls; and optionally `stream` (string), `key` (binary)
        and `headers` (list of struct of name: string, value: binary), which may be null. Their
        order does not matter, and other columns are not looked at.

        Plain fragments are hashed without copying; with extra columns a few megabytes are held
        at a time.

        Raises:
            InvalidInputError: if a column is missing, has another type, or holds a null that is
                not allowed (a null header, header name or header value is not).
        """
        return cls.of_columns(items.hash_fragment(table))

    @property
    def columns(self) -> tuple[int, ...]:
        """The eight numbers."""
        return self._columns

    def insert(self, *parts: bytes) -> Self:
        """Add one item, the concatenation of the parts, in place; returns the setsum itself."""
        return self._add(_item_columns(parts), 1)

    def remove(self, *parts: bytes) -> Self:
        """Take away one item, the concatenation of the parts, in place; returns the setsum itself.

        Taking away what was never inserted is allowed: inserting it later gives the empty sum.
        """
        return self._add(_item_columns(parts), -1)

    def copy(self) -> Self:
        """Another setsum with the same value."""
        return type(self).of_columns(self._columns)

    def digest(self) -> bytes:
        """The 32 bytes."""
        return _COLUMNS.pack(*self._columns)

    def hexdigest(self) -> str:
        """The 64 lower-case hexadecimal digits."""
        return self.digest().hex()

    def __add__(self, other: Setsum) -> Self:
        if not isinstance(other, Setsum):
            return NotImplemented
        return self.copy()._add(other._columns, 1)

    def __sub__(self, other: Setsum) -> Self:
        if not isinstance(other, Setsum):
            return NotImplemented
        return self.copy()._add(other._columns, -1)

    def __neg__(self) -> Self:
        return type(self)() - self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.hexdigest() == other
        if not isinstance(other, Setsum):
            return NotImplemented
        return self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __bool__(self) -> bool:
        return self._columns != _EMPTY

    def __str__(self) -> str:
        return self.hexdigest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}.from_hex({self.hexdigest()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the digest, which is checked when it is read."""
        return (type(self).from_digest, (self.digest(),))

    def _add(self, columns: Sequence[int], sign: int) -> Self:
        triples = zip(self._columns, columns, PRIMES, strict=True)
        self._columns = tuple([(a + sign * b) % prime for a, b, prime in triples])
        return self


def _item_columns(parts: tuple[bytes, ...]) -> tuple[int, ...]:
    try:
        item = b"".join(parts)
    except TypeError as error:
        raise InvalidInputError(f"an item of a setsum is bytes: {error}") from error
    return _COLUMNS.unpack(hashlib.sha3_256(item).digest())
