"""SHA3-256 of many records at once, added up into setsum columns: the `cordwood[fast]` kernel.

A setsum needs one SHA3-256 per record and nothing but the sum of the digests, so records may be
hashed in any order and side by side. This module compiles, with numba, a loop that hashes one
record per lane of a vector register: 8 lanes where the processor has AVX-512, otherwise 4. It is
the only module that imports numba; importing it without raises ImportError, and
`cordwood.base.kernels` then stays with hashlib. The permutation is in `cordwood.base.permutation`.

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
    _SOURCE     1 row   the address of the lane's block
    _CURSOR     1 row   the address of the next byte of the lane's value
    _LEFT       1 row   how many bytes of the value are still to come; -1: the lane is free
    _STAGED     per lane (not per row) 17 words in which a block is put together, and 17 to spare
                on either side of it: to write a whole block, wherever in it that begins or ends,
                takes a fraction of the time of writing as much as is needed

Invariants:

1. A block that is not staged has all of its 136 bytes inside the value, and what is copied into a
   staged one lies inside `values`: nothing is ever read outside, given offsets that do not decrease
   and stay inside it (`items.hash_items` checks that).
2. `take` has a lane's bit exactly once per record, in the step that absorbs its padding.
3. A free lane that finds no record left computes on whatever is staged there and takes nothing.
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
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, register_jitable

from cordwood.base.permutation import INDEX, LANES, ROW, STATE_WORDS, WORD, every_lane, permute

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

_BLOCK_BYTES = 136
_BLOCK_WORDS = 17
_HEAD_BYTES = 16
_LENGTH_BYTES = 4
_DIGEST_WORDS = 4
_COLUMNS = 8

_STATE = 0
_SUMS = _STATE + STATE_WORDS * LANES
_SOURCE = _SUMS + _COLUMNS * LANES
_CURSOR = _SOURCE + LANES
_LEFT = _CURSOR + LANES
_STAGED = _LEFT + LANES + _BLOCK_WORDS
_STAGED_WORDS = 2 * _BLOCK_WORDS
_SCRATCH_WORDS = _STAGED + _STAGED_WORDS * LANES
_ALIGNMENT_BYTES = 64

_AHEAD_BYTES = 2**14
"""How far in front of its cursor a lane asks for memory: what the lanes work on is often half that
long, a kilobyte each, and no prefetcher of the processor follows eight places at once. At half the
distance such records take a hundredth more, at four times the distance shorter ones do."""

_EVERY_LANE = 2**LANES - 1

_ROW_BYTES = 8 * LANES
_HALF = ir.VectorType(WORD, LANES // 2)
_BLOCK = ir.VectorType(WORD, _BLOCK_WORDS)
_BYTE = ir.IntType(8)


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

    _compiled = compiled
    _check(kernel)
    return kernel


_compiled: Any = None
"""`_sum_items`, compiled; None before `load`, which checks it."""


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
    """Compare with hashlib on values of every kind of length, before the kernel is trusted."""
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
    page = np.concatenate(
        [
            part
            for size, value in zip(sizes, np.split(values, value_offsets[1:-1]), strict=True)
            for part in (np.array([size], "<u4").view(np.uint8), value)
        ]
    )
    got = [
        kernel(offsets, timestamps, values, value_offsets),
        sum_pages(offsets, timestamps, [(page, len(sizes))]),
        sum_pages(offsets, timestamps, [(page[:-1], len(sizes))]),
    ]
    if got != [expected.tolist(), expected.tolist(), None]:
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
    scratch[:_SOURCE] = 0
    scratch[_CURSOR:_LEFT] = values_address
    scratch[_LEFT : _LEFT + LANES] = -1
    has_lengths = value_offsets.size == 0
    num_started = num_finished = limit = 0
    while num_finished < offsets.size:
        keep = _EVERY_LANE
        take = 0
        for lane in range(LANES):
            cursor = scratch[_CURSOR + lane]
            left = scratch[_LEFT + lane]
            if left >= _BLOCK_BYTES:
                scratch[_SOURCE + lane] = cursor
                scratch[_CURSOR + lane] = cursor + _BLOCK_BYTES
                scratch[_LEFT + lane] = left - _BLOCK_BYTES
                continue
            block = scratch_address + 8 * (_STAGED + _STAGED_WORDS * lane)
            scratch[_SOURCE + lane] = block
            record = -1
            if left < 0:
                if num_started == offsets.size:
                    continue
                record = num_started
                num_started += 1
                keep ^= 1 << lane
                if has_lengths:
                    start, left = _find_value(values_address, values.size, limit)
                    if left < 0:
                        return False
                    limit = start + left
                else:
                    start = value_offsets[record]
                    left = value_offsets[record + 1] - start
                cursor = values_address + start
            filled = 0 if record < 0 else _HEAD_BYTES
            copied = min(left, _BLOCK_BYTES - filled)
            cursor += copied
            filled += copied
            left -= copied
            _copy_end(block + filled, cursor, copied, values_address)
            if record >= 0:
                _store(block, _big_endian(offsets[record]))
                _store(block + 8, _big_endian(timestamps[record]))
            if filled < _BLOCK_BYTES:
                _pad(block, filled)
                take ^= 1 << lane
                left = -1
                num_finished += 1
            scratch[_CURSOR + lane] = cursor
            scratch[_LEFT + lane] = left
        _absorb(scratch_address, keep, take)
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
        return builder.zext(builder.load(_at(builder, arguments[0], INDEX), align=1), WORD)

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


def _define_store(_typing: Any, _target: Any, _number: Any) -> Any:
    """Put a number at an address."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _at(builder, arguments[0], WORD), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


_store = _intrinsic(_define_store)


def _define_pad(_typing: Any, _block: Any, _filled: Any) -> Any:
    """Put 0x06 … 0x80 behind what fills a block so far; behind the block come zeros."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        block, filled = arguments
        zeros = [ir.Constant(WORD, 0)] * (_BLOCK_WORDS - 1)
        padding = ir.Constant(_BLOCK, [ir.Constant(WORD, 0x06), *zeros])
        builder.store(padding, _at(builder, builder.add(block, filled), _BLOCK), align=1)
        last = _at(builder, block, _BYTE, _BLOCK_BYTES - 1)
        builder.store(builder.xor(builder.load(last), ir.Constant(_BYTE, 0x80)), last)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


_pad = _intrinsic(_define_pad)


def _define_copy(_typing: Any, _target: Any, _source: Any, _num_bytes: Any) -> Any:
    """Copy bytes from one address to another."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source = (_at(builder, address, _BYTE) for address in arguments[:2])
        kinds = [target.type, source.type, WORD]
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", kinds)
        volatile = ir.Constant(ir.IntType(1), 0)
        builder.call(memcpy, [target, source, arguments[2], volatile])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


_copy = _intrinsic(_define_copy)


def _define_copy_block(_typing: Any, _target: Any, _source: Any) -> Any:
    """Copy as many bytes as a block has; a memcpy of that size would use shorter registers."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source = (_at(builder, address, _BLOCK) for address in arguments)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


_copy_block = _intrinsic(_define_copy_block)


def _copy_up_to(target: int, source: int, num_bytes: int, start: int) -> None:
    """Copy the bytes that end at one address to where they end at another.

    If that many lie behind `start`, as many as a block has are copied, which takes a call less:
    what lies in the target before the bytes that were asked for is then changed too.
    """
    if source - start >= _BLOCK_BYTES:
        _copy_block(target - _BLOCK_BYTES, source - _BLOCK_BYTES)
    else:
        _copy(target - num_bytes, source - num_bytes, num_bytes)


_copy_end: Any = register_jitable(_copy_up_to)


def _define_absorb(_typing: Any, _scratch_address: Any, _kept: Any, _taken: Any) -> Any:
    """One step: absorb every lane's block, permute, and add the digests of finished records."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, kept, taken = arguments
        _prefetch(builder, base)
        nothing = ir.Constant(ROW, None)
        keep, take = _choice(builder, kept), _choice(builder, taken)
        state = []
        for word in range(STATE_WORDS):
            old = builder.load(_row(builder, base, _STATE + word * LANES), align=_ROW_BYTES)
            state.append(builder.select(keep, old, nothing))
        for word, row in enumerate(_blocks(builder, base)):
            state[word] = builder.xor(state[word], row)
        state = permute(builder, state)
        for word in range(STATE_WORDS):
            target = _row(builder, base, _STATE + word * LANES)
            builder.store(state[word], target, align=_ROW_BYTES)
        with builder.if_then(builder.icmp_signed("!=", taken, ir.Constant(WORD, 0))):
            for word in range(_DIGEST_WORDS):
                digest = builder.select(take, state[word], nothing)
                low, high = (
                    builder.and_(digest, every_lane(2**32 - 1)),
                    builder.lshr(digest, every_lane(32)),
                )
                for column, half in ((2 * word, low), (2 * word + 1, high)):
                    target = _row(builder, base, _SUMS + column * LANES)
                    total = builder.add(builder.load(target, align=_ROW_BYTES), half)
                    builder.store(total, target, align=_ROW_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


_absorb = _intrinsic(_define_absorb)


def _choice(builder: Any, lanes: Any) -> Any:
    """A number with a bit for each lane, as what a row is chosen by."""
    bits = builder.trunc(lanes, ir.IntType(LANES))
    return builder.bitcast(bits, ir.VectorType(ir.IntType(1), LANES))


def _at(builder: Any, address: Any, kind: Any, num_bytes: int = 0) -> Any:
    """A pointer to what lies so many bytes behind an address."""
    place = builder.add(address, ir.Constant(WORD, num_bytes)) if num_bytes else address
    return builder.inttoptr(place, kind.as_pointer())


def _row(builder: Any, base: Any, word: int) -> Any:
    """A pointer to the row that starts at this word of the scratch."""
    return _at(builder, base, ROW, 8 * word)


def _prefetch(builder: Any, base: Any) -> None:
    """Ask for the memory every lane, or the one that follows it there, will soon read.

    The place may lie behind the values: to ask for it is allowed and does nothing.
    """
    pointer = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, INDEX, INDEX, INDEX])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    to_read, in_every_cache, data = (ir.Constant(INDEX, flag) for flag in (0, 3, 1))
    for cursor in _per_lane(builder, base, _CURSOR):
        for line in (0, 64):
            soon = _at(builder, cursor, _BYTE, _AHEAD_BYTES + line)
            builder.call(prefetch, [soon, to_read, in_every_cache, data])


def _per_lane(builder: Any, base: Any, word: int) -> list[Any]:
    """The words of a row of the scratch, one by one."""
    places = (_at(builder, base, WORD, 8 * (word + lane)) for lane in range(LANES))
    return [builder.load(place, align=8) for place in places]


def _blocks(builder: Any, base: Any) -> list[Any]:
    """The 17 rows of the blocks that `_SOURCE` points at: one word of each lane's block per row."""
    sources = _per_lane(builder, base, _SOURCE)

    def load(kind: Any, word: int) -> list[Any]:
        return [builder.load(_at(builder, s, kind, 8 * word), align=1) for s in sources]

    rows = []
    for word in range(0, _BLOCK_WORDS - 1, LANES // 2):
        rows += _turn(builder, load(_HALF, word))
    last = ir.Constant(ROW, ir.Undefined)
    for lane, word in enumerate(load(WORD, _BLOCK_WORDS - 1)):
        last = builder.insert_element(last, word, ir.Constant(INDEX, lane))
    return [*rows, last]


def _turn(builder: Any, halves: list[Any]) -> list[Any]:
    """From half a row of words for each lane to rows with one word of every lane.

    For eight lanes a to h, of which each has the words 0 to 3::

        a0 a1 a2 a3 c0 c1 c2 c3     a0 b0 a2 b2 c0 d0 c2 d2     a0 b0 c0 d0 e0 f0 g0 h0
        b0 b1 b2 b3 d0 d1 d2 d3  →  a1 b1 a3 b3 c1 d1 c3 d3  →  a1 b1 c1 d1 e1 f1 g1 h1
        e0 e1 e2 e3 g0 g1 g2 g3     e0 f0 e2 f2 g0 h0 g2 h2     a2 b2 c2 d2 e2 f2 g2 h2
        f0 f1 f2 f3 h0 h1 h2 h3     e1 f1 e3 f3 g1 h1 g3 h3     a3 b3 c3 d3 e3 f3 g3 h3

    Four lanes, with two words each, are done after the first arrow.
    """

    def pick(one: Any, other: Any, places: list[int]) -> Any:
        kind = ir.VectorType(INDEX, len(places))
        mask = ir.Constant(kind, [ir.Constant(INDEX, place) for place in places])
        return builder.shuffle_vector(one, other, mask)

    both = list(range(2 * LANES))
    wide = [pick(halves[i], halves[i + 2], both[:LANES]) for i in range(LANES) if i % 4 < 2]
    even_words = [place + other for place in both[:LANES:2] for other in (0, LANES)]
    odd_words = [place + 1 for place in even_words]
    groups = [
        [pick(one, other, even_words), pick(one, other, odd_words)]
        for one, other in zip(wide[0::2], wide[1::2], strict=True)
    ]
    if len(groups) == 1:
        return groups[0]
    even_pairs = [place for place in both if place % 4 < 2]
    odd_pairs = [place for place in both if place % 4 >= 2]
    return [
        pick(one, other, pairs)
        for pairs in (even_pairs, odd_pairs)
        for one, other in zip(*groups, strict=True)
    ]
