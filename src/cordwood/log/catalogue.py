"""Which logs a store holds, by a pattern of their names.

There is no list of logs anywhere: a log is there if its manifest is. They are found by hopping
through the store's keys in order, from one log to the next, without listing what lies inside them.

A pattern is a name in which `*` stands for any letters of a segment, `**` for any segments, and `?`
for one letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import aclosing

from cordwood.log import paths
from cordwood.log.objects import LogObjects
from cordwood.store.api import ObjectStore
from cordwood.store.streams import as_generator

_WILD = re.compile(r"\*\*|\*|\?")
_SIGNS = {"**": ".*", "*": "[^/]*", "?": "[^/]"}


async def logs_in(store: ObjectStore, patterns: Iterable[str] = ("**",)) -> list[str]:
    """The names that match any of the patterns, in order. A LIST and a HEAD for each log.

    A name without a sign of a pattern is given back as it is, whether there is such a log or not.
    """
    found: set[str] = set()
    for pattern in patterns:
        if _WILD.search(pattern) is None:
            found.add(pattern)
        else:
            found.update(await _matching(store, pattern))
    return sorted(found)


async def _matching(store: ObjectStore, pattern: str) -> list[str]:
    prefix = _WILD.split(pattern, maxsplit=1)[0]
    expression = re.compile(_expression(pattern))
    # A log may lie below another one's name. Where no such name can match, it is passed over.
    is_nested = "/" in pattern[len(prefix) :] or "**" in pattern
    found: list[str] = []
    seen: set[str] = set()
    after = ""
    while (place := await _next(store, prefix, after)) is not None:
        name, folder = place
        if name not in seen and expression.fullmatch(name) and await _is_log(store, name):
            found.append(name)
        seen.add(name)
        # "0" is the sign after "/": behind everything of this folder, before what follows it.
        is_above = is_nested or len(name) < len(prefix)
        after = f"{name}/{folder}0" if is_above else f"{name}0"
    return found


async def _next(store: ObjectStore, prefix: str, after: str) -> tuple[str, str] | None:
    """The log that the next key belongs to, and the folder of the log it lies in."""
    async with aclosing(as_generator(store.list(prefix, after))) as metas:
        async for meta in metas:
            if (place := _owner(meta.key)) is not None:
                return place
    return None


def _expression(pattern: str) -> str:
    literals, signs = _WILD.split(pattern), _WILD.findall(pattern)
    parts = [re.escape(literals[0])]
    for sign, literal in zip(signs, literals[1:], strict=True):
        parts += [_SIGNS[sign], re.escape(literal)]
    return "".join(parts)


def _owner(key: str) -> tuple[str, str] | None:
    """The log that a key belongs to, by its form, and the folder; None if it is no log's."""
    segments = key.split("/")
    for i in range(1, len(segments) - 1):
        if paths.is_known("/".join(segments[i:])):
            return "/".join(segments[:i]), segments[i]
    return None


async def _is_log(store: ObjectStore, name: str) -> bool:
    return await LogObjects(store, name).exists()
