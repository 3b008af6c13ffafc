"""From rows of a DataFrame to rows of a file, against a plain model of what RocketMQ takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.client.compression import decompress
from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.arrow_columns import has_byte
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.run_index import sort_into_runs
from rmq_spark.model import limits
from rmq_spark.model.java_hash import java_hash
from rmq_spark.model.message_id import UniqueIds
from rmq_spark.model.properties import RESERVED
from rmq_spark.rules import system_topics
from rmq_spark.spark.bad_rows import is_blank, is_plain, repair_text
from rmq_spark.spark.options import WriteOptions
from rmq_spark.spark.sink_columns import COLUMNS, to_columns
from rmq_spark.spark.sink_plan import SinkPlan
from rmq_spark.spark.sink_rows import RowMaker, hex_ids

NOW = 1_700_000_000_000
DAY = 86_400_000
PLAN = SinkPlan(broker="broker-0", queues={"t": 4, "u": 3, "one": 1, "far": 0, "bad": 2}, turn=5)
TYPES: dict[str, list[pa.DataType]] = {
    "body": [pa.binary(), pa.string(), pa.large_binary()],
    "topic": [pa.string(), pa.large_string()],
    "tags": [pa.string()],
    "keys": [pa.string(), pa.list_(pa.string())],
    "queueId": [pa.int8(), pa.int32(), pa.int64()],
    "shardingKey": [pa.string()],
    "properties": [pa.map_(pa.string(), pa.string())],
    "deliverTimestamp": [pa.int64(), pa.timestamp("us", "UTC")],
    "delayTimeLevel": [pa.int32()],
    "flag": [pa.int64(), pa.int32()],
    "bornTimestamp": [pa.int64(), pa.timestamp("us", "UTC")],
}


def maker(*, partition: int = 0, **options: Any) -> RowMaker:
    return RowMaker(WriteOptions(store="x", **options), PLAN, ManualClock(NOW), partition)


def make(
    rows: list[dict[str, Any]], *, types: dict[str, pa.DataType] | None = None, **options: Any
) -> list[dict[str, Any]]:
    return maker(**options).make(columns_of(rows, types or {})).to_pylist()


def columns_of(rows: list[dict[str, Any]], types: dict[str, pa.DataType]) -> dict[str, pa.Array]:
    present = list(dict.fromkeys(name for row in rows for name in row))
    fields = [pa.field(name, types.get(name, TYPES[name][0])) for name in present]
    batch = pa.RecordBatch.from_pylist([{name: row.get(name) for name in present} for row in rows], pa.schema(fields))
    half = len(rows) // 2
    return to_columns([batch.slice(0, half), batch.slice(half)], present)


# ------------------------------------------------------------ the model


def blank(text: str | None) -> bool:
    return text is not None and not text.strip()


def keys_text(keys: Any) -> str | None:
    if isinstance(keys, list):
        keys = " ".join(key for key in keys if key is not None)
    return keys or None


def is_bad(row: dict[str, Any], topic: str | None, auto_create: bool) -> bool:
    """Whether RocketMQ would refuse the row."""
    if row.get("body") is None or len(row["body"]) > limits.BODY_BYTES_MAX:
        return True
    try:
        system_topics.check_sink(topic or "")
    except InvalidRequestError:
        return True
    if PLAN.queues.get(topic or "", 4 if auto_create else 0) == 0:
        return True
    tags, keys, sharding = row.get("tags"), keys_text(row.get("keys")), row.get("shardingKey")
    if blank(tags) or "|" in (tags or "") or blank(keys) or blank(sharding):
        return True
    queue = row.get("queueId")
    if queue is not None and not 0 <= queue < PLAN.queues.get(topic or "", 4):
        return True
    if not -(2**31) <= (row.get("flag") or 0) < 2**31 or not 0 <= (row.get("delayTimeLevel") or 0) <= 18:
        return True
    pairs = {name: value for name, value in (row.get("properties") or []) if value is not None}
    if any(blank(name) or blank(value) or name in RESERVED for name, value in pairs.items()):
        return True
    return (
        sum(len(part.encode()) for pair in expected_properties(row, topic or "", 0).items() for part in pair) > 32_000
    )


def expected_properties(row: dict[str, Any], topic: str, queue: int) -> dict[str, str]:
    made = {name: value for name, value in (row.get("properties") or []) if value is not None}
    if row.get("shardingKey") is not None:
        made["__SHARDINGKEY"] = row["shardingKey"]
    level, deliver = row.get("delayTimeLevel") or 0, row.get("deliverTimestamp")
    if level > 0:
        made |= {"DELAY": str(level)}
    elif deliver is not None:
        made |= {"TIMER_DELIVER_MS": str(deliver)}
        if deliver > NOW:
            made |= {"TIMER_OUT_MS": str(deliver)}
    if level > 0 or (deliver is not None and deliver > NOW):
        made |= {"REAL_TOPIC": topic, "REAL_QID": str(queue)}
    return made


def expected_queue(row: dict[str, Any], queues: int) -> int | None:
    """The queue that a row must go to; None when it is dealt out."""
    if row.get("queueId") is not None:
        return int(row["queueId"])
    sharding = row.get("shardingKey") or dict(row.get("properties") or []).get("__SHARDINGKEY")
    return None if sharding is None else abs(java_hash(sharding)) % queues


def check(row: dict[str, Any], topic: str, found: dict[str, Any]) -> int:
    """Compare one stored row with the row that it was made of; returns the queue that it was routed to."""
    level, deliver = row.get("delayTimeLevel") or 0, row.get("deliverTimestamp")
    properties = dict(found["properties"])
    real = found["topic"], found["queueId"]
    if level > 0 or (deliver is not None and deliver > NOW):
        assert real == (("SCHEDULE_TOPIC_XXXX", level - 1) if level > 0 else ("rmq_sys_wheel_timer", 0))
        real = properties["REAL_TOPIC"], int(properties["REAL_QID"])
    assert real[0] == topic
    queues = PLAN.queues.get(topic, 4)
    assert 0 <= real[1] < queues
    wanted = expected_queue(row, queues)
    assert wanted is None or real[1] == wanted
    assert len(found["properties"]) == len(properties), "no name twice"
    assert properties == expected_properties(row, topic, real[1])
    body = row["body"].encode() if isinstance(row["body"], str) else row["body"]
    assert found["body"] == body
    assert (found["tags"], found["keys"]) == (row.get("tags"), keys_text(row.get("keys")))
    assert found["flag"] == (row.get("flag") or 0)
    born = row.get("bornTimestamp")
    assert round(found["bornTimestamp"].timestamp() * 1000) == (NOW if born is None else born)
    assert (found["sysFlag"], found["reconsumeTimes"]) == (0, 0)
    assert found["bornHost"]
    return int(real[1])


# ------------------------------------------------------------ fuzz


texts = st.sampled_from(["a", "b", "中文", "😀 x", "k" * 50])
bad_texts = st.sampled_from(["", " ", "\t"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "body": st.one_of(st.sampled_from(["", "x", "é" * 20]), st.text("xyz", max_size=50)),
    "topic": st.sampled_from(["t", "t", "u", "one", "new", "%RETRY%g"]),
    "tags": texts,
    "keys": st.one_of(texts, st.lists(st.one_of(texts, st.none()), max_size=3)),
    "queueId": st.integers(0, 2),
    "shardingKey": texts,
    "properties": st.lists(
        st.tuples(st.sampled_from(["p", "q", "中", "__SHARDINGKEY"]), texts), max_size=3, unique_by=lambda p: p[0]
    ),
    "deliverTimestamp": st.sampled_from([NOW - 5, NOW, NOW + 1, NOW + 1000, NOW + 5500, NOW + 3 * DAY, 0]),
    "delayTimeLevel": st.sampled_from([0, 1, 3, 18]),
    "flag": st.sampled_from([0, 7, -1, 2**31 - 1]),
    "bornTimestamp": st.sampled_from([0, 1, 1_600_000_000_001, NOW + 5]),
}
BAD: dict[str, st.SearchStrategy[Any]] = {
    "body": st.none(),
    "topic": st.sampled_from(["", "a b", "x" * 128, "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "far"]),
    "tags": st.one_of(bad_texts, st.just("a|b")),
    "keys": st.just(" "),
    "queueId": st.sampled_from([-1, 100]),
    "shardingKey": bad_texts,
    "properties": st.sampled_from(
        [[("", "x")], [("p", " ")], [("p", "")], [("TAGS", "x")], [("ok", "1"), ("DELAY", "3")], [("p", "v" * 33_000)]]
    ),
    "deliverTimestamp": st.sampled_from([NOW + 3 * DAY + 1, 2**52]),
    "delayTimeLevel": st.sampled_from([-1, 19]),
    "flag": st.just(2**31),
    "bornTimestamp": st.none(),
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, pa.DataType]]:
    """Rows with any columns in any order, nulls among them, and some that nobody would take."""
    optional = draw(st.lists(st.sampled_from([name for name in COLUMNS if name != "body"]), unique=True))
    present = draw(st.permutations(["body", *optional]))
    types = {name: draw(st.sampled_from(TYPES[name])) for name in present}
    may_be_bad = draw(st.booleans())
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        row = {}
        for name in present:
            kind = draw(st.integers(0, 9))
            if kind == 0 and may_be_bad and not (name in ("flag", "queueId") and types[name] != pa.int64()):
                row[name] = draw(BAD[name])
            elif kind < 3 and name != "body":
                row[name] = None
            else:
                row[name] = draw(VALUES[name])
        if types.get("keys") == pa.string() and isinstance(row.get("keys"), list):
            row["keys"] = None
        if types.get("keys") == pa.list_(pa.string()) and isinstance(row.get("keys"), str):
            row["keys"] = [row["keys"]]
        for name in ("deliverTimestamp", "bornTimestamp"):
            if row.get(name) is not None and types[name] != pa.int64():
                row[name] = min(row[name], 2**50)
        rows.append(row)
    return rows, types


def arrow_rows(rows: list[dict[str, Any]], types: dict[str, pa.DataType]) -> list[dict[str, Any]]:
    changed = []
    for row in rows:
        new = dict(row)
        for name in ("deliverTimestamp", "bornTimestamp"):
            if new.get(name) is not None and pa.types.is_timestamp(types[name]):
                new[name] = new[name] * 1000
        if pa.types.is_binary(types["body"]) or pa.types.is_large_binary(types["body"]):
            new["body"] = None if new["body"] is None else new["body"].encode()
        changed.append(new)
    return changed


@settings(max_examples=300, deadline=None)
@given(tables(), st.sampled_from([None, "t", "u"]), st.booleans(), st.integers(0, 9))
def test_any_columns_and_any_values(
    table: tuple[list[dict[str, Any]], dict[str, pa.DataType]], default: str | None, auto_create: bool, partition: int
) -> None:
    rows, types = table
    given_rows = arrow_rows(rows, types)
    options = {"topic": default, "auto_create_topic": auto_create, "bad_records_topic": "bad"}
    row_maker = maker(partition=partition, **options)
    columns = columns_of(given_rows, types)
    made = row_maker.make(columns)
    assert MessageBatch.from_arrow(made).num_rows == len(rows), "the log takes them"
    found = made.to_pylist()
    assert len({row["msgId"] for row in found}) == len(rows)
    topics = [row.get("topic") if row.get("topic") is not None else default for row in rows]
    wrong = [is_bad(row, topic, auto_create) for row, topic in zip(rows, topics, strict=True)]
    good = [(row, topic) for row, topic, bad in zip(rows, topics, wrong, strict=True) if not bad]
    bad = [(row, topic) for row, topic, bad in zip(rows, topics, wrong, strict=True) if bad]
    used: dict[str, int] = {}
    dealt: dict[str, list[int]] = {}
    for (row, topic), stored in zip(good, found, strict=False):
        assert topic is not None
        queue = check(row, topic, stored)
        used[topic] = max(used.get(topic, 0), queue + 1)
        if expected_queue(row, 1) is None:
            dealt.setdefault(topic, []).append(queue)
    # How much a row's properties are is known only when its queue is: such bad rows have been dealt out, too.
    all_known = not any(len(value) > 32_000 for row in rows for _, value in row.get("properties") or [] if value)
    for topic, queues in dealt.items() if all_known else ():
        counts = Counter(queues)
        assert max(counts.values()) - min(counts[queue] for queue in range(PLAN.queues.get(topic, 4))) <= 1
    for (row, topic), stored in zip(bad, found[len(good) :], strict=True):
        properties = dict(stored["properties"])
        assert stored["topic"] == "bad"
        assert properties["BAD_REASON"]
        assert properties.get("BAD_TOPIC") == (topic or None)
        assert stored["body"] == (row["body"] or "").encode()
        used["bad"] = max(used.get("bad", 0), stored["queueId"] + 1)
    assert row_maker.used == used
    if bad:
        with pytest.raises(InvalidRequestError, match=r"a row cannot be sent: .*badRecordsTopic") as caught:
            maker(**options | {"bad_records_topic": None}).make(columns)
        assert caught.value.context["bad_rows"] == len(bad)
        assert caught.value.context["topic"] == (bad[0][1] or default)


# ------------------------------------------------------------ dealing out


def queues_of(row_maker: RowMaker, count: int, topic: str = "t") -> list[int]:
    made = row_maker.make(columns_of([{"body": b"x", "topic": topic}] * count, {}))
    return made.column("queueId").to_pylist()


def test_rows_are_dealt_out_evenly_over_calls_and_need_no_sorting() -> None:
    row_maker = maker()
    counts: Counter[int] = Counter()
    for count in (1, 1, 2, 7, 1, 100, 3):
        queues = queues_of(row_maker, count)
        assert queues == sorted(queues)
        counts.update(queues)
        assert max(counts.values()) - min(counts[queue] for queue in range(4)) <= 1


def test_tasks_start_at_queues_of_their_own() -> None:
    assert [queues_of(maker(partition=number), 1) for number in range(5)] == [[1], [2], [3], [0], [1]]


def test_rows_of_many_topics_are_dealt_out_by_topic() -> None:
    row_maker = maker()
    rows = [{"body": b"x", "topic": topic} for topic in ["t", "u", "t", "t", "one", "u", "t", "t"]]
    found = row_maker.make(columns_of(rows, {})).to_pylist()
    assert [row["topic"] for row in found] == [row["topic"] for row in rows]
    assert Counter((row["topic"], row["queueId"]) for row in found) == {
        ("t", 1): 2, ("t", 2): 1, ("t", 3): 1, ("t", 0): 1, ("u", 2): 1, ("u", 0): 1, ("one", 0): 1,
    }  # fmt: skip
    assert queues_of(row_maker, 1) == [2], "it goes on where it ended"


def test_rows_that_cannot_be_delivered_take_no_turn() -> None:
    late = [{"body": b"x", "delayTimeLevel": 19}] * 6
    found = make([*late, {"body": b"a"}, {"body": b"b"}], topic="t", bad_records_topic="bad")
    assert [(row["topic"], row["queueId"]) for row in found[:2]] == [("t", 1), ("t", 2)]
    assert {row["topic"] for row in found[2:]} == {"bad"}


def test_order_within_a_queue_is_kept_through_the_file() -> None:
    rng = np.random.default_rng(7)
    rows = [{"body": f"{number}".encode(), "queueId": int(rng.integers(0, 4)), "topic": "t"} for number in range(500)]
    table = maker().make(columns_of(rows, {}))
    ordered, _, _ = sort_into_runs(table.combine_chunks().to_batches()[0])
    for queue in range(4):
        wanted = [row["body"] for row in rows if row["queueId"] == queue]
        assert [row["body"] for row in ordered.to_pylist() if row["queueId"] == queue] == wanted


def test_ten_thousand_queues() -> None:
    plan = SinkPlan(broker="b", queues={"wide": 10_000}, turn=0)
    row_maker = RowMaker(WriteOptions(store="x", topic="wide"), plan, ManualClock(NOW), 0)
    queues = row_maker.make({"body": pa.array([b"x"] * 25_000)}).column("queueId").to_numpy()
    assert sorted(np.bincount(queues).tolist()) == [2] * 5_000 + [3] * 5_000
    assert row_maker.used == {"wide": 10_000}
    row_maker.make({"body": pa.array([b"x"] * 3), "queueId": pa.array([9_999, 0, None])})


# ------------------------------------------------------------ ids


@pytest.mark.parametrize("first", [0, 65_530, (1 << 32) - 3, (1 << 48) - 3, 5 << 48])
def test_ids_as_a_column_equal_ids_one_by_one(first: int) -> None:
    prefix = "0A1B2C3D4E5F60718293"
    wanted = [f"{prefix}{number & 0xFFFFFFFFFFFF:012X}" for number in range(first, first + 10)]
    assert hex_ids(prefix, first, 10).to_pylist() == wanted
    assert hex_ids(prefix, first, 0).to_pylist() == []


def test_many_ids_are_unique_and_ascend() -> None:
    ids = UniqueIds(ManualClock(NOW))
    drawn = [one for count in (200_000, 1, 70_000) for one in hex_ids(*ids.reserve(count), count).to_pylist()]
    drawn += ids.draw(3)
    assert len(set(drawn)) == len(drawn)
    assert drawn == sorted(drawn)


# ------------------------------------------------------------ single values


def test_bodies_from_nothing_to_four_megabytes() -> None:
    rows = [{"body": bytes(size)} for size in (0, 1, limits.BODY_BYTES_MAX)]
    assert [len(row["body"]) for row in make(rows, topic="t")] == [0, 1, limits.BODY_BYTES_MAX]
    with pytest.raises(InvalidRequestError, match="over 4 MiB") as caught:
        make([*rows, {"body": b"y" * (limits.BODY_BYTES_MAX + 1), "tags": "A", "keys": "k"}], topic="t")
    wanted = {"topic": "t", "tags": "A", "keys": "k", "queueId": None, "body": b"y" * 64, "bad_rows": 1}
    assert caught.value.context == wanted
    (last,) = make([{"body": b"y" * (limits.BODY_BYTES_MAX + 1)}], topic="t", bad_records_topic="bad")
    assert last["body"] == b"y" * limits.BODY_BYTES_MAX


def test_bad_rows_keep_what_can_be_kept() -> None:
    rows = [
        {"body": b"1", "properties": [("p", "1"), ("TAGS", "x"), ("q", " ")], "queueId": 2, "topic": "u", "keys": "k"},
        {"body": b"2", "properties": [("p", "v" * 20_000)], "tags": "|" * 300},
        {"body": None, "properties": None, "topic": "t"},
    ]
    found = make(rows, topic="t", bad_records_topic="bad")
    first, second, third = (dict(row["properties"]) for row in found)
    reason = first.pop("BAD_REASON")
    assert reason == "a property name is reserved by RocketMQ (TAGS)"
    assert first == {"p": "1", "BAD_TOPIC": "u", "BAD_KEYS": "k", "BAD_QUEUE_ID": "2"}
    assert second == {"BAD_REASON": "its tag has a '|'", "BAD_TOPIC": "t", "BAD_TAGS": "|" * 255}
    assert third == {"BAD_REASON": "its body is null", "BAD_TOPIC": "t"}
    assert [row["body"] for row in found] == [b"1", b"2", b""]


def test_text_that_is_not_utf_8_is_a_bad_row_and_can_be_shown() -> None:
    raw = pa.array([b"ok", b"\xff\xfe"], pa.binary())
    broken = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    for name in ("tags", "topic", "keys", "shardingKey"):
        columns = {"body": pa.array([b"1", b"2"]), name: broken}
        with pytest.raises(InvalidRequestError, match=f"its {name} is not valid UTF-8"):
            maker(topic="t").make(columns)
        assert maker(topic="t", bad_records_topic="bad").make(columns).column("topic").to_pylist()[1] == "bad"
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), broken)
    with pytest.raises(InvalidRequestError, match="property values are not valid UTF-8"):
        maker(topic="t").make({"body": pa.array([b"1", b"2"]), "properties": maps})


def test_a_slice_of_a_map_column_is_read_where_it_lies() -> None:
    maps = pa.array([[("a", "1")], [("b", "2"), ("c", None)], None, [("d", "4")]], TYPES["properties"][0]).slice(1)
    found = maker(topic="t").make({"body": pa.array([b"x"] * 3), "properties": maps}).to_pylist()
    assert [row["properties"] for row in found] == [[("b", "2")], [], [("d", "4")]]


def test_properties_and_tag_and_keys_share_one_limit() -> None:
    fits = {"body": b"x", "tags": "t" * 10_000, "keys": "k" * 10_000, "properties": [("p", "v" * 12_740)]}
    make([fits], topic="t")
    with pytest.raises(InvalidRequestError, match="over 32767 bytes together"):
        make([fits | {"keys": "k" * 10_030}], topic="t")


def test_large_bodies_are_compressed_as_producers_do() -> None:
    rng = np.random.default_rng(3)
    bodies = [b"a" * 5_000, b"a" * 4_095, rng.bytes(5_000), b""]
    table = maker(topic="t", compress_over_bytes=4_096).make(columns_of([{"body": body} for body in bodies], {}))
    flags = table.column("sysFlag").to_pylist()
    assert flags == [0x301, 0, 0, 0], "a body that would grow stays as it is"
    assert len(table.column("body")[0].as_py()) < 100
    assert decompress(table.combine_chunks().to_batches()[0]).column("body").to_pylist() == bodies


@given(
    texts=st.lists(st.none() | st.text(max_size=4) | st.sampled_from(["a", "b|c", " ", "é", "\x7f", "\x1f"])),
    cut=st.integers(0, 3),
)
def test_the_quick_look_lets_nothing_bad_pass(texts: list[str | None], cut: int) -> None:
    column = pa.array(texts, pa.string()).slice(cut)
    kept = texts[cut:]
    if is_plain(column):
        assert all(text is not None and text and not text.isspace() and text.isascii() for text in kept)
        assert not any(is_blank(column).to_pylist())
    else:
        assert not kept or any(
            text is None or not text or not all("!" <= character <= "\x7f" for character in text) for text in kept
        )
    assert has_byte(column, "|") == any(text is not None and "|" in text for text in kept)


def test_bytes_that_are_not_utf8_do_not_look_plain() -> None:
    column = pa.array([b"good", b"\xffbad"]).view(pa.string())
    assert not is_plain(column)
    assert repair_text(column) is not None


@pytest.mark.parametrize(
    ("keys", "good"), [(limits.PROPERTIES_BYTES_MAX - 16, True), (limits.PROPERTIES_BYTES_MAX - 15, False)]
)
def test_long_keys_are_measured_with_their_tag(keys: int, good: bool) -> None:
    rows = [{"body": b"", "tags": "four", "keys": "k" * keys}]
    if good:
        assert make(rows, topic="t")[0]["keys"] == "k" * keys
    else:
        with pytest.raises(InvalidRequestError, match="over 32767 bytes together"):
            make(rows, topic="t")


def test_of_two_faults_the_tag_is_named_first() -> None:
    with pytest.raises(InvalidRequestError, match=r"its tag has a '\|'"):
        make([{"body": b"x", "tags": "a|b", "keys": " "}], topic="t")


# ------------------------------------------------------------ found by a review


def test_a_row_that_is_bad_again_tells_why_it_is_bad_now() -> None:
    before = [("k", "v"), ("BAD_REASON", "old"), ("BAD_TOPIC", "old"), ("BAD_QUEUE_ID", "99")]
    (row,) = make([{"body": b"a", "queueId": 99, "properties": before}], topic="t", bad_records_topic="bad")
    kept = dict(row["properties"])
    assert len(row["properties"]) == len(kept) and kept["k"] == "v"
    assert kept["BAD_REASON"] == "its topic has no such queue" and kept["BAD_TOPIC"] == "t"


@pytest.mark.parametrize("born", [1_700_000_000_000_000_000, -1_700_000_000_000_000_000])
def test_a_time_that_spark_could_not_read_back_is_refused(born: int) -> None:
    with pytest.raises(InvalidRequestError, match="no time in milliseconds"):
        make([{"body": b"a", "bornTimestamp": born}], topic="t")
    (row,) = make([{"body": b"a", "bornTimestamp": born}], topic="t", bad_records_topic="bad")
    assert row["topic"] == "bad" and row["bornTimestamp"] is not None


def test_the_last_time_of_all_is_not_delivered_at_once() -> None:
    last = pa.scalar((1 << 63) - 1, pa.int64()).cast(pa.timestamp("us", "UTC"))
    column = pa.array([last.value], pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns = to_columns(
        [pa.RecordBatch.from_arrays([pa.array([b"a"]), column], names=["body", "deliverTimestamp"])],
        ["body", "deliverTimestamp"],
    )
    (row,) = maker(topic="t").make(columns).to_pylist()
    assert row["topic"] == "rmq_sys_wheel_timer"
    assert dict(row["properties"])["TIMER_OUT_MS"] == str(-(-((1 << 63) - 1) // 1000))
