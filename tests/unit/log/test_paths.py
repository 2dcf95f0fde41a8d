"""The keys of a log: wal3's layout to the letter, and no path that leaves the log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.log import paths

UUID = "0198c0de-1234-7abc-8def-0123456789ab"


@pytest.mark.parametrize(
    ("seq_no", "path"),
    [
        (0, "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000000.parquet"),
        (1, "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet"),
        (4095, "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000fff.parquet"),
        (4096, "log/Bucket=0000000000001000/FragmentSeqNo=0000000000001000.parquet"),
        (806913, "log/Bucket=00000000000c5000/FragmentSeqNo=00000000000c5001.parquet"),
        (2**63 - 1, "log/Bucket=7ffffffffffff000/FragmentSeqNo=7fffffffffffffff.parquet"),
    ],
)
def test_a_slot_has_the_path_that_wal3_computes(seq_no, path):
    """Bucket and number are sixteen lower-case hex digits; a bucket holds 4,096 slots."""
    assert path == paths.fragment(seq_no)


@settings(max_examples=100)
@given(st.integers(0, 2**63 - 1))
def test_a_slot_path_names_its_number(seq_no):
    """The number of a slot is read back from its path, which stays inside the log."""
    path = paths.fragment(seq_no)
    assert seq_no == paths.fragment_seq_no(path)
    assert paths.stays_inside(path)
    assert not paths.is_bulk(path)


@settings(max_examples=100)
@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_slot_paths_sort_like_their_numbers(one, other):
    """Listing a log gives its slots in order."""
    assert (one < other) == (paths.fragment(one) < paths.fragment(other))


def test_only_the_last_segment_of_a_fragment_path_is_read():
    """As in wal3, the folder of a fragment is free: only its name has the number."""
    assert 17 == paths.fragment_seq_no("elsewhere/FragmentSeqNo=0000000000000011.parquet")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "log/FragmentSeqNo=11.parquet",
        "log/FragmentSeqNo=000000000000001G.parquet",
        "log/FragmentSeqNo=000000000000001A.parquet",
        "log/FragmentSeqNo=0000000000000011",
        "log/FragmentSeqNo=0000000000000011.parquet.tmp",
        "log/FragmentSeqNo=00000000000000011.parquet",
        "log/xFragmentSeqNo=0000000000000011.parquet",
        "log/FragmentSeqNo=0000000000000011.parquet\n",
        "log/FragmentSeqNo=0000000000000011.parquet/",
        f"log/Uuid={UUID}.parquet",
    ],
)
def test_other_names_are_no_slots(path):
    """A name that differs from a slot's in any way has no sequence number."""
    assert paths.fragment_seq_no(path) is None


def test_a_bulk_upload_is_told_by_its_uuid():
    """A lower-case hyphenated uuid makes a bulk upload, and nothing else does."""
    assert paths.is_bulk(f"log/Uuid={UUID}.parquet")
    assert not paths.is_bulk(f"log/Uuid={UUID.upper()}.parquet")
    assert not paths.is_bulk(f"log/Uuid={UUID.replace('-', '')}.parquet")
    assert not paths.is_bulk(f"log/Uuid={UUID}.parquet.tmp")


def test_the_other_objects_lie_where_wal3_has_them():
    """Manifest, node, garbage and cursors have wal3's names; intents are ours."""
    assert "manifest/MANIFEST" == paths.MANIFEST
    assert "snapshot/SNAPSHOT." + "0a" * 32 == paths.node("0a" * 32)
    assert "gc/GARBAGE" == paths.GARBAGE
    assert "cursor/" == paths.CURSOR_PREFIX
    assert "intent/turn-xyz" == paths.intent("turn", "xyz")


OUTSIDE = [
    "",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "..",
    "../other/log/x.parquet",
    "log/../../other/x.parquet",
    "log/..",
    "log/./x",
    ".",
    "./log/x",
    "log//x",
    "log/",
    "log/x/",
    "..\\other",
    "log\\..\\x",
    "C:\\x",
    "c:/x",
    "file:///etc/passwd",
    "s3://bucket/x",
    "log/%2e%2e/x",
    "log/..%2fx",
    "log/x\x00.parquet",
    "log/x\n",
    "\nlog/x",
    "log/x y",
    "~/x",
    "$HOME/x",
    "log/x?y",
    "log/x#y",
    "log/\u2025/x",
    "log/\uff0e\uff0e/x",
    "log/\u202e",
    "lög/x",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_could_leave_the_log_does_not_stay_inside(path):
    """Absolute, climbing, empty, escaped and exotic spellings are all refused."""
    assert not paths.stays_inside(path)


@pytest.mark.parametrize(
    "path", ["log/x", "a", "a.b/c..d/..e/e..", "log/Uuid=a-b_c.parquet", "..."]
)
def test_a_plain_path_stays_inside(path):
    """Dots inside a segment are just letters."""
    assert paths.stays_inside(path)


@settings(max_examples=200)
@given(st.text(alphabet="ab./\\%:~ \x00\n", max_size=8))
def test_what_stays_inside_never_climbs(path):
    """A path that passes has only plain segments, so joining it to a prefix cannot leave it."""
    if paths.stays_inside(path):
        segments = path.split("/")
        assert not {"", ".", ".."} & set(segments)
        assert not set("\\%:~ \x00\n") & set(path)


@pytest.mark.parametrize("name", ["orders", "a/b/c", "a.b", "x=1/y@2+3", "logs/0198-aa", "..a"])
def test_plain_segments_name_a_log(name):
    """Letters, digits and a few signs, with slashes between segments."""
    assert paths.is_log_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "...",
        "a/..",
        "../a",
        "a b",
        "a\nb",
        "a\\b",
        "ä",
        "a\n",
    ],
)
def test_other_names_name_no_log(name):
    """Empty, climbing and unprintable names are refused."""
    assert not paths.is_log_name(name)


NAMES = st.lists(st.sampled_from(["a", "b", "c.d"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("name", "other", "relative"),
    [
        ("trial", "orders", "../orders"),
        ("wood/trial", "wood/orders", "../orders"),
        ("wood/trial", "orders", "../../orders"),
        ("trial", "wood/old/orders", "../wood/old/orders"),
        ("orders", "orders/eu", "eu"),
        ("orders/eu", "orders", ".."),
        ("a/b/c", "a", "../.."),
    ],
)
def test_a_log_names_another_by_the_way_there(name, other, relative):
    """From its own folder, and back to the same name."""
    assert relative == paths.relative_name(name, other)
    assert paths.is_relative_name(relative)
    assert other == paths.resolve_name(name, relative)


@given(NAMES, NAMES, NAMES)
def test_where_the_store_begins_makes_no_difference(name, other, folder):
    """Two logs name each other the same way from any root that is above both."""
    if name != other:
        relative = paths.relative_name(name, other)
        assert relative == paths.relative_name(f"{folder}/{name}", f"{folder}/{other}")
        assert other == paths.resolve_name(name, relative)
        assert f"{folder}/{other}" == paths.resolve_name(f"{folder}/{name}", relative)


@pytest.mark.parametrize(
    ("name", "relative", "missing"),
    [("trial", "../../orders", 1), ("eu", "..", 1), ("a/b", "../../../../x", 2), ("a", "../..", 2)],
)
def test_a_name_above_the_root_is_none(name, relative, missing):
    """And it is said how much higher the store would have to begin."""
    assert paths.resolve_name(name, relative) is None
    assert missing == paths.folders_missing(name, relative)
    deeper = "/".join(["x"] * missing)
    assert paths.resolve_name(f"{deeper}/{name}", relative) is not None


@pytest.mark.parametrize(
    "text", ["", ".", "../", "/a", "a/", "../a/..", "a/../b", "./a", "..//a", ".../a", "../a b"]
)
def test_other_ways_lead_nowhere(text):
    """Up first, then down by plain segments, and by nothing else."""
    assert not paths.is_relative_name(text)
