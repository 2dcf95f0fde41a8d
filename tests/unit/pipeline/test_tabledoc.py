"""TABLE: what is written can be read, and whatever breaks an invariant is neither."""

from __future__ import annotations

import json

import msgspec
import pytest

from cordwood import CorruptionError, UnsupportedError
from cordwood.pipeline.columns import DataFile
from cordwood.pipeline.tabledoc import Dropped, Position, TableDoc, data_path, decode, encode


def file(number, rows=10):
    """A file of a table."""
    return DataFile(data_path(f"{number:032x}"), rows, 100, "0" * 16, "0" * 64)


def doc(**given):
    """A table that holds ten records of a log."""
    facts = {
        "id": "i",
        "write": "w",
        "mode": "append",
        "grace_s": 600,
        "orphan_s": 86_400,
        "positions": {"inc": Position("orders", 1, 11)},
        "files": (file(1),),
    }
    return TableDoc(**facts | given)


def test_it_is_read_as_written():
    """All fields, JSON, in one object."""
    made = doc(dropped=(Dropped(data_path("f" * 32), 5, 7),))
    data = encode(made, "t/TABLE")
    assert made == decode(data, "t/TABLE")
    assert {"log": "orders", "first": 1, "limit": 11} == json.loads(data)["positions"]["inc"]
    assert (10, 100) == (made.rows, made.bytes)


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("TABLE-2", {"files": (file(1, 5), file(1, 5))}),
        ("TABLE-2", {"dropped": (Dropped(file(1).path, 1),)}),
        ("TABLE-2", {"files": (DataFile("../escape.parquet", 10, 1, "", ""),)}),
        ("TABLE-2", {"files": (DataFile("data/x.parquet", 10, 1, "", ""),)}),
        ("TABLE-3", {"positions": {"inc": Position("orders", 11, 1)}, "mode": "upsert"}),
        ("TABLE-3", {"positions": {"inc": Position("orders", 1, 2**63)}, "mode": "upsert"}),
        (
            "TABLE-3",
            {"positions": {"a": Position("orders", 1, 6), "b": Position("orders", 1, 6)}},
        ),
        ("TABLE-4", {"files": (file(1, 9),)}),
        ("TABLE-4", {"positions": {}}),
    ],
)
def test_a_broken_invariant_is_named(rule, given):
    """Neither the encoder nor the decoder lets it pass."""
    made = doc(**given)
    with pytest.raises(CorruptionError, match=rule):
        encode(made, "t/TABLE")
    with pytest.raises(CorruptionError, match=rule):
        decode(json.dumps(msgspec.to_builtins(made)).encode(), "t/TABLE")


def test_an_upsert_may_hold_fewer_rows():
    """TABLE-4 is about tables that keep everything."""
    assert 3 == decode(encode(doc(mode="upsert", files=(file(1, 3),)), "x"), "x").rows


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (UnsupportedError, {"format": 2}),
        (UnsupportedError, {"colour": "red"}),
        (CorruptionError, {"mode": "sometimes"}),
        (CorruptionError, {"files": "none"}),
    ],
)
def test_what_is_not_understood_is_refused(error, data):
    """A newer format, an unknown field, another type."""
    # EVIDENCE-OF: G-70
    with pytest.raises(error):
        decode(json.dumps(msgspec.to_builtins(doc()) | data).encode(), "t/TABLE")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{}", b'{"format":1'])
def test_what_is_no_table_is_refused(data):
    """Anything else is no table."""
    with pytest.raises(CorruptionError, match="not a table"):
        decode(data, "t/TABLE")
