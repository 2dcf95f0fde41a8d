"""The worked example of docs/formats/log.md is what the code writes, and what the page says of it.

The bytes on the page are checked twice: by a reading of the page alone (hashlib, struct, json and
xxhash, nothing of ours), and against the log that the page's own Python blocks make.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import inspect
import json
import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from cordwood import CorruptionError, Setsum
from cordwood.log import fragment, paths
from cordwood.log.format import Manifest, WriterTag, decode

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "log.md"
FIRST, SECOND = paths.fragment(1), paths.fragment(2)
STAMP_US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def page():
    """The page."""
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shown(page):
    """The parts of the example by name."""
    marked = re.findall(r"<!-- example: ([a-z ]+) -->\n```[a-z]+\n(.*?)\n```", page, re.DOTALL)
    parts: dict[str, bytes] = {name: text.encode() for name, text in marked}
    dump = parts["first fragment"].decode().splitlines()
    parts["first fragment"] = b"".join(bytes.fromhex(line[6:53]) for line in dump)
    return parts


@pytest.fixture(scope="module")
def made(page):
    """The first manifest and, in the end, all objects of the log that the page's blocks make."""
    section = page[page.index("## 10 A worked example") : page.index("## 11 ")]
    names: dict[str, object] = {}

    async def run():
        for source in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            code = compile(source, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            outcome = eval(code, names)
            if inspect.iscoroutine(outcome):
                await outcome
        store = names["store"]
        return {meta.key: (await store.get(meta.key)).data async for meta in store.list()}

    objects = asyncio.run(run())
    return names["first_manifest"], objects


def columns(item: bytes) -> list[int]:
    """A setsum by the page: SHA3-256, eight little-endian numbers."""
    return list(struct.unpack("<8I", hashlib.sha3_256(item).digest()))


def record(offset: int, body: bytes) -> bytes:
    """A plain record's item by the page."""
    return struct.pack(">QQ", offset, STAMP_US) + body


def setsum_of(*items: bytes) -> str:
    """The sum of items, reading the primes from the page."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (\d{10}) \| (\d) \| (\d{10}) \|$", text, re.MULTILINE)
    primes = {int(i): int(p) for row in rows for i, p in (row[:2], row[2:])}
    total = [sum(column) for column in zip(*map(columns, items), strict=True)]
    return struct.pack("<8I", *(n % primes[i] for i, n in enumerate(total))).hex()


def test_manifests(shown, made):
    """Both manifests are shown exactly as they are written."""
    first, objects = made
    assert shown["first manifest"] == first
    assert shown["last manifest"] == objects["tiny/manifest/MANIFEST"]
    assert len(objects) == 3


def test_manifest_by_the_page(shown):
    """The last manifest adds up, and its tag has the form the page gives."""
    manifest = json.loads(shown["last manifest"])
    assert manifest["setsum"] == setsum_of(record(1, b"oak"), record(2, b"elm"))
    assert [f["setsum"] for f in manifest["fragments"]] == [
        setsum_of(record(1, b"oak")),
        setsum_of(record(2, b"elm")),
    ]
    assert manifest["acc_bytes"] == sum(f["num_bytes"] for f in manifest["fragments"])
    compact = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
    assert shown["last manifest"].decode() == compact
    tag = WriterTag.parse(manifest["writer"])
    assert tag is not None
    assert tag.tail_id == json.loads(shown["second link"])["id"]
    assert tag.tail_us == STAMP_US
    assert decode(Manifest, shown["last manifest"], "page").next_offset == 3


def test_links(shown):
    """The links name the incarnation, then the fragment before."""
    first, second = json.loads(shown["first link"]), json.loads(shown["second link"])
    tag = WriterTag.parse(json.loads(shown["first manifest"])["writer"])
    assert (first["prev_id"], first["prev_setsum"]) == (tag.incarnation, "0" * 64)
    assert (second["prev_id"], second["prev_setsum"]) == (first["id"], first["setsum"])
    assert shown["first link"] in shown["first fragment"]


def test_checksum_by_the_page(shown):
    """The digits in the first fragment are those that section 3.4 says."""
    data = shown["first fragment"]
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[len(data) - 8 - length : -8]
    at = len(data) - 8 - length + footer.rindex(b'"xxh3":"') + 8
    blank = data[:at] + b"0" * 16 + data[at + 16 :]
    assert data[at : at + 16].decode() == f"{xxhash.xxh3_64_intdigest(blank):016x}"


def test_byte_table(page, shown):
    """The table under the hex dump points at what it names."""
    data = shown["first fragment"]
    table = dict(
        re.findall(r"^\| `\[([0-9a-f]{4}, [0-9a-f]{4})\)` \| (.*) \|$", page, re.MULTILINE)
    )
    parts = {
        words.split(":")[0].split(",")[0]: data[int(span[:4], 16) : int(span[6:], 16)]
        for span, words in table.items()
    }
    assert parts["magic"] == b"PAR1"
    assert parts["page of `body`"].endswith(b"\x03\x00\x00\x00oak")
    assert parts["in it the link"] == shown["first link"]
    checksum = json.loads(shown["first link"])["xxh3"]
    assert parts["in that the checksum's sixteen digits"].decode() == checksum
    assert struct.unpack("<I", parts["length of the footer"]) == (len(parts["footer"]),)
    pages = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    starts = [pages.column(i).data_page_offset for i in range(3)]
    assert starts == [int(span[:4], 16) for span, words in table.items() if "page of" in words]


def test_first_fragment_is_read(shown):
    """The bytes on the page are a fragment to the code; with one bit changed they are not."""
    data = shown["first fragment"]
    pointer = decode(Manifest, shown["last manifest"], "page").fragments[0]
    table = fragment.decode(data, pointer)
    assert table.to_pylist() == [{"offset": 1, "timestamp_us": STAMP_US, "body": b"oak"}]
    for place in range(0, len(data), 23):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(CorruptionError):
            fragment.decode(bytes(damaged), pointer)


def test_fragments_are_written(shown, made):
    """The code writes what the page shows: the links, and with this Parquet library every byte."""
    _, objects = made
    same_library = f"version {pa.__version__}\x19".encode() in shown["first fragment"]
    for path, name in ((FIRST, "first link"), (SECOND, "second link")):
        data = objects[f"tiny/{path}"]
        _, link = fragment.inspect(data, path)
        expected = json.loads(shown[name])
        actual = {field: getattr(link, field) for field in link.__struct_fields__}
        if not same_library:
            del expected["xxh3"], actual["xxh3"]
        assert expected == actual
        assert list(expected) == list(actual)
    if same_library:
        assert shown["first fragment"] == objects[f"tiny/{FIRST}"]


def test_record_vectors(page):
    """The table of record setsums in section 4.3 holds for the code."""
    vectors = re.findall(r"^\| (.+) \| `([0-9a-f]{64})` \|$", page, re.MULTILINE)
    bodies = [bytes.fromhex(text) for text in ("010203", "040506", "070809")]
    stamp_us = 1234567890123456

    def of(start, records, at=stamp_us, column="offset"):
        count = len(records)
        return Setsum.of_fragment(
            pa.table(
                {
                    column: pa.array(np.arange(start, start + count, dtype=np.uint64)),
                    "timestamp_us": pa.array(np.full(count, at, dtype=np.uint64)),
                    "body": pa.array(records, pa.binary()),
                }
            )
        )

    low, next_one = of(1, bodies), of(4, [b"abc"], stamp_us + 1)
    expected = [
        of(100, bodies[:1]),
        of(100, bodies),
        of(0, bodies, column="relative_offset"),
        of(0, bodies[:1], column="relative_offset"),
        low,
        next_one,
        low + next_one,
        of(1, [b"hello", b"world"], 1),
    ]
    assert [setsum for _, setsum in vectors] == [setsum.hexdigest() for setsum in expected]


def test_extended_vector(page):
    """The item with extra columns in section 4.3 has the setsum below it, also to the code."""
    text = page[page.index("A record with extra columns") :]
    block = re.search(r"```text\n(.*?)\n\n([0-9a-f]{64})\n```", text, re.DOTALL)
    assert block is not None
    item = bytes.fromhex(block[1])
    assert Setsum().insert(item).hexdigest() == block[2] == setsum_of(item)
    table = pa.table(
        {
            "offset": pa.array([7], pa.uint64()),
            "timestamp_us": pa.array([STAMP_US], pa.uint64()),
            "body": pa.array([b"oak"], pa.binary()),
            "key": pa.array([b"k"], pa.binary()),
            "headers": pa.array(
                [[{"name": "n", "value": b"v"}]],
                pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
            ),
            "stream": pa.array([None], pa.string()),
        }
    )
    assert Setsum.of_fragment(table).hexdigest() == block[2]


def test_bucket_examples(page):
    """The paths in the table of section 2 are those the code uses."""
    rows = re.findall(r"^\| (\d+) \| `(log/Bucket=.*)` \|$", page, re.MULTILINE)
    assert len(rows) == 4
    assert [path for _, path in rows] == [paths.fragment(int(seq_no)) for seq_no, _ in rows]
