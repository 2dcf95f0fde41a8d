"""What a connection to a volume is asked in SQL: `pragma cordwood_push('a message')`.

========================  =========================================================================
status                    how it stands, as JSON
log                       the published versions, the newest first, as JSON
lsn                       the published version that is read, or built upon
push('message')           publish what is committed; the LSN
pull                      take what others published
fetch                     learn of it, and change nothing
reset                     take theirs; local commits that were not pushed are gone
rebase                    put local commits on top of theirs
follow                    go where the name points now, if somebody moved it; the log
branch, branch('name')    which one this is; make one of what is published here
checkout('name')          go on with another branch; an LSN or a time is read and not written;
                          without a name, go back to what is there now
tag('name')               another name for the volume
hydrate                   bring all pages here
checkpoint                name every page in one document
restore(LSN or a time)    make an older version what is there, by a local commit
========================  =========================================================================

What moves the head waits for whoever writes. So in a transaction that writes it is refused: it
would wait for itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from cordwood.base.errors import InvalidInputError, StateError, StoreError
from cordwood.volume.database import Database, ReadOnlyVolumeError
from cordwood.volume.desk import Desk
from cordwood.volume.moments import Moment, lsn_or_time
from cordwood.volume.pull import Moved
from cordwood.volume.reader import PageReader
from cordwood.volume.volume import Volume

PREFIX = "cordwood_"
LOG_MAX = 1_000
"""Versions that one answer lists."""


def answer(database: Database, name: str, value: str | None) -> str | None:
    """What a pragma says; None if it is not ours.

    Raises:
        CordwoodError: it could not be done.
        InvalidInputError: there is no such pragma, or it wants a value.
    """
    if not name.startswith(PREFIX):
        return None
    verb = name.removeprefix(PREFIX)
    if verb not in _ANSWERS:
        raise InvalidInputError(
            f"there is no pragma {name}", hint=f"there are {', '.join(sorted(_ANSWERS))}"
        )
    if verb in _MOVING and database.is_writing:
        raise StateError(
            f"pragma {name} in a transaction that writes", hint="commit it or roll it back first"
        )
    if verb in _WRITING and database.fixed_lsn is not None:
        raise ReadOnlyVolumeError(
            f"pragma {name} where version {database.fixed_lsn} is read",
            hint=f"pragma {PREFIX}checkout comes back to what is there now",
        )
    return _ANSWERS[verb](database, value)


def _status(database: Database, _: str | None) -> str:
    status = database.run(database.volume.status())
    return json.dumps(
        asdict(status) | {"at": database.fixed_lsn, "is_safe_to_delete": status.is_safe_to_delete}
    )


def _log(database: Database, value: str | None) -> str:
    limit = LOG_MAX if value is None else _number(value)
    return json.dumps([asdict(one) for one in database.run(database.volume.log(limit))])


def _lsn(database: Database, _: str | None) -> str:
    if database.fixed_lsn is not None:
        return str(database.fixed_lsn)
    with database.desk.local.snapshot() as view:
        return str(view.lsn)


def _push(database: Database, value: str | None) -> str:
    lsn = database.run(database.volume.push(value or ""))
    return "nothing to push" if lsn is None else str(lsn)


def _pull(database: Database, _: str | None) -> str:
    return _moved(database.run(database.volume.pull()))


def _fetch(database: Database, _: str | None) -> str:
    return str(database.run(database.volume.fetch()).lsn)


def _reset(database: Database, _: str | None) -> str:
    return _moved(database.run(database.volume.reset()))


def _rebase(database: Database, _: str | None) -> str:
    return _moved(database.run(database.volume.rebase()))


def _follow(database: Database, _: str | None) -> str:
    if database.is_reading:
        raise StateError("a transaction is open", hint="commit it or roll it back first")
    if database.run(database.volume.follow()):
        volume = database.volume
        database.check_out(volume, database.run(volume.desk()), None)
    return database.desk.log


def _branch(database: Database, value: str | None) -> str:
    if value is None:
        return database.volume.name
    at = database.fixed_lsn
    database.run(database.volume.branch(value, at))
    return value


def _checkout(database: Database, value: str | None) -> str:
    if database.is_reading:
        raise StateError("a transaction is open", hint="commit it or roll it back first")
    volume, desk, fixed = database.run(_target(database, value))
    try:
        database.check_out(volume, desk, fixed)
    except BaseException:
        if desk is not database.desk:
            desk.close()
        raise
    return volume.name if fixed is None else f"{volume.name} at {fixed.snapshot.lsn}"


async def _target(database: Database, value: str | None) -> tuple[Volume, Desk, PageReader | None]:
    """What is meant: a version if it reads as one, else a branch."""
    volume, desk = database.volume, database.desk
    if value is None or value == volume.name:
        return volume, desk, None
    try:
        lsn_or_time(value, 0)
    except InvalidInputError:
        other = volume.named(value)
        return other, await other.desk(), None
    return volume, desk, await version_at(volume, value)


async def version_at(volume: Volume, at: Moment) -> PageReader:
    """A published version by LSN or time.

    What was published by a time is known only to the store, which is asked if it can be.

    Raises:
        NotFoundError: there is none like that.
    """
    if lsn_or_time(at, volume.clock.now_us())[1] is not None:
        with suppress(StoreError):
            await volume.fetch()
    return (await volume.snapshot(at)).sight.published


def _tag(database: Database, value: str | None) -> str:
    name = _wanted(value, "tag")
    database.run(database.volume.tag(name))
    return name


def _hydrate(database: Database, _: str | None) -> str:
    return str(database.run(database.volume.hydrate(database.fixed_lsn)))


def _checkpoint(database: Database, _: str | None) -> str:
    return str(database.run(database.volume.checkpoint()).checkpoint.lsn)


def _restore(database: Database, value: str | None) -> str:
    return str(database.run(database.volume.restore(_wanted(value, "restore"))))


def _moved(moved: Moved) -> str:
    return str(moved.lsn)


def _wanted(value: str | None, verb: str) -> str:
    if not value:
        raise InvalidInputError(
            f"pragma {PREFIX}{verb} of what?", hint=f"write pragma {PREFIX}{verb}('…')"
        )
    return value


def _number(value: str) -> int:
    if not value.isdecimal():
        raise InvalidInputError(f"{value!r} is no number")
    return int(value)


_ANSWERS: dict[str, Callable[[Database, str | None], str]] = {
    "branch": _branch,
    "checkout": _checkout,
    "checkpoint": _checkpoint,
    "fetch": _fetch,
    "follow": _follow,
    "hydrate": _hydrate,
    "log": _log,
    "lsn": _lsn,
    "pull": _pull,
    "push": _push,
    "rebase": _rebase,
    "reset": _reset,
    "restore": _restore,
    "status": _status,
    "tag": _tag,
}
_WRITING = frozenset({"follow", "pull", "push", "rebase", "reset", "restore"})
_MOVING = _WRITING | {"checkout"}
