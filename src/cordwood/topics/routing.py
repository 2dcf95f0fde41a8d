"""Which partition each record goes to, and which worker appends to which partition.

The input is only looked at: what is handed on are numbers of its rows. Records of one key go to one
partition, in the order in which they came; those without a key go where the last ones did not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.base.errors import InvalidInputError
from cordwood.topics.batch import Columns, Row
from cordwood.topics.config import TopicConfig
from cordwood.topics.names import jump, key_hashes, name_id, partition_id, partition_of


class Router:
    """The partitions of a topic."""

    def __init__(self, config: TopicConfig, workers: int) -> None:
        """So many workers share the partitions."""
        self._config = config
        self._turn = 0
        ids = [
            partition_id(name_id(config.namespace), name_id(config.topic), number)
            for number in range(config.partitions)
        ]
        self.owners: list[int] = jump(np.array(ids, np.uint64), workers).tolist()
        """The worker of each partition."""

    def place_one(self, row: Row, chosen: int | None, sequence: int | None = None) -> int:
        """The partition of a record; the same each time for one that has a sequence number.

        Raises:
            InvalidInputError: as below.
        """
        key = row.key
        if key is None:
            if self._config.compaction:
                raise _keyless()
            if row.value is None:
                raise _bare()
        if chosen is not None:
            return self._checked(chosen)
        partitions = self._config.partitions
        if partitions == 1:
            return 0
        if key is None:
            return self._next() if sequence is None else sequence % partitions
        return partition_of(key, partitions)

    def place(self, columns: Columns, chosen: Any = None) -> npt.NDArray[np.int64]:
        """The partition of each record; `chosen` says so for some of them.

        Raises:
            InvalidInputError: there is no such partition; or a record of a compaction topic has no
                key.
        """
        keys = columns.keys
        keyless = len(columns) if keys is None else keys.null_count
        if self._config.compaction and keyless:
            raise _keyless()
        if columns.values.null_count and keyless and self._has_bare(columns):
            raise _bare()
        placed = np.full(len(columns), self._next())
        if keys is not None and self._config.partitions > 1 and keyless < len(columns):
            has_key = keys.is_valid().to_numpy(zero_copy_only=False)
            hashes = key_hashes(keys.drop_null().to_pylist(), len(columns) - keyless)
            placed[has_key] = jump(hashes, self._config.partitions)
        if chosen is not None:
            is_chosen = chosen.is_valid().to_numpy(zero_copy_only=False)
            numbers = chosen.drop_null().to_numpy()
            for number in np.unique(numbers).tolist():
                self._checked(number)
            placed[is_chosen] = numbers
        return placed

    def split(
        self, columns: Columns, chosen: Any = None
    ) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """The partitions that records go to, and the rows of each, in order."""
        placed = self.place(columns, chosen)
        if self._config.partitions == 1:
            return [(0, np.arange(len(columns)))]
        order = np.argsort(placed, kind="stable")
        numbers, begins = np.unique(placed[order], return_index=True)
        return list(zip(numbers.tolist(), np.split(order, begins[1:]), strict=True))

    def _next(self) -> int:
        self._turn += 1
        return self._turn % self._config.partitions

    def _checked(self, number: Any) -> int:
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not 0 <= number < self._config.partitions:
            raise InvalidInputError(
                f"there is no partition {number!r}: the topic has {self._config.partitions}",
                hint="partitions are numbered from 0",
            )
        return int(number)

    def _has_bare(self, columns: Columns) -> bool:
        """Whether a record has neither key nor value."""
        if columns.keys is None:
            return True
        bare = pa.compute.and_(columns.keys.is_null(), columns.values.is_null())
        return bool(pa.compute.any(bare).as_py())


def _keyless() -> InvalidInputError:
    return InvalidInputError(
        "a record of a compaction topic has a key, and this one has none",
        hint="what is kept of such a topic is the last record of each key",
    )


def _bare() -> InvalidInputError:
    return InvalidInputError(
        "a record without a value says that its key is deleted, and this one has no key either",
        hint="use empty bytes for an empty value",
    )
