"""Which kernel hashes the items, and the one that is always there, hashlib.

A kernel is a function of (offsets, timestamps, values, value_offsets): contiguous, aligned arrays
of n, n, any number of and n + 1 elements. It gives the eight column sums, not yet reduced, of
SHA3-256(offset big-endian ‖ timestamp big-endian ‖ value) over the n records.

The vector kernel of `cordwood.base.keccak` is several times as fast as hashlib, but imports numba
and compiles, up to two seconds. So in "auto", the default, a process starts with hashlib::

    hashed so far     0 ──────────── _LOAD_BLOCKS ──────────────────────────────
    kernel used       hashlib        hashlib                   vector kernel
    in a thread                      imports, compiles, checks

Invariants:

1. In "auto" no hashing ever waits for the vector kernel: it is loaded in a daemon thread, started
   at most once, and used from the next call after it is ready. If it cannot be had, hashlib stays,
   silently. `kernel_name` and `use_kernel("numba")` do wait.
2. A forked child never waits for a thread of its parent. A thread that loads holds import locks and
   locks of LLVM, and leaves its modules half made: a child forked in that state may hang or abort
   when it imports or exits. So `os.fork` itself waits, in the parent, until a load under way has
   ended, and the child has the kernel too. After `_WAIT_S` the fork goes on all the same, and the
   child stays with hashlib and away from numba.
3. An exiting process waits for a load under way just as long: LLVM must not be compiling in one
   thread while another takes the process down. After that nothing is loaded in the background.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cordwood.base.errors import InvalidInputError, StateError

# pyarrow is imported where it is used: who only compares and adds setsums need not wait for it.
if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from cordwood.base.keccak import Kernel

    Bytes: TypeAlias = bytes | npt.NDArray[Any] | pa.Buffer

_BLOCK_BYTES = 136
"""SHA3-256 works through an item in blocks of this size: the unit of all cost here."""

_LOAD_BLOCKS = 2**19
"""The vector kernel is loaded when a process has so much to hash: about what loading costs."""

_WAIT_S = 10.0
"""How long a fork, or the exit of the process, waits at most for a load that is under way."""

_VECTOR_RECORDS_MIN = 2
"""A single record fills one lane of the vector kernel: hashlib is as fast."""

_CHUNK_RECORDS = 4096
_CHUNK_BYTES = 2**20
"""How much hashlib hashes between two sums, so that memory stays bounded."""

_COPY_RECORDS_MIN = 16
_COPY_BYTES_MAX = 512
"""Copying heads and values together pays for so many records, up to this size on average; otherwise
head and value are hashed in turn."""

_NOTHING_HASHED = hashlib.sha3_256()
"""A hash is begun by copying this one: to make a new one costs OpenSSL a search by name."""


def kernel_name() -> str:
    """Which kernel hashes large inputs: "numba" or "hashlib".

    It loads the vector kernel if that is still open, which takes up to two seconds: a program that
    wants it from its first record, or in the children it forks, may call this at its start.
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


def sum_items(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    values: npt.NDArray[np.uint8],
    value_offsets: npt.NDArray[np.int64],
) -> list[int]:
    """Call the kernel for an input of this size; the arguments, not checked, are a kernel's."""
    num_blocks = len(offsets) + int(value_offsets[-1] - value_offsets[0]) // _BLOCK_BYTES
    kernel = _KERNELS.pick(len(offsets), num_blocks)
    return kernel(offsets, timestamps, values, value_offsets)


def sum_page(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    page: npt.NDArray[np.uint8],
) -> list[int] | None:
    """The column sums of records whose values lie in `page`, each behind its length (4 bytes).

    Contiguous, aligned arrays; lengths are little-endian. None if that many values do not fill the
    page exactly, or if the vector kernel, which alone can do this, is not there or not wanted.
    """
    if not _KERNELS.has_vector or len(offsets) != len(timestamps):
        return None
    from cordwood.base import keccak  # noqa: PLC0415 - it imports numba, which is there

    return keccak.sum_page(offsets, timestamps, page)


def has_vector_kernel() -> bool:
    """Whether `sum_page` can be used now; does not wait for anything."""
    return _KERNELS.has_vector


class _Kernels:
    """Which kernel to use, and the loading of the vector kernel, at most once per process."""

    def __init__(self, choice: str) -> None:
        self._choice = choice  # "auto", "numba", "hashlib"; from the environment perhaps nonsense
        self._vector: Kernel | None = None
        self._failure: Exception | None = None  # why there is no vector kernel
        self._hint = "install cordwood[fast]"  # what to do about it
        self._num_blocks = 0  # hashed by hashlib so far; racing threads may lose a few
        self._ending = False  # the interpreter is about to shut down
        self._loading = threading.Lock()  # held while the vector kernel is loaded
        self._ticket = threading.Lock()  # taken, for good, by the one who starts the thread
        self._forking = 0  # the thread that forks and therefore holds `_loading`
        self._watches_forks = False

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

    @property
    def has_vector(self) -> bool:
        return self._choice != "hashlib" and self._vector is not None

    def pick(self, num_records: int, num_blocks: int) -> Kernel:
        """The kernel for an input of this size."""
        if self._choice != "auto":
            return self.load() or _sum_with_hashlib
        if num_records < _VECTOR_RECORDS_MIN:
            return _sum_with_hashlib
        if self._vector is None and self._failure is None:
            self._num_blocks += num_blocks
            if self._num_blocks >= _LOAD_BLOCKS:
                self._start_loading()
        return self._vector or _sum_with_hashlib

    def end(self) -> None:
        """At exit: let a load that is under way come to its end, and start no other."""
        self._ending = True
        with contextlib.suppress(KeyboardInterrupt):
            if self._loading.acquire(timeout=_WAIT_S):
                self._loading.release()

    def _start_loading(self) -> None:
        if self._ticket.acquire(blocking=False):
            self._watch_forks()
            thread = threading.Thread(
                target=self._load_vector,
                kwargs={"in_background": True},
                name="cordwood-kernel",
                daemon=True,
            )
            with contextlib.suppress(RuntimeError):  # no thread to be had: hashlib works
                thread.start()

    def _load_vector(self, *, in_background: bool = False) -> Kernel | None:
        self._watch_forks()
        with self._loading:
            if self._vector is None and self._failure is None:
                try:
                    from cordwood.base import keccak  # noqa: PLC0415

                    if not (in_background and self._ending):
                        self._vector = keccak.load()
                except Exception as error:  # noqa: BLE001  # whatever it is, hashlib works
                    self._failure = error
            return self._vector

    def _demand_vector(self) -> Kernel:
        vector = self._load_vector()
        if vector is None:
            message = f"the vector kernel cannot be loaded: {self._failure}"
            raise StateError(message, hint=self._hint) from self._failure
        return vector

    def _watch_forks(self) -> None:
        # Only now, because what is registered last is called first: a fork must not take the locks
        # of other modules, such as that of logging, before it waits for a thread that needs them.
        if not self._watches_forks and hasattr(os, "register_at_fork"):
            self._watches_forks = True
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork_in_parent,
                after_in_child=self._after_fork_in_child,
            )

    def _before_fork(self) -> None:
        if self._loading.acquire(timeout=_WAIT_S):
            self._forking = threading.get_ident()

    def _after_fork_in_parent(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = 0
            self._loading.release()

    def _after_fork_in_child(self) -> None:
        left_loading = self._loading.locked() and self._forking != threading.get_ident()
        if left_loading and self._vector is None and self._failure is None:
            self._failure = RuntimeError("the process was forked while it was being loaded")
            self._hint = "call kernel_name() before forking"
        self._forking = 0
        self._loading = threading.Lock()
        self._ticket = threading.Lock()


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
    totals = np.zeros(8, np.uint64)
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
    begin = _NOTHING_HASHED.copy
    digests = []
    num_bytes = int(places[-1] - places[0])
    if len(heads) >= _COPY_RECORDS_MIN and num_bytes <= len(heads) * _COPY_BYTES_MAX:
        for item in _join_items(heads, values, places):
            hashed = begin()
            hashed.update(item)
            digests.append(hashed.digest())
        return digests
    content, bounds = values.data, places.tolist()
    head_list = heads.view("V16")[:, 0].tolist()
    for head, start, limit in zip(head_list, bounds, bounds[1:], strict=False):
        hashed = begin()
        hashed.update(head)
        hashed.update(content[start:limit])
        digests.append(hashed.digest())
    return digests


def _join_items(
    heads: npt.NDArray[Any], values: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> list[bytes]:
    """Each head followed by its value, in one piece."""
    sizes = np.diff(places)
    size = int(sizes[0])
    if (sizes == size).all():
        matrix = np.empty((len(heads), 16 + size), np.uint8)
        matrix[:, :16] = heads.view(np.uint8)
        matrix[:, 16:] = values[places[0] : places[-1]].reshape(len(heads), size)
        items: list[bytes] = matrix.reshape(-1).view(f"V{16 + size}").tolist()
        return items
    head_places = np.arange(0, heads.nbytes + 1, 16, dtype=np.int64)
    joined = join_rows([binary_array(heads, head_places), binary_array(values, places)])
    rows: list[bytes] = joined.to_numpy(zero_copy_only=False).tolist()
    return rows


def _sum_digests(digests: list[bytes]) -> npt.NDArray[np.uint64]:
    """Column sums, not reduced. Long rows, 32 digests each, are what numpy sums fastest."""
    digests.append(bytes(-len(digests) % 32 * 32))
    numbers = np.frombuffer(b"".join(digests), "<u4").reshape(-1, 32 * 8)
    by_place = numbers.sum(axis=0, dtype=np.uint64)
    sums: npt.NDArray[np.uint64] = by_place.reshape(32, 8).sum(axis=0)
    return sums


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


_KERNELS = _Kernels(os.environ.get("CORDWOOD_KERNEL") or "auto")
atexit.register(_KERNELS.end)
