"""Some columns of a fragment: right, without the bodies, and only of the fragment that is meant."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from cordwood import CorruptionError, Log, Store
from cordwood.log import paths
from cordwood.log.columns import fetch_columns
from cordwood.log.options import Options
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore

BODY_BYTES = 200_000


class World:
    """A log of one fragment in a store that counts."""

    def __init__(self):
        self.meter = MeteredStore(MemoryStore())
        self.log = Log(Store.over(self.meter, "test:"), "log")
        self.objects = self.log.objects

    async def fill(self, table):
        """Append it; the pointer to its fragment."""
        async with self.log.writer(create=True, options=Options(compression="none")) as writer:
            await writer.append_arrow(table)
        async with self.log.reader() as reader:
            return (await reader.scan())[-1]

    async def fetch(self, fragment, *columns, verify=True):
        """These columns, and how many bytes that took."""
        self.meter.reset()
        table = await fetch_columns(self.objects, fragment, columns, verify=verify)
        return table, self.meter.snapshot().operations["get_range"]


def plain(count=10):
    """Large bodies and nothing else."""
    return pa.table({"body": [bytes([i]) * BODY_BYTES for i in range(count)]})


def full(count=10):
    """Large bodies, and small other columns behind them."""
    return (
        plain(count)
        .append_column("key", [[b"%d" % i for i in range(count)]])
        .append_column(
            "headers",
            pa.array(
                [[("h", b"v")]] * count,
                pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
            ),
        )
    )


async def test_offsets_and_timestamps_come_from_the_footer():
    """One ranged GET, a thousandth of the file, and the columns are those of a full read."""
    world = World()
    fragment = await world.fill(plain())
    table, ranges = await world.fetch(fragment, "timestamp_us", "offset")
    async with world.log.reader() as reader:
        whole = await reader.fetch(fragment)
    assert table == whole.select(["timestamp_us", "offset"])
    assert ranges.requests == 1
    assert ranges.bytes_down <= 64 * 1024 + 1


async def test_keys_and_headers_without_bodies():
    """Two ranged GETs; a column that the fragment does not have is null."""
    world = World()
    fragment = await world.fill(full())
    table, ranges = await world.fetch(fragment, "offset", "key", "headers", "stream")
    async with world.log.reader() as reader:
        whole = await reader.fetch(fragment)
    assert table == whole.select(["offset", "key", "headers", "stream"])
    assert ranges.requests == 2
    assert ranges.bytes_down < BODY_BYTES
    keys, _ = await world.fetch(await world.fill(plain()), "key")
    assert keys.column("key").null_count == 10


async def test_offsets_alone_need_no_request_unless_proved():
    """The pointer says them."""
    world = World()
    fragment = await world.fill(plain())
    table, ranges = await world.fetch(fragment, "offset", verify=False)
    assert table.column("offset").to_pylist() == list(range(1, 11))
    assert ranges.requests == 0


@pytest.mark.parametrize("footer_bytes", [40, 200])
async def test_a_footer_longer_than_expected_is_read_in_two_parts(monkeypatch, footer_bytes):
    """Whatever the first read gave, the rest of the footer is fetched."""
    monkeypatch.setattr("cordwood.log.columns.FOOTER_PEEK_BYTES", footer_bytes)
    world = World()
    fragment = await world.fill(full())
    table, ranges = await world.fetch(fragment, "key")
    assert table.column("key").to_pylist() == [b"%d" % i for i in range(10)]
    assert ranges.requests == 3


@pytest.mark.parametrize(
    "change",
    [
        {"setsum_hex": "1" + "0" * 63},
        {"num_bytes": 5_000},
        {"num_bytes": 5_000_000},
        {"path": paths.fragment(7)},
    ],
)
async def test_another_object_than_the_pointer_means_is_found_out(change):
    """By the setsum in its footer, its length, or because it is not there."""
    world = World()
    fragment = await world.fill(plain())
    wrong = msgspec.structs.replace(fragment, **change)
    with pytest.raises(CorruptionError, match=r"damaged|does not exist"):
        await world.fetch(wrong, "timestamp_us")


async def test_a_shifted_range_is_found_out():
    """The same records at other offsets are not what the pointer means."""
    world = World()
    fragment = await world.fill(plain())
    shifted = type(fragment).of(
        fragment.path, fragment.seq_no, 5, 15, fragment.num_bytes, fragment.setsum_hex
    )
    with pytest.raises(CorruptionError, match="damaged"):
        await world.fetch(shifted, "offset")


@pytest.mark.parametrize("tail", [b"", b"XXXX", b"\\xff\\xff\\xff\\x7fPAR1"])
async def test_something_that_is_no_parquet_file(tail):
    """An error, never an answer."""
    world = World()
    fragment = await world.fill(plain(1))
    key = world.objects.key_of(fragment)
    data = bytes((await world.log.store.get(key)).data)
    await world.log.store.put(
        key, data[: len(data) - len(tail)] + tail if tail else b"x" * len(data)
    )
    with pytest.raises(CorruptionError, match="damaged"):
        await world.fetch(fragment, "timestamp_us")
