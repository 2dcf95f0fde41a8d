"""`cordwood grep`: what it prints, what its exit code says, and when it makes or mends an index."""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
import sys

import pytest

from cordwood.index import sources


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small tree, whose files have settled as soon as they are written."""
    monkeypatch.setattr("cordwood.index.walk.TICK_NS", -(1 << 60))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("import os\ndef Main():\n    pass\nmain()\n")
    (tmp_path / "src" / "b.py").write_text("import sys\n# remain\n")
    return tmp_path / "src"


@pytest.fixture
def small(monkeypatch):
    """Every tree is large enough for an index, and every change for an update."""
    monkeypatch.setattr(sources, "BUILD_BYTES", 1)
    monkeypatch.setattr(sources, "UPDATE_BYTES", 1)


def test_lines_are_printed_as_grep_prints_them(run, tree):
    """Path, number and text; numbers may be left out."""
    assert run("grep", "import", "src") == "src/a.py:1:import os\nsrc/b.py:1:import sys\n"
    assert run("grep", "-N", "import o", "src") == "src/a.py:import os\n"
    assert run("grep", "^import o", tree / "a.py") == f"{tree}/a.py:1:import os\n"


def test_the_folder_is_here_by_default(run, tree, monkeypatch):
    """And paths are short then."""
    monkeypatch.chdir(tree)
    assert run("grep", "sys") == "b.py:1:import sys\n"


def test_options(run, tree):
    """Case, fixed text, words, names of files, counts."""
    assert run("grep", "-i", "main", "src", "-c") == "src/a.py:2\nsrc/b.py:1\n"
    assert run("grep", "-w", "main", "src") == "src/a.py:4:main()\n"
    assert run("grep", "-F", "main()", "src") == "src/a.py:4:main()\n"
    assert run("grep", "-l", "import", "src") == "src/a.py\nsrc/b.py\n"
    assert run("grep", "-iwF", "MAIN(", "src", "-l") == "src/a.py\n"


def test_json_is_a_line_for_each(run, tree):
    """Also for counts and names; a path that is no text can be had back."""
    assert run("grep", "sys", "src", "--json") == {
        "path": "src/b.py",
        "line": 1,
        "text": "import sys",
    }
    assert run("grep", "sys", "src", "-c", "--json") == {"path": "src/b.py", "count": 1}
    odd = os.fsencode(tree) + b"/\xff"
    with open(odd, "wb") as file:
        file.write(b"\xfe odd\n")
    got = run("grep", "odd", "src", "--json")
    assert base64.b64decode(got["path_base64"]) == b"src/\xff"
    assert got["text"] == r"\xfe odd"


def test_the_exit_code_is_that_of_grep(run, tree):
    """1 if nothing matched, 2 if something was wrong."""
    assert run("grep", "nothing of it", "src", code=1) == ""
    assert "nowhere is not there" in run("grep", "x", "nowhere", code=2)
    assert "give a PATTERN" in run("grep", code=2)
    assert run("grep", "x", "nowhere", "--json", code=2)["error"] == "not_found"


def test_a_bad_pattern_is_one_clear_message(run, tree):
    """With the place in it."""
    output = run("grep", "ab(c", "src", code=2)
    assert "cordwood: pattern: missing ), unterminated subpattern (character 3)" in output
    assert "  ab(c\n    ^\n" in output
    assert run("grep", "ab(c", "src", "--json", code=2)["error"] == "invalid_input"


def test_colours_are_for_terminals(run, tree):
    """Or for who asks."""
    assert "\x1b[" not in run("grep", "sys", "src")
    output = run("grep", "sys|x*", "src/b.py", "--color", "always")
    assert "import \x1b[31m\x1b[1msys\x1b[0m\n" in output


def test_a_small_tree_gets_no_index(run, tree):
    """Scanning it is quicker."""
    run("grep", "sys", "src")
    assert not (tree / ".cordwood-grep").exists()


def test_a_large_tree_gets_an_index_that_follows_it(run, tree, small):
    """With the first search; the next ones bring it up to date, and Git does not see it."""
    assert "indexed 2 files in" in run("grep", "sys", "src")
    assert (tree / ".cordwood-grep" / ".gitignore").read_text() == "*\n"
    assert run("grep", "sys", "src") == "src/b.py:1:import sys\n"
    (tree / "c.py").write_text("import system\n")
    assert run("grep", "-l", "sys", "src") == "src/b.py\nsrc/c.py\n"
    assert run("grep", "--update", "src", "--json") == {"files": 3, "added": 0, "dropped": 0}


def test_an_index_can_be_elsewhere(run, tree, tmp_path):
    """And is made when that is asked for."""
    place = tmp_path / "ix"
    report = run("grep", "--update", "src", "--index", place, "--json")
    assert report == {"files": 2, "added": 2, "dropped": 0}
    assert not (tree / ".cordwood-grep").exists()
    (tree / "a.py").unlink()
    assert "dropped 1 files" in run("grep", "--update", "src", "--index", place)
    assert run("grep", "--update", "sys", "src", "--index", place) == "src/b.py:1:import sys\n"


def test_a_damaged_index_is_said_and_answers_are_right(run, tree):
    """Every file is read instead, until --rebuild."""
    run("grep", "--update", "src")
    (segment,) = (tree / ".cordwood-grep").glob("segment.*.idx")
    segment.write_bytes(segment.read_bytes()[:-20])
    output = run("grep", "sys", "src")
    assert "is damaged" in output
    assert "--rebuild" in output
    assert output.endswith("src/b.py:1:import sys\n")
    assert "damaged" in run("grep", "--update", "src", code=2)
    assert run("grep", "--rebuild", "sys", "src") == "src/b.py:1:import sys\n"
    assert run("grep", "sys", "src") == "src/b.py:1:import sys\n"


def test_an_index_that_cannot_be_made_is_said(run, tree, small, monkeypatch):
    """A tree that may not be written to can be searched."""

    def refused(*_, **__):
        """Read-only."""
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("cordwood.store.disk.Disk.mkdir", refused)
    output = run("grep", "sys", "src")
    assert "Permission denied" in output
    assert output.endswith("src/b.py:1:import sys\n")
    assert run("grep", "sys", "src", "--no-index") == "src/b.py:1:import sys\n"


def test_files_that_cannot_be_read_are_said(run, tree, monkeypatch):
    """The others are searched; the exit code tells."""
    real = os.open

    def refusing(path, *rest, **more):
        """Not this one."""
        if os.fsencode(path).endswith(b"a.py"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    output = run("grep", "import", "src", code=2)
    assert "cordwood: src/a.py: Permission denied\n" in output
    assert "src/b.py:1:import sys\n" in output


def test_what_git_ignores_is_left_out(run, tree):
    """In a repository, unless it is asked for."""
    (tree / ".gitignore").write_text("b.py\n")
    assert "src/b.py" in run("grep", "import", "src")
    (tree / ".git").mkdir()
    assert run("grep", "import", "src") == "src/a.py:1:import os\n"
    assert "src/b.py" in run("grep", "import", "src", "--no-ignore")


def test_a_single_file_has_no_index(run, tree, small):
    """It is read, however large it is."""
    assert run("grep", "sys", "src/b.py") == "src/b.py:1:import sys\n"
    assert "is a file" in run("grep", "--update", "src/b.py", code=2)


def test_options_that_contradict_each_other(run, tree):
    """Are refused."""
    assert "--no-index goes without" in run("grep", "--no-index", "--update", "src", code=2)


def test_grep_agrees(run, tree, tmp_path):
    """Line by line, for patterns that mean the same to both."""
    for pattern in ("import", "^main", r"main\(\)$", "im?port|pass", "[ab]s+", "no such"):
        theirs = subprocess.run(
            ["grep", "-rnE", pattern, "src"], capture_output=True, text=True, check=False
        )
        ours = run("grep", pattern, "src", code=theirs.returncode)
        assert sorted(ours.splitlines()) == sorted(theirs.stdout.splitlines())


def test_a_benchmark_says_what_is_missing(run, tree, monkeypatch):
    """Each part in CPU and wall time, beside the peers that are there."""
    monkeypatch.setattr("cordwood.cli.bench.grep.TIMES", 1)
    monkeypatch.setattr("cordwood.cli.bench.grep.shutil.which", lambda name: None)
    result = run("grep", "--bench", "import", "src", "--json")
    assert set(result["runs"]) == {"python", "load", "look", "glance", "find", "command"}
    assert (result["files"], result["candidates"], result["lines"]) == (2, 2, 2)
    assert result["missing"] == ["ripgrep", "grep"]
    assert "ripgrep is not installed" in run("grep", "--bench", "import", "src")


def test_a_reader_that_leaves_is_no_error(tree, monkeypatch):
    """As `head` does."""
    monkeypatch.chdir(tree.parent)
    command = f"({shlex.quote(sys.executable)} -m cordwood grep '' src; echo $? >&2) | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == "0\n"
