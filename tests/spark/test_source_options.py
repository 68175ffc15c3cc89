"""Options of the source: accepted values, and the messages for invalid ones."""

from __future__ import annotations

import pickle

import pytest

from korvet.spark.source.address import Address, Secret, Tls
from korvet.spark.source.errors import SourceError
from korvet.spark.source.options import FLAGS, KAFKA, SINK, SOURCE, names_of
from korvet.spark.source.settings import EARLIEST, LATEST, SourceOptions, options_of

TOPIC = {"topic": "t"}


def parse(*, streaming: bool = False, **options: str) -> SourceOptions:
    given = {name.replace("redis_", "redis.").replace("ssl_", "ssl."): text for name, text in options.items()}
    return SourceOptions.parse(given, streaming=streaming)


def test_defaults() -> None:
    found = parse(topic="t")
    assert found.address.url == "redis://127.0.0.1:6379"
    assert (found.fail_on_data_loss, found.read_committed, found.include_headers) == (True, True, True)
    assert (found.starting.default, found.ending.default) == (EARLIEST, LATEST)
    assert (found.min_partitions, found.partition_records) == (1, 1_000_000)
    assert (found.trigger_records, found.least_trigger_records, found.pushdown) == (None, None, False)


def test_names_in_any_case() -> None:
    found = parse(TOPIC="t", FAILONDATALOSS="False", isolationlevel="READ_UNCOMMITTED", MINPARTITIONS="3")
    assert (found.fail_on_data_loss, found.read_committed, found.min_partitions) == (False, False, 3)


def test_times_come_before_offsets() -> None:
    found = parse(
        topic="t",
        startingTimestamp="5",
        startingOffsetsByTimestamp='{"t": {"0": 7}}',
        startingOffsets='{"t": {"0": 9}}',
        endingOffsetsByTimestamp='{"t": {"0": 11}}',
        endingOffsets='{"t": {"0": 13}}',
    )
    assert found.starting.time_of(("t", 0)) == 5
    assert found.ending.time_of(("t", 0)) == 11
    assert found.ending.time_of(("t", 1)) is None
    assert found.ending.offset_of(("t", 1)) == LATEST
    assert parse(topic="t", startingOffsets='{"t": {"0": 9}}').starting.offset_of(("t", 0)) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give the option topic"),
        ({"topic": "t", "subscribe": "u"}, "exactly one of .*, not topic and subscribe"),
        ({"topics": "t,,u"}, "topics contains an empty name"),
        ({"subscribePattern": "("}, "subscribePattern is not a regular expression"),
        ({"assign": "[1]"}, "assign must be JSON like"),
        ({"assign": '{"t": []}'}, "a list of partitions for each topic"),
        ({"assign": '{"t": [0, -1]}'}, "a list of partitions for each topic"),
        ({"assign": '{"t": [true]}'}, "a list of partitions for each topic"),
        ({"assign": "{}"}, "assign names no topic"),
        ({"assign": '{"t": [0]}', "startingOffsets": '{"t": {"1": 5}}'}, "names t-1, which is not assigned"),
        ({"subscribePattern": "a{9999999999}"}, "subscribePattern is not a regular expression: the repet"),
        ({"subscribePattern": "(" * 5000 + ")" * 5000}, "subscribePattern is not a regular expression"),
        ({**TOPIC, "colour": "red"}, "unknown option colour; the korvet source has"),
        ({**TOPIC, "startingOffset": "latest"}, r"unknown option startingoffset \(startingOffsets\?\);"),
        ({"topic": "t,u"}, "topic must be one name, not 't,u'; use topics for several"),
        ({**TOPIC, "startingOffsets": "[" * 100_000}, 'startingOffsets must be "earliest", "latest" or JSON'),
        ({**TOPIC, "kafka.bootstrap.servers": "x"}, "no option kafka.bootstrap.servers; use redis"),
        ({**TOPIC, "kafka.group.id": "g"}, "no option kafka.group.id: it uses Redis"),
        ({**TOPIC, "minReplicas": "1"}, "no option minReplicas; use the topic's config min.insync.replicas"),
        ({"path": "t"}, "no option path; use topic"),
        ({**TOPIC, "maxOffsetsPerTrigger": "1"}, "use maxRecordsPerTrigger"),
        ({**TOPIC, "startingOffsets": "noon"}, 'startingOffsets must be "earliest", "latest" or JSON'),
        ({**TOPIC, "startingOffsets": "latest"}, "startingOffsets can't be latest in a batch"),
        ({**TOPIC, "startingOffsets": '{"t": 5}'}, "startingOffsets: t has no object of partitions"),
        ({**TOPIC, "startingOffsets": '{"t": {"a": 5}}'}, "of t are not numbers"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": "5"}}'}, "of t are not numbers"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": -3}}'}, "-3 for t-0 is not an offset, -2"),
        ({**TOPIC, "startingOffsets": '{"t": {"-1": 3}}'}, "t has no partition -1"),
        ({**TOPIC, "startingOffsets": '{"u": {"0": 3}}'}, "names the topic u, which is not read"),
        ({**TOPIC, "endingOffsets": "earliest"}, "endingOffsets can't be earliest"),
        ({**TOPIC, "endingOffsets": '{"t": {"0": -2}}'}, "can't be earliest .* for t-0"),
        ({**TOPIC, "startingTimestamp": "today"}, "startingTimestamp must be a time in ms"),
        ({**TOPIC, "endingTimestamp": "-5"}, "endingTimestamp must be a time in ms"),
        ({**TOPIC, "endingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "-1 for t-0 is not a time in ms"),
        (
            {**TOPIC, "startingOffsetsByTimestampStrategy": "guess"},
            "one of error, latest, not 'guess'",
        ),
        ({**TOPIC, "failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'"),
        (
            {**TOPIC, "openTransactions": "skip"},
            "openTransactions must be one of wait, pass, only, not 'skip'",
        ),
        (
            {**TOPIC, "isolationLevel": "dirty"},
            "isolationLevel must be one of read_committed",
        ),
        ({**TOPIC, "includeHeaders": "1"}, "includeHeaders must be true or false"),
        ({**TOPIC, "minPartitions": "0"}, "minPartitions must be a number above 0"),
        ({**TOPIC, "maxRecordsPerPartition": "many"}, "maxRecordsPerPartition must be a number above 0"),
        ({**TOPIC, "maxRedisCpu": "half"}, "maxRedisCpu must be a number like 0.5, not 'half'"),
        ({**TOPIC, "maxRedisCpu": "0"}, "maxRedisCpu must be above 0 and at most 1, not 0"),
        ({**TOPIC, "maxRedisCpu": "50"}, "maxRedisCpu must be above 0 and at most 1, not 50"),
        ({**TOPIC, "maxRedisCpu": "nan"}, "maxRedisCpu must be above 0 and at most 1, not nan"),
        ({**TOPIC, "maxRecordsPerTrigger": "5"}, "maxRecordsPerTrigger: not an option of a batch"),
        ({**TOPIC, "keyspace": "{x}"}, "not a keyspace name"),
        ({**TOPIC, "redis": "http://h"}, "must start with redis://"),
        ({**TOPIC, "redis": "redis://h?decode_responses=1"}, "only db after its question mark"),
        (
            {**TOPIC, "redis": "redis://h/orders"},
            "the database in the redis URL must be a number, not 'orders'",
        ),
        ({**TOPIC, "redis": "rediss://h,i/1/2"}, "the database in the redis URL must be a number, not '1/2'"),
        ({**TOPIC, "redis": "redis://h?db=x"}, "the database in the redis URL must be a number, not 'x'"),
        ({**TOPIC, "redis": "redis+sentinel://h/main/x"}, "the database in the redis URL must be a number"),
        ({**TOPIC, "redis": "redis://[h"}, "can't be parsed"),
        ({**TOPIC, "redis": "redis://h,[::1"}, "can't be parsed"),
        ({**TOPIC, "redis": "redis://me@h", "redis.user": "you"}, "not both"),
        ({**TOPIC, "redis.ssl.ca": "/ca.pem"}, "need a redis URL that starts with rediss://"),
        ({**TOPIC, "redis.password": "a", "redis.passwordFile": "b"}, "give only one of redis.password, "),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        SourceOptions.parse(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingTimestamp": "5"}, "endingTimestamp: not an option of a stream"),
        ({"maxRecordsPerTrigger": "1", "minRecordsPerTrigger": "2"}, "is above maxRecordsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a duration like"),
    ],
)
def test_what_is_wrong_in_a_stream(options: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        SourceOptions.parse({**TOPIC, **options}, streaming=True)


@pytest.mark.parametrize(
    ("text", "delay_ms"), [("90", 90), ("5ms", 5), ("30 s", 30_000), ("15m", 900_000), ("2h", 7_200_000)]
)
def test_durations(text: str, delay_ms: int) -> None:
    assert parse(streaming=True, topic="t", maxTriggerDelay=text).trigger_delay_ms == delay_ms


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hush@h",
        "redis://me:hush@one,two",
        "redis://h?password=hush",
        "redis://:hush@[h",
        "redis+sentinel://h/main?sentinel_password=hush",
        "redis+sentinel://:hush@h/main",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SourceError) as raised:
        parse(topic="t", redis=url)
    assert "hush" not in repr(raised.value)
    assert raised.value.__cause__ is None


def test_secrets_are_in_no_repr() -> None:
    found = parse(topic="t", redis_password="hush", redis="rediss://h", redis_ssl_keyPassword="hush")
    assert found.address.arguments()["password"] == "hush"
    assert "hush" not in repr(found)
    assert "hush" not in repr(Address(password=Secret(value="hush")))
    assert pickle.loads(pickle.dumps(found)) == found


def test_secrets_from_files_and_variables(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = f"{tmp_path}/password"
    with open(file, "w", encoding="utf-8") as out:
        out.write("from file\n")
    monkeypatch.setenv("SECRET_OF_REDIS", "from variable")
    assert parse(topic="t", redis_passwordFile=file).address.arguments() == {"password": "from file"}
    named = parse(topic="t", redis_passwordEnv="SECRET_OF_REDIS").address
    assert named.arguments() == {"password": "from variable"}
    monkeypatch.delenv("SECRET_OF_REDIS")
    with pytest.raises(SourceError, match=r"redis\.passwordEnv names SECRET_OF_REDIS, which is not set"):
        named.arguments()
    with pytest.raises(SourceError, match=r"redis\.passwordFile /nowhere can't be read: No such file"):
        Secret(file="/nowhere").reveal()


def test_what_is_declared_of_options() -> None:
    """Each name once in source and sink, values as defaults, and flags of options of the source."""
    for declared in (SOURCE, (*KAFKA, *SINK)):
        names = [name.lower() for name in names_of(declared)]
        assert len(names) == len({*names})
        for option in declared:
            assert option.about
            assert option.default is None or option.parse(option.default) is not None
    assert {*FLAGS} <= {*names_of(SOURCE)}


def test_options_lead_to_the_address_that_they_are_made_of() -> None:
    tls = Tls("ca", "cert", "key", Secret("redis.ssl.keyPassword", variable="KEY"), check_hostname=False)
    for address in (
        Address(),
        Address("redis://one,two", "k", "me", Secret(value="hush")),
        Address("rediss://h", "k", None, Secret(file="f"), tls),
        Address("redis+sentinel://h/n", sentinel_password=Secret("redis.sentinel.password", variable="V")),
        Address(max_cpu=0.25),
    ):
        assert SourceOptions.parse(options_of(address, TOPIC)).address == address


def test_options_that_go_before_those_of_the_address() -> None:
    address = Address("redis://h", user="me", password=Secret(value="hush"))
    assert options_of(address, {"Redis.User": "you"}) == {
        "redis": "redis://h",
        "keyspace": "korvet",
        "redis.password": "hush",
        "Redis.User": "you",
    }
    found = SourceOptions.parse(options_of(address, {**TOPIC, "redis.passwordenv": "VARIABLE"}))
    assert found.address.password == Secret(variable="VARIABLE")
