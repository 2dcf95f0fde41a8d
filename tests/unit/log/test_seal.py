"""The parts of a seal: its manifest, its error, what recovery and judgement make of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import Code, ContendedError, Retry, StateError
from cordwood.log import fragment as fragments
from cordwood.log import paths, tree
from cordwood.log.batch import Batch
from cordwood.log.flight import Fate, Flight, Stage, judge
from cordwood.log.format import (
    COLUMNS,
    DESTROYED,
    FORK,
    ZERO,
    Extension,
    Fragment,
    Manifest,
    Seal,
    WriterTag,
    decode,
    encode,
)
from cordwood.log.objects import LogObjects
from cordwood.log.recovery import Tail, scan
from cordwood.log.seal import Sealer, continuation_of, sealed, with_seal
from cordwood.store.memory import MemoryStore

TAG = WriterTag("a" * 32, "b" * 32, "a" * 32, 7)
SEAL = Seal("enough", 5, "elsewhere")


def flight_at(seq_no, stage):
    """A fragment of ours in this slot."""
    link = fragments.Link(f"{seq_no:032x}", seq_no, seq_no + 1, 1, ZERO, "", ZERO)
    pointer = Fragment.of(paths.fragment(seq_no), seq_no, seq_no, seq_no + 1, 1, ZERO)
    return Flight(Batch(), seq_no, link, pointer, False, stage)


def sealed_manifest(seal=SEAL, **options):
    """An empty log, sealed."""
    return with_seal(tree.empty(TAG, **options), seal, TAG._replace(write_id="c" * 32))


def test_a_sealed_manifest_keeps_what_it_had():
    """Grace and features stay; the bytes can be read again; later manifests keep the seal."""
    manifest = sealed_manifest(grace_s=60)
    assert manifest == decode(Manifest, encode(manifest), "MANIFEST")
    assert (60, SEAL, {"grace", "seal"}) == (manifest.grace_s, manifest.seal, manifest.features)
    assert SEAL == tree.with_features(manifest, [COLUMNS]).seal
    assert SEAL == tree.append(manifest, [], TAG).seal


def test_only_a_destruction_destroys():
    """The reason tells it from any other seal."""
    assert Seal(DESTROYED, 1).is_destruction
    assert not SEAL.is_destruction


@pytest.mark.parametrize(
    ("seal", "message", "hint"),
    [
        (SEAL, "it was sealed (enough) and moved to 'elsewhere'", "append to 'elsewhere'"),
        (Seal("enough", 1), "it was sealed (enough)", "append to another log"),
        (Seal("", 1), "it was sealed", "append to another log"),
    ],
)
def test_the_error_says_why_and_where(seal, message, hint):
    """A program sees the code, a person the reason and the place."""
    error = sealed("orders", seal)
    assert f"nothing was written: log 'orders' takes no more records, {message}" == error.message
    assert (Code.SEALED, Retry.NEVER, hint) == (error.code, error.retry, error.hint)


async def test_nothing_is_read_above_a_seal():
    """A scan of a sealed manifest asks for no slot, and makes the seal durable before it counts."""

    class Counting(MemoryStore):
        """Notes what is asked."""

        asked = ()

        async def get(self, key):
            """Ask."""
            self.asked += (key,)
            return await super().get(key)

        async def sync(self, keys):
            """Sync."""
            self.asked += tuple(keys)

    store = Counting()
    run = await scan(LogObjects(store, "orders"), sealed_manifest(), {})
    assert ([], True) == (run.adopted, run.is_whole)
    assert ("orders/manifest/MANIFEST",) == store.asked


@given(
    st.lists(st.sampled_from([s for s in Stage if s is not Stage.FLYING]), max_size=6),
    st.integers(0, 6),
)
def test_after_a_seal_every_fate_is_known(stages, num_named):
    """A fragment is named or dead, also one whose put was never answered: no slot is open."""
    # EVIDENCE-OF: G-41
    flights = [flight_at(n + 1, stage) for n, stage in enumerate(stages)]
    manifest = sealed_manifest()
    fates = judge(flights, manifest, Tail.of(manifest), lambda f: f.seq_no <= num_named)
    is_dead = False
    for flight, fate in zip(flights, fates, strict=True):
        is_dead = is_dead or flight.stage in {Stage.REFUSED, Stage.FAILED}
        is_dead = is_dead or flight.seq_no > num_named
        assert (Fate.DEAD if is_dead else Fate.COMMITTED) is fate


def test_a_continuation_is_known_by_its_predecessor():
    """Its incarnation has the form of one, and follows from that of the log before it alone."""
    manifest = sealed_manifest()
    again = with_seal(manifest, Seal("other", 9), TAG._replace(write_id="d" * 32))
    other = with_seal(manifest, SEAL, TAG._replace(incarnation="e" * 32))
    assert continuation_of(manifest) == continuation_of(again)
    assert continuation_of(manifest) != continuation_of(other)
    assert WriterTag.parse(str(TAG._replace(incarnation=continuation_of(manifest)))) is not None


async def test_an_unfinished_fork_is_sealed_only_to_be_destroyed():
    """Whoever would finish it then loses its swap."""
    objects = LogObjects(MemoryStore(), "orders")
    extension = Extension(features=(FORK,), fork=())
    unborn = msgspec.structs.replace(tree.empty(TAG), cordwood=extension)
    etag = await objects.create(unborn)
    sealer = Sealer(objects, SYSTEM_CLOCK, SeededEntropy(1))
    with pytest.raises(StateError, match="not finished"):
        await sealer.seal("enough", "")
    doomed = await sealer.doom()
    assert doomed.is_unborn
    assert doomed.seal.is_destruction
    assert doomed == await sealer.doom()
    with pytest.raises(ContendedError):
        await objects.swap(msgspec.structs.replace(unborn, writer="finished"), etag)


KNOWN = [
    paths.MANIFEST,
    paths.GARBAGE,
    paths.CLOCK,
    paths.fragment(1),
    paths.fragment(4096),
    "log/Uuid=0190b3c4-0000-7000-8000-000000000000.parquet",
    paths.node("ab" * 32),
    paths.held("0" * 32),
    paths.cursor("consumer_1"),
    paths.pin("audit"),
    paths.fork("a" * 32),
    paths.intent("turn", "0000-ab"),
    paths.intent("unlink", "ab"),
]


@pytest.mark.parametrize("path", KNOWN)
def test_every_path_of_a_log_is_known(path):
    """And nothing that only begins or ends like one, or lies below it or below another name."""
    # EVIDENCE-OF: G-44
    assert paths.is_known(path)
    for other in (path + ".bak", "x" + path, path + "/manifest/MANIFEST", "eu/" + path):
        assert other.startswith(("gc/HELD-", "intent/")) or not paths.is_known(other)
    assert not paths.is_known(path + "/more")
