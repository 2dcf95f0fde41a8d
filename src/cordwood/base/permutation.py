"""Keccak-f[1600] of several states at once, one in each lane of the vector registers, as LLVM code.

A state is 25 words of 64 bits; here it is 25 rows, and a row has one word of every lane. What is
given and returned are not numbers but the places where LLVM will have them (FIPS 202 has the
names of the steps).

The compiled code is kept by numba until `cordwood.base.keccak`, which uses this, changes: whoever
changes only this file must touch that one too.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir

LANES = 8 if binding.get_host_cpu_features().get("avx512f", False) else 4
"""Records hashed side by side. Eight lanes on 256-bit registers would spill: four are faster."""

STATE_WORDS = 25

WORD = ir.IntType(64)
INDEX = ir.IntType(32)
ROW = ir.VectorType(WORD, LANES)

_ROUND_CONSTANTS = (
    0x0000000000000001, 0x0000000000008082, 0x800000000000808A, 0x8000000080008000,
    0x000000000000808B, 0x0000000080000001, 0x8000000080008081, 0x8000000000008009,
    0x000000000000008A, 0x0000000000000088, 0x0000000080008009, 0x000000008000000A,
    0x000000008000808B, 0x800000000000008B, 0x8000000000008089, 0x8000000000008003,
    0x8000000000008002, 0x8000000000000080, 0x000000000000800A, 0x800000008000000A,
    0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008,
)  # fmt: skip


def every_lane(number: int) -> Any:
    """A row that holds the same number in every lane."""
    return ir.Constant(ROW, [ir.Constant(WORD, number)] * LANES)


def permute(builder: Any, state: list[Any]) -> list[Any]:
    """Keccak-f[1600] as a loop of 24 rounds; unrolled it outgrows the instruction cache."""
    table_type = ir.ArrayType(WORD, len(_ROUND_CONSTANTS))
    name = builder.module.get_unique_name("keccak.round_constants")
    table = ir.GlobalVariable(builder.module, table_type, name)
    table.global_constant = True
    table.linkage = "internal"
    table.initializer = ir.Constant(table_type, [ir.Constant(WORD, n) for n in _ROUND_CONSTANTS])
    before = builder.block
    body = builder.append_basic_block("keccak.round")
    after = builder.append_basic_block("keccak.done")
    builder.branch(body)
    builder.position_at_end(body)
    number = builder.phi(WORD)
    number.add_incoming(ir.Constant(WORD, 0), before)
    current = []
    for word in state:
        incoming = builder.phi(ROW)
        incoming.add_incoming(word, before)
        current.append(incoming)
    place = builder.gep(table, [ir.Constant(WORD, 0), number], inbounds=True)
    constant = builder.insert_element(
        ir.Constant(ROW, ir.Undefined), builder.load(place), ir.Constant(INDEX, 0)
    )
    first = ir.Constant(ir.VectorType(INDEX, LANES), None)
    constant = builder.shuffle_vector(constant, constant, first)
    following = _round(builder, current, constant)
    next_number = builder.add(number, ir.Constant(WORD, 1))
    number.add_incoming(next_number, body)
    for incoming, word in zip(current, following, strict=True):
        incoming.add_incoming(word, body)
    limit = ir.Constant(WORD, len(_ROUND_CONSTANTS))
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
    # line by line, so that few words are under way at a time
    result = []
    for line_number in range(5):
        # rho and pi: rotate each word and move it
        line = []
        for place in range(line_number * 5, line_number * 5 + 5):
            word, amount = _MOVES[place]
            line.append(_rotate(builder, builder.xor(state[word], change[word % 5]), amount))
        # chi: the only step that is not linear
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
    return builder.or_(
        builder.shl(row, every_lane(num_bits)), builder.lshr(row, every_lane(64 - num_bits))
    )


def _moves() -> list[tuple[int, int]]:
    """For each place after pi the word that comes there, and by how much rho has rotated it."""
    moves = [(0, 0)] * STATE_WORDS
    x, y = 1, 0
    for step in range(24):  # the walk that defines both
        new_x, new_y = y, (2 * x + 3 * y) % 5
        moves[new_x + 5 * new_y] = x + 5 * y, (step + 1) * (step + 2) // 2 % 64
        x, y = new_x, new_y
    return moves


_MOVES = _moves()
