"""A second reader, written from docs/format.md with pyarrow and the standard library only, agrees with the first.

It shares no code with the project, so that the page cannot say one thing and the code do another.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import sample_log

GENESIS = "0" * 32
CODES = {"i4": "i", "u4": "I", "i8": "q"}
MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def sample() -> sample_log.Sample:
    return sample_log.build(large_rows=90)


def blocks_end(data: bytes) -> int:
    (footer,) = struct.unpack_from("<i", data, len(data) - 10)
    return len(data) - 10 - footer - 8


def document(data: bytes) -> dict[str, Any]:
    """Section 2: check the digest and the file CRC, return the document."""
    metadata = pa.ipc.open_file(data).schema.metadata
    digest = hashlib.blake2b(metadata[b"rmq.doc"], digest_size=16).hexdigest()
    assert metadata[b"rmq.digest"] == digest.encode()
    doc = {**json.loads(metadata[b"rmq.doc"].decode("ascii")), "digest": digest}
    begin = end = blocks_end(data)
    if "blocks" in doc:
        begin -= sum(size for _, _, size, _ in block_rows(doc, len(pa.ipc.open_file(data).schema)))
    mark = b"\x02crc32:"
    at = data.rindex(mark, end) + len(mark)
    zeroed = bytearray(data)
    zeroed[at : at + 8] = b"0" * 8
    assert data[at : at + 8] == b"%08x" % zlib.crc32(zeroed[end:], zlib.crc32(zeroed[:begin]))
    return doc


def block_rows(doc: dict[str, Any], columns: int) -> list[list[int]]:
    """The first part of the block table: rows, body, size and header CRC of each block."""
    flat = unpack(doc["blocks"], "u4")
    count, rest = divmod(len(flat), 4 + 2 * columns)
    assert rest == 0
    return [flat[4 * block : 4 * block + 4] for block in range(count)]


def unpack(text: str, kind: str) -> list[int]:
    data = base64.b64decode(text[1:])
    width = int(kind[1])
    if text[0] == "z":
        shuffled = zlib.decompress(data)
        count = len(shuffled) // width
        data = b"".join(shuffled[index::count] for index in range(count))
    return list(struct.unpack(f"<{len(data) // width}{CODES[kind]}", data))


def key_hash(key: str) -> int:
    data = key.encode()
    first = int.from_bytes(data[:8].ljust(8, b"\0"), "little")
    last = int.from_bytes(data[-8:].ljust(8, b"\0"), "little")
    value = first ^ ((len(data) * 0x9E3779B97F4A7C15) & MASK)
    value = ((value ^ (value >> 29)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 32) ^ last) * 0x9E3779B97F4A7C15) & MASK
    return value ^ (value >> 29)


def in_bloom(bloom: bytes, key: str) -> bool:
    value, bits = key_hash(key), 8 * len(bloom)
    places = [((value & 0xFFFFFFFF) + index * (value >> 32 | 1)) % bits for index in range(4)]
    return all(bloom[place // 8] >> (place % 8) & 1 for place in places)


def java_hash(text: str) -> int:
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) % 2**32
    return value - 2**32 if value >= 2**31 else value


def runs(doc: dict[str, Any]) -> list[tuple[str, int, int, int, set[int] | None]]:
    """(topic, queue, rows, queue offset of the first row, tag codes) of each run; section 5."""
    flat = unpack(doc["runs"], "i4")
    count = len(flat) // 3
    tags = iter(unpack(doc["tags"], "i4"))
    codes = [None if n < 0 else {next(tags) for _ in range(n)} for n in unpack(doc["tagn"], "i4")]
    bases = unpack(doc["base"], "i8") if "base" in doc else [0] * count
    topics = [doc["topics"][index] for index in flat[:count]]
    return list(zip(topics, flat[count : 2 * count], flat[2 * count :], bases, codes, strict=True))


def check_rows(doc: dict[str, Any], rows: list[dict[str, Any]], bloom: bytes) -> None:
    """What the run index and the filter say is true of the rows."""
    at = 0
    for topic, queue, count, _, codes in runs(doc):
        mine = rows[at : at + count]
        assert {(row["topic"], row["queueId"]) for row in mine} == {(topic, queue)}
        assert codes == {java_hash(row["tags"] or "") for row in mine}
        at += count
    assert at == len(rows)
    assert doc["ids"] == [min(row["msgId"] for row in rows), max(row["msgId"] for row in rows)]
    for row in rows:
        assert all(in_bloom(bloom, key) for key in (row["keys"] or "").split(" ") if key)


def check_blocks(data: bytes, doc: dict[str, Any]) -> None:
    """Section 4: the table says where each block and column lies, and its check-sums hold."""
    reader = pa.ipc.open_file(data)
    if "blocks" not in doc:
        assert reader.num_record_batches == (0 if doc.get("files") else 1)
        return
    flat, columns, count = unpack(doc["blocks"], "u4"), len(reader.schema), reader.num_record_batches
    table = block_rows(doc, columns)
    assert len(table) == count
    start = blocks_end(data) - sum(size for _, _, size, _ in table)
    for block, (rows, body, size, header_crc) in enumerate(table):
        content = data[start : start + size]
        assert body == 8 + struct.unpack_from("<i", content, 4)[0]
        assert header_crc == zlib.crc32(content[:body])
        message = pa.ipc.read_message(content)
        batch = pa.ipc.read_record_batch(message, reader.schema)
        assert (batch.num_rows, message.body.size) == (rows, size - body)
        sums = flat[4 * count + block * columns :][:columns]
        ends = flat[(4 + columns) * count + block * columns :][:columns]
        for column, (low, high) in enumerate(pairwise([0, *ends])):
            assert sums[column] == zlib.crc32(content[body + low : body + high])
            for buffer in batch.column(column).buffers():
                if buffer is not None and buffer.size:
                    at = buffer.address - message.body.address
                    assert low <= at <= at + buffer.size <= high
        assert ends[-1] == size - body
        start += size


def chain(sample: sample_log.Sample) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The commits from the newest mark's floor to the end, each the right successor of the one before."""
    marks = [path for path in sample.files() if "/marks/" in path]
    before = GENESIS
    for number, path in enumerate(marks, 1):
        mark = document(sample.storage.read(path))
        assert (mark["epoch"], mark["prev"]) == (number, before)
        before = mark["digest"]
    offset, digest, time = mark["floor"], mark["floor_digest"], 0
    while sample.storage.exists(path := f"{sample_log.ROOT}/commitlog/{offset:020d}.arrow"):
        data = sample.storage.read(path)
        doc = document(data)
        assert (doc["kind"], doc["first"], doc["prev"], doc["broker"]) == ("commit", offset, digest, sample_log.BROKER)
        assert doc["ts"] >= time
        yield data, doc
        offset, digest, time = offset + doc["rows"], doc["digest"], doc["ts"]


def number(doc: dict[str, Any], rows: list[dict[str, Any]], own: list[tuple[Any, ...]], first: int) -> None:
    """Give each row its offsets and time."""
    at = 0
    for _, _, count, base, _ in own:
        for index in range(count):
            rows[at + index].update(queueOffset=base + index, commitOffset=first + at + index, ts=doc["ts"])
        at += count


def test_every_file_keeps_the_rules_of_sections_2_and_4(sample: sample_log.Sample) -> None:
    for path in sample.files():
        data = sample.storage.read(path)
        doc = document(data)
        check_blocks(data, doc)
        if doc["kind"] in ("commit", "rows", "segment") and not doc.get("files"):
            check_rows(doc, pa.ipc.open_file(data).read_all().to_pylist(), base64.b64decode(doc["bloom"]))


def test_the_commits_give_the_same_messages(sample: sample_log.Sample) -> None:
    found: list[dict[str, Any]] = []
    for data, doc in chain(sample):
        if not doc.get("files"):
            rows = pa.ipc.open_file(data).read_all().to_pylist()
            number(doc, rows, runs(doc), doc["first"])
            found += rows
            continue
        at, every = doc["first"], runs(doc)
        for name, digest, count, size, own in doc["files"]:
            part = sample.storage.read(f"{sample_log.ROOT}/data/{name}")
            assert (len(part), document(part)["digest"]) == (size, digest)
            rows = pa.ipc.open_file(part).read_all().to_pylist()
            number(doc, rows, every[:own], at)
            every, at = every[own:], at + count
            found += rows
    wanted = [row for row in sample.messages.to_pylist() if row["commitOffset"] >= found[0]["commitOffset"]]
    assert len(found) == len(wanted) > 0
    for row, message in zip(found, wanted, strict=True):
        assert row.pop("ts") == message.pop("storeTimestamp").timestamp() * 1000
        assert row == {name: value for name, value in message.items() if name != "brokerName"}


def test_segments_are_sorted_and_hold_every_offset_once(sample: sample_log.Sample) -> None:
    for path in sample.files():
        if "/segments/" not in path:
            continue
        data = sample.storage.read(path)
        doc = document(data)
        rows = pa.ipc.open_file(data).read_all().to_pylist()
        places = [(row["topic"], row["queueId"], row["commitOffset"]) for row in rows]
        assert places == sorted(places)
        assert sorted(row["commitOffset"] for row in rows) == list(range(doc["first"], doc["end"]))
        assert "state" not in doc


def test_the_newest_mark_names_the_state_at_its_floor(sample: sample_log.Sample) -> None:
    mark = document(sample.storage.read(max(path for path in sample.files() if "/marks/" in path)))
    (name, offset, digest, folds) = mark["snapshots"][0]
    assert offset == mark["floor"]
    data = sample.storage.read(f"{sample_log.ROOT}/floors/{name}")
    doc = document(data)
    assert (doc["offset"], doc["digest"], doc["folds"]) == (mark["floor"], digest, folds)
    payloads = pa.ipc.open_file(data).read_all().to_pylist()
    state = {row["name"]: json.loads(row["payload"]) for row in payloads}
    assert sorted(each.removeprefix("fold/") for each in state if each.startswith("fold/")) == folds
    assert (state["core"]["offset"], state["core"]["digest"]) == (mark["floor"], mark["floor_digest"])
    queues = state["queues"]
    ends, at = unpack(queues["next"], "i8"), 0
    ended = {}
    for topic, capacity in zip(queues["topics"], unpack(queues["capacity"], "i8"), strict=True):
        ended.update({(topic, queue): int(ends[at + queue]) for queue in range(capacity) if ends[at + queue]})
        at += capacity
    reached: dict[tuple[str, int], int] = {}
    for path in sample.files():
        if "/segments/" in path:
            for row in pa.ipc.open_file(sample.storage.read(path)).read_all().to_pylist():
                place = (row["topic"], row["queueId"])
                reached[place] = max(reached.get(place, 0), row["queueOffset"] + 1)
    assert reached.items() <= ended.items()
