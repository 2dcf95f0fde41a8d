"""A glance at a tree: what a walk through all of it finds, whatever happened since the census."""

from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest

from cordwood.base.errors import CorruptionError
from cordwood.index import census, glance, stamps, take, walk
from cordwood.index.lines import Finder
from cordwood.index.sources import Sources
from cordwood.index.walk import path_of

OLD_NS = 1_600_000_000_000_000_000


class LateClock:
    """An hour from now, so that what was written just now has settled."""

    def now_us(self):
        """Far ahead of every file's time."""
        return 1 << 60

    def monotonic_s(self):
        """It stands still."""
        return 0.0


class EarlyClock(LateClock):
    """Before everything, so that nothing has settled."""

    def now_us(self):
        """The epoch."""
        return 0


@pytest.fixture
def tree(tmp_path):
    """Some folders with files in them, of which one has the needle."""
    root = tmp_path / "tree"
    for path in ("a", "sub/b", "sub/deep/c", "sub/deep/d", "sub-1/e"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"hay of {path}\n")
    (root / "sub/deep/d").write_text("one needle\n")
    return root


@pytest.fixture
def opened(tree):
    """Sources of the tree."""
    some = []

    def make(**options):
        made = Sources(str(tree), clock=options.pop("clock", LateClock()), **options)
        some.append(made)
        return made

    yield make
    for one in some:
        one.close()


@pytest.fixture(params=["statx", "os.stat"])
def counted(request, opened, monkeypatch):
    """Sources with an index and a census, where the system has the quick call and where not."""
    if request.param == "os.stat":
        monkeypatch.setattr(stamps, "_statx", lambda: None)
    sources = opened()
    sources.update(sources.names())
    return sources


def paths(names):
    """As text."""
    return [os.fsdecode(path_of(name)) for name in names]


def walked(sources, pattern="needle"):
    """What a walk through the tree finds: candidates, and lines."""
    finder = Finder(pattern)
    looked = sources.look(sources.names())
    candidates = list(sources.candidates(finder, looked))
    return paths(candidates), [line for name in candidates for line in sources.lines(finder, name)]


def glanced(sources, pattern="needle"):
    """The same by a glance; None if there is none that holds."""
    finder = Finder(pattern)
    found = sources.glance(finder)
    if found is None:
        return None
    lines = [line for name in found.candidates for line in sources.lines(finder, name)]
    return paths(found.candidates), lines


def test_what_is_as_it_was_is_not_read(counted):
    """Candidates are those whose trigrams say so; nothing has changed."""
    found = counted.glance(Finder("needle"))
    assert paths(found.candidates) == ["sub/deep/d"]
    assert (found.changed, found.gone) == ([], 0)
    assert glanced(counted, "hay of sub.*c") == walked(counted, "hay of sub.*c")
    assert found.candidates[0] in counted.names()


def test_a_pattern_without_trigrams_needs_no_glance(counted):
    """Every file is read."""
    assert counted.glance(Finder("n.e")) is None


def _edited(root):
    (root / "a").write_text("a needle, and more\n")


def _in_place(root):
    at = (root / "a").stat()
    (root / "a").write_text("needl\n".ljust(at.st_size))


def _set_back(root):
    at = (root / "a").stat()
    (root / "a").write_text("needle\n".rjust(at.st_size))
    os.utime(root / "a", ns=(at.st_atime_ns, at.st_mtime_ns))


def _replaced_alike(root):
    at = (root / "a").stat()
    (root / "new").write_text("needle\n".rjust(at.st_size))
    os.utime(root / "new", ns=(at.st_atime_ns, at.st_mtime_ns))
    (root / "new").replace(root / "a")


def _added(root):
    (root / "sub/deep/new").write_text("needle\n")


def _added_and_times_set_back(root):
    at = (root / "sub/deep").stat()
    (root / "sub/deep/new").write_text("needle\n")
    os.utime(root / "sub/deep", ns=(at.st_atime_ns, at.st_mtime_ns))


def _new_folders(root):
    (root / "sub/x/y").mkdir(parents=True)
    (root / "sub/x/y/z").write_text("needle\n")
    (root / "sub/x/.cordwood-grep").mkdir()
    (root / "sub/x/.cordwood-grep/no").write_text("needle\n")


def _folder_renamed(root):
    (root / "sub").rename(root / "other")


def _folders_swapped(root):
    (root / "sub/deep").rename(root / "t")
    (root / "sub-1").rename(root / "sub/deep")
    (root / "t").rename(root / "sub-1")


def _folder_becomes_link(root):
    (root / "sub/deep").rename(root / "moved")
    (root / "sub/deep").symlink_to(root / "moved")


def _folder_above_becomes_link(root):
    (root / "sub").rename(root / "moved")
    (root / "sub").symlink_to(root / "moved")


def _file_becomes_link(root):
    (root / "sub/deep/d").rename(root / "d")
    (root / "sub/deep/d").symlink_to(root / "d")


def _file_becomes_folder(root):
    (root / "a").unlink()
    (root / "a").mkdir()
    (root / "a/b").write_text("needle\n")


def _folder_becomes_file(root):
    shutil.rmtree(root / "sub/deep")
    (root / "sub/deep").write_text("needle\n")


def _file_becomes_pipe(root):
    (root / "sub/deep/d").unlink()
    os.mkfifo(root / "sub/deep/d")


def _deleted(root):
    (root / "sub/deep/d").unlink()


def _folder_deleted(root):
    shutil.rmtree(root / "sub")


def _linked(root):
    os.link(root / "sub/deep/d", root / "sub/deep/again")


def _renamed_over(root):
    (root / "sub/deep/d").replace(root / "sub/deep/c")


def _index_within(root):
    (root / ".cordwood-grep.gone").mkdir()
    (root / ".cordwood-grep.gone/x").write_text("needle\n")


HAPPENED = [value for name, value in list(globals().items()) if name[0] == "_" and callable(value)]


@pytest.mark.parametrize("happened", HAPPENED, ids=lambda one: one.__name__)
def test_whatever_happened_since(tree, counted, happened):
    """The candidates, and so the lines, are those of a walk."""
    happened(tree)
    expected = walked(counted)
    found = counted.glance(Finder("needle"))
    looked = counted.look(counted.names())
    assert glanced(counted) == expected
    assert sorted(found.changed) == looked.changed
    counted.update(counted.names())
    assert glanced(counted) == walked(counted)


def test_all_that_could_happen_is_tried():
    """The list above is gathered by name."""
    assert len(HAPPENED) == 20


def test_what_had_not_settled_is_looked_at_each_time(tree, opened):
    """Its times do not tell yet whether it will change: neither a file's nor a folder's."""
    early = opened(clock=EarlyClock())
    early.update(early.names())
    assert census.opened(early.place, early.root, ignore=False).vouched == 0
    found = early.glance(Finder("needle"))
    assert len(found.candidates) == 5
    (tree / "sub/new").write_text("needle\n")
    assert "sub/new" in paths(early.glance(Finder("needle")).candidates)


def test_folders_that_do_not_tell_are_listed(tree, opened, tmp_path, monkeypatch):
    """On a file system of the network, or one that nobody knows."""
    asked = []
    monkeypatch.setattr(take, "has_telling_folders", lambda root: bool(asked.append(root)))
    sources = opened()
    sources.update(sources.names())
    assert asked == [os.path.realpath(tree)]
    assert paths(sources.glance(Finder("needle")).candidates) == ["sub/deep/d"]
    listed = []
    real = glance.Walker.list

    def listing(self, folder):
        """Note it."""
        listed.append(folder.within)
        return real(self, folder)

    monkeypatch.setattr(glance.Walker, "list", listing)
    sources.glance(Finder("needle"))
    assert sorted(listed) == [b"", b"sub-1/", b"sub/", b"sub/deep/"]


@pytest.mark.parametrize(
    ("mounts", "tells"),
    [
        ("1 1 8:1 / / rw - ext4 /dev/a rw\n", True),
        ("1 1 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tree rw shared:1 - nfs4 x:/y rw\n", False),
        ("1 1 8:1 / / rw - nfs4 x:/y rw\n2 1 8:1 / /tree rw - xfs /dev/b rw\n", True),
        ("1 1 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tree/sub rw - fuse.x x rw\n", False),
        ("1 1 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tree\\040s rw - fuse.x x rw\n", True),
        (None, False),
    ],
)
def test_which_folders_tell(tmp_path, monkeypatch, mounts, tells):
    """Those of file systems of this machine's own, with nothing else mounted in the tree."""
    file = tmp_path / "mounts"
    if mounts is not None:
        file.write_text(mounts)
    monkeypatch.setattr(take, "MOUNTS", str(file))
    assert take.has_telling_folders("/tree") is tells


def in_repository(tree):
    """A tree with rules at two levels, one of them left out by itself."""
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("*.o\n")
    (tree / "sub/.gitignore").write_text("/x\n.gitignore\n")
    for path in ("y.o", "sub/x", "sub/deep/y.o"):
        (tree / path).write_text("needle\n")


def test_rules_are_followed(tree, opened):
    """What they leave out is no candidate, new or old, and costs no new census."""
    in_repository(tree)
    sources = opened()
    sources.update(sources.names())
    assert glanced(sources) == walked(sources)
    assert glanced(sources)[0] == ["sub/deep/d"]
    for path in ("z.o", "sub/deep/z.o", "sub/deep/z.c"):
        (tree / path).write_text("needle\n")
    (tree / "sub/x").unlink()
    (tree / "sub/x").mkdir()
    (tree / "sub/x/in").write_text("needle\n")
    assert glanced(sources) == walked(sources)
    assert glanced(sources)[0] == ["sub/deep/d", "sub/deep/z.c"]


@pytest.mark.parametrize("path", [".gitignore", "sub/.gitignore", "sub/deep/.gitignore"])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_other_rules_need_another_census(tree, opened, path, how):
    """Whether they are searched themselves or left out, changed, new or gone."""
    in_repository(tree)
    if how == "gone":
        (tree / "sub/deep/.gitignore").write_text("d\n")
    sources = opened()
    sources.update(sources.names())
    assert glanced(sources) is not None
    if how == "gone":
        (tree / path).unlink()
    else:
        (tree / path).write_text("d\n")
    assert sources.glance(Finder("needle")) is None
    expected = walked(sources)
    sources.count()
    assert glanced(sources) == expected


def test_rules_that_cannot_be_read_are_asked_for_each_time(tree, opened, monkeypatch):
    """They may be there for the next search, with nothing else changed."""
    in_repository(tree)
    sources = opened()
    real = open

    def refusing(path, *rest, **more):
        """Not the rules."""
        if os.fsencode(path).endswith(b"sub/.gitignore"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refusing)
        sources.update(sources.names())
    assert glanced(sources) is None
    assert walked(sources)[0] == ["sub/deep/d"]


@pytest.mark.parametrize("refused", ["scandir", "stat"])
def test_folders_that_cannot_be_read_are_asked_for_each_time(tree, opened, monkeypatch, refused):
    """Nothing else changes when they can be; and until then each search says that they cannot."""
    told = []
    sources = opened(tell=lambda path, _: told.append(os.path.basename(path)))
    scandir, stamp_of = os.scandir, walk.stamp_of

    def listed(path):
        """Not this folder."""
        if isinstance(path, bytes) and path.endswith(b"/deep"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    def stamped(it):
        """Not this file, as in a folder that may be listed and not entered."""
        if it.st_ino == os.stat(tree / "sub/deep/d").st_ino:
            raise PermissionError(errno.EACCES, "Permission denied")
        return stamp_of(it)

    with monkeypatch.context() as patched:
        if refused == "scandir":
            patched.setattr(os, "scandir", listed)
        else:
            patched.setattr(walk, "stamp_of", stamped)
        sources.update(sources.names())
        told.clear()
        assert glanced(sources) == ([], [])
        assert [b"deep" if refused == "scandir" else b"d"] == told
    assert [(1, "one needle")] == glanced(sources)[1]
    assert [(1, "one needle")] == walked(sources)[1]


def test_rules_in_a_new_folder_are_its_own(tree, opened):
    """They need no new census."""
    in_repository(tree)
    sources = opened()
    sources.update(sources.names())
    (tree / "fresh").mkdir()
    (tree / "fresh/.gitignore").write_text("no\n")
    (tree / "fresh/no").write_text("needle\n")
    (tree / "fresh/yes").write_text("needle\n")
    assert glanced(sources) == walked(sources)
    assert "fresh/yes" in glanced(sources)[0]


def test_a_repository_that_comes_or_goes_needs_another_census(tree, opened):
    """Rules count in one, and do not elsewhere."""
    (tree / ".gitignore").write_text("d\n")
    sources = opened()
    sources.update(sources.names())
    assert glanced(sources)[0] == ["sub/deep/d"]
    (tree / ".git").mkdir()
    assert glanced(sources) is None
    assert walked(sources)[0] == []
    sources.count()
    assert glanced(sources)[0] == []
    assert opened(ignore=False).glance(Finder("needle")) is None


def test_a_census_of_another_state_or_tree_is_none(tree, opened, tmp_path):
    """An update of somebody else's, or the index of another tree."""
    place = str(tmp_path / "ix")
    sources = opened(place=place)
    sources.update(sources.names())
    kept = (tmp_path / "ix/census").read_bytes()
    (tree / "new").write_text("needle\n")
    sources.update(sources.names())
    assert glanced(sources)[0] == ["new", "sub/deep/d"]
    (tmp_path / "ix/census").write_bytes(kept)
    assert sources.glance(Finder("needle")) is None
    sources.count()
    shutil.copytree(tree, tmp_path / "twin")
    twin = Sources(str(tmp_path / "twin"), place, clock=LateClock())
    assert twin.glance(Finder("needle")) is None
    twin.close()


def test_too_many_folders_need_another_census(tree, counted, monkeypatch):
    """Listing them all would be no shortcut."""
    monkeypatch.setattr(glance, "FOLDERS_MAX", 1)
    (tree / "sub/new").write_text("x")
    assert glanced(counted) == walked(counted)
    (tree / "new").write_text("x")
    assert glanced(counted) is None
    assert not os.path.exists(f"{counted.place}/census")


def test_a_damaged_census_is_none(counted):
    """Wherever the damage is."""
    file = f"{counted.place}/census"
    with open(file, "rb") as stream:
        data = stream.read()
    for place in np.linspace(0, len(data) - 1, 60).astype(int).tolist():
        for broken in (data[:place], data[:place] + b"\x55" + data[place + 1 :]):
            if broken != data:
                with open(file, "wb") as stream:
                    stream.write(broken)
                assert counted.glance(Finder("needle")) is None


def test_a_damaged_segment_is_told(tree, opened):
    """As by any other search."""
    sources = opened()
    sources.update(sources.names())
    (segment,) = (tree / ".cordwood-grep").glob("segment.*.idx")
    segment.write_bytes(segment.read_bytes()[:-20])
    with pytest.raises(CorruptionError):
        sources.glance(Finder("needle"))


@pytest.mark.parametrize("failing", ["open", "write", "rename"])
def test_a_census_that_cannot_be_written_is_none(tree, opened, monkeypatch, failing):
    """The update counts all the same, and nothing is left behind but by who was killed."""
    sources = opened()

    def full(*_, **__):
        """No room."""
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        """A file that takes nothing."""

        write = full

        def __init__(self, path, mode):
            """Like `open`."""
            self.file = open(path, mode)  # noqa: SIM115

        def __enter__(self):
            """Itself."""
            return self

        def __exit__(self, *_):
            """Close it."""
            self.file.close()

    real = open
    broken = {"open": full, "write": Full}.get(failing, real)
    sources._create()
    stale = f"{sources.place}/census.dead.new"
    with open(stale, "wb") as file:
        file.write(b"half")
    with monkeypatch.context() as patched:
        only = lambda path, mode: (broken if mode == "xb" else real)(path, mode)  # noqa: E731
        patched.setattr(census, "open", only, raising=False)
        if failing == "rename":
            patched.setattr(census.os, "rename", _only_for_census(os.rename))
        assert sources.update(sources.names()).added == 5
    assert not [name for name in os.listdir(sources.place) if "census" in name]
    assert sources.glance(Finder("needle")) is None
    sources.count()
    assert glanced(sources)[0] == ["sub/deep/d"]


def _only_for_census(real):
    """A rename that fails for a census alone."""

    def rename(old, new):
        if "census" in os.path.basename(old):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(old, new)

    return rename


def test_words_are_those_of_the_system(tree):
    """The quick call and the plain one say the same of every kind of file and time."""
    descriptor = os.open(tree, os.O_RDONLY)
    os.utime(tree / "a", ns=(OLD_NS, -1_500_000_000))
    os.symlink("a", tree / "link")
    some = [b"a", b"sub", b"link", b"sub/deep/d", b"."]
    words = [stamps.words_of(os.lstat(os.fsencode(tree) + b"/" + path)) for path in some]
    columns = memoryview(np.array(words, np.uint64).T.tobytes()).cast("Q")
    assert stamps.same(descriptor, some, columns)
    assert stamps.unlike(descriptor, some, columns) == []
    for place in range(len(some)):
        for word in range(6):
            other = [list(row) for row in words]
            other[place][word] ^= 1
            columns = memoryview(np.array(other, np.uint64).T.tobytes()).cast("Q")
            assert not stamps.same(descriptor, some, columns)
            assert stamps.unlike(descriptor, some, columns) == [place]
    (tree / "a").unlink()
    assert not stamps.same(descriptor, some, columns)
    os.close(descriptor)


def test_names_are_those_of_the_walk(tree, opened):
    """With times before the epoch, too."""
    os.utime(tree / "sub/deep/d", ns=(OLD_NS, -1_500_000_001))
    sources = opened()
    sources.update(sources.names())
    assert set(sources.glance(Finder("needle")).candidates) < set(sources.names())


def test_many_files_and_parts(tmp_path, monkeypatch):
    """Rows are found wherever the parts begin."""
    monkeypatch.setattr(stamps, "FILES_MAX", 7)
    monkeypatch.setattr(take.stamps, "FILES_MAX", 7)
    stamps._statx.cache_clear()
    root = tmp_path / "many"
    for number in range(60):
        (root / f"d{number % 9}").mkdir(parents=True, exist_ok=True)
        (root / f"d{number % 9}/f{number}").write_text(f"needle {number:03d}\n")
    sources = Sources(str(root), clock=LateClock())
    sources.update(sources.names())
    for number in (0, 7, 33, 59):
        assert glanced(sources, f"needle {number:03d}")[0] == [f"d{number % 9}/f{number}"]
    (root / "d4/f13").write_text("needle 033\n")
    assert glanced(sources, "needle 033")[0] == ["d4/f13", "d6/f33"]
    sources.close()
    stamps._statx.cache_clear()


def test_random_histories(tree, opened):
    """Edits, renames of files and folders, deletions and updates: what a full search finds."""
    chance = np.random.default_rng(11)
    words = ["needle", "noodle", "nettle", "need", "haystack"]
    places = ["", "p", "q", "p/r", "q/s"]
    sources = opened()
    sources.update(sources.names())
    held = 0
    for _ in range(150):
        folder = tree / str(chance.choice(places))
        path = folder / f"f{chance.integers(4)}"
        what = chance.integers(7)
        if what < 3 and not path.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(" ".join(chance.choice(words, 3)) + "\n")
        elif what == 3 and path.is_file():
            path.rename(tree / f"f{chance.integers(4)}")
        elif what == 4 and folder != tree:
            shutil.rmtree(folder, ignore_errors=True)
        elif what == 5 and folder.is_dir() and folder != tree:
            folder.rename(tree / f"z{chance.integers(1 << 30)}")
        else:
            sources.update(sources.names())
        found = glanced(sources, "n(ee|oo)dle")
        held += found is not None
        assert found in (None, walked(sources, "n(ee|oo)dle"))
    assert held > 100
