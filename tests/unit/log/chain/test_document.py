"""A manifest's place in a chain: its names, its invariants, and what may follow what."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.errors import CorruptionError
from cordwood.base.setsum import Setsum
from cordwood.log import tree
from cordwood.log.chain import names
from cordwood.log.chain.chain import linked, successor
from cordwood.log.chain.document import (
    ALPHA_MAX,
    ChainLink,
    Known,
    Prev,
    check_fragment_name,
    check_link,
    check_step,
    walk,
)
from cordwood.log.format import Fragment, Manifest, decode, encode
from cordwood.log.tag import WriterTag

TAG = WriterTag("a" * 32, "b" * 32, "c" * 32, 1)
SUM = Setsum().insert(b"x").hexdigest()
ANCHOR = ChainLink(0, names.manifest(1), Known(0, "b" * 32, 1), 1, (1,), 1)


def link(index=5, prev=4, known=(3, 4), next_index=6, **changes):
    """A link that is all right, but for the changes."""
    made = ChainLink(
        index,
        names.manifest(next_index),
        Known(known[0], "w", known[1]),
        4,
        (1,),
        1,
        Prev(names.manifest(prev), SUM, "p"),
    )
    return msgspec.structs.replace(made, **changes)


@given(st.integers(0, 2**64 - 1))
def test_names_sort_the_newest_first(index):
    """A manifest's name says which it is, and a later one sorts before it."""
    assert index == names.manifest_index(names.manifest(index))
    assert index == 0 or names.manifest(index) < names.manifest(index - 1)


@given(st.integers(1, 12), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 2))
def test_a_fragments_name_is_read_back(shard, seq_no, start):
    """And nothing that is not exactly such a name is taken for one."""
    path = names.fragment(shard, seq_no, start, start + 1, SUM)
    assert (shard, seq_no, start, start + 1, SUM) == names.parse_fragment(path)
    for wrong in (path.replace("shard0", "shard1"), path + "x", path.replace("_", "_0", 1)):
        found = names.parse_fragment(wrong)
        assert found is None or found.shard != shard


@pytest.mark.parametrize("path", ["shard00", "shard0d", "shardff"])
def test_there_are_twelve_shards(path):
    """Others are none."""
    assert names.parse_fragment(f"{path}/{1:016x}_1_2_{SUM}.parquet") is None


def test_versions_count_down():
    """What changes is found by its own name, and its newest version comes first."""
    for path in ("cursor/app.json", "pin/b.json", f"fork/{'a' * 32}.json", "gc/GARBAGE"):
        assert names.is_register(path)
        assert (path, 7) == names.parse_version(names.version(path, 7))
        assert names.version(path, 8) < names.version(path, 7)
        assert names.is_known(names.version(path, 7))
    for path in ("manifest/MANIFEST", "gc/CLOCK", "cursor/a.b.json", "cursor/app/0"):
        assert not names.is_register(path)


def test_a_sound_link():
    """Nothing is said of one."""
    check_link(link(), "here")
    check_link(ANCHOR, "here")


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (link(next_index=5), "CHAIN-1"),
        (link(next="elsewhere"), "CHAIN-1"),
        (link(prev=5), "CHAIN-2"),
        (link(prev=2), "CHAIN-2"),
        (link(known=(3, 3)), "CHAIN-2"),
        (link(known=(3, 6)), "CHAIN-2"),
        (link(alpha=0), "CHAIN-2"),
        (link(alpha=ALPHA_MAX + 1), "CHAIN-2"),
        (msgspec.structs.replace(link(), prev=None), "CHAIN-2"),
        (link(shards=()), "CHAIN-4"),
        (link(shards=(0,)), "CHAIN-4"),
        (link(width=2), "CHAIN-4"),
        (link(shards=(1,) * 13), "CHAIN-4"),
    ],
)
def test_a_broken_link_is_refused(broken, rule):
    """With the rule that it breaks."""
    with pytest.raises(CorruptionError, match=rule):
        check_link(broken, "here")


def fragment(start, seq_no):
    """A fragment of a shard."""
    setsum = Setsum().insert(b"%d" % start).hexdigest()
    path = names.fragment(1, seq_no, start, start + 1, setsum)
    return Fragment.of(path, seq_no, start, start + 1, 100, setsum)


def test_a_step_adds_what_it_says():
    """The setsum of a successor is its predecessor's and that of what was added."""
    first = linked(tree.empty(TAG), ANCHOR)
    place = msgspec.structs.replace(ANCHOR, index=1, next=names.manifest(2))
    second = successor(tree.append(first, [fragment(1, 1)], TAG), first, place)
    assert second == decode(Manifest, encode(second), "here")
    assert (names.manifest(0), first.setsum_hex) == (
        second.chain.prev.path,
        second.chain.prev.setsum,
    )
    third = tree.append(second, [fragment(2, 2)], TAG)
    check_step(second, third, "here")
    with pytest.raises(CorruptionError, match="CHAIN-3"):
        check_step(first, msgspec.structs.replace(third, fragments=third.fragments[1:]), "here")
    with pytest.raises(CorruptionError, match="CHAIN-3"):
        check_step(third, second, "here")


def test_a_name_that_lies_is_refused():
    """A pointer and the name of its fragment say the same."""
    path = names.fragment(1, 1, 1, 2, SUM)
    check_fragment_name(path, 1, 2, SUM, "here")
    for wrong in ((2, 3, SUM), (1, 3, SUM), (1, 2, "0" * 64)):
        with pytest.raises(CorruptionError, match="CHAIN-4"):
            check_fragment_name(path, *wrong, "here")


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 12))
def test_the_walk_is_decided_by_what_is_filled(follows, hole):
    """Strays are passed, the first empty name ends it, and a longer listing changes nothing."""
    links, writes, last = {}, {}, "w0"
    index, free = 0, 1
    is_open = True
    for place, is_next in enumerate(follows, 1):
        if place == hole:
            is_open = False
            continue
        writes[place] = f"w{place}"
        prev = last if is_next else "stray"
        links[place] = msgspec.structs.replace(
            link(place, 0, (0, 1), place + 1), prev=Prev(names.manifest(0), SUM, prev)
        )
        if is_next:
            last = writes[place]
            index = place if is_open else index
        free = place + 1 if is_open else free
    end = walk(Known(0, "w0", 1), links, writes)
    assert (index, free) == (end.index, end.undecided)
