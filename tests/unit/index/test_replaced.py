"""An index that is deleted and made again at the same place, while others have it open."""

from __future__ import annotations

import shutil

import pytest

from cordwood.base.errors import StateError
from cordwood.index.engine import Engine, Writing
from cordwood.index.folder import Folder


@pytest.fixture
def path(tmp_path):
    """Where it is."""
    return tmp_path / "index"


def opened(path):
    """As another process would."""
    return Engine(Folder(str(path)))


def made(path, texts):
    """A new index, a document at a time."""
    engine = opened(path)
    engine.create("words", frequencies=True, exist_ok=False)
    for text in texts:
        written(engine, text)
    engine.close()


def written(engine, text):
    """A document whose id is its text."""
    writing = Writing(engine)
    writing.add([text.encode()], [text])
    return writing.commit()


def everything(engine):
    """All ids, in order."""
    return sorted(engine.newest().match("NOT nothing"))


@pytest.fixture
def replaced(path):
    """One who had opened an index, and has begun to delete something, before it was another."""
    made(path, ["a", "b", "c"])
    engine = opened(path)
    assert [b"a", b"b", b"c"] == everything(engine)
    pending = Writing(engine)
    pending.delete([b"a"])
    shutil.rmtree(path)
    made(path, ["x", "y"])
    return engine, pending


def test_who_searches_goes_on_with_the_new_one(path, replaced):
    """The answers were those of the old one for as long as the process lived."""
    engine, pending = replaced
    assert [b"x", b"y"] == everything(engine)
    written(engine, "z")
    assert [b"x", b"y", b"z"] == everything(engine) == everything(opened(path))
    pending.roll_back()
    engine.close()
    assert opened(path).check().ok


def test_what_was_begun_on_the_old_one_does_not_count_in_the_new(path, replaced):
    """It deleted other documents, or was written where it did not fit and broke the ledger."""
    engine, pending = replaced
    with pytest.raises(StateError, match="was deleted since the handle was opened"):
        pending.commit()
    numbers = {written(engine, text) for text in ("p", "q")}
    assert 2 == len(numbers)
    assert [b"p", b"q", b"x", b"y"] == everything(opened(path))
    engine.close()
    assert opened(path).check().ok
