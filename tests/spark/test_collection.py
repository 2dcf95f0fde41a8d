"""A collection whose documents are written, searched, compacted by Spark and collected at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from cordwood import sync
from cordwood.spark.engine import SparkEngine

COMPACTIONS = 3


def write(url, name, done):
    """Add, change and delete, and look after each; what is left, by id."""
    left = {}
    with sync.Collection(url, "docs") as docs:
        number = 0
        while not done.is_set() or number < 10:
            user_id, word = b"%s-%d" % (name, number), f"{name.decode()}x{number}"
            docs.add(user_id, f"common {word}")
            assert user_id in docs.match("common")
            assert [user_id] == [hit.id for hit in docs.search(word)]
            docs.update(user_id, f"common {word}b")
            assert set() == docs.match(word)
            assert {user_id} == docs.match(f"{word}b")
            left[user_id] = f"{word}b"
            if number % 3 == 0:
                # One that was written long ago, perhaps in a segment that is being merged.
                gone = min(left)
                docs.delete(gone)
                assert gone not in docs.match("common")
                assert set() == docs.match(left.pop(gone))
            number += 1
    return left


def count(url, done):
    """Search all the time: nothing is there twice, and what every writer has left is in order."""
    searches = 0
    with sync.Collection(url, "docs") as docs:
        while not done.is_set() or not searches:
            found = docs.match("common")
            assert found.documents == len(set(found))
            searches += 1
    return searches


def keep_house(url, engine, done, least):
    """Compact and collect, often enough, and until so many records were taken in; how many."""
    taken = 0
    with sync.Collection(url, "docs") as docs:
        try:
            rounds = 0
            # Others may be quicker every time, as long as there are others.
            while rounds < COMPACTIONS or taken < least:
                taken += docs.compact(engine).records
                docs.log.collect()
                rounds += 1
        finally:
            done.set()
    return taken


def test_what_was_acknowledged_is_found_whoever_compacts_and_collects(spark, tmp_path):
    """Writers, searches, compactions on Spark and in this process, and collections of the log."""
    # EVIDENCE-OF: G-97
    url = f"file://{tmp_path}/wood"
    docs = sync.Collection(url, "docs")
    docs.create(grace_s=1)
    done = threading.Event()
    with ThreadPoolExecutor(5) as threads:
        house = threads.submit(keep_house, url, SparkEngine(spark), done, 1)
        local = threads.submit(keep_house, url, "local", threading.Event(), 0)
        writers = [threads.submit(write, url, name, done) for name in (b"x", b"y")]
        searches = threads.submit(count, url, done)
        left = {user_id: word for writer in writers for user_id, word in writer.result().items()}
        assert house.result() > 0
        assert local.result() + house.result() <= docs.state().next_offset
        assert searches.result() > 0
    with docs:
        for look in (lambda: None, lambda: docs.compact(SparkEngine(spark))):
            look()
            found = docs.match("common")
            assert (set(left), len(left)) == (set(found), found.documents)
            assert all({one} == docs.match(word) for one, word in left.items())
        assert 0 == docs.state().waiting
        assert docs.state().oldest_offset > 1
        assert docs.check().ok
