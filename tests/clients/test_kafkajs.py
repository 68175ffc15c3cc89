"""kafkajs with its default configuration: a whole session of admin, producer and group consumer."""

from __future__ import annotations

import itertools

import pytest

pytestmark = pytest.mark.clients

COUNT = 50


@pytest.mark.short
def test_a_whole_session(broker, node, fresh):
    answer = node.run(
        "session.js",
        {"bootstrap": broker.bootstrap, "topic": fresh("js"), "group": fresh("js-group"), "count": COUNT},
    )
    assert answer["created"] is True
    plain, zipped = answer["produced"]
    assert plain["errorCode"] == zipped["errorCode"] == 0
    records = answer["records"]
    offsets = [int(record["offset"]) for record in records]
    base = int(plain["baseOffset"])
    assert offsets[:COUNT] == list(range(base, base + COUNT))
    assert offsets[COUNT:] == [int(zipped["baseOffset"]), int(zipped["baseOffset"]) + 1]
    assert [(record["key"], record["value"]) for record in records[:COUNT]] == [
        (f"k{n}", f"v{n}") for n in range(COUNT)
    ]
    assert [(record["key"], record["value"]) for record in records[COUNT:]] == [(None, None), (None, "last")]
    assert records[7]["headers"] == [["trace", ["t7"]], ["list", ["a", "b"]]]
    assert int(answer["end"]) == int(answer["committed"]) == offsets[-1] + 1
    assert answer["state"] == "Empty"
    assert answer["listed"] is True


def test_two_members_and_a_seek(broker, node, fresh):
    names = {"topic": fresh("js"), "group": fresh("js-group")}
    answer = node.run("members.js", {"bootstrap": broker.bootstrap, **names})
    assert [sorted(itertools.chain(*answer[stage])) for stage in ("first", "second", "last")] == [
        [0, 1, 2, 3]
    ] * 3
    assert [len(owned) for owned in answer["second"]] == [2, 2]
    assert answer["sought"] == answer["wanted"]
    assert answer["lag"] == [0, 0, 0, 0]
