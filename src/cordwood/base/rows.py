"""Columns of bytes, put together row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

# pyarrow is imported where it is used: who only compares and adds setsums need not wait for it.
if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Bytes: TypeAlias = bytes | npt.NDArray[Any] | pa.Buffer


def join_rows(parts: Sequence[Any]) -> pa.Array:
    """Concatenate columns and scalars of bytes row by row; a null counts as no bytes."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = pa.large_binary()
    wide = [part if part.type == kind else part.cast(kind) for part in parts]
    return pc.binary_join_element_wise(*wide, pa.scalar(b"", kind), null_handling="replace")


def binary_array(content: Bytes, places: npt.NDArray[Any]) -> pa.Array:
    """A large_binary column over these bytes; value i lies from place i to place i + 1."""
    import pyarrow as pa  # noqa: PLC0415

    buffers = [None, pa.py_buffer(places), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(places) - 1, buffers)
