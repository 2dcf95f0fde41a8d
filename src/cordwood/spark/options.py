"""What a reader can be asked for: every option, read and checked in one place.

Spark hands over text by name, in any case. An option nobody knows is refused, because a mistyped
`startOfset` would otherwise read too much without a word. Credentials and endpoints are not
options, which travel in plans and pickles: a store finds those in the environment of its process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from cordwood.base.errors import InvalidInputError
from cordwood.base.limits import OFFSET_LIMIT
from cordwood.log.log import Log
from cordwood.store.url import Store

SPLIT_BYTES = 128 * 2**20
BATCH_BYTES = 2 * 2**20
PIN_TTL_S = 3_600

View = Literal["records", "fragments"]
Verify = Literal["true", "full", "false"]
StartingAt = Literal["oldest", "latest"]
OnCollected = Literal["fail", "oldest"]

_BOTH = frozenset(
    {
        "path",
        "paths",
        "logs",
        "startOffset",
        "startTime",
        "stream",
        "cursor",
        "splitBytes",
        "batchBytes",
        "verify",
    }
)
_BATCH = _BOTH | {"endOffset", "endTime", "pin", "pinTtl", "view", "frozen"}
_STREAM = _BOTH | {
    "startingAt",
    "onCollected",
    "takeCursor",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "maxFragmentsPerTrigger",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIZE = re.compile(r"([0-9]{1,15}) *(b|k|kb|m|mb|g|gb)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_PATTERN = re.compile(r"[*?]")
_SECRET = re.compile(r"secret|password|token|credential|access.?key|account.?key", re.IGNORECASE)


class Place(msgspec.Struct, frozen=True):
    """Which logs are read: names in a store, or patterns that names match."""

    store: str
    """Its URL."""
    names: tuple[str, ...]

    @property
    def is_pattern(self) -> bool:
        """Whether the logs have to be looked for."""
        return any(_PATTERN.search(name) for name in self.names)

    @property
    def is_single(self) -> bool:
        """Whether it is one log for certain."""
        return len(self.names) == 1 and not self.is_pattern


class Frozen(msgspec.Struct, frozen=True):
    """A range of a log that was fixed before, by `read_log`."""

    log: str
    begin: int
    end: int
    pin: str | None = None
    """What keeps its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, checked."""

    place: Place
    frozen: tuple[Frozen, ...] | None = None
    """Instead of a start and an end."""
    start_offset: int | None = None
    end_offset: int | None = None
    start_time_us: int | None = None
    end_time_us: int | None = None
    stream: str | None = None
    cursor: str | None = None
    pin: str | None = None
    pin_ttl_s: int = PIN_TTL_S
    """0: no pin."""
    split_bytes: int = SPLIT_BYTES
    batch_bytes: int = BATCH_BYTES
    verify: Verify = "true"
    view: View = "records"
    starting_at: StartingAt | None = None
    on_collected: OnCollected = "fail"
    take_cursor: bool = False
    """Whether a new query takes a cursor that is another one's."""
    max_records: int | None = None
    max_bytes: int | None = None
    max_fragments: int | None = None


def parse(options: Mapping[str, str], *, streaming: bool | None = False) -> ReadOptions:
    """The options that Spark hands over; None for `streaming` if it is not known yet.

    Raises:
        InvalidInputError: one is unknown, is not what it should be, or does not go with another.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {True: _STREAM, False: _BATCH, None: _STREAM | _BATCH}[streaming]
    refuse_unknown(given, known, "a streaming read" if streaming else "a read")
    values: dict[str, Any] = {
        "frozen": _frozen(given),
        "start_offset": _offset(given, "startOffset"),
        "end_offset": _offset(given, "endOffset"),
        "start_time_us": _time(given, "startTime"),
        "end_time_us": _time(given, "endTime"),
        "stream": name_of(given, "stream"),
        "cursor": name_of(given, "cursor"),
        "pin": name_of(given, "pin"),
        "pin_ttl_s": number(given, "pinTtl", least=0),
        "split_bytes": size(given, "splitBytes"),
        "batch_bytes": size(given, "batchBytes"),
        "verify": choice(given, "verify", "true", "full", "false"),
        "view": choice(given, "view", "records", "fragments"),
        "starting_at": choice(given, "startingAt", "oldest", "latest"),
        "on_collected": choice(given, "onCollected", "fail", "oldest"),
        "take_cursor": flag(given, "takeCursor"),
        "max_records": number(given, "maxRecordsPerTrigger", least=1),
        "max_bytes": size(given, "maxBytesPerTrigger"),
        "max_fragments": number(given, "maxFragmentsPerTrigger", least=1),
    }
    there = {name: value for name, value in values.items() if value is not None}
    read = ReadOptions(place=_place(given), **there)
    _check_together(read, streaming=streaming is not False)
    return read


def _check_together(read: ReadOptions, *, streaming: bool) -> None:
    starts: dict[str, object] = {
        "startOffset": read.start_offset,
        "startTime": read.start_time_us,
        "startingAt": read.starting_at,
    }
    if not streaming:
        # A stream begins at its cursor only if it is not told otherwise.
        starts["cursor"] = read.cursor
    several = [name for name, value in starts.items() if value is not None]
    if len(several) > 1:
        raise InvalidInputError(
            f"options {' and '.join(several)} both say where to start", hint="give one of them"
        )
    if read.end_offset is not None and read.end_time_us is not None:
        raise InvalidInputError(
            "options endOffset and endTime both say where to end", hint="give one of them"
        )
    if read.pin is not None and not read.place.is_single:
        raise InvalidInputError("option pin names a pin of one log, and several are read")
    if read.start_offset is not None and not read.place.is_single:
        raise InvalidInputError(
            "option startOffset is a place in one log, and several are read",
            hint="use startTime or a cursor",
        )


def refuse_unknown(given: Mapping[str, str], known: Iterable[str], what: str) -> None:
    """Raise if there is an option that nobody knows."""
    names = {name.lower() for name in known}
    for name in given:
        if name in names:
            continue
        if _SECRET.search(name):
            raise InvalidInputError(
                f"option {name!r}: credentials are not options, which travel in plans and logs",
                hint="set them in the environment of the driver and of every executor",
            )
        raise InvalidInputError(
            f"{what} of a log has no option {name!r}",
            hint=f"it has {', '.join(sorted(set(known) - {'frozen', 'paths'}))}",
        )


# Which logs.


def single(given: Mapping[str, str]) -> tuple[str, str]:
    """The store's URL and the name of the one log that is meant."""
    place = _place(given)
    if not place.is_single:
        raise InvalidInputError(f"{given.get('path')!r} names several logs, and one is written")
    return place.store, place.names[0]


def _place(given: Mapping[str, str]) -> Place:
    logs = given.get("logs")
    if logs is not None:
        names = tuple(dict.fromkeys(name.strip() for name in logs.split(",") if name.strip()))
        if "path" not in given or not names:
            raise InvalidInputError(
                f"option logs is {logs!r}: it lists names of logs in the store that load() names",
                hint='write option("logs", "orders,clicks").load("file:///data/wood")',
            )
        return _checked(given["path"], names)
    if "paths" in given:
        places = [_of_url(url) for url in _urls(given)]
        if len({place.store for place in places}) > 1:
            raise InvalidInputError(
                "the logs lie in several stores", hint="read each store by itself, and union them"
            )
        # A log that is named twice is read once.
        once = dict.fromkeys(name for place in places for name in place.names)
        return Place(places[0].store, tuple(once))
    if "path" not in given:
        raise InvalidInputError(
            "no log is named", hint='write load("file:///data/wood/orders"), or option path'
        )
    return _of_url(given["path"])


def _urls(given: Mapping[str, str]) -> list[str]:
    """What load() was given: a list, as Spark hands it over."""
    try:
        urls = msgspec.json.decode(given["paths"], type=list[str])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _wrong("paths", given, "a list of URLs in JSON") from error
    if not urls:
        raise InvalidInputError("no log is named: the list is empty")
    return urls


def _of_url(url: str) -> Place:
    wild = _PATTERN.search(url)
    if wild is None:
        log = Log.from_url(url)
        return _checked(log.store.url, (log.name,))
    store, slash, _ = url[: wild.start()].rpartition("/")
    if not slash or store.endswith((":", ":/")):
        raise InvalidInputError(
            f"{url!r}: a pattern stands for names of logs, not for their store",
            hint="write file:///data/wood/orders-*",
        )
    return _checked(store, (url[len(store) + 1 :],))


def _checked(store_url: str, names: tuple[str, ...]) -> Place:
    store = Store(store_url)
    if store.scheme == "memory":
        raise InvalidInputError(
            f"{store_url}: Spark's workers are other processes and do not see this one's memory",
            hint="use a file: or a remote store",
        )
    for name in names:
        # A sign that stands for others is left out: what remains must be able to name a log.
        Log(store, _PATTERN.sub("x", name))
    return Place(store.url, names)


# Values.


def _frozen(given: Mapping[str, str]) -> tuple[Frozen, ...] | None:
    text = given.get("frozen")
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=tuple[Frozen, ...])
    except msgspec.DecodeError as error:
        raise _wrong("frozen", given, "what cordwood.spark.read_log made of a log") from error


def _offset(given: Mapping[str, str], name: str) -> int | None:
    value = number(given, name, least=0)
    if value is not None and value >= OFFSET_LIMIT:
        raise _wrong(name, given, "a number below 2^63")
    return value


def number(given: Mapping[str, str], name: str, *, least: int) -> int | None:
    """A whole number, or None if it was not given."""
    text = given.get(name.lower())
    if text is None:
        return None
    if re.fullmatch(r" *[0-9]{1,20} *", text) is None or int(text) < least:
        raise _wrong(name, given, f"a whole number of at least {least}")
    return int(text)


def size(given: Mapping[str, str], name: str) -> int | None:
    """A number of bytes, or None."""
    text = given.get(name.lower())
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise _wrong(name, given, "a number of bytes, such as 134217728, 128m or 1g")
    return int(match[1]) * _UNITS[(match[2] or "").lower().rstrip("b")]


def _time(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if re.fullmatch(r" *[0-9]{1,19} *", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        wanted = "a time such as 2026-01-31T12:00:00Z, or microseconds since 1970"
        raise _wrong(name, given, wanted) from error
    if moment.tzinfo is None:
        # The driver, the planner and a client may stand in different zones.
        moment = moment.replace(tzinfo=UTC)
    return max(0, (moment - _EPOCH) // timedelta(microseconds=1))


def name_of(given: Mapping[str, str], name: str) -> str | None:
    """A name, or None."""
    text = given.get(name.lower())
    if text is not None and not text.strip():
        raise _wrong(name, given, "a name")
    return text


def choice(given: Mapping[str, str], name: str, *choices: str) -> str | None:
    """One of the choices, or None."""
    text = given.get(name.lower())
    if text is None:
        return None
    if text.strip().lower() not in choices:
        raise _wrong(name, given, f"one of {', '.join(choices)}")
    return text.strip().lower()


def flag(given: Mapping[str, str], name: str) -> bool | None:
    """True or false, or None."""
    text = choice(given, name, "true", "false")
    return None if text is None else text == "true"


def _wrong(name: str, given: Mapping[str, str], wanted: str) -> InvalidInputError:
    return InvalidInputError(f"option {name} is {given[name.lower()]!r}, not {wanted}")
