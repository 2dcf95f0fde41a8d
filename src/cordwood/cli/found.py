"""What `cordwood grep` prints. It loads nothing that a search could do without."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from cordwood.index.lines import Finder, Line
    from cordwood.index.sources import Sources

NOT_FOUND, WRONG = 1, 2
"""Exit codes, as grep has them: nothing matched; something was wrong."""

_PATH, _NUMBER, _MATCH, _PLAIN = "\x1b[35m", "\x1b[32m", "\x1b[31m\x1b[1m", "\x1b[0m"


class Found:
    """Prints what was found, as the options of the command ask for."""

    def __init__(self, finder: Finder, options: Mapping[str, Any]) -> None:
        """Nothing is printed yet."""
        self._finder = finder
        self._as_json: bool = options["as_json"]
        self._files: bool = options["files"]
        self._count: bool = options["count"]
        self._numbers: bool = options["numbers"]
        self._stream: BinaryIO = sys.stdout.buffer
        color: str = options["color"]
        self._color = color == "always" or (color == "auto" and self._stream.isatty())

    def show_all(self, sources: Sources, candidates: Iterable[bytes]) -> bool:
        """Print what is found in files; whether there is anything."""
        found = False
        for name in candidates:
            found |= self.show(sources.shown(name), sources.lines(self._finder, name))
        self._stream.flush()
        return found

    def show(self, path: bytes, lines: Iterator[Line]) -> bool:
        """Print a file's lines, or what is wanted of them; whether there are any."""
        first = next(lines, None)
        if first is None:
            return False
        if self._files:
            self._put(path, {}, None, "")
        elif self._count:
            number = 1 + sum(1 for _ in lines)
            self._put(path, {"count": number}, number, "")
        else:
            self._line(path, first)
            for line in lines:
                self._line(path, line)
        return True

    def _line(self, path: bytes, line: Line) -> None:
        if self._as_json:
            text = line.text.encode("utf-8", "surrogateescape")
            self._put(path, {"line": line.number, "text": _text_of(text)}, None, "")
        else:
            shown = self._highlighted(line.text) if self._color else line.text
            self._put(path, {}, line.number if self._numbers else None, f":{shown}")

    def _put(self, path: bytes, facts: dict[str, Any], number: int | None, rest: str) -> None:
        if self._as_json:
            self._put_json(path, facts)
            return
        shown = path.decode("utf-8", "surrogateescape")
        parts = [self._styled(shown, _PATH)]
        if number is not None:
            parts.append(self._styled(str(number), _NUMBER))
        line = ":".join(parts) + rest + "\n"
        self._stream.write(line.encode("utf-8", "surrogateescape"))

    def _put_json(self, path: bytes, facts: dict[str, Any]) -> None:
        import json  # noqa: PLC0415

        named: dict[str, Any] = {"path": _text_of(path)}
        if named["path"].encode() != path:
            import base64  # noqa: PLC0415

            named["path_base64"] = base64.b64encode(path).decode()
        self._stream.write(json.dumps(named | facts, ensure_ascii=False).encode() + b"\n")

    def _styled(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._color else text

    def _highlighted(self, text: str) -> str:
        return self._finder.expression.sub(
            lambda found: f"{_MATCH}{found[0]}{_PLAIN}" if found[0] else "", text
        )


def _text_of(body: bytes) -> str:
    """Bytes for people: as text where they are text."""
    return body.decode("utf-8", "backslashreplace")
