"""SHA3-256 of many records at once, added up into setsum columns: the `cordwood[fast]` kernel.

A setsum needs one SHA3-256 per record and nothing but the sum of the digests, so records may be
hashed in any order and side by side. This module compiles, with numba, a loop that hashes one
record per lane of a vector register: 8 lanes where the processor has AVX-512, otherwise 4. It is
the only module that imports numba or llvmlite; importing it without them raises ImportError, and
`cordwood.base.kernels` then stays with hashlib.

The sponge, per record: a state of 25 words of 64 bits, all zero at first; the item is padded with
0x06 … 0x80 to whole blocks of 136 bytes; each block is xor-ed into the first 17 words, then the
state is permuted by 24 rounds of Keccak-f[1600] (FIPS 202); the digest is the first 4 words.

One step of the loop feeds every lane one block and permutes all lanes together::

    lane        0        1        2        3     …
    step 1      a[0:]    b[0:]    c[0:]    d[0:]      a … d start: `keep` voids the old state
    step 2      a[136:]  e[0:]    c[136:]  d[136:]    b had one block: its lane starts record e
    step 3      a[272:]  e[136:]  f[0:]    d[272:]    c had two: `take` added its digest in step 2

A block that lies whole inside its value is read where it is. The first block of a record (the
16 bytes of its head come before the value) and the last one (padding) are staged in scratch.

The scratch, in words of 64 bits; a row is one word per lane, so a row is one vector register::

    _STATE     25 rows  the sponge, word by word
    _SUMS       8 rows  the columns so far, per lane
    _KEEP       1 row   -1, or 0 in a lane that starts a record with this block
    _TAKE       1 row   -1 in a lane that finishes a record with this block, or 0
    _SOURCE     1 row   the address of the lane's block
    _CURSOR     1 row   the address of the next byte of the lane's value
    _LEFT       1 row   how many bytes of the value are still to come; -1: the lane is free
    _STAGED    17 rows  per lane (not per row) 17 words in which a block is put together

Invariants:

1. A block that is not staged has all of its 136 bytes inside the value: nothing is ever read
   outside `values`, given offsets that do not decrease and stay inside it (`items.hash_items`
   checks that).
2. `take` is -1 exactly once per record, in the step that absorbs its padding.
3. A free lane that finds no record left computes on zeros and takes nothing.
4. Nothing is shared between calls: threads may call the kernel at the same time, and it runs
   without the interpreter's lock.

Columns are summed without reduction (a sum modulo a prime may be reduced at the end), so fewer than
2^32 records may be added in one call.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic, register_jitable

if TYPE_CHECKING:
    import numpy.typing as npt

    Kernel = Callable[
        [
            npt.NDArray[np.uint64],
            npt.NDArray[np.uint64],
            npt.NDArray[np.uint8],
            npt.NDArray[np.int64],
        ],
        list[int],
    ]

LANES = 8 if binding.get_host_cpu_features().get("avx512f", False) else 4
"""Records hashed side by side. Eight lanes on 256-bit registers would spill: four are faster."""

_BLOCK_BYTES = 136
_BLOCK_WORDS = 17
_HEAD_BYTES = 16
_LENGTH_BYTES = 4
_STATE_WORDS = 25
_DIGEST_WORDS = 4
_COLUMNS = 8

_STATE = 0
_SUMS = _STATE + _STATE_WORDS * LANES
_KEEP = _SUMS + _COLUMNS * LANES
_TAKE = _KEEP + LANES
_SOURCE = _TAKE + LANES
_CURSOR = _SOURCE + LANES
_LEFT = _CURSOR + LANES
_STAGED = _LEFT + LANES
_SCRATCH_WORDS = _STAGED + _BLOCK_WORDS * LANES
_ALIGNMENT_BYTES = 64

_AHEAD_BYTES = 2**14
"""How far in front of its cursor a lane asks for memory: what the lanes work on is often half that
long, a kilobyte each, and no prefetcher of the processor follows eight places at once. At half the
distance such records take a hundredth more, at four times the distance shorter ones do."""

_LAST_BIT = -(2**63)
"""The 0x80 that ends the padding, as the top byte of a block's last word."""

_ROUND_CONSTANTS = (
    0x0000000000000001, 0x0000000000008082, 0x800000000000808A, 0x8000000080008000,
    0x000000000000808B, 0x0000000080000001, 0x8000000080008081, 0x8000000000008009,
    0x000000000000008A, 0x0000000000000088, 0x0000000080008009, 0x000000008000000A,
    0x000000008000808B, 0x800000000000008B, 0x8000000000008089, 0x8000000000008003,
    0x8000000000008002, 0x8000000000000080, 0x000000000000800A, 0x800000008000000A,
    0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008,
)  # fmt: skip

_WORD = ir.IntType(64)
_INDEX = ir.IntType(32)
_ROW = ir.VectorType(_WORD, LANES)
_ROW_BYTES = 8 * LANES


def load() -> Kernel:
    """Compile the kernel, or fetch it from numba's cache on disk, and check it against hashlib.

    Without a directory the cache could be written to, or with one that cannot be read, the kernel
    is compiled for this process alone. Costs about a second, a quarter of that from the cache.

    Returns:
        A function of (offsets, timestamps, values, value_offsets): contiguous, aligned arrays of
        n, n, any number of and n + 1 elements. It gives the eight column sums, not yet reduced,
        of SHA3-256(offset big-endian ‖ timestamp big-endian ‖ value) over the n records.

    Raises:
        RuntimeError: on a big-endian machine, or if the compiled code computes anything else than
            hashlib does.
        Exception: whatever numba or LLVM raise when they cannot compile it.
    """
    global _compiled  # noqa: PLW0603 - for sum_pages, which comes with the kernel
    if sys.byteorder != "little":
        raise RuntimeError("the vector kernel needs a little-endian machine")
    try:
        compiled = _compile(cache=True)
    except Exception:  # noqa: BLE001  # an unusable cache shows in many ways; without it we know
        compiled = _compile(cache=False)

    def kernel(
        offsets: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.uint64],
        values: npt.NDArray[np.uint8],
        value_offsets: npt.NDArray[np.int64],
    ) -> list[int]:
        sums = np.empty(_COLUMNS, np.int64)
        compiled(offsets, timestamps, values, value_offsets, sums)
        totals: list[int] = sums.view(np.uint64).tolist()
        return totals

    _check(kernel)
    _compiled = compiled
    return kernel


_compiled: Any = None
"""`_sum_items`, compiled and checked; None before `load`."""


def sum_pages(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    pages: Iterable[tuple[npt.NDArray[np.uint8], int]],
) -> list[int] | None:
    """As the kernel, where the values lie in pages; see `cordwood.base.kernels.sum_pages`.

    Only after `load`.
    """
    totals = np.zeros(_COLUMNS, np.uint64)
    done = 0
    for page, count in pages:
        some = slice(done, done + count)
        done += count
        sums = np.empty(_COLUMNS, np.int64)
        heads = offsets[some], timestamps[some]
        if done > len(offsets) or not _compiled(*heads, page, np.empty(0, np.int64), sums):
            return None
        totals += sums.view(np.uint64)
    if done != len(offsets):
        return None
    listed: list[int] = totals.tolist()
    return listed


def _check(kernel: Kernel) -> None:
    """Compare with hashlib on records of every kind of length, before the kernel is trusted."""
    sizes = [0, 1, 7, 8, 118, 119, 120, 121, 255, 256, 257, 391, 392, 393, 1024] * 2
    value_offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    values = (np.arange(value_offsets[-1]) * 31 % 251).astype(np.uint8)
    offsets = np.arange(len(sizes), dtype=np.uint64) + np.uint64(2**40)
    timestamps = offsets * np.uint64(1_000_003)
    expected = np.zeros(_COLUMNS, np.uint64)
    for index in range(len(sizes)):
        head = offsets[index].tobytes()[::-1] + timestamps[index].tobytes()[::-1]
        value = values[value_offsets[index] : value_offsets[index + 1]].tobytes()
        expected += np.frombuffer(hashlib.sha3_256(head + value).digest(), "<u4")
    if expected.tolist() != kernel(offsets, timestamps, values, value_offsets):
        raise RuntimeError("the vector kernel does not agree with hashlib on this machine")


def _compile(*, cache: bool) -> Any:
    def read_only(dtype: Any) -> Any:
        return types.Array(dtype, 1, "C", readonly=True)

    signature = types.boolean(
        read_only(types.uint64),
        read_only(types.uint64),
        read_only(types.uint8),
        read_only(types.int64),
        types.int64[::1],
    )
    return numba.njit([signature], nogil=True, cache=cache)(_sum_items)


def _sum_items(  # noqa: PLR0915 - numba makes it slow to hand arrays on, record by record
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    values: npt.NDArray[np.uint8],
    value_offsets: npt.NDArray[np.int64],
    sums: npt.NDArray[np.int64],
) -> bool:
    """The loop over steps, compiled by numba; every number in it is a signed 64-bit integer.

    Without value offsets each value lies behind its length. It is false if they do not fill
    `values` exactly; nothing outside is read.
    """
    spare = np.empty(_SCRATCH_WORDS + _ALIGNMENT_BYTES // 8, np.int64)
    scratch = spare[(-np.int64(spare.ctypes.data) % _ALIGNMENT_BYTES) // 8 :]
    scratch_address = np.int64(scratch.ctypes.data)
    values_address = np.int64(values.ctypes.data)
    scratch[:_KEEP] = 0
    scratch[_CURSOR:_LEFT] = values_address
    scratch[_LEFT:_STAGED] = -1
    has_lengths = value_offsets.size == 0
    num_started = num_finished = limit = 0
    while num_finished < offsets.size:
        for lane in range(LANES):
            left = scratch[_LEFT + lane]
            scratch[_KEEP + lane] = -1
            scratch[_TAKE + lane] = 0
            if left >= _BLOCK_BYTES:
                scratch[_SOURCE + lane] = scratch[_CURSOR + lane]
                scratch[_CURSOR + lane] += _BLOCK_BYTES
                scratch[_LEFT + lane] = left - _BLOCK_BYTES
                continue
            staged = _STAGED + _BLOCK_WORDS * lane
            staged_address = scratch_address + 8 * staged
            scratch[_SOURCE + lane] = staged_address
            for word in range(_BLOCK_WORDS):
                scratch[staged + word] = 0
            filled = 0
            if left < 0:
                if num_started == offsets.size:
                    continue
                scratch[_KEEP + lane] = 0
                scratch[staged] = _big_endian(offsets[num_started])
                scratch[staged + 1] = _big_endian(timestamps[num_started])
                filled = _HEAD_BYTES
                if has_lengths:
                    start, left = _find_value(values_address, values.size, limit)
                    if left < 0:
                        return False
                    limit = start + left
                else:
                    start = value_offsets[num_started]
                    left = value_offsets[num_started + 1] - start
                scratch[_CURSOR + lane] = values_address + start
                num_started += 1
            taken = min(left, _BLOCK_BYTES - filled)
            _copy(staged_address + filled, scratch[_CURSOR + lane], taken)
            filled += taken
            if filled == _BLOCK_BYTES:
                scratch[_CURSOR + lane] += taken
                scratch[_LEFT + lane] = left - taken
            else:
                scratch[staged + filled // 8] ^= 0x06 << (8 * (filled % 8))
                scratch[staged + _BLOCK_WORDS - 1] ^= _LAST_BIT
                scratch[_TAKE + lane] = -1
                scratch[_LEFT + lane] = -1
                num_finished += 1
        _absorb(scratch_address)
    for column in range(_COLUMNS):
        row = _SUMS + column * LANES
        sums[column] = scratch[row : row + LANES].sum()
    return not has_lengths or limit == values.size


# What follows writes LLVM code, because numba does not turn the plain loops into vectors by itself.
# A function given to `intrinsic` returns the signature and the function that emits the code.
_intrinsic: Any = intrinsic


def _define_big_endian(_typing: Any, _number: Any) -> Any:
    """The number with its bytes turned round, so that it lies in memory as big-endian."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.int64(types.uint64), emit


_big_endian = _intrinsic(_define_big_endian)


def _define_load_length(_typing: Any, _address: Any) -> Any:
    """The 4 bytes at an address as a number."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _INDEX.as_pointer())
        return builder.zext(builder.load(place, align=1), _WORD)

    return types.int64(types.int64), emit


_load_length = _intrinsic(_define_load_length)


def _find(address: int, size: int, limit: int) -> tuple[int, int]:
    """Where the value behind `limit` starts and its length, which is -1 if it lies outside.

    It takes numbers only: numba counts references to an array that is handed on, record by record.
    """
    start = limit + _LENGTH_BYTES
    if start > size:
        return start, -1
    left = _load_length(address + limit)
    return start, left if start + left <= size else -1


_find_value: Any = register_jitable(_find)


def _define_copy(_typing: Any, _target: Any, _source: Any, _num_bytes: Any) -> Any:
    """Copy bytes from one address to another."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source, num_bytes = arguments
        pointer = ir.IntType(8).as_pointer()
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, _WORD])
        volatile = ir.Constant(ir.IntType(1), 0)
        target, source = builder.inttoptr(target, pointer), builder.inttoptr(source, pointer)
        builder.call(memcpy, [target, source, num_bytes, volatile])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


_copy = _intrinsic(_define_copy)


def _define_absorb(_typing: Any, _scratch_address: Any) -> Any:
    """One step: absorb every lane's block, permute, and add the digests of finished records."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        (base,) = arguments
        _prefetch(builder, base)
        keep = builder.load(_row(builder, base, _KEEP), align=_ROW_BYTES)
        state = []
        for word in range(_STATE_WORDS):
            old = builder.load(_row(builder, base, _STATE + word * LANES), align=_ROW_BYTES)
            state.append(builder.and_(old, keep))
        for word, row in enumerate(_blocks(builder, base)):
            state[word] = builder.xor(state[word], row)
        state = _permute(builder, state)
        for word in range(_STATE_WORDS):
            target = _row(builder, base, _STATE + word * LANES)
            builder.store(state[word], target, align=_ROW_BYTES)
        take = builder.load(_row(builder, base, _TAKE), align=_ROW_BYTES)
        for word in range(_DIGEST_WORDS):
            digest = builder.and_(state[word], take)
            low, high = builder.and_(digest, _all(2**32 - 1)), builder.lshr(digest, _all(32))
            for column, half in ((2 * word, low), (2 * word + 1, high)):
                target = _row(builder, base, _SUMS + column * LANES)
                total = builder.add(builder.load(target, align=_ROW_BYTES), half)
                builder.store(total, target, align=_ROW_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64), emit


_absorb = _intrinsic(_define_absorb)


def _all(number: int) -> Any:
    """A row that holds the same number in every lane."""
    return ir.Constant(_ROW, [ir.Constant(_WORD, number)] * LANES)


def _row(builder: Any, base: Any, word: int) -> Any:
    """A pointer to the row that starts at this word of the scratch."""
    address = builder.add(base, ir.Constant(_WORD, 8 * word))
    return builder.inttoptr(address, _ROW.as_pointer())


def _prefetch(builder: Any, base: Any) -> None:
    """Ask for the memory every lane, or the one that follows it there, will soon read.

    The place may lie behind the values: to ask for it is allowed and does nothing.
    """
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _INDEX, _INDEX, _INDEX])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    to_read, in_every_cache, data = (ir.Constant(_INDEX, flag) for flag in (0, 3, 1))
    for lane in range(LANES):
        place = builder.add(base, ir.Constant(_WORD, 8 * (_CURSOR + lane)))
        cursor = builder.load(builder.inttoptr(place, _WORD.as_pointer()), align=8)
        for line in (0, 64):
            soon = builder.add(cursor, ir.Constant(_WORD, _AHEAD_BYTES + line))
            soon = builder.inttoptr(soon, pointer)
            builder.call(prefetch, [soon, to_read, in_every_cache, data])


def _blocks(builder: Any, base: Any) -> list[Any]:
    """The 17 rows of the blocks that `_SOURCE` points at: one word of each lane's block per row."""
    pointer = _WORD.as_pointer()
    sources = []
    for lane in range(LANES):
        place = builder.add(base, ir.Constant(_WORD, 8 * (_SOURCE + lane)))
        sources.append(builder.load(builder.inttoptr(place, pointer), align=8))
    rows = []
    for word in range(_BLOCK_WORDS):
        row = ir.Constant(_ROW, ir.Undefined)
        for lane, source in enumerate(sources):
            place = builder.add(source, ir.Constant(_WORD, 8 * word))
            content = builder.load(builder.inttoptr(place, pointer), align=1)
            row = builder.insert_element(row, content, ir.Constant(_INDEX, lane))
        rows.append(row)
    return rows


def _permute(builder: Any, state: list[Any]) -> list[Any]:
    """Keccak-f[1600] as a loop of 24 rounds; unrolled it outgrows the instruction cache."""
    table_type = ir.ArrayType(_WORD, len(_ROUND_CONSTANTS))
    name = builder.module.get_unique_name("keccak.round_constants")
    table = ir.GlobalVariable(builder.module, table_type, name)
    table.global_constant = True
    table.linkage = "internal"
    table.initializer = ir.Constant(table_type, [ir.Constant(_WORD, n) for n in _ROUND_CONSTANTS])
    before = builder.block
    body = builder.append_basic_block("keccak.round")
    after = builder.append_basic_block("keccak.done")
    builder.branch(body)
    builder.position_at_end(body)
    number = builder.phi(_WORD)
    number.add_incoming(ir.Constant(_WORD, 0), before)
    current = []
    for word in state:
        incoming = builder.phi(_ROW)
        incoming.add_incoming(word, before)
        current.append(incoming)
    place = builder.gep(table, [ir.Constant(_WORD, 0), number], inbounds=True)
    constant = builder.insert_element(
        ir.Constant(_ROW, ir.Undefined), builder.load(place), ir.Constant(_INDEX, 0)
    )
    every_lane = ir.Constant(ir.VectorType(_INDEX, LANES), [ir.Constant(_INDEX, 0)] * LANES)
    constant = builder.shuffle_vector(constant, constant, every_lane)
    following = _round(builder, current, constant)
    next_number = builder.add(number, ir.Constant(_WORD, 1))
    number.add_incoming(next_number, body)
    for incoming, word in zip(current, following, strict=True):
        incoming.add_incoming(word, body)
    limit = ir.Constant(_WORD, len(_ROUND_CONSTANTS))
    builder.cbranch(builder.icmp_unsigned("<", next_number, limit), body, after)
    builder.position_at_end(after)
    return following


def _round(builder: Any, state: list[Any], constant: Any) -> list[Any]:
    """One round; the word at column x and line y of the specification is `state[x + 5 * y]`."""
    # theta: add to every word the parity of two neighbouring columns
    parity = []
    for x in range(5):
        column = state[x]
        for y in range(1, 5):
            column = builder.xor(column, state[x + 5 * y])
        parity.append(column)
    change = [
        builder.xor(parity[(x + 4) % 5], _rotate(builder, parity[(x + 1) % 5], 1)) for x in range(5)
    ]
    # rho and pi: rotate each word and move it
    moved = list(state)
    for x in range(5):
        for y in range(5):
            word = builder.xor(state[x + 5 * y], change[x])
            moved[y + 5 * ((2 * x + 3 * y) % 5)] = _rotate(builder, word, _ROTATIONS[x + 5 * y])
    # chi: the only step that is not linear
    result = []
    for y in range(5):
        line = moved[5 * y : 5 * y + 5]
        for x in range(5):
            mixed = builder.and_(builder.not_(line[(x + 1) % 5]), line[(x + 2) % 5])
            result.append(builder.xor(line[x], mixed))
    # iota: break the symmetry between rounds
    result[0] = builder.xor(result[0], constant)
    return result


def _rotate(builder: Any, row: Any, num_bits: int) -> Any:
    """Rotate left in every lane; LLVM sees one rotation instruction in the two shifts."""
    if num_bits == 0:
        return row
    return builder.or_(builder.shl(row, _all(num_bits)), builder.lshr(row, _all(64 - num_bits)))


def _rotations() -> list[int]:
    """By how much rho rotates each word, from the walk that defines it."""
    amounts = [0] * _STATE_WORDS
    x, y = 1, 0
    for step in range(24):
        amounts[x + 5 * y] = (step + 1) * (step + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    return amounts


_ROTATIONS = _rotations()
