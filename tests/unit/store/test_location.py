"""Store URLs: what they name, and what is refused with which advice."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import InvalidInputError
from cordwood.log.log import Log
from cordwood.store.location import parse_location


@pytest.mark.parametrize(
    ("text", "scheme", "url", "name", "prefix"),
    [
        ("memory:orders", "memory", "memory:orders", "orders", ""),
        ("file:///data/wood", "file", "file:///data/wood", "/data/wood", ""),
        ("file://localhost/data", "file", "file:///data", "/data", ""),
        ("file:///a%20b/%C3%A9", "file", "file:///a%20b/%C3%A9", "/a b/é", ""),
        ("FILE:///data/../wood/", "file", "file:///wood", "/wood", ""),
        ("/data/wood/", "file", "file:///data/wood", "/data/wood", ""),
        ("//data/wood", "file", "file:///data/wood", "/data/wood", ""),
        ("file:////data/wood", "file", "file:///data/wood", "/data/wood", ""),
        ("/no\udcfftext", "file", "file:///no%FFtext", "/no\udcfftext", ""),
        ("file:///no%FFtext", "file", "file:///no%FFtext", "/no\udcfftext", ""),
        ("/with space", "file", "file:///with%20space", "/with space", ""),
        ("/with%20percent", "file", "file:///with%2520percent", "/with%20percent", ""),
        ("s3://bucket", "s3", "s3://bucket", "bucket", ""),
        ("s3://bucket/", "s3", "s3://bucket", "bucket", ""),
        ("s3://bucket/a/b/", "s3", "s3://bucket/a/b", "bucket", "a/b"),
        ("gs://bucket/a", "gs", "gs://bucket/a", "bucket", "a"),
        ("az://container/a", "az", "az://container/a", "container", "a"),
    ],
)
def test_location(text, scheme, url, name, prefix):
    """A URL is taken apart, and put into a normal form that names the same place."""
    found = parse_location(text)
    assert (scheme, url, name, prefix) == (found.scheme, found.url, found.name, found.prefix)
    assert found == parse_location(found.url)


@pytest.mark.parametrize("place", [None, 5, b"/data", ["/data"]])
def test_what_is_no_text_names_no_store(place):
    """One clear error, and not one of the interpreter's."""
    with pytest.raises(InvalidInputError, match="named by a text or a path"):
        parse_location(place)
    with pytest.raises(InvalidInputError, match="named by a text or a path"):
        Log(place, "orders")


def test_relative_path(tmp_path, monkeypatch):
    """A relative path means the directory that is current when it is named."""
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "wood") == parse_location("wood").name
    assert str(tmp_path / "a:b") == parse_location("./a:b").name


def test_home(monkeypatch):
    """A tilde is the home directory, as in a shell."""
    monkeypatch.setenv("HOME", "/home/ada")
    assert "/home/ada/wood" == parse_location("~/wood").name


def test_nameless_memory():
    """A memory store without a name gets one that nobody else has."""
    first = parse_location("memory:", SeededEntropy(1))
    second = parse_location("memory:", SeededEntropy(2))
    assert first.url != second.url
    assert first == parse_location(first.url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "file:data",
        "file://host/data",
        "file:///data?x=1",
        "http://host/x",
        "https://bucket.s3.amazonaws.com/x",
        "s3:bucket",
        "s3://",
        "s3:///prefix",
        "s3://bucket//a",
        "s3://bucket/a/../b",
        "s3://b u",
        "gs:/bucket",
        "memory:a/b",
        "nonsense:x",
        "a:b",
    ],
)
def test_refused(text):
    """What names no store is refused, with advice."""
    with pytest.raises(InvalidInputError) as caught:
        parse_location(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["s3://AKIA:secret@bucket/x", "s3://bucket/x?key=secret", "az://box/x#secret"]
)
def test_secrets_are_not_repeated(text):
    """A URL with credentials in it is refused without showing them."""
    with pytest.raises(InvalidInputError) as caught:
        parse_location(text)
    assert "secret" not in str(caught.value)
