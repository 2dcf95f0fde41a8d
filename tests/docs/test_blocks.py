"""Every example in README and docs runs.

A document is run from top to bottom, in an empty directory of its own:

* a ```python block is executed; the blocks of one document share their names, and `await` may be
  used at the top level (such a block runs in the document's event loop, any other outside of it);
* in a ```console or ```sh block, a line that starts with `$ cordwood ` (or pipes into `cordwood`)
  is run with this Python's `cordwood`. Lines below it are its output. They are compared without
  regard to white space, and those with a `…` are skipped. A command must succeed unless the output
  shown is an error (`cordwood: …`).

Anything else (```text, ```json, …) is not run: that is where examples for real clouds go. A URL
that begins with `file:///tmp/` is taken to mean the document's own directory.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from cordwood.store import memory

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELLIPSIS = "…"
COMMAND_S_MAX = 120.0

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*) *$")


class Block(NamedTuple):
    """A fenced block and the line its content begins on, from 1."""

    language: str
    line: int
    text: str


class Command(NamedTuple):
    """A command line of a console block, and the output shown below it."""

    line: int
    text: str
    output: list[str]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence is not None:
            opened, lines, start = fence, [], number + 1
        elif opened is not None and fence is not None and not fence["language"]:
            found.append(Block(opened["language"], start, "\n".join(lines) + "\n"))
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(opened["indent"]))
        elif line.lstrip().startswith("```"):
            raise AssertionError(f"line {number}: not a fence this test knows: {line!r}")
    assert opened is None, f"the block that begins on line {start} never ends"
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block that are ours to run, each with its output."""
    found: list[Command] = []
    current: Command | None = None
    continued = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if continued and current is not None:
            current = found[-1] = Command(current.line, f"{current.text}\n{line}", [])
            continued = line.endswith("\\")
        elif line.startswith("$ "):
            text = line.removeprefix("$ ")
            is_ours = re.search(r"^cordwood |\| *cordwood ", text) is not None
            current = Command(number, text, []) if is_ours else None
            continued = line.endswith("\\")
            if current is not None:
                found.append(current)
        elif current is not None and line.strip():
            current.output.append(line)
    return found


def differences(expected: list[str], actual: str) -> str:
    """What is shown but was not printed, in one line; empty if nothing is."""
    printed = [" ".join(line.split()) for line in actual.splitlines() if line.strip()]
    shown = [" ".join(line.split()) for line in expected]
    if len(printed) != len(shown) and not any(ELLIPSIS in line for line in shown):
        return f"{len(shown)} lines shown, {len(printed)} printed"
    at = 0
    for line in shown:
        if ELLIPSIS in line:
            continue
        if line not in printed[at:]:
            return f"not printed, or not in this order: {line!r}"
        at = printed.index(line, at) + 1
    return ""


def run_command(command: Command, where: str) -> None:
    """Run a command in the current directory and compare."""
    python = shlex.quote(sys.executable)
    done = subprocess.run(
        ["bash", "-c", f'cordwood() {{ {python} -m cordwood "$@"; }}\n{command.text}'],
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
        env={**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"},
    )
    shown_error = any(line.startswith("cordwood: ") for line in command.output)
    printed = done.stdout + done.stderr
    assert (done.returncode != 0) == shown_error, f"{where}: $ {command.text}\n{printed}"
    if command.output:
        difference = differences(command.output, printed)
        assert not difference, f"{where}: $ {command.text}\n{difference}\n{printed}"


def run_python(block: Block, where: str, names: dict[str, object], runner: asyncio.Runner) -> None:
    """Execute a block; line numbers in a traceback are those of the document."""
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:

        async def run() -> None:
            await eval(code, names)

        runner.run(run())
    else:
        exec(code, names)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """An empty working directory, and no memory store of another document."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "_named", {})
    # No empty entry: it would stand for the working directory, which a worker may have lost.
    source = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(source))
    return tmp_path


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, marks=pytest.mark.spark if path.stem == "spark" else ())
        for path in DOCUMENTS
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_document_runs(document, directory, request):
    """Every Python block and every command of the document works as it is written."""
    if document.stem == "spark":
        request.getfixturevalue("spark")  # The session that the document then finds.
    names: dict[str, object] = {"__name__": "__docs__"}
    relative = str(document.relative_to(ROOT))
    text = document.read_text(encoding="utf-8").replace("file:///tmp/", f"{directory.as_uri()}/")
    with asyncio.Runner() as runner:
        for block in blocks(text):
            where = f"{relative}:{block.line}"
            if block.language == "python":
                run_python(block, relative, names, runner)
            elif block.language in {"console", "sh"}:
                for command in commands(block):
                    run_command(command, where)


def test_blocks_are_found():
    """A block knows its language, its first line and its text, also in a list."""
    text = "one\n```python\na = 1\n```\n- item\n  ```sh\n  $ cordwood x\n  ```\n"
    assert blocks(text) == [Block("python", 3, "a = 1\n"), Block("sh", 7, "$ cordwood x\n")]


def test_commands_are_found():
    """Ours are run with their output and continuation; other programs are not."""
    text = "$ pip install x\nok\n$ cordwood a \\\n  b\nout\n\n$ echo 1 | cordwood c\n"
    assert commands(Block("console", 10, text)) == [
        Command(12, "cordwood a \\\n  b", ["out"]),
        Command(16, "echo 1 | cordwood c", []),
    ]


def test_output_is_compared():
    """Lines count in their order, white space and lines with an ellipsis do not."""
    assert differences(["a  b", "c"], "a b\n\nc\n") == ""
    assert differences(["a", "…", "d"], "a\nb\nc\nd\n") == ""
    assert differences(["a"], "a\nb\n")
    assert differences(["…", "b", "a"], "a\nb\n")
