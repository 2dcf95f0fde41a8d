"""A source tree and its index: every answer is that of a full search, whatever happened since."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from cordwood.base.errors import CorruptionError, InvalidInputError, NotFoundError, StoreError
from cordwood.index import lines as lines_module
from cordwood.index import sources as sources_module
from cordwood.index.lines import Finder, read_blocks
from cordwood.index.sources import Sources
from cordwood.index.walk import path_of


class LateClock:
    """An hour from now, so that files written just now have settled."""

    def now_us(self):
        """Far ahead of every file's time."""
        return 1 << 60

    def monotonic_s(self):
        """It stands still."""
        return 0.0


@pytest.fixture
def tree(tmp_path):
    """A folder for files."""
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


@pytest.fixture
def opened(tree):
    """Sources of the tree, with what they tell."""
    some = []

    def make(**options):
        made = Sources(str(tree), clock=options.pop("clock", LateClock()), **options)
        some.append(made)
        return made

    yield make
    for one in some:
        one.close()


def found(sources, pattern, **options):
    """Paths, numbers and texts of the lines that match, and the candidates."""
    finder = Finder(pattern, **options)
    looked = sources.look(sources.names())
    candidates = sources.candidates(finder, looked)
    hits = [
        (os.fsdecode(path_of(name)), *line)
        for name in candidates
        for line in sources.lines(finder, name)
    ]
    return hits, [os.fsdecode(path_of(name)) for name in candidates]


def test_only_candidates_are_read(tree, opened):
    """Those whose trigrams say so; and of them only those that match are found."""
    (tree / "a").write_text("one needle\nno\nneedle again\n")
    (tree / "b").write_text("need and edle are apart, eedl\n")
    (tree / "c").write_text("hay\n")
    sources = opened()
    assert found(sources, "needle")[1] == ["a", "b", "c"]  # No index: a scan.
    assert sources.update(sources.names()) == (3, 0, False)
    hits = [("a", 1, "one needle"), ("a", 3, "needle again")]
    assert found(sources, "needle") == (hits, ["a", "b"])
    assert found(sources, "eed.*edl")[1] == ["a", "b"]
    assert found(sources, "h.y") == ([("c", 1, "hay")], ["a", "b", "c"])  # No trigram: a scan.


@pytest.mark.parametrize("how", ["edited", "same size", "added", "renamed", "replaced", "mode"])
def test_what_changed_since_is_a_candidate(tree, opened, how):
    """Whatever the index says of it."""
    (tree / "a").write_text("plain\n")
    (tree / "b").write_text("other\n")
    sources = opened()
    sources.update(sources.names())
    then_ns = (tree / "a").stat().st_mtime_ns + 1_000
    if how == "edited":
        (tree / "a").write_text("plain needle\n")
    elif how == "same size":
        (tree / "a").write_text("needl\n")
        os.utime(tree / "a", ns=(then_ns, then_ns))
    elif how == "added":
        (tree / "c").write_text("needle\n")
    elif how == "renamed":
        (tree / "a").write_text("needle\n")
        (tree / "a").rename(tree / "d")
    elif how == "replaced":
        (tree / "new").write_text("needl\n")
        (tree / "new").replace(tree / "a")
    else:
        (tree / "a").chmod(0o640)
        os.utime(tree / "a", ns=(then_ns, then_ns))
    hits, candidates = found(sources, "needl")
    assert [] != candidates
    assert {"b"}.isdisjoint(candidates)
    assert len(hits) == (how != "mode")
    sources.update(sources.names())
    assert found(sources, "needl")[0] == hits
    assert not sources.look(sources.names()).changed


def test_what_is_gone_is_dropped(tree, opened):
    """It is no candidate any more, with or without an update."""
    (tree / "a").write_text("needle\n")
    (tree / "b").write_text("needle\n")
    sources = opened()
    sources.update(sources.names())
    (tree / "a").unlink()
    assert found(sources, "needle")[1] == ["b"]
    assert sources.look(sources.names()).gone == 1
    assert sources.update(sources.names()) == (0, 1, False)
    assert sources.update(sources.names()) == (0, 0, False)
    assert found(sources, "needle")[1] == ["b"]


def test_a_file_that_may_still_change_unseen_is_not_vouched_for(tree, opened):
    """Within a tick of the file system's clock a stamp proves nothing: it stays a candidate."""

    class Now(LateClock):
        """The moment of the file's last change."""

        def now_us(self):
            """To the microsecond."""
            return (tree / "a").stat().st_ctime_ns // 1_000

    (tree / "a").write_text("hay\n")
    sources = opened(clock=Now())
    assert sources.update(sources.names()).added == 0
    assert found(sources, "needle")[1] == ["a"]
    later = opened()
    assert later.update(later.names()).added == 1
    assert found(later, "needle")[1] == []


def test_a_file_that_changes_while_it_is_read_is_not_vouched_for(tree, opened, monkeypatch):
    """Its stamp afterwards is another."""
    (tree / "a").write_text("hay\n")

    def changing(path, size_bytes):
        """Somebody writes just now."""
        blocks = list(read_blocks(path, size_bytes))
        (tree / "a").write_text("hay and a needle\n")
        return iter(blocks)

    sources = opened()
    with monkeypatch.context() as patched:
        patched.setattr(sources_module, "read_blocks", changing)
        assert sources.update(sources.names()).added == 0
    assert found(sources, "needle")[0] == [("a", 1, "hay and a needle")]


def test_files_that_are_no_text(tree, opened):
    """A NUL makes a file binary: nothing in it is found, and it is not read again and again."""
    (tree / "a").write_bytes(b"needle\0")
    (tree / "empty").write_bytes(b"")
    (tree / "odd").write_bytes(b"\xff needle \xfe")
    sources = opened()
    assert sources.update(sources.names()).added == 3
    assert found(sources, "needle") == ([("odd", 1, "\udcff needle \udcfe")], ["odd"])
    assert found(sources, ".")[0] == [("odd", 1, "\udcff needle \udcfe")]
    assert found(sources, "\udcff n")[0] != []


def test_a_large_file_is_read_in_blocks_of_lines(tree, opened, monkeypatch):
    """Numbers of lines go on from block to block; a line may be longer than a block."""
    monkeypatch.setattr(lines_module, "BLOCK_BYTES", 64)
    text = [f"line {number:05d}" for number in range(100)]
    text[50] = "x" * 500 + " needle"
    text[99] = "the last needle"
    (tree / "a").write_text("\n".join(text))
    expected = [("a", 51, text[50]), ("a", 100, text[99])]
    sources = opened()
    assert found(sources, "needle")[0] == expected
    sources.update(sources.names())
    assert found(sources, "needle")[0] == expected
    assert found(sources, "line 00099")[0] == []
    assert "".join(part.decode() for part in read_blocks(bytes(tree / "a"), 1)) == "\n".join(text)


def test_a_file_that_cannot_be_read_is_told(tree, opened, monkeypatch):
    """Once for each search; one that is gone is not worth a word."""
    (tree / "a").write_text("needle\n")
    (tree / "b").write_text("needle\n")
    told = []
    sources = opened(tell=lambda path, error: told.append((os.path.basename(path), error.errno)))
    real = os.open

    def refusing(path, *rest, **more):
        """As for somebody who may not."""
        if os.path.basename(path) == b"a":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if os.path.basename(path) == b"b":
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    assert sources.update(sources.names()).added == 0
    assert found(sources, "needle")[0] == []
    assert told == [(b"a", errno.EACCES)]


def test_of_two_updates_at_once_one_counts(tree, opened, monkeypatch):
    """The second finds it done, and nothing is there twice."""
    (tree / "a").write_text("needle\n")
    first, second = opened(), opened()
    real = Sources._add

    def late(self, *rest):
        """Somebody else is quicker."""
        monkeypatch.setattr(Sources, "_add", real)
        assert second.update(second.names()).added == 1
        return real(self, *rest)

    monkeypatch.setattr(Sources, "_add", late)
    assert first.update(first.names()) == (0, 0, True)
    assert first.look(first.names()).changed == []
    assert first._engine.state().documents == 1


def test_an_update_that_fails_leaves_the_index_as_it_was(tree, opened, monkeypatch):
    """A full disk, for one: what was there is there, and answers are right all the same."""
    (tree / "a").write_text("needle\n")
    sources = opened()
    sources.update(sources.names())
    (tree / "b").write_text("needle\n")

    def full(*_):
        """No room."""
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("cordwood.index.ledgerfile.LedgerFile.append", full)
        with pytest.raises(StoreError):
            sources.update(sources.names())
    assert found(sources, "needle")[1] == ["a", "b"]
    assert len(sources.look(sources.names()).changed) == 1
    assert sources.update(sources.names()) == (1, 0, False)


def test_a_build_that_was_stopped_is_begun_again(tree, opened, monkeypatch):
    """An index without its first whole build counts as none."""
    (tree / "a").write_text("needle\n")

    def stopped(*_):
        """Ctrl-C."""
        raise KeyboardInterrupt

    sources = opened()
    with monkeypatch.context() as patched:
        patched.setattr(Sources, "_add", stopped)
        with pytest.raises(KeyboardInterrupt):
            sources.update(sources.names())
    assert sources.look(sources.names()).known is None
    assert sources.update(sources.names()).added == 1


def test_a_damaged_index_is_told_and_built_again(tree, opened):
    """Wherever the damage is, there is an error of ours, or the right answer."""
    for number in range(20):
        (tree / f"f{number}").write_text(f"needle {number}\n")
    sources = opened()
    sources.update(sources.names())
    expected = found(sources, "needle 1")[0]
    sources.close()
    (segment,) = (tree / ".cordwood-grep").glob("segment.*.idx")
    data = segment.read_bytes()
    refused = 0
    for place in np.linspace(0, len(data) - 1, 40).astype(int).tolist():
        broken = bytearray(data)
        broken[place] ^= 0x55
        segment.write_bytes(broken)
        try:
            assert found(opened(), "needle 1")[0] == expected
        except CorruptionError:
            refused += 1
    assert refused > 5
    again = opened()
    again.remove_index()
    assert again.look(again.names()).known is None
    assert again.update(again.names()).added == 20
    assert found(again, "needle 1")[0] == expected


def test_what_is_no_index_is_not_removed(tree, opened, tmp_path):
    """A folder of somebody's own stays."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear\n")
    with pytest.raises(InvalidInputError, match="is no index"):
        opened(place=str(tmp_path / "mine")).remove_index()
    assert (tmp_path / "mine" / "letter").exists()


def test_a_single_file_is_a_tree(tree, opened):
    """Also through a link, which somebody has named himself."""
    (tree / "a").write_text("needle\n")
    os.symlink("a", tree / "link")
    for name in ("a", "link"):
        sources = Sources(str(tree / name))
        (one,) = sources.names()
        assert sources.shown(one) == os.fsencode(tree / name)
        assert [line.text for line in sources.lines(Finder("n"), one)] == ["needle"]


def test_a_tree_that_is_not_there(tmp_path):
    """Is said."""
    with pytest.raises(NotFoundError, match="nowhere is not there"):
        Sources(str(tmp_path / "nowhere")).names()


def test_random_histories(tree, opened, monkeypatch):
    """Edits, renames, deletions and updates in any order: always what a full search finds."""
    monkeypatch.setattr(sources_module, "SEGMENTS_MAX", 3)
    chance = np.random.default_rng(5)
    words = ["needle", "noodle", "nettle", "need", "haystack", "Needle", "stack"]
    sources = opened()
    tick = 1_000
    for _ in range(60):
        path = tree / f"f{chance.integers(8)}"
        what = chance.integers(5)
        if what < 2:
            path.write_text(" ".join(chance.choice(words, 3)) + "\n")
            tick += 1_000  # A clock that never stands still.
            os.utime(path, ns=(tick, tick))
        elif what == 2 and path.exists():
            path.rename(tree / f"f{chance.integers(8)}")
        elif what == 3:
            path.unlink(missing_ok=True)
        else:
            sources.update(sources.names())
        for pattern in ("needle", "n(ee|oo)dle", "(?i)needle stack", "ne"):
            finder = Finder(pattern)
            expected = {
                (one.name, number, line)
                for one in tree.iterdir()
                if one.is_file()
                for number, line in enumerate(one.read_text().splitlines(), 1)
                if finder.expression.search(line)
            }
            assert set(found(sources, pattern)[0]) == expected


def test_an_index_that_is_built_again_during_a_glance(tree, opened, monkeypatch):
    """Its segments have the numbers of the old ones, and other documents: it is not believed."""
    (tree / "b").write_text("one needle\n")
    (tree / "c").write_text("hay\n")
    sources, other = opened(), opened()
    sources.update(sources.names())
    (tree / "a").write_text("hay\n")
    real = sources_module.census.opened

    def late(*args, **options):
        patched.undo()
        counted = real(*args, **options)
        other.remove_index()
        other.update(other.names())
        return counted

    with monkeypatch.context() as patched:
        patched.setattr(sources_module.census, "opened", late)
        with pytest.raises(OSError, match="changed meanwhile"):
            sources.glance(Finder("needle"))
    hits = [("b", 1, "one needle")]
    assert found(sources, "needle") == (hits, ["b"])
