"""Options of the data source: every name, every value, every mistake; and docs/options.md says the same."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.filter import FilterSyntaxError
from rmq_spark.spark.bounds import (
    Bound,
    ByOffsets,
    ByTimestamp,
    Earliest,
    Group,
    Latest,
    TimestampsByQueue,
)
from rmq_spark.spark.option_table import MESSAGES, SECTIONS, Option, Use, all_options, markdown
from rmq_spark.spark.options import ReadOptions, WriteOptions, parse_read, parse_write

DOCS = (Path(__file__).parents[2] / "docs/options.md").read_text()


def read(streaming: bool = False, /, **options: str) -> ReadOptions:
    if not {"topic", "subscribe", "subscribePattern", "assign"} & options.keys():
        options["topic"] = "orders"
    return parse_read({"store": "/s", **options}, streaming=streaming)


def write(streaming: bool = False, /, **options: str) -> WriteOptions:
    return parse_write({"store": "/s", **options}, streaming=streaming)


def parse(use: Use, options: dict[str, str]) -> ReadOptions | WriteOptions:
    if use in (Use.BATCH_READ, Use.STREAM_READ):
        return parse_read(options, streaming=use is Use.STREAM_READ)
    return parse_write(options, streaming=use is Use.STREAM_WRITE)


# ------------------------------------------------------------ the docs


@pytest.mark.parametrize("title", SECTIONS)
def test_the_docs_have_exactly_the_options_of_the_code(title: str) -> None:
    section = DOCS.split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = re.search(r"^\| Option \|.*?(?=\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    assert table is not None
    assert table[0].rstrip() == markdown(SECTIONS[title])


def test_the_docs_have_no_other_section() -> None:
    assert re.findall(r"^## (.+)", DOCS, re.MULTILINE)[: len(SECTIONS)] == list(SECTIONS)


COMPANIONS = {
    "includeRetry": {"consumerGroup": "g"},
    "txnAppId": {"txnVersion": "1"},
    "txnVersion": {"txnAppId": "a"},
}


@pytest.mark.parametrize(
    ("option", "use", "name"),
    [
        (option, use, name)
        for option in all_options()
        for use in sorted(option.uses)
        for name in option.names
        if name != "storage.*"
    ],
    ids=lambda value: value.name if isinstance(value, Option) else str(value),
)
def test_every_example_is_accepted_under_every_name(option: Option, use: Use, name: str) -> None:
    reading = use in (Use.BATCH_READ, Use.STREAM_READ)
    least = {"store": "/s", "topic": "orders"} if reading else {"store": "/s"}
    changed = dict(least) | COMPANIONS.get(option.name, {})
    if use is Use.STREAM_WRITE:
        changed.pop("txnVersion", None)
    changed.pop("topic" if option in MESSAGES[:3] else option.name, None)
    # Spark hands names over in lower case.
    assert parse(use, {**changed, name.lower(): option.example}) != parse(use, least)


def test_an_option_is_in_the_table_once_for_each_use() -> None:
    seen = [(name.lower(), use) for option in all_options() for use in option.uses for name in option.names]
    assert len(seen) == len(set(seen))


# ------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxoffsetpertrigger", "maxOffsetsPerTrigger"),
        ("subexpresion", "subExp"),
    ],
)
def test_an_unknown_option_names_the_nearest(option: str, nearest: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"unknown option {option} .*did you mean {nearest}"):
        read(True, **{option: "1"})


def test_the_nearest_option_is_one_that_can_be_used_there() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean badRecordsTopic"):
        write(badRecordTopic="x")
    with pytest.raises(InvalidRequestError) as caught:
        read(badRecordTopik="x")
    assert "badRecordsTopic" not in str(caught.value)


@pytest.mark.parametrize(
    ("use", "options", "where"),
    [
        (Use.STREAM_READ, {"endingOffsets": "latest"}, "it is for a batch read"),
        (Use.BATCH_READ, {"maxOffsetsPerTrigger": "5"}, "it is for a stream read"),
        (Use.BATCH_WRITE, {"startingoffsets": "latest"}, "it is for a batch read or a stream read"),
        (Use.BATCH_READ, {"txnAppId": "a"}, "it is for a batch write or a stream write"),
        (Use.STREAM_WRITE, {"txnVersion": "1"}, "it is for a batch write"),
        (Use.STREAM_WRITE, {"subscribe": "t"}, "it is for a batch read or a stream read"),
    ],
)
def test_an_option_in_the_wrong_place_says_where_it_belongs(use: Use, options: dict[str, str], where: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"is not for {use}; {where}"):
        parse(use, {"store": "/s", **options})


@pytest.mark.parametrize("name", ["nameServer", "kafka.bootstrap.servers", "group", "pullBatchSize"])
def test_options_of_other_connectors_get_advice(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} does not exist here: .+"):
        read(**{name: "x"})


def test_spark_s_own_options_are_left_to_spark() -> None:
    assert write(True, checkpointlocation="/c", queryname="q") == replace(write(True), checkpoint="/c")
    with pytest.raises(InvalidRequestError, match="unknown option checkpointLocation for a batch write"):
        write(checkpointLocation="/c")


@pytest.mark.parametrize(
    ("one", "other"),
    [("store", "path"), ("topic", "subscribe"), ("maxOffsetsPerTrigger", "maxMessagesPerTrigger")],
)
def test_two_names_of_one_option_are_refused(one: str, other: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{other} and {one}|{one} and {other}"):
        parse_read({"store": "/s", "topic": "1", one: "1", other: "1"}, streaming=True)


def test_a_store_is_needed() -> None:
    with pytest.raises(InvalidRequestError, match="no store"):
        parse_write({}, streaming=False)
    with pytest.raises(InvalidRequestError, match="store is blank"):
        parse_write({"path": " "}, streaming=False)


# ------------------------------------------------------------ storage


def test_storage_options_are_collected() -> None:
    options = {
        "path": "s3://b",
        "storage.endpoint": "http://x",
        "storage.dfs.a.b": "1",
        "storageoptions": '{"K": true}',
    }
    wanted = {"endpoint": "http://x", "dfs.a.b": "1", "K": "true"}
    assert parse_write(options, streaming=False).storage_options == wanted
    assert parse_read({**options, "topic": "t"}, streaming=True).storage_options == wanted


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(write(**{"storage.secret_access_key": "hush"}))
    assert "hush" not in repr(read(**{"storage.secret_access_key": "hush"}))


@pytest.mark.parametrize("options", ['{"a": [1]}', '{"a": null}', "[]", "{", '{"a": "1", "a": "2"}', '{"b": "2"}'])
def test_storage_options_of_another_kind_are_refused(options: str) -> None:
    with pytest.raises(InvalidRequestError):
        write(**{"storageOptions": options, "storage.b": "1"})


# ------------------------------------------------------------ which messages


def test_topics() -> None:
    assert read(topic=" a, b ,a").topics == ("a", "b")
    assert read(subscribe="a").topics == ("a",)
    got = read(subscribePattern="a.+")
    assert (got.topics, got.pattern, got.assign) == (None, "a.+", None)
    assert got.selects("ab")
    assert not got.selects("a")
    assert not got.selects("xab")
    assert not got.selects("ab\n")


def test_assigned_queues() -> None:
    got = read(assign='{"t": [2, 0, 2], "u": {"b-1": [3], "b-2": [0]}}')
    assert got.assign == {("t", None): (0, 2), ("u", "b-1"): (3,), ("u", "b-2"): (0,)}
    assert got.selects_queue("t", "any", 2)
    assert not got.selects_queue("t", "any", 1)
    assert got.selects_queue("u", "b-1", 3)
    assert not got.selects_queue("u", "b-2", 3)
    assert not got.selects_queue("v", "b-2", 0)
    assert [got.selects(topic) for topic in "tuv"] == [True, True, False]


@pytest.mark.parametrize(
    "value", ["{}", "[]", '{"t": []}', '{"t": 1}', '{"t": [-1]}', '{"t": [65536]}', '{"t": ["x"]}', '{"t": [true]}',
              '{"t": [1.5]}', '{"": [1]}', '{"a b": [1]}', '{"t": {"b/c": [1]}}', '{"t": {"b": 1}}', '{"t": {}}', "t"],
)  # fmt: skip
def test_assignments_of_another_form_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="option assign"):
        read(assign=value)


def test_exactly_one_choice_of_topics() -> None:
    with pytest.raises(InvalidRequestError, match="no topic is named"):
        parse_read({"store": "/s"}, streaming=False)
    with pytest.raises(InvalidRequestError, match="topic and subscribePattern exclude"):
        read(topic="a", subscribePattern="b")
    with pytest.raises(InvalidRequestError, match="subscribePattern and assign exclude"):
        read(subscribePattern="b", assign='{"t": [1]}')
    with pytest.raises(InvalidRequestError, match="no topic is named"):
        parse_read({"store": "/s", "includeRetry": "true", "consumerGroup": "g"}, streaming=False)


@pytest.mark.parametrize("value", ["", ",", "a,,b", "a b", "a.b", "x" * 128])
def test_illegal_topics_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="option topic"):
        read(topic=value)


def test_broken_expressions_fail_at_once() -> None:
    with pytest.raises(InvalidRequestError, match="subscribePattern is not a regular"):
        read(subscribePattern="(")
    with pytest.raises(FilterSyntaxError, match=r"option filter: .*character") as caught:
        read(filter="a >")
    assert caught.value.position == 3
    assert pickle.loads(pickle.dumps(caught.value)).position == 3
    with pytest.raises(FilterSyntaxError, match="option subExpression"):
        read(subExpression="||")


def test_expressions() -> None:
    got = read(subExpression="a || b", filter="x = 1", keys=" k1, k2\tk1", msgId=" 7F ")
    assert (got.tags, got.sql, got.keys, got.msg_id) == ("a || b", "x = 1", ("k1", "k2"), "7F")
    assert read(subExpression="*").tags is None
    assert read().keys == ()
    for name in ("keys", "msgId"):
        with pytest.raises(InvalidRequestError, match=f"{name} is blank"):
            read(**{name: " "})


def test_the_retry_topic_of_a_group() -> None:
    got = read(topic="t", consumerGroup="g", includeRetry="true")
    assert got.retry_topic == "%RETRY%g"
    assert got.selects("%RETRY%g")
    assert got.selects_queue("%RETRY%g", "broker-0", 0)
    assert not got.selects("%RETRY%h")
    assert read(consumerGroup="g").retry_topic is None
    assert read(assign='{"t": [1]}', consumerGroup="g", includeRetry="true").selects_queue("%RETRY%g", "b", 0)
    with pytest.raises(InvalidRequestError, match="give consumerGroup"):
        read(includeRetry="true")
    with pytest.raises(InvalidRequestError, match="option consumerGroup: group name has an illegal"):
        read(consumerGroup="a.b")


# ------------------------------------------------------------ bounds


KAFKA = '{"orders": {"0": 12, "1": -2}}'
ROCKETMQ = '{"orders": {"broker-0": {"0": 12}, "broker-1": {"0": 13, "1": -2}}}'


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, Earliest()),
        ({"startingOffsets": "Earliest"}, Earliest()),
        ({"startingOffsets": "group", "consumerGroup": "g"}, Group()),
        ({"startingOffsets": KAFKA}, ByOffsets({("orders", None, 0): 12, ("orders", None, 1): -2})),
        (
            {"startingOffsets": ROCKETMQ},
            ByOffsets({("orders", "broker-0", 0): 12, ("orders", "broker-1", 0): 13, ("orders", "broker-1", 1): -2}),
        ),
        ({"startingTimestamp": "1000"}, ByTimestamp(1000)),
        ({"startingTimestamp": "1970-01-01T00:00:02"}, ByTimestamp(2000)),
        ({"startingTimestamp": "1970-01-01T01:00:02+01:00"}, ByTimestamp(2000)),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": 5, "b": {"1": "1970-01-01T00:00:01Z"}}}'},
            TimestampsByQueue({("orders", None, 0): 5, ("orders", "b", 1): 1000}),
        ),
        ({"startingOffsets": KAFKA, "startingTimestamp": "7"}, ByTimestamp(7)),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 5}}', "startingTimestamp": "7"}, ByTimestamp(7)),
        (
            {"startingOffsets": KAFKA, "startingOffsetsByTimestamp": '{"orders": {"0": 5}}'},
            TimestampsByQueue({("orders", None, 0): 5}),
        ),
    ],
)
def test_starts(options: dict[str, str], bound: Bound) -> None:
    got = read(**options)
    assert got.starting == bound
    assert got.ending == Latest()
    assert pickle.loads(pickle.dumps(got)) == got


def test_a_queue_of_a_named_broker_goes_first() -> None:
    bound = read(startingOffsets='{"orders": {"0": 1, "b": {"0": 2}}}').starting
    assert isinstance(bound, ByOffsets)
    assert (bound.find("orders", "b", 0), bound.find("orders", "c", 0), bound.find("orders", "b", 1)) == (2, 1, None)


def test_streams_start_at_latest_unless_told() -> None:
    assert read(True).starting == Latest()
    assert read(True, startingOffsets="latest").starting == Latest()
    assert read(True, startingOffsets='{"orders": {"0": -1}}').starting == ByOffsets({("orders", None, 0): -1})


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"endingOffsets": "latest"}, Latest()),
        ({"endingOffsets": '{"orders": {"0": -1}}'}, ByOffsets({("orders", None, 0): -1})),
        ({"endingOffsets": "group", "consumerGroup": "g"}, Group()),
        ({"endingTimestamp": "9", "endingOffsets": "latest"}, ByTimestamp(9)),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 9}}'}, TimestampsByQueue({("orders", None, 0): 9})),
    ],
)
def test_ends(options: dict[str, str], bound: Bound) -> None:
    got = read(**options)
    assert (got.starting, got.ending) == (Earliest(), bound)


@pytest.mark.parametrize("value", ["latest", '{"orders": {"0": -1}}'])
def test_a_batch_does_not_start_at_its_end(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot start at latest"):
        read(startingOffsets=value)


@pytest.mark.parametrize("value", ["earliest", '{"orders": {"0": -2}}'])
def test_a_batch_does_not_end_at_its_start(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot end at earliest"):
        read(endingOffsets=value)


def test_where_a_new_group_starts_is_said_with_the_group() -> None:
    assert read(True, startingOffsets="group,latest", consumerGroup="g").starting == Group(Latest())
    assert read(startingOffsets=" Group, earliest", consumerGroup="g").starting == Group(Earliest())
    with pytest.raises(InvalidRequestError, match="cannot start at latest"):
        read(startingOffsets="group,latest", consumerGroup="g")
    with pytest.raises(InvalidRequestError, match="endingOffsets"):
        read(endingOffsets="group,earliest", consumerGroup="g")
    with pytest.raises(InvalidRequestError, match="startingOffsets=group needs"):
        read(startingOffsets="group,earliest")


def test_no_option_at_all_names_the_likely_cause() -> None:
    with pytest.raises(InvalidRequestError, match=r"CREATE TABLE.*SELECT \* FROM t WITH"):
        parse_read({}, streaming=False)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_group_needs_a_group(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}=group needs"):
        read(**{name: "group"})


@pytest.mark.parametrize(
    "value",
    ["", "first", "12", "[]", "{", "{}", '{"orders": {}}', '{"orders": 3}', '{"orders": {"x": 3}}',
     '{"orders": {"0": -3}}',
     '{"orders": {"0": 1.5}}', '{"orders": {"0": true}}', '{"orders": {"0": "1"}}', '{"orders": {"-1": 1}}',
     '{"orders": {"0": 1, "0": 2}}', '{"orders": {"0": 9223372036854775808}}', '{"orders": {"b": {"c": {"0": 1}}}}',
     '{"a b": {"0": 1}}', '{"orders": {"/b": {"0": 1}}}'],
)  # fmt: skip
def test_offsets_of_another_form_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="option startingOffsets"):
        read(startingOffsets=value)


@pytest.mark.parametrize("value", ["", "now", "soon", "-5", "1e3"])
def test_times_of_another_form_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="option startingTimestamp takes"):
        read(startingTimestamp=value)
    with pytest.raises(InvalidRequestError, match="option endingOffsetsByTimestamp takes"):
        read(endingOffsetsByTimestamp=f'{{"orders": {{"0": "{value}"}}}}')


@pytest.mark.parametrize("value", ["-5", "1.5", "null", "[]"])
def test_times_per_queue_of_another_kind_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="option startingOffsetsByTimestamp"):
        read(startingOffsetsByTimestamp=f'{{"orders": {{"0": {value}}}}}')


def test_what_loses_against_a_time_is_checked_nevertheless() -> None:
    with pytest.raises(InvalidRequestError, match="option startingOffsets "):
        read(startingTimestamp="1", startingOffsets="first")


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "orders", "startingOffsets": '{"order": {"0": 1}}'},
        {"topic": "orders", "endingOffsetsByTimestamp": '{"order": {"b": {"0": 1}}}'},
        {"assign": '{"orders": {"b": [1]}}', "startingOffsets": '{"orders": {"b": {"0": 1}}}'},
        {"subscribePattern": "o.*", "startingOffsets": '{"p": {"0": 1}}'},
    ],
)
def test_offsets_for_a_queue_that_is_not_read_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="names a queue that is not read"):
        read(**options)


def test_the_strategy_for_times() -> None:
    assert read().by_timestamp_strategy == "error"
    assert read(startingOffsetsByTimestampStrategy="Latest").by_timestamp_strategy == "latest"
    with pytest.raises(InvalidRequestError, match="error or latest"):
        read(startingOffsetsByTimestampStrategy="earliest")


# ------------------------------------------------------------ numbers and words


def test_defaults_of_a_read() -> None:
    assert read(True) == ReadOptions(
        store="/s",
        topics=("orders",),
        starting=Latest(),
        ending=Latest(),
        fail_on_data_loss=True,
        max_trigger_delay_ms=900_000,
        decompress=True,
    )


def test_numbers_sizes_and_durations() -> None:
    got = read(
        True,
        maxOffsetsPerTrigger="10",
        minOffsetsPerTrigger="5",
        maxBytesPerTrigger="64M",
        maxTriggerDelay="30s",
        minPartitions="3",
        maxRecordsPerPartition="7",
        failOnDataLoss="FALSE",
        decompress="false",
    )
    assert (got.max_offsets_per_trigger, got.min_offsets_per_trigger) == (10, 5)
    assert (got.max_bytes_per_trigger, got.max_trigger_delay_ms) == (64 << 20, 30_000)
    assert (got.min_partitions, got.max_records_per_partition) == (3, 7)
    assert (got.fail_on_data_loss, got.decompress) == (False, False)
    assert read(True, maxMessagesPerTrigger="9").max_offsets_per_trigger == 9


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1b", 1), ("2k", 2048), ("2kb", 2048), ("1m", 1 << 20), ("3 GB", 3 << 30), ("1t", 1 << 40)],
)
def test_sizes(text: str, value: int) -> None:
    assert write(compressOverBytes=text).compress_over_bytes == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("5", 5), ("500ms", 500), ("2s", 2000), ("15m", 900_000), ("1h", 3_600_000), ("1D", 86_400_000)],
)
def test_durations(text: str, value: int) -> None:
    assert read(True, maxTriggerDelay=text).max_trigger_delay_ms == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-1"),
        ("maxOffsetsPerTrigger", "ten"),
        ("maxOffsetsPerTrigger", "9223372036854775808"),
        ("minPartitions", "1.5"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "5x"),
        ("maxBytesPerTrigger", "99999999t"),
        ("maxTriggerDelay", "-5s"),
        ("maxTriggerDelay", "5 years"),
        ("failOnDataLoss", "yes"),
        ("decompress", ""),
    ],
)
def test_bad_values_name_their_option(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"option {name} is"):
        read(True, **{name: value})


def test_the_least_is_not_over_the_most() -> None:
    with pytest.raises(InvalidRequestError, match="minOffsetsPerTrigger is over"):
        read(True, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")


# ------------------------------------------------------------ writing


def test_writing() -> None:
    assert write() == WriteOptions(store="/s", auto_create_topic=True, auto_create_queues=4)
    got = write(
        topic="t",
        brokerName="broker-1",
        autoCreateTopic="false",
        autoCreateQueues="9",
        badRecordsTopic="bad",
        txnAppId="a",
        txnVersion="0",
        compressOverBytes="4k",
    )
    assert got == WriteOptions(
        store="/s",
        topic="t",
        broker_name="broker-1",
        auto_create_topic=False,
        auto_create_queues=9,
        bad_records_topic="bad",
        txn_app_id="a",
        txn_version=0,
        compress_over_bytes=4096,
    )
    assert pickle.loads(pickle.dumps(got)) == got
    assert write(True, txnAppId="a").txn_app_id == "a"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"txnAppId": "a"}, "both or none"),
        ({"txnVersion": "1"}, "both or none"),
        ({"txnAppId": "", "txnVersion": "1"}, "txnAppId is blank"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "option topic: topic is reserved"),
        ({"topic": "a,b"}, "option topic: topic name has an illegal"),
        ({"badRecordsTopic": "rmq_sys_x"}, "option badRecordsTopic: topic is reserved"),
        ({"brokerName": "../x"}, "option brokerName"),
        ({"autoCreateQueues": "65537"}, "1 to 65536 queues"),
    ],
)
def test_bad_options_of_a_write(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        write(**options)
