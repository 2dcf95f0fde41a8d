"""Filters: small, mergeable, and never a false no."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.log import filters
from cordwood.log.filters import (
    EMPTY,
    Bloom,
    StreamSet,
    decode,
    encode_within,
    merge,
    streams_of,
)

SETSUM = "ab" * 32
NAMES = st.sets(st.text(min_size=1, max_size=300), max_size=200)


@given(NAMES)
@settings(max_examples=60, deadline=None)
def test_what_is_in_is_never_denied(names):
    """Whatever the names, before and after encoding."""
    # EVIDENCE-OF: G-101
    streams = StreamSet.of(names)
    again = decode(streams.encode(SETSUM), SETSUM)
    assert all(map(streams.may_hold, names))
    assert all(map(again.may_hold, names))
    assert len(streams) == len(again) <= len(names)


@given(NAMES, NAMES, NAMES)
@settings(max_examples=40, deadline=None)
def test_merged_sets_deny_nothing_that_any_held(first, second, third):
    """Exact ones and hashes, in any mixture."""
    parts = [StreamSet.of(names) for names in (first, second, third)]
    whole = merge([decode(part.encode(SETSUM), SETSUM) for part in parts])
    assert all(map(whole.may_hold, first | second | third))


def test_a_damaged_filter_is_none():
    """Each bit of it flipped, cut off anywhere, or that of something else: nothing is known."""
    # EVIDENCE-OF: G-101
    for names in (["a", "b"], [f"stream-{n}" for n in range(100)]):
        text = StreamSet.of(names).encode(SETSUM)
        raw = bytearray(base64.b64decode(text))
        for bit in range(8 * len(raw)):
            raw[bit // 8] ^= 1 << bit % 8
            assert decode(base64.b64encode(raw).decode(), SETSUM) is None
            raw[bit // 8] ^= 1 << bit % 8
        assert all(decode(text[:length], SETSUM) is None for length in range(len(text)))
        assert decode(text, "cd" * 32) is None
        assert decode("no base64 ü", SETSUM) is None
    assert decode("", SETSUM) is None


def test_the_smaller_form_is_written():
    """Few short names as they are; many, or long ones, three bytes each."""
    exact = base64.b64decode(StreamSet.of(["a", "b"]).encode(SETSUM))
    assert (1, 9 + 4) == (exact[0], len(exact))
    for names in ([f"order-{n}" for n in range(20)], ["x" * 5_000], [f"{n:03}" for n in range(90)]):
        raw = base64.b64decode(StreamSet.of(names).encode(SETSUM))
        assert (2, 9 + 3 * len(names)) == (raw[0], len(raw))


def test_an_exact_set_has_no_false_yes_and_hashes_few():
    """A thousand names in a set; of a million others a few dozen seem to be in it."""
    exact = decode(StreamSet.of(["a", "b"]).encode(SETSUM), SETSUM)
    assert not any(exact.may_hold(f"{n}") for n in range(1_000))
    streams = StreamSet.of(f"in-{n}" for n in range(1_000))
    others = np.array([streams.may_hold(f"out-{n}") for n in range(50_000)])
    assert others.mean() < 1e-3


def test_a_column_of_streams():
    """Nulls are no stream; without any it is the empty set; too many are not worth a filter."""
    column = pa.chunked_array([["a", None], ["b", "a"]])
    streams = streams_of(column)
    assert (2, True, False) == (len(streams), streams.may_hold("b"), streams.may_hold("c"))
    assert EMPTY is streams_of(pa.nulls(3, pa.string()))
    assert EMPTY is streams_of(None)
    assert decode(EMPTY.encode(SETSUM), SETSUM) is not None
    assert not decode(EMPTY.encode(SETSUM), SETSUM)
    many = pa.array([f"{n}" for n in range(filters.LEAF_NAMES_MAX + 1)])
    assert streams_of(many) is None
    assert streams_of(many[:-1]) is not None


def test_what_is_not_known_spoils_a_merge(monkeypatch):
    """One unknown part, or too many names, and nothing is said of the whole."""
    assert merge([EMPTY, None]) is None
    assert EMPTY is merge([])
    monkeypatch.setattr(filters, "MERGED_NAMES_MAX", 2)
    assert merge([StreamSet.of(["a"]), StreamSet.of(["b"])]) is not None
    assert merge([StreamSet.of(["a", "b"]), StreamSet.of(["c"])]) is None


@pytest.mark.parametrize("form", [0, 4, 255])
def test_a_later_form_says_nothing(form):
    """What this version does not know is not an error: the fragment is read."""
    payload = b"abc"
    check = filters._check(SETSUM, form, payload)
    text = base64.b64encode(bytes([form]) + check + payload).decode()
    assert decode(text, SETSUM) is None


@given(NAMES.filter(bool), st.integers(20, 3_000))
@settings(max_examples=60, deadline=None)
def test_a_rough_filter_denies_nothing_either(names, room):
    """Whatever the room: it is kept to, and what is in is never denied."""
    # EVIDENCE-OF: G-101
    text = encode_within(StreamSet.of(names), SETSUM, room)
    if text is not None:
        assert len(text) <= room
        assert all(map(decode(text, SETSUM).may_hold, names))


def test_a_rough_filter_is_as_good_as_its_room():
    """Ten bits for a name err in a hundredth of all cases, five in a tenth; two are too few."""
    streams = StreamSet.of(f"in-{n}" for n in range(1_000))
    others = [f"out-{n}" for n in range(5_000)]
    wrong = [np.mean(list(map(Bloom.of(streams, n).may_hold, others))) for n in (1_250, 625)]
    assert wrong[0] < 0.015
    assert wrong[1] < 0.13
    assert Bloom.of(streams, 250) is None
    again = decode(Bloom.of(streams, 625).encode(SETSUM), SETSUM)
    assert wrong[1] == np.mean(list(map(again.may_hold, others)))
    assert merge([streams, again]) is None


def test_bytes_of_every_form():
    """As the format page has them: they must be the same for ever."""
    names = ["eu", "us", "a much longer name"]
    texts = [
        StreamSet.of(names[:1]).encode(SETSUM),
        StreamSet.of(names).encode(SETSUM),
        Bloom.of(StreamSet.of(names), 4).encode(SETSUM),
    ]
    assert GOLDEN == texts


GOLDEN = [
    "AcdymBiuQMdyAmV1",
    "ArqHPNv1DbzmDBSEEJPD17Od",
    "A6Y5NY3pbBo2Bxdo24s=",
]
