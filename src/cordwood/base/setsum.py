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

Two kernels compute the same sums: hashlib, one call per record; and the vector kernel of
`cordwood.base.keccak` (the `cordwood[fast]` extra), several times as fast but slow to load.
`CORDWOOD_KERNEL` in the environment chooses, see `use_kernel`.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from cordwood.base.errors import InvalidInputError, StateError

# pyarrow is imported where it is used: who only compares and adds setsums need not wait for it.
if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from cordwood.base.keccak import Kernel

    Bytes: TypeAlias = bytes | npt.NDArray[Any] | pa.Buffer

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
_EXTRA_NAMES = ("stream", "key", "headers")
_HEADER_FIELDS = {"name", "value"}


class Setsum:
    """The sum of a set of items; see the module for what that means.

    `insert` and `remove` change it in place, so it cannot be a dictionary key; every operator makes
    a new one. An empty setsum is false.
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
        except ValueError:
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
        total = cls()
        for batch in _batches(table):
            total += _hash_batch(batch)
        return total

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
        if not isinstance(other, Setsum):
            return NotImplemented
        return self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __bool__(self) -> bool:
        return self._columns != _EMPTY

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
    return _COLUMNS.unpack(hashlib.sha3_256(b"".join(parts)).digest())


def hash_items(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    values: Bytes,
    value_offsets: npt.NDArray[np.int32] | npt.NDArray[np.int64],
) -> Setsum:
    """The setsum of n records, record i being offset ‖ timestamp ‖ value, numbers big-endian.

    Args:
        offsets: n numbers.
        timestamps: n numbers.
        values: the bytes of all values (bytes, an array of uint8, an Arrow buffer); not copied.
        value_offsets: n + 1 places in `values`; value i lies from place i to place i + 1. They need
            not start at 0 nor end where `values` ends.

    Raises:
        InvalidInputError: if types or lengths do not fit, or a place lies outside `values`.
    """
    num_records = len(offsets)
    if offsets.dtype != np.uint64 or timestamps.dtype != np.uint64:
        raise InvalidInputError(
            f"offsets and timestamps are uint64, not {offsets.dtype} and {timestamps.dtype}"
        )
    if value_offsets.dtype not in (np.int32, np.int64):
        raise InvalidInputError(f"value offsets are int32 or int64, not {value_offsets.dtype}")
    if len(timestamps) != num_records or len(value_offsets) != num_records + 1:
        raise InvalidInputError(
            f"{num_records} offsets need as many timestamps and one more value offset, "
            f"not {len(timestamps)} and {len(value_offsets)}"
        )
    if num_records == 0:
        return Setsum()
    content = np.frombuffer(values, np.uint8)
    places = np.require(value_offsets, np.int64, ["C", "A"])
    if places[0] < 0 or places[-1] > content.size or (places[1:] < places[:-1]).any():
        raise InvalidInputError(
            f"value offsets decrease or lie outside the {content.size} bytes of values"
        )
    num_blocks = num_records + int(places[-1] - places[0]) // _BLOCK_BYTES
    kernel = _KERNELS.pick(num_records, num_blocks)
    offsets = np.require(offsets, requirements=["C", "A"])
    timestamps = np.require(timestamps, requirements=["C", "A"])
    return Setsum.of_columns(kernel(offsets, timestamps, content, places))


# --- From Arrow columns to items -----------------------------------------------------------------


_PIECE_BYTES = 8 * 2**20
"""About how much of a fragment with extra columns is put together in memory at a time."""

_BATCH_RECORDS_MIN = 256
"""Record batches smaller than this on average are copied into one: each costs some 30 µs."""


def _batches(table: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows as they lie; of no rows one empty batch, so that its columns are looked at."""
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(table, pa.RecordBatch):
        return [table]
    if not isinstance(table, pa.Table):
        raise InvalidInputError(
            f"a fragment is a pyarrow Table or RecordBatch, not {type(table).__name__}"
        )
    batches = table.to_batches()
    if len(batches) > 1 and table.num_rows < len(batches) * _BATCH_RECORDS_MIN:
        batches = table.combine_chunks().to_batches()
    return batches or [pa.RecordBatch.from_pylist([], schema=table.schema)]


def _hash_batch(batch: pa.RecordBatch) -> Setsum:
    """The setsum of the rows, plain or with extra columns."""
    names = batch.schema.names
    if ("offset" in names) == ("relative_offset" in names):
        raise InvalidInputError("a fragment has one of the columns offset and relative_offset")
    offsets = _numbers(batch, "offset" if "offset" in names else "relative_offset")
    timestamps = _numbers(batch, "timestamp_us")
    body = _column(batch, "body")
    _check_binary("body", body)
    if body.null_count:
        raise InvalidInputError(f"column body has {body.null_count} nulls")
    if set(_EXTRA_NAMES).isdisjoint(names):
        return hash_items(offsets, timestamps, *_layout(body))
    total = Setsum()
    step = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
    for start in range(0, max(1, batch.num_rows), step):
        values, value_offsets = _layout(_join_extras(batch.slice(start, step)))
        rows = slice(start, start + step)
        total += hash_items(offsets[rows], timestamps[rows], values, value_offsets)
    return total


def _join_extras(batch: pa.RecordBatch) -> pa.Array:
    """What follows the timestamp in each item: stream, key, headers, body."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    parts: list[Any] = []
    for name in _EXTRA_NAMES:
        column = _column(batch, name) if name in batch.schema.names else None
        if column is None or pa.types.is_null(column.type):
            parts.append(pa.scalar(b"\x00", pa.large_binary()))
        elif name == "headers":
            parts += _encode_headers(column)
        else:
            _check_binary(name, column, text=name == "stream")
            parts += [_presence(pc.binary_length(column)), column]
    return _join([*parts, _column(batch, "body")])


def _encode_headers(column: pa.Array) -> list[pa.Array]:
    """Presence byte and count, then the headers themselves, record by record."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    entry: Any = kind.value_type if is_list else kind
    if not is_list or not pa.types.is_struct(entry) or {f.name for f in entry} != _HEADER_FIELDS:
        raise InvalidInputError(
            f"column headers is a list of struct<name: string, value: binary>, not {kind}"
        )
    entries = column.flatten()
    names, values = entries.field("name"), entries.field("value")
    _check_binary("headers.name", names, text=True)
    _check_binary("headers.value", values)
    if entries.null_count or names.null_count or values.null_count:
        raise InvalidInputError("a header has neither a null name nor a null value")
    name_sizes, value_sizes = pc.binary_length(names), pc.binary_length(values)
    parts = [_big_endian(name_sizes), names, _big_endian(value_sizes), values]
    content, places = _layout(_join(parts))
    # The headers of a record lie one behind the other: its bytes go from its first to its last.
    counts = pc.list_value_length(column)
    ends = np.cumsum(counts.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    return [_presence(counts), _binary_array(content, places[np.concatenate(([0], ends))])]


def _presence(numbers: pa.Array) -> pa.Array:
    """Per record 01 and the number in 8 bytes, or 00 where the number is null."""
    present = numbers.is_valid().to_numpy(zero_copy_only=False)
    rows = np.empty((len(numbers), 9), np.uint8)
    rows[:, 0] = present
    rows[:, 1:] = _big_endian_rows(numbers.fill_null(0))
    kept = np.ones(rows.shape, np.bool_)
    kept[:, 1:] = present[:, np.newaxis]
    ends = np.cumsum(np.where(present, 9, 1), dtype=np.int64)
    return _binary_array(rows[kept], np.concatenate(([0], ends)))


def _big_endian(numbers: pa.Array) -> pa.Array:
    """Per row the number in 8 bytes."""
    rows = _big_endian_rows(numbers)
    return _binary_array(rows, np.arange(0, rows.size + 1, 8, dtype=np.int64))


def _big_endian_rows(numbers: pa.Array) -> npt.NDArray[np.uint8]:
    swapped: npt.NDArray[Any] = numbers.to_numpy(zero_copy_only=False).astype(">u8")
    return swapped.view(np.uint8).reshape(len(numbers), 8)


def _join(parts: Sequence[Any]) -> pa.Array:
    """Concatenate columns and scalars of bytes row by row; a null counts as no bytes."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = pa.large_binary()
    wide = [part if part.type == kind else part.cast(kind) for part in parts]
    return pc.binary_join_element_wise(*wide, pa.scalar(b"", kind), null_handling="replace")


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    places = batch.schema.get_all_field_indices(name)
    if len(places) != 1:
        raise InvalidInputError(f"a fragment has one column {name}, this one has {len(places)}")
    return batch.column(places[0])


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.uint64]:
    import pyarrow as pa  # noqa: PLC0415

    column = _column(batch, name)
    if not pa.types.is_uint64(column.type):
        raise InvalidInputError(f"column {name} is uint64, not {column.type}")
    if column.null_count:
        raise InvalidInputError(f"column {name} has {column.null_count} nulls")
    numbers: npt.NDArray[np.uint64] = column.to_numpy()
    return numbers


def _check_binary(name: str, column: pa.Array, *, text: bool = False) -> None:
    import pyarrow as pa  # noqa: PLC0415

    kinds = (pa.string(), pa.large_string()) if text else (pa.binary(), pa.large_binary())
    if column.type not in kinds:
        raise InvalidInputError(f"column {name} is {kinds[0]} or {kinds[1]}, not {column.type}")


def _layout(column: pa.Array) -> tuple[Bytes, npt.NDArray[Any]]:
    """The bytes of a binary or large_binary column and its value offsets, both where they lie."""
    import pyarrow as pa  # noqa: PLC0415

    _, places, content = column.buffers()
    if len(column) == 0 or places is None:
        return b"", np.zeros(1, np.int64)
    width = np.dtype(np.int64 if column.type == pa.large_binary() else np.int32)
    start = column.offset * width.itemsize
    numbers = np.frombuffer(places, width, count=len(column) + 1, offset=start)
    return b"" if content is None else content, numbers


def _binary_array(content: Bytes, places: npt.NDArray[Any]) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    buffers = [None, pa.py_buffer(places), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(places) - 1, buffers)


# --- The two kernels -----------------------------------------------------------------------------


_BLOCK_BYTES = 136
"""SHA3-256 works through an item in blocks of this size: the unit of all cost here."""

_LOAD_BLOCKS = 2**19
"""The vector kernel is loaded when a process has so much to hash: about what loading costs."""

_VECTOR_RECORDS_MIN = 2
"""A single record fills one lane of the vector kernel: hashlib is as fast."""

_CHUNK_RECORDS = 4096
_CHUNK_BYTES = 2**20
"""How much hashlib hashes between two sums, so that memory stays bounded."""

_COPY_RECORDS_MIN = 16
_COPY_BYTES_MAX = 512
"""Copying heads and values together pays for so many records, and, unless all have the same size,
up to this size on average; otherwise head and value are hashed in turn."""


def kernel_name() -> str:
    """Which kernel hashes large inputs: "numba" or "hashlib".

    It loads the vector kernel if that is still open, which takes up to two seconds: a program that
    must not pause later may call this at its start.
    """
    return "hashlib" if _KERNELS.load() is None else "numba"


def use_kernel(name: str) -> str:
    """Choose the kernel for this process, overriding `CORDWOOD_KERNEL`; for tests and benchmarks.

    Args:
        name: "hashlib"; "numba", which loads the vector kernel now and uses it for inputs of any
            size; or "auto", the default, which uses the vector kernel where it is installed,
            works, and pays.

    Returns:
        The choice that held before.

    Raises:
        InvalidInputError: for any other name.
        StateError: if "numba" is asked for and cannot be had; the choice stays as it was.
    """
    return _KERNELS.choose(name)


class _Kernels:
    """Which kernel to use, and the loading of the vector kernel, at most once per process."""

    def __init__(self, choice: str) -> None:
        self._choice = choice  # "auto", "numba", "hashlib"; from the environment perhaps nonsense
        self._vector: Kernel | None = None
        self._failure: Exception | None = None  # why there is no vector kernel
        self._num_blocks = 0  # hashed by hashlib so far; racing threads may lose a few
        self._loading = threading.Lock()

    def choose(self, name: str) -> str:
        if _known(name) == "numba":
            self._demand_vector()
        before, self._choice = self._choice, name
        return before

    def load(self) -> Kernel | None:
        """The vector kernel, loaded if need be, unless it is not wanted or cannot be had."""
        if _known(self._choice) == "numba":
            return self._demand_vector()
        return None if self._choice == "hashlib" else self._load_vector()

    def pick(self, num_records: int, num_blocks: int) -> Kernel:
        """The kernel for an input of this size."""
        if self._choice == "auto":
            if num_records < _VECTOR_RECORDS_MIN:
                return _sum_with_hashlib
            if self._vector is None and self._failure is None:
                self._num_blocks += num_blocks
                # While another thread is loading, hashing goes on.
                if self._num_blocks < _LOAD_BLOCKS or self._loading.locked():
                    return _sum_with_hashlib
        return self.load() or _sum_with_hashlib

    def _load_vector(self) -> Kernel | None:
        with self._loading:
            if self._vector is None and self._failure is None:
                try:
                    from cordwood.base import keccak  # noqa: PLC0415

                    self._vector = keccak.load()
                except Exception as error:  # noqa: BLE001  # whatever it is, hashlib works
                    self._failure = error
            return self._vector

    def _demand_vector(self) -> Kernel:
        vector = self._load_vector()
        if vector is None:
            message = f"the vector kernel cannot be loaded: {self._failure}"
            raise StateError(message, hint="install cordwood[fast]") from self._failure
        return vector


def _known(name: str) -> str:
    if name not in ("auto", "numba", "hashlib"):
        raise InvalidInputError(
            f"there is no setsum kernel {name!r}",
            hint="CORDWOOD_KERNEL and use_kernel take auto, numba or hashlib",
        )
    return name


def _sum_with_hashlib(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    values: npt.NDArray[np.uint8],
    value_offsets: npt.NDArray[np.int64],
) -> list[int]:
    """The kernel that is always there."""
    totals = np.zeros(len(PRIMES), np.uint64)
    num_bytes = int(value_offsets[-1] - value_offsets[0])
    step = min(_CHUNK_RECORDS, max(1, len(offsets) * _CHUNK_BYTES // max(1, num_bytes)))
    for start in range(0, len(offsets), step):
        places = value_offsets[start : start + step + 1]
        heads = np.empty((len(places) - 1, 2), ">u8")
        heads[:, 0] = offsets[start : start + step]
        heads[:, 1] = timestamps[start : start + step]
        totals += _sum_digests(_digests(heads, values, places))
    sums: list[int] = totals.tolist()
    return sums


def _digests(
    heads: npt.NDArray[Any], values: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> list[bytes]:
    """SHA3-256 of each head followed by its value, in the way that is cheapest for their sizes."""
    sha3_256 = hashlib.sha3_256
    sizes = np.diff(places)
    size = int(sizes[0])
    copy = len(heads) >= _COPY_RECORDS_MIN
    if copy and (sizes == size).all():
        matrix = np.empty((len(heads), 16 + size), np.uint8)
        matrix[:, :16] = heads.view(np.uint8)
        matrix[:, 16:] = values[places[0] : places[-1]].reshape(len(heads), size)
        items = matrix.reshape(-1).view(f"V{16 + size}").tolist()
        return [sha3_256(item).digest() for item in items]
    if copy and places[-1] - places[0] <= len(heads) * _COPY_BYTES_MAX:
        head_places = np.arange(0, heads.nbytes + 1, 16, dtype=np.int64)
        joined = _join([_binary_array(heads, head_places), _binary_array(values, places)])
        items = joined.to_numpy(zero_copy_only=False).tolist()
        return [sha3_256(item).digest() for item in items]
    digests = []
    content, bounds = values.data, places.tolist()
    head_list = heads.view("V16")[:, 0].tolist()
    for head, start, limit in zip(head_list, bounds, bounds[1:], strict=False):
        item = sha3_256(head)
        item.update(content[start:limit])
        digests.append(item.digest())
    return digests


def _sum_digests(digests: list[bytes]) -> npt.NDArray[np.uint64]:
    """Column sums, not reduced. Long rows, 32 digests each, are what numpy sums fastest."""
    digests.append(bytes(-len(digests) % 32 * DIGEST_BYTES))
    numbers = np.frombuffer(b"".join(digests), "<u4").reshape(-1, 32 * 8)
    by_place = numbers.sum(axis=0, dtype=np.uint64)
    sums: npt.NDArray[np.uint64] = by_place.reshape(32, 8).sum(axis=0)
    return sums


_KERNELS = _Kernels(os.environ.get("CORDWOOD_KERNEL") or "auto")
