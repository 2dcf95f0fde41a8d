"""Every key of a log, built and parsed here only. All are relative to the log's own prefix.

    manifest/MANIFEST                                             the one mutable root
    log/Bucket=%016x/FragmentSeqNo=%016x.parquet                  slot seq_no, create-only
    log/Uuid=<uuid>.parquet                                       a bulk upload
    snapshot/SNAPSHOT.<64 hex>                                    a node, named by its setsum; over
                                                                  uploads by its place as well
    filter/FILTER.<64 hex>                                        which streams are below a node
    stream/<32 hex>/<16 hex>.json                                 a change of the streams
    cursor/<name>.json                                            a cursor
    gc/GARBAGE                                                    what is being collected
    gc/HELD-<id>                                                  collected, but still held
    gc/CLOCK                                                      asks the store what time it is
    gc/UPLOADS                                                    which bulk uploads were judged
    pin/<name>.json                                               a hold that expires
    fork/<id>.json                                                a fork's hold on its parent
    intent/<kind>-<id>                                            a request to the live writer
    producer/<32 hex>.json                                        who committed in bulk, long ago

A bucket holds 4,096 slots. wal3 recomputes a fragment's path from its number, so the layout is part
of the format. Specified in docs/formats/log.md.

What only a log of the chain protocol has is in log/chain/names.py.

Where a store begins is up to who opens it, so a log that names another one names the way there from
itself: from `wood/trial` the log `wood/orders` is `../orders`, whoever calls the two `trial` and
`orders`.
"""

from __future__ import annotations

import hashlib
import re
from itertools import dropwhile

from cordwood.log.chain import names

MANIFEST = "manifest/MANIFEST"
GARBAGE = "gc/GARBAGE"
CURSOR_PREFIX = "cursor/"
CLOCK = "gc/CLOCK"
UPLOADS = "gc/UPLOADS"
HELD_PREFIX = "gc/HELD-"
PIN_PREFIX = "pin/"
FORK_PREFIX = "fork/"
INTENT_PREFIX = "intent/"
PRODUCER_PREFIX = "producer/"
UPLOAD_PREFIX = "log/Uuid="
NODE_PREFIX = "snapshot/SNAPSHOT."
FILTER_PREFIX = "filter/FILTER."
STREAM_PREFIX = "stream/"

SLOTS_PER_BUCKET = 4096

_FRAGMENT_NAME = re.compile(r"FragmentSeqNo=([0-9a-f]{16})\.parquet")
_UUID_NAME = re.compile(
    r"Uuid=([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.parquet"
)
_CURSOR = re.compile(r"cursor/([A-Za-z0-9_]+)\.json")
_STREAM_CHANGE = re.compile(r"stream/[0-9a-f]{32}/([0-9a-f]{16})\.json")
_U64_MAX = 2**64 - 1
_PIN = re.compile(r"pin/([A-Za-z0-9_]+)\.json")
_KNOWN = re.compile(
    r"log/Bucket=[0-9a-f]{16}/FragmentSeqNo=[0-9a-f]{16}\.parquet"
    r"|log/Uuid=[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.parquet"
    r"|snapshot/SNAPSHOT\.[0-9a-f]{64}"
    r"|filter/FILTER\.[0-9a-f]{64}"
    r"|stream/[0-9a-f]{32}/[0-9a-f]{16}\.json"
    r"|gc/(?:GARBAGE|CLOCK|UPLOADS|HELD-[^/]+)"
    r"|(?:cursor|pin)/[A-Za-z0-9_]+\.json"
    r"|fork/[0-9a-f]{32}\.json"
    r"|intent/[a-z]+-[^/]+"
    r"|producer/[0-9a-f]{32}\.json"
    r"|manifest/MANIFEST"
)
"""Every path of the table above."""

_SAFE_PATH = re.compile(r"[A-Za-z0-9=._-]+(?:/[A-Za-z0-9=._-]+)*")
_LOG_NAME = re.compile(r"[A-Za-z0-9._=+@-]+(?:/[A-Za-z0-9._=+@-]+)*")


def fragment(seq_no: int) -> str:
    """The path of slot `seq_no`."""
    bucket = seq_no // SLOTS_PER_BUCKET * SLOTS_PER_BUCKET
    return f"log/Bucket={bucket:016x}/FragmentSeqNo={seq_no:016x}.parquet"


def fragment_seq_no(path: str) -> int | None:
    """The slot a fragment path names, or None for a bulk upload or anything else."""
    match = _FRAGMENT_NAME.fullmatch(path.rpartition("/")[2])
    return int(match[1], 16) if match else None


def upload(upload_id: str) -> str:
    """The path of the bulk upload with this id of 32 hex digits."""
    i = upload_id
    return f"{UPLOAD_PREFIX}{i[:8]}-{i[8:12]}-{i[12:16]}-{i[16:20]}-{i[20:]}.parquet"


def is_bulk(path: str) -> bool:
    """Whether the path is that of a bulk upload."""
    return _UUID_NAME.fullmatch(path.rpartition("/")[2]) is not None


def is_in_shard(path: str) -> bool:
    """Whether the path is that of a fragment of a chain log."""
    return names.parse_fragment(path) is not None


def node(setsum_hex: str) -> str:
    """The path of the node whose children add up to this setsum."""
    return NODE_PREFIX + setsum_hex


def placed_node(setsum_hex: str, start: int, limit: int) -> str:
    """The path of a node over uploads, whose setsum does not tell where they lie."""
    text = f"{setsum_hex} {start} {limit}"
    return NODE_PREFIX + hashlib.sha256(text.encode()).hexdigest()


def is_node(path: str, setsum_hex: str, start: int, limit: int) -> bool:
    """Whether a node over this range may have this path."""
    return path in {node(setsum_hex), placed_node(setsum_hex, start, limit)}


def filters(node_path: str) -> str:
    """The path of the filters that belong to a node."""
    return FILTER_PREFIX + node_path.removeprefix(NODE_PREFIX)


def stream_changes(incarnation: str) -> str:
    """Where the changes of the streams of this log lie, and of no other that had its name."""
    return f"{STREAM_PREFIX}{incarnation}/"


def stream_change(incarnation: str, number: int) -> str:
    """The path of the change of the streams with this number: the latest is listed first."""
    return f"{stream_changes(incarnation)}{_U64_MAX - number:016x}.json"


def stream_change_number(path: str) -> int | None:
    """The number of the change that a path names, or None if it is not one's."""
    match = _STREAM_CHANGE.fullmatch(path)
    return _U64_MAX - int(match[1], 16) if match else None


def intent(kind: str, token: str) -> str:
    """The path of an intent."""
    return f"{INTENT_PREFIX}{kind}-{token}"


def producer(producer_id: str) -> str:
    """The path of what is known of a producer that has left the manifest."""
    return f"{PRODUCER_PREFIX}{hashlib.sha256(producer_id.encode()).hexdigest()[:32]}.json"


def held(nonce: str) -> str:
    """The path of what a collection unlinked and could not delete."""
    return HELD_PREFIX + nonce


def cursor(name: str) -> str:
    """The path of a cursor."""
    return f"{CURSOR_PREFIX}{name}.json"


def pin(name: str) -> str:
    """The path of a pin."""
    return f"{PIN_PREFIX}{name}.json"


def fork(incarnation: str) -> str:
    """The path of the hold that the fork of this incarnation has on a log."""
    return f"{FORK_PREFIX}{incarnation}.json"


def pin_name(path: str) -> str | None:
    """The pin a path names, or None if it is not one's."""
    match = _PIN.fullmatch(path)
    return match[1] if match else None


def cursor_name(path: str) -> str | None:
    """The cursor a path names, or None if it is not one's."""
    match = _CURSOR.fullmatch(path)
    return match[1] if match else None


def is_known(path: str) -> bool:
    """Whether the path is that of an object of a log: one that may be deleted with it."""
    if names.is_known(path):
        return True
    if _KNOWN.fullmatch(path) is None:
        return False
    seq_no = fragment_seq_no(path)
    return seq_no is None or path == fragment(seq_no)


def stays_inside(path: str) -> bool:
    """Whether a path read from a manifest is relative and cannot leave the log."""
    return _SAFE_PATH.fullmatch(path) is not None and not {".", ".."} & set(path.split("/"))


def is_log_name(name: object) -> bool:
    """Whether `name` may name a log: plain segments separated by `/`."""
    return (
        isinstance(name, str)
        and _LOG_NAME.fullmatch(name) is not None
        and not any(segment.strip(".") == "" for segment in name.split("/"))
    )


def relative_name(name: str, other: str) -> str:
    """How the log `name` names the log `other`."""
    mine, theirs = name.split("/"), other.split("/")
    while mine and theirs and mine[0] == theirs[0]:
        del mine[0], theirs[0]
    return "/".join([".."] * len(mine) + theirs)


def resolve_name(name: str, relative: str) -> str | None:
    """The log that the log `name` names so; None if it lies above the root of the store."""
    mine, (up, down) = name.split("/"), _split(relative)
    is_above = folders_missing(name, relative) > 0
    return None if is_above else "/".join(mine[: len(mine) - up] + down)


def folders_missing(name: str, relative: str) -> int:
    """How many folders further up the store would have to begin for the name to be resolved."""
    up, down = _split(relative)
    return max(0, up - len(name.split("/")) + (not down))


def is_relative_name(text: str) -> bool:
    """Whether a log can name another one so."""
    up, down = _split(text)
    return is_log_name("/".join(down)) if down else up > 0


def _split(relative: str) -> tuple[int, list[str]]:
    """How many folders it goes up, and the way down from there."""
    steps = relative.split("/")
    down = list(dropwhile("..".__eq__, steps))
    return len(steps) - len(down), down
