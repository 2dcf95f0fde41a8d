"""Which kernel hashes the items: the plain one, hashlib, or the vector kernel.

A kernel is a function of (offsets, timestamps, values, value_offsets): contiguous, aligned arrays
of n, n, any number of and n + 1 elements. It gives the eight column sums, not yet reduced, of
SHA3-256(offset big-endian ‖ timestamp big-endian ‖ value) over the n records.

The vector kernel of `cordwood.base.keccak` is several times as fast as the plain one of
`cordwood.base.plain`, which is hashlib record by record; but it imports numba and compiles, up to
two seconds. So in "auto", the default, a process starts with hashlib::

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
import concurrent.futures.thread  # noqa: F401 - see below
import contextlib
import logging  # noqa: F401
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cordwood.base import plain
from cordwood.base.errors import InvalidInputError, StateError

# Two of these are imported for their hooks around os.fork, which numba would bring too: come in the
# middle of a fork that waits for it, a hook behind the fork would run without the one before it.

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from cordwood.base.keccak import Kernel

_BLOCK_BYTES = 136
"""SHA3-256 works through an item in blocks of this size: the unit of all cost here."""

_LOAD_BLOCKS = 2**19
"""The vector kernel is loaded when a process has so much to hash: about what loading costs."""

_WAIT_S = 10.0
"""How long a fork, or the exit of the process, waits at most for a load that is under way."""

_VECTOR_RECORDS_MIN = 2
"""A single record fills one lane of the vector kernel: hashlib is as fast."""


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


def sum_pages(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    pages: Iterable[tuple[npt.NDArray[np.uint8], int]],
    num_bytes: int,
) -> list[int] | None:
    """The column sums of records whose values lie in pages, each behind its length (4 bytes).

    Contiguous, aligned arrays; lengths are little-endian. None if the values must be decoded
    instead: because that many do not fill a page exactly, or because it is cheaper.

    Args:
        offsets: of the records.
        timestamps: of the records.
        pages: each with the number of its values.
        num_bytes: of all of them, about.
    """
    if len(offsets) != len(timestamps):
        return None
    kernel = _KERNELS.pick(len(offsets), len(offsets) + num_bytes // _BLOCK_BYTES)
    if kernel is plain.sum_items:
        return plain.sum_pages(offsets, timestamps, pages)
    from cordwood.base import keccak  # noqa: PLC0415 - it imports numba, which is there

    return keccak.sum_pages(offsets, timestamps, pages)


def has_vector_kernel() -> bool:
    """Whether the vector kernel is there and wanted; does not wait for anything."""
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
            return self.load() or plain.sum_items
        if num_records < _VECTOR_RECORDS_MIN:
            return plain.sum_items
        if self._vector is None and self._failure is None:
            self._num_blocks += num_blocks
            if self._num_blocks >= _LOAD_BLOCKS:
                self._start_loading()
        return self._vector or plain.sum_items

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


_KERNELS = _Kernels(os.environ.get("CORDWOOD_KERNEL") or "auto")
atexit.register(_KERNELS.end)
