"""A source tree: which files are in it, what a .gitignore leaves out, and what a stamp tells."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from cordwood.index.ignore import Rules
from cordwood.index.walk import (
    COARSE_TICK_NS,
    STAMP,
    TICK_NS,
    is_in_repository,
    is_settled,
    name_of,
    path_of,
    size_of,
    walk,
)


def put(root, *paths):
    """Files with their own paths in them."""
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.fsencode(path))


def paths(root, *, ignore=True, without=b"", told=None):
    """The paths of a tree."""
    faults = [] if told is None else told
    tree = walk(
        os.fsencode(root), lambda *fault: faults.append(fault), ignore=ignore, without=without
    )
    return [os.fsdecode(path_of(name)) for name in tree.names]


def test_files_are_in_order_and_links_are_not_followed(tmp_path):
    """Nor is anything else that is no file, nor what version control keeps for itself."""
    put(tmp_path, "b.c", "a/z.c", "a.c", ".git/config", "x/.hg/y", ".hidden", ".cordwood-grep/i")
    os.symlink("b.c", tmp_path / "link.c")
    os.symlink("a", tmp_path / "link")
    os.symlink("nowhere", tmp_path / "broken")
    os.mkfifo(tmp_path / "pipe")
    assert paths(tmp_path) == [".hidden", "a.c", "a/z.c", "b.c"]


def test_a_folder_can_be_left_out(tmp_path):
    """That of an index within the tree; one of the same name elsewhere is not meant."""
    put(tmp_path, "ix/a", "sub/ix/b")
    assert paths(tmp_path, without=os.fsencode(os.path.realpath(tmp_path / "ix"))) == ["sub/ix/b"]


def test_folders_of_indexes_are_left_out_and_no_others(tmp_path):
    """A folder whose name only began like that of an index was never searched."""
    made, gone = "..cordwood-grep.0123456789abcdef/a", ".cordwood-grep.0123456789abcdef.gone/a"
    put(tmp_path, ".cordwood-grep/a", made, gone)
    assert [] == paths(tmp_path)
    others = [
        "cordwood-grep/a",
        "cordwood-grep.py/a",
        ".cordwood-grep-notes/a",
        "..cordwood-grep/a",
    ]
    put(tmp_path, *others)
    assert sorted(others) == paths(tmp_path)


def test_a_folder_that_is_deleted_meanwhile_is_nothing_to_tell(tmp_path, monkeypatch):
    """As a file is; but a tree that is not there is."""
    put(tmp_path, "a/x", "b/y")
    real = os.scandir

    def late(path):
        """Somebody was quicker."""
        if os.path.basename(path) == b"a":
            os.rename(path, os.fsencode(tmp_path) + b"-gone")
        return real(path)

    monkeypatch.setattr(os, "scandir", late)
    told = []
    assert ["b/y"] == paths(tmp_path, told=told)
    assert [] == told
    assert [] == paths(tmp_path / "none", told=told)
    assert 1 == len(told)


def test_names_are_any_bytes(tmp_path):
    """A path need not be text; its stamp follows a NUL, which no path has."""
    odd = os.fsencode(tmp_path) + b"/\xff\n \xfe"
    with open(odd, "wb") as file:
        file.write(b"12345")
    (name,) = walk(os.fsencode(tmp_path), lambda *_: None, ignore=True).names
    assert (path_of(name), size_of(name)) == (b"\xff\n \xfe", 5)
    assert name_of(os.fsencode(tmp_path), b"\xff\n \xfe") == name
    assert name_of(os.fsencode(tmp_path), b"gone") is None


@pytest.mark.parametrize("how", ["content", "size", "time set back", "mode", "replaced"])
def test_a_stamp_shows_every_change(tmp_path, how):
    """Also of the same size, in the same second, with the time of the last change set back."""
    file = tmp_path / "a"
    file.write_bytes(b"old")
    before = name_of(os.fsencode(tmp_path), b"a")
    was = file.stat()
    later_ns = was.st_mtime_ns + 1_000  # The clock of the file system may not have moved on.
    if how == "content":
        file.write_bytes(b"new")
        os.utime(file, ns=(later_ns, later_ns))
    elif how == "size":
        file.write_bytes(b"newer")
    elif how == "time set back":
        # What can be done within a tick of the clock, `is_settled` is for.
        changed = STAMP.unpack(before[-STAMP.size :])
        assert not is_settled(before, changed[2] // 1_000)
        return
    elif how == "mode":
        file.chmod(0o600)
        os.utime(file, ns=(later_ns, later_ns))
    else:
        other = tmp_path / "b"
        other.write_bytes(b"new")
        os.replace(other, file)
    assert name_of(os.fsencode(tmp_path), b"a") != before


def test_a_stamp_counts_once_its_tick_has_passed():
    """Longer where the file system's times are whole seconds."""

    def name(changed_ns):
        return b"a\0" + STAMP.pack(1, 0, changed_ns, 1)

    fine, coarse = 1_700_000_000_123_456_789, 1_700_000_000_000_000_000
    assert not is_settled(name(fine), fine // 1_000)
    assert not is_settled(name(fine), (fine + TICK_NS) // 1_000)
    assert is_settled(name(fine), (fine + TICK_NS) // 1_000 + 1)
    assert not is_settled(name(coarse), (coarse + TICK_NS) // 1_000 + 1)
    assert is_settled(name(coarse), (coarse + COARSE_TICK_NS) // 1_000 + 1)
    assert not is_settled(name(fine), 0)  # A clock that was set back vouches for nothing.


def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    """A folder that is refused does not end the walk."""
    put(tmp_path, "a/x", "b/y")
    real = os.scandir

    def refusing(path):
        """Not this folder."""
        if os.path.basename(path) == b"a":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    told = []
    assert paths(tmp_path, told=told) == ["b/y"]
    assert [os.path.basename(path) for path, _ in told] == [b"a"]


IGNORED = [
    ("*.o", "a.o"),
    ("*.o", "x/a.o"),
    ("build/", "build/"),
    ("build", "x/build"),
    ("/top", "top"),
    ("a/b", "a/b"),
    ("a/*/c", "a/x/c"),
    ("**/deep", "x/y/deep"),
    ("**/deep", "deep"),
    ("a/**", "a/x/y"),
    ("a/**/z", "a/z"),
    ("a/**/z", "a/b/c/z"),
    ("f?o", "foo"),
    ("[ab].c", "b.c"),
    ("[!ab].c", "c.c"),
    (r"\#a", "#a"),
    (r"\!a", "!a"),
    ("sp\\ ", "sp "),
    ("trailing   ", "trailing"),
    ("a.c\n!b.c\n*.c", "b.c"),
    ("*\n!keep", "other"),
    ("a\r\nb\r", "b"),
    ("a/***", "a/x/y"),
    ("***/deep", "x/y/deep"),
    ("[[:alpha:]_].c", "a.c"),
    ("[[:digit:]-].c", "-.c"),
    (r"[a\]]", "]"),
    (r"[\a-c]", "b"),
    ("[]a]", "]"),
    ("[[:]", ":"),
]
KEPT = [
    ("# a", "# a"),
    ("*.o", "a.ob"),
    ("build/", "build"),
    ("/top", "x/top"),
    ("a/b", "x/a/b"),
    ("a/*/c", "a/x/y/c"),
    ("a/**", "a"),
    ("f?o", "f/o"),
    ("a*c", "a/c"),
    ("[!ab].c", "a.c"),
    ("*.c\n!b.c", "b.c"),
    ("*\n!keep", "keep"),
    ("[", "a"),
    ("[", "["),
    ("[a-", "[a-"),
    ("[[:none:]a]", "a"),
    ("a\\", "a\\"),
    ("build\t", "build"),
    ("a\rb", "a"),
    ("build//", "build/"),
    ("[[:alpha:]].c", "1.c"),
    ("[c-a]", "b"),
    ("a[!b]c", "a/c"),
    ("", "a"),
    ("a.c", "axc"),
]


def is_ignored(text, path):
    """By the rules of one file at the root."""
    rules = Rules(text.encode(), 0, None)
    is_folder = path.endswith("/")
    path = path.rstrip("/")
    return rules.ignore(path.encode(), os.path.basename(path).encode(), is_folder=is_folder)


@pytest.mark.parametrize(("text", "path"), IGNORED)
def test_what_is_ignored(text, path):
    """Each form of a pattern, as Git reads it."""
    assert is_ignored(text, path)


@pytest.mark.parametrize(("text", "path"), KEPT)
def test_what_is_not_ignored(text, path):
    """What looks like it and is not meant."""
    assert not is_ignored(text, path)


def test_git_agrees(tmp_path):
    """On a tree with rules at several depths."""
    tree = [
        "a.o",
        "a.c",
        "k.o",
        "x/a.o",
        "x/b.c",
        "x/y/c.c",
        "x/y/d.t",
        "build/a",
        "top/e",
        "z/top/f",
    ]
    put(tmp_path, *tree)
    (tmp_path / ".gitignore").write_text("*.o\n!k.o\nbuild/\n/top\n*.t\n")
    (tmp_path / "x" / ".gitignore").write_text("y/c.c\n!d.t\n!a.o\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True, capture_output=True)
    listed = subprocess.run(
        ["git", "-C", tmp_path, "ls-files", "-co", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert paths(tmp_path) == sorted(listed.stdout.splitlines())
    assert is_in_repository(os.fsencode(tmp_path / "x"))
    assert "build/a" in paths(tmp_path, ignore=False)


PIECES = "a b ab * ** ? [ab] [!a] [a-b] a* *b *** [a [ []a] [a\\] [z-a] \\* \\a [[:alpha:]]"
NAMES = ["a", "b", "ab", "c", "*", "[", "]", "[a"]


def test_nothing_is_left_out_that_git_keeps(tmp_path):
    """Whatever stands in the rules: a file that is not searched is a match that is not found."""
    rng = np.random.default_rng(3)
    put(tmp_path, *(f"{x}/{y}/{z}" for x in NAMES for y in NAMES for z in NAMES[:5]))
    subprocess.run(["git", "init", "-q", tmp_path], check=True, capture_output=True)
    exclude = ["git", "-C", tmp_path, "ls-files", "-oz", "--exclude-per-directory=.gitignore"]
    ends = ["", "", "/", "\t", " ", "\r"]
    left_out = 0
    for _ in range(40):
        lines = []
        for _ in range(4):
            steps = rng.choice(PIECES.split(), rng.integers(1, 4))
            lines.append(rng.choice(["", "", "/", "!"]) + "/".join(steps) + rng.choice(ends))
        (tmp_path / ".gitignore").write_text("\n".join(lines), newline="")
        listed = subprocess.run(exclude, check=True, capture_output=True).stdout
        kept = set(map(os.fsdecode, listed.split(b"\0")[:-1]))
        assert set() == kept.difference(paths(tmp_path)), lines
        left_out += len(NAMES) ** 2 * 5 - len(kept)
    assert left_out > 1_000
