"""The vector kernel agrees with hashlib bit for bit, with or without its cache."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from setsum_reference import LONG_INPUT, reference_columns, requires_numba

from cordwood.base import kernels
from cordwood.base.items import hash_items
from cordwood.base.setsum import Setsum


def inputs(sizes, seed=1):
    """Records with values of these sizes and random heads: the four arguments of a kernel."""
    generator = np.random.default_rng(seed)
    places = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    content = generator.integers(0, 256, places[-1], dtype=np.uint8)
    offsets = generator.integers(0, 2**64, len(sizes), dtype=np.uint64)
    timestamps = generator.integers(0, 2**64, len(sizes), dtype=np.uint64)
    return offsets, timestamps, content, places


def reference(offsets, timestamps, content, places):
    """The columns by hashlib, one record at a time."""
    heads = zip(offsets.tolist(), timestamps.tolist(), strict=True)
    return reference_columns(
        offset.to_bytes(8, "big")
        + timestamp.to_bytes(8, "big")
        + content[places[index] : places[index + 1]].tobytes()
        for index, (offset, timestamp) in enumerate(heads)
    )


@pytest.fixture
def vector():
    """The compiled kernel."""
    pytest.importorskip("numba")
    before = kernels.use_kernel("numba")
    yield kernels._KERNELS.load()
    kernels.use_kernel(before)


class TestAgreement:
    """The vector kernel computes what hashlib computes."""

    def test_every_length_alone(self, vector):
        """A single record of each length from 0 to 599 bytes, around every block boundary."""
        for size in range(600):
            made = inputs([size], seed=size)
            assert reference(*made) == Setsum.of_columns(vector(*made)).columns

    def test_every_length_together(self, vector):
        """All lengths in one call, so that lanes finish at different times."""
        for sizes in (range(600), range(599, -1, -1)):
            made = inputs(list(sizes))
            assert reference(*made) == Setsum.of_columns(vector(*made)).columns

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 17, 300])
    def test_batch_sizes(self, vector, count):
        """Any number of records, also fewer than there are lanes, of random lengths."""
        for seed in range(5):
            sizes = np.random.default_rng(seed).integers(0, 1000, count)
            made = inputs(sizes, seed=seed)
            assert reference(*made) == Setsum.of_columns(vector(*made)).columns

    @pytest.mark.parametrize("position", [0, 10, 40])
    def test_one_long_record_among_short_ones(self, vector, position):
        """A lane that is busy for long does not disturb those that are refilled beside it."""
        sizes = [5] * 41
        sizes[position] = 100_000
        made = inputs(sizes)
        assert reference(*made) == Setsum.of_columns(vector(*made)).columns

    def test_equal_lengths(self, vector):
        """Lanes that all finish together start together again."""
        for size in (0, 119, 120, 121, 256, 1024):
            made = inputs([size] * 33)
            assert reference(*made) == Setsum.of_columns(vector(*made)).columns

    def test_narrow_and_wide_places(self, vector):
        """Value offsets of 32 and of 64 bits, also in the middle of a buffer, give one sum."""
        offsets, timestamps, content, places = inputs([10, 0, 500, 136, 120])
        expected = reference(offsets, timestamps, content, places)
        shifted = np.concatenate((np.zeros(77, np.uint8), content, np.zeros(99, np.uint8)))
        for width in (np.int32, np.int64):
            narrow, moved = places.astype(width), (places + 77).astype(width)
            for columns in (
                hash_items(offsets, timestamps, content, narrow),
                hash_items(offsets, timestamps, shifted, moved),
            ):
                assert expected == Setsum.of_columns(columns).columns

    def test_read_only_inputs(self, vector):
        """Arrays that may not be written to are read all the same."""
        made = inputs([100] * 20)
        for array in made:
            array.flags.writeable = False
        assert reference(*made) == Setsum.of_columns(vector(*made)).columns

    def test_threads(self, vector):
        """Calls from several threads at once do not share anything."""
        made = [inputs(np.arange(seed, seed + 200), seed=seed) for seed in range(6)]
        expected = [reference(*each) for each in made]
        actual = [set() for _ in made]
        start = threading.Barrier(len(made))

        def work(index):
            start.wait()
            for _ in range(50):
                actual[index].add(Setsum.of_columns(vector(*made[index])).columns)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(made))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [{columns} for columns in expected] == actual

    @requires_numba
    @pytest.mark.parametrize("lanes", [4, 8])
    def test_both_widths(self, lanes, tmp_path, run_python):
        """Four and eight lanes give the same sum, whichever the processor prefers."""
        code = (
            "from llvmlite import binding\n"
            "ask = binding.get_host_cpu_features\n"
            f"binding.get_host_cpu_features = lambda: {{'avx512f': {lanes == 8}}}\n"
            "from cordwood.base import keccak\n"
            "binding.get_host_cpu_features = ask\n"
            f"{LONG_INPUT}\n"
            "kernels.use_kernel('hashlib')\nfirst = digest()\n"
            "kernels.use_kernel('numba')\nsecond = digest()\n"
            "print(keccak.LANES, first == second)\n"
        )
        expected = [str(lanes), "True"]
        assert expected == run_python(code, NUMBA_CACHE_DIR=str(tmp_path))


GUARDED = """
import ctypes, mmap
import numpy as np
from cordwood.base import kernels

PAGE = mmap.PAGESIZE
guarded = mmap.mmap(-1, 3 * PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(guarded))
libc = ctypes.CDLL(None, use_errno=True)
for forbidden in (start, start + 2 * PAGE):
    assert libc.mprotect(ctypes.c_void_p(forbidden), PAGE, 0) == 0
room = np.frombuffer(guarded, np.uint8)[PAGE : 2 * PAGE]
kernel = kernels._KERNELS.load()
chance = np.random.default_rng(1)
for _ in range(300):
    sizes = chance.integers(0, chance.integers(1, 500), 40)
    sizes = sizes[np.cumsum(sizes + 4) <= PAGE]
    heads = np.arange(len(sizes), dtype=np.uint64)
    places = np.concatenate(([0], np.cumsum(sizes)))
    bodies = [chance.bytes(size) for size in sizes]
    values = b"".join(bodies)
    page = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
    for content in (values, page):
        for edge in (slice(0, len(content)), slice(PAGE - len(content), PAGE)):
            room[edge] = np.frombuffer(content, np.uint8)
            if content is values:
                got = kernel(heads, heads, room[edge], places)
                assert got == kernel(heads, heads, np.frombuffer(content, np.uint8), places)
            else:
                assert kernels.sum_pages(heads, heads, [(room[edge], len(heads))], 0) == got
print("unharmed")
"""


@requires_numba
def test_nothing_is_read_beside_the_values(run_python):
    """Not a byte before the first or behind the last, where memory may end."""
    assert run_python(GUARDED, CORDWOOD_KERNEL="numba") == ["unharmed"]


class TestLoading:
    """The kernel is compiled, or fetched from the cache, and checked before it is trusted."""

    def test_without_a_cache_directory(self, monkeypatch):
        """Where nothing can be cached the kernel is compiled in memory."""
        keccak = pytest.importorskip("cordwood.base.keccak", exc_type=ImportError)
        compile_kernel = keccak._compile

        def refuse_to_cache(*, cache):
            if cache:
                raise RuntimeError("cannot cache function: no locator available")
            return compile_kernel(cache=False)

        monkeypatch.setattr(keccak, "_compile", refuse_to_cache)
        made = inputs(range(50))
        assert reference(*made) == Setsum.of_columns(keccak.load()(*made)).columns

    @requires_numba
    def test_with_a_cache_that_cannot_be_read(self, tmp_path, run_python):
        """A damaged cache is passed over, silently."""
        code = f"{LONG_INPUT}\nprint(kernels.kernel_name(), digest())\n"
        expected = run_python(code, NUMBA_CACHE_DIR=str(tmp_path))
        damaged = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert damaged
        for path in damaged:
            path.write_bytes(b"damaged")
        assert expected == run_python(code, NUMBA_CACHE_DIR=str(tmp_path))

    def test_a_kernel_that_computes_nonsense(self):
        """The kernel is compared with hashlib before it is used."""
        keccak = pytest.importorskip("cordwood.base.keccak", exc_type=ImportError)
        with pytest.raises(RuntimeError, match="does not agree with hashlib"):
            keccak._check(lambda *_: [1, 2, 3, 4, 5, 6, 7, 8])

    @pytest.mark.parametrize("nonsense", [[1, 2, 3, 4, 5, 6, 7, 8], None])
    def test_one_that_computes_nonsense_of_pages(self, monkeypatch, nonsense):
        """Also in the way that a scrub uses it."""
        keccak = pytest.importorskip("cordwood.base.keccak", exc_type=ImportError)
        kernel = keccak.load()
        monkeypatch.setattr(keccak, "sum_pages", lambda *_: nonsense)
        with pytest.raises(RuntimeError, match="does not agree with hashlib"):
            keccak._check(kernel)
