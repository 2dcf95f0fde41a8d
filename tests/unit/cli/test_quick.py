"""`cordwood grep` by a glance: the same words mean the same, print the same, and load less."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from cordwood.cli import quick
from cordwood.cli.grep import grep


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small tree, whose files have settled as soon as they are written."""
    monkeypatch.setattr("cordwood.index.walk.TICK_NS", -(1 << 60))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("import os\ndef Main():\n    pass\nmain()\n")
    (tmp_path / "src" / "b.py").write_text("import sys\n# remain\n")
    return tmp_path / "src"


LINES = [
    "main",
    "main src",
    "-i main src",
    "-iw MAIN src -c",
    "src -lF src",
    "-N main -n src",
    "-nN main src",
    "--ignore-case --fixed --words --files --count --no-numbers main src",
    "--numbers --no-ignore --json main src",
    "main --color always src",
    "main --color=never src",
    "main --index ix src",
    "main --index=ix src",
    "--index= main src",
]

OTHERS = [
    "",
    "a b c",
    "--update src",
    "main src --bench",
    "--no-index main",
    "--rebuild main src",
    "-h",
    "--help",
    "-x main",
    "-ix main",
    "--color pink main",
    "main --color",
    "-- -main src",
    "- src",
    "--nothing main",
    "--files=yes main",
]


@pytest.mark.parametrize("line", LINES)
def test_words_mean_what_they_mean_to_the_whole_command(line):
    """Each option, and those that follow each other."""
    words = line.split()
    theirs = dict(grep.make_context("grep", list(words)).params)
    theirs["directory"] = theirs["directory"] or "."
    ours = quick.read(words)
    assert ours == {key: theirs[key] for key in ours}
    assert not any(theirs[key] for key in theirs.keys() - ours.keys())


@pytest.mark.parametrize("line", OTHERS)
def test_what_is_special_is_left_to_the_whole_command(line):
    """Also what is wrong: it says so better."""
    assert quick.read(line.split()) is None


@pytest.mark.parametrize(
    "line",
    [
        "import src",
        "-i main src",
        "-N -w main src",
        "-c import src",
        "-l import src",
        "import src --color always",
        "import src --json",
        "import src -c --json",
        "-F main() src",
        "nothing-of-it src",
    ],
)
def test_it_prints_what_the_whole_command_prints(run, tree, capfdbinary, line):
    """And ends with the same code."""
    run("grep", "--update", "src")
    with open(os.fsencode(tree) + b"/\xff", "wb") as file:
        file.write(b"\xfe main import\n")
    code = quick.search(line.split())
    sys.stdout.flush()
    ours = capfdbinary.readouterr().out
    theirs = subprocess.run(
        [sys.executable, "-m", "cordwood", "grep", "--no-index", *line.split()],
        capture_output=True,
        check=False,
    )
    assert (code, ours) == (theirs.returncode, theirs.stdout)


def test_it_loads_little(run, tree):
    """No arrays, no tables, no event loop, no command lines."""
    run("grep", "--update", "src")
    script = textwrap.dedent("""
        import sys
        from cordwood.cli import start
        code = start._quick(["sys", "src"])
        heavy = {"asyncio", "click", "dataclasses", "inspect", "msgspec", "numpy", "pathlib",
                 "pyarrow", "random", "rich", "shutil", "tempfile"}
        print(code, *sorted(heavy & sys.modules.keys()), file=sys.stderr)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("src/b.py:1:import sys\n", "0\n")


def test_nothing_is_done_where_more_is_to_be_done(run, tree, monkeypatch, capfd):
    """No index, or a damaged one; a pattern to scan for, or a bad one; too much has changed."""
    assert quick.search(["import", "src"]) is None
    run("grep", "--update", "src")
    assert quick.search(["import", "src"]) == 0
    assert quick.search(["i.p", "src"]) is None
    assert quick.search(["(import", "src"]) is None
    assert quick.search(["import", "src/a.py"]) is None
    assert quick.search(["import", "nowhere"]) is None
    (tree / "c.py").write_text("import system\n")
    assert quick.search(["-l", "import", "src"]) == 0
    monkeypatch.setattr("cordwood.index.sources.UPDATE_FILES", 1)
    assert quick.search(["import", "src"]) is None
    (segment,) = (tree / ".cordwood-grep").glob("segment.*.idx")
    segment.write_bytes(segment.read_bytes()[:-20])
    assert quick.search(["import", "src"]) is None
    sys.stdout.flush()
    assert capfd.readouterr().out.count("\n") == 5


def test_the_whole_command_takes_the_census_that_is_missing(run, tree):
    """So that the next search is quick."""
    run("grep", "--update", "src")
    (tree / ".cordwood-grep/census").unlink()
    assert quick.search(["import", "src"]) is None
    run("grep", "import", "src")
    assert quick.search(["import", "src"]) == 0


def test_files_that_cannot_be_read_are_said(run, tree, monkeypatch, capfd):
    """The others are searched; the exit code tells."""
    run("grep", "--update", "src")
    real = os.open

    def refusing(path, *rest, **more):
        """Not this one."""
        if os.fsencode(path).endswith(b"a.py"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    assert quick.search(["import", "src"]) == 2
    sys.stdout.flush()
    shown = capfd.readouterr()
    assert shown.out == "src/b.py:1:import sys\n"
    assert shown.err == "cordwood: src/a.py: Permission denied\n"


def test_a_reader_that_leaves_is_no_error(run, tree):
    """As `head` does."""
    (tree / "c.py").write_text("import again and again\n" * 100_000)
    run("grep", "--update", "src")
    command = f"({sys.executable} -m cordwood grep import src; echo $? >&2) | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("src/a.py:1:import os\n", "0\n")
