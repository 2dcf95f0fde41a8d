"""Every link inside the documents leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE
)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def links(text: str) -> list[str]:
    """The targets of links, without those in code."""
    prose = _CODE.sub("`", _FENCED.sub("", text))
    return [inline or reference for inline, reference in _LINK.findall(prose)]


def anchors(text: str) -> set[str]:
    """The names that headings can be linked by, as GitHub makes them."""
    names: dict[str, int] = {}
    found = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = names.get(name, 0)
        names[name] = count + 1
        found.add(f"{name}-{count}" if count else name)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(document):
    """A relative link names a file that exists, and its anchor a heading of that file."""
    broken = []
    for link in links(document.read_text(encoding="utf-8")):
        if _ELSEWHERE.match(link) or link.startswith("//"):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = document if not path else (document.parent / path).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
            broken.append(f"{link}: no such heading")
    assert broken == []


def test_links_are_found():
    """Inline links and references count, links in code do not."""
    text = 'a [b](c.md#d "t") `[x](y)`\n```text\n[p](q)\n```\n[r]: s.md\n'
    assert links(text) == ["c.md#d", "s.md"]
    assert anchors("# The `cordwood` x\n## 5.6 A, b\n## 5.6 A, b\n") == {
        "the-cordwood-x",
        "56-a-b",
        "56-a-b-1",
    }
