"""Options of a writer and limits of a read: what they refuse, and that they are values."""

from __future__ import annotations

import pickle

import pytest

import cordwood
from cordwood import Limits, Options
from cordwood.base import limits as product_limits
from cordwood.base.errors import InvalidInputError


def test_the_defaults_are_those_of_the_design():
    """8 MB batches, 20 ms, eight in flight, no throttle."""
    options = Options()
    assert (8_000_000, 0.02, 8, None) == (
        options.batch_bytes,
        options.batch_interval_s,
        options.in_flight,
        options.throttle,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_bytes": 0},
        {"batch_bytes": -1},
        {"queue_bytes": 0},
        {"in_flight": 0},
        {"alpha": 0},
        {"batch_interval_s": -0.001},
        {"batch_interval_s": float("nan")},
        {"intent_interval_s": 0},
        {"intent_interval_s": float("nan")},
        {"throttle": 0},
        {"throttle": -1.0},
        {"throttle": float("nan")},
        {"compression": "gzip"},
        {"compression": "SNAPPY"},
        {"compression": None},
        {"batch_bytes": "8"},
        {"in_flight": 1.5},
        {"throttle": "fast"},
        {"batch_interval_s": None},
    ],
    ids=repr,
)
def test_options_that_cannot_work_are_refused(wrong):
    """The error is an InvalidInputError, when the options are made."""
    with pytest.raises(InvalidInputError):
        Options(**wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"batch_bytes": 1},
        {"batch_interval_s": 0},
        {"batch_interval_s": 0.0},
        {"in_flight": 1},
        {"throttle": 0.5},
        {"throttle": 100},
        {"compression": "none"},
        {"compression": "lz4"},
        {"compression": "zstd"},
    ],
    ids=repr,
)
def test_options_at_their_edges_are_accepted(right):
    """The smallest values that mean something."""
    assert right == {name: getattr(Options(**right), name) for name in right}


@pytest.mark.parametrize("value", [Options(in_flight=3), Limits(max_records=3)], ids=repr)
def test_options_and_limits_are_values(value):
    """Equal by content, hashable, picklable, and not to be changed."""
    again = pickle.loads(pickle.dumps(value))
    assert value == again
    assert hash(value) == hash(again)
    with pytest.raises(AttributeError):
        value.in_flight = 4


@pytest.mark.parametrize("kind", [Options, Limits])
def test_options_and_limits_are_given_by_name(kind):
    """No positions, and no names that do not exist."""
    with pytest.raises(TypeError):
        kind(3)
    with pytest.raises(TypeError):
        kind(max_everything=3)


FIELDS = [
    "max_records",
    "max_bytes",
    "max_files",
    "limit_offset",
    "start_time_us",
    "limit_time_us",
]


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [-1, "3", 2.5, b"3", [3]], ids=repr)
def test_a_limit_is_a_number_of_at_least_zero(name, value):
    """Anything else is refused by its name."""
    with pytest.raises(InvalidInputError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [None, 0, 1, 2**63 - 1])
def test_a_limit_may_be_absent_zero_or_large(name, value):
    """Zero is a limit, not its absence."""
    assert value == getattr(Limits(**{name: value}), name)


def test_the_limits_of_the_product_are_what_the_documents_say():
    """Changing one changes what old logs may hold: it is noticed here."""
    assert {
        "OFFSET_LIMIT": 2**63,
        "RECORD_BYTES_MAX": 64 * 2**20,
        "BATCH_BYTES_MAX": 512 * 2**20,
        "BATCH_RECORDS_MAX": 2**24,
        "KEY_BYTES_MAX": 2**20,
        "HEADERS_MAX": 1_000,
        "MANIFEST_BYTES_MAX": 64 * 2**20,
        "NODE_DEPTH_MAX": 64,
        "FRAGMENT_RECORDS_MAX": 2**28,
        "FRAGMENT_BYTES_MAX": 2**31,
        "LOG_NAME_BYTES_MAX": 512,
        "KEY_SEGMENT_BYTES_MAX": 200,
    } == {name: value for name, value in vars(product_limits).items() if name.isupper()}


def test_a_batch_fits_into_a_fragment():
    """The largest atomic batch makes a file whose pointer is accepted."""
    assert product_limits.BATCH_BYTES_MAX * 2 < product_limits.FRAGMENT_BYTES_MAX
    assert product_limits.RECORD_BYTES_MAX < product_limits.BATCH_BYTES_MAX


@pytest.mark.parametrize(
    "name",
    ["a/" * 256 + "a", "a" * 201, ".cordwood-x", "", "..", "a//b", "a b", 7, None],
    ids=lambda name: repr(name)[:20],
)
def test_a_name_that_cannot_name_a_log_is_refused(name):
    """Without any I/O, when the log is named."""
    with pytest.raises(InvalidInputError):
        cordwood.Log("memory:", name)


def test_a_name_at_the_limit_names_a_log():
    """512 characters, in segments that every store can hold."""
    name = "/".join(["a" * 127] * 4) + "a"
    assert 512 == len(name)
    assert name == cordwood.Log("memory:", name).name
