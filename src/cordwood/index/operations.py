"""Operations on documents, as records of a log: the key is the id, the body the text.

A header `op` says what is done: `add` one more document of this id, `update`: this one in place of
all of this id, `delete` all of this id. Records are applied in the order of their offsets. Many at
a time are *settled* first: what a later one of them undoes is left out, so that what remains is a
set of documents, and a set of ids whose earlier documents are gone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import Code, CorruptionError, LimitError
from cordwood.log.records import HEADERS_TYPE

Op = Literal["add", "update", "delete"]
OPS: tuple[Op, ...] = ("add", "update", "delete")

HEADER = "op"


class Operations(NamedTuple):
    """Some operations in their order."""

    ids: pa.LargeBinaryArray
    texts: pa.LargeBinaryArray
    kinds: npt.NDArray[np.int8]
    """Places in `OPS`."""


class Settled(NamedTuple):
    """What operations come to."""

    ids: pa.LargeBinaryArray
    """Of documents that are there then; an id may come several times."""
    texts: pa.LargeBinaryArray
    replaced: pa.LargeBinaryArray
    """Ids whose documents from before are gone."""


def columns(ids: pa.LargeBinaryArray, texts: pa.LargeBinaryArray, op: Op) -> pa.Table:
    """Records to append for an operation on many documents.

    Raises:
        LimitError: they are too large to be appended at once.
    """
    header = pa.scalar([{"name": HEADER, "value": op.encode()}], HEADERS_TYPE)
    headers = pa.repeat(header, len(ids))
    try:
        bodies, keys = texts.cast(pa.binary()), ids.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise LimitError(
            f"{len(ids)} documents have more than 2 GiB together",
            code=Code.TOO_LARGE,
            hint="hand over fewer at a time",
        ) from error
    return pa.table({"body": bodies, "key": keys, "headers": headers})


def read(table: pa.Table, default: Op | None = None) -> Operations:
    """The operations that records hold; those without a header are `default`.

    Raises:
        CorruptionError: a record holds none.
    """
    names = set(table.column_names)
    if "key" not in names or table["key"].null_count:
        raise _none(table, "it has no key")
    keys = table["key"].combine_chunks()
    bodies = table["body"].combine_chunks()
    kinds = _kinds(table, default)
    if (kinds < 0).any():
        raise _none(table, "it does not say what it does", int(np.argmin(kinds >= 0)))
    return Operations(keys.cast(pa.large_binary()), bodies.cast(pa.large_binary()), kinds)


def _kinds(table: pa.Table, default: Op | None) -> npt.NDArray[np.int8]:
    found = np.full(len(table), -1 if default is None else OPS.index(default), np.int8)
    if "headers" not in table.column_names:
        return found
    headers = table["headers"].combine_chunks()
    if isinstance(headers, pa.ChunkedArray):
        headers = pa.concat_arrays(headers.chunks)
    pairs = pc.list_flatten(headers)
    rows = np.asarray(pc.list_parent_indices(headers))
    is_op = np.asarray(pc.fill_null(pc.equal(pc.struct_field(pairs, "name"), HEADER), False))
    values = pc.struct_field(pairs, "value").filter(pa.array(is_op)).cast(pa.binary())
    known = pc.index_in(values, pa.array([op.encode() for op in OPS], pa.binary()))
    found[rows[is_op]] = np.asarray(pc.fill_null(known, -1)).astype(np.int8)
    return found


def _none(table: pa.Table, why: str, place: int = 0) -> CorruptionError:
    where = table["offset"][place].as_py() if "offset" in table.column_names else "?"
    return CorruptionError(
        f"record {where} is no operation on a document: {why}",
        hint="only a collection's own methods append to its log",
    )


def joined(parts: list[Operations]) -> Operations:
    """Several in a row as one."""
    return Operations(
        pa.concat_arrays([part.ids for part in parts]),
        pa.concat_arrays([part.texts for part in parts]),
        np.concatenate([part.kinds for part in parts]),
    )


def settle(operations: Operations) -> Settled:
    """What operations come to, in their order."""
    count = len(operations.ids)
    coded = operations.ids.dictionary_encode()
    codes = np.asarray(coded.indices)
    places = np.arange(count)
    undoing = operations.kinds != OPS.index("add")
    last = np.full(len(coded.dictionary), -1)
    np.maximum.at(last, codes[undoing], places[undoing])
    is_document = operations.kinds != OPS.index("delete")
    kept = pa.array(np.flatnonzero(is_document & (places >= last[codes])))
    replaced = coded.dictionary.take(pa.array(np.flatnonzero(last >= 0)))
    return Settled(operations.ids.take(kept), operations.texts.take(kept), replaced)
