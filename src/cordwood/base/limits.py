"""Every limit of the product, with its reason. A decoder or a call that meets one says so."""

from __future__ import annotations

OFFSET_LIMIT = 2**63
"""Offsets stay below this: Spark and most databases have no unsigned 64-bit integer."""

RECORD_BYTES_MAX = 64 * 2**20
"""One record's body. A larger payload belongs in an object of its own, with its key in the log."""

BATCH_BYTES_MAX = 512 * 2**20
"""One atomic batch: it becomes one fragment, and an Arrow binary column ends at 2 GiB."""

BATCH_RECORDS_MAX = 2**24
"""Records in one atomic batch, so that a fragment of empty records is bounded too."""

KEY_BYTES_MAX = 2**20
"""A record's key, stream name, or one header's name or value."""

HEADERS_MAX = 1_000
"""Headers of one record."""

MANIFEST_BYTES_MAX = 64 * 2**20
"""A manifest or node read from a store. wal3's own roots stay below 1 MB."""

NODE_DEPTH_MAX = 64
"""Depth of the manifest tree: at fan-out two this is more fragments than offsets exist."""

FRAGMENT_RECORDS_MAX = 2**28
"""Records in one fragment, more than there are where each costs its batch four bytes at least."""

FRAGMENT_BYTES_MAX = 2**31
"""One fragment object, as its pointer declares it."""

LOG_NAME_BYTES_MAX = 512
"""A log's name inside its store; object stores end keys at 1,024 bytes."""

KEY_SEGMENT_BYTES_MAX = 200
"""One path segment of an object key: file systems end names at 255 bytes, we add a suffix."""
