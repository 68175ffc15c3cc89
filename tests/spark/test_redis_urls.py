"""Redis URLs mean the same to brokers and to the data source, which redis-py connects."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.redis.address import SentinelAddress, parse_target, parse_url
from korvet.redis.errors import StoreError
from korvet.spark.source.address import Address
from korvet.spark.source.errors import SourceError


def of_broker(url: str) -> list[dict[str, Any]]:
    return [
        {
            "server": address.socket_path or (address.host, address.port),
            "tls": address.tls,
            "user": address.username,
            "database": address.database,
        }
        for address in parse_url(url)
    ]


def of_source(url: str) -> list[dict[str, Any]]:
    found = []
    for server in Address(url).server_urls():
        pool: Any = redis.ConnectionPool.from_url(server)
        given = pool.connection_kwargs
        found.append(
            {
                "server": given.get("path") or (given.get("host", "localhost"), given.get("port", 6379)),
                "tls": pool.connection_class is redis.SSLConnection,
                "user": given.get("username"),
                "database": given.get("db", 0),
            }
        )
    return found


@pytest.mark.parametrize(
    "url",
    [
        "redis://host",
        "redis://host:7000/2",
        "redis://host?db=3",
        "redis://me@host:1",
        "redis://m%40e@host",
        "rediss://host:7000",
        "redis://[::1]:8/2",
        "redis://one:6379,two:7000",
        "redis://me@one:7,[::1]:8/2",
        "unix:///run/redis.sock",
        "unix://me@/run/redis.sock?db=1",
    ],
)
def test_the_same_servers(url: str) -> None:
    assert of_source(url) == of_broker(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://host/main",
        "redis+sentinel://me@one:7,two,[::1]:8/ma%20in/2",
        "rediss+sentinel://host/main?db=3&sentinel_username=you",
        "rediss+sentinel://host/main?sentinel_tls=no",
        "redis+sentinel://host/main?sentinel_tls=yes",
    ],
)
def test_the_same_sentinels(url: str) -> None:
    target, address = parse_target(url), Address(url)
    assert isinstance(target, SentinelAddress)
    found = address.sentinels()
    assert found is not None
    assert found.name == target.name
    pools: list[Any] = [redis.ConnectionPool.from_url(each, **found.arguments) for each in found.urls]
    assert [
        (
            pool.connection_kwargs["host"],
            pool.connection_kwargs["port"],
            pool.connection_class is redis.SSLConnection,
            pool.connection_kwargs.get("username"),
        )
        for pool in pools
    ] == [(each.host, each.port, each.tls, each.username) for each in target.sentinels]
    server, primary = target.server.at("::1", 9), Address(address.primary_url("::1", 9))
    assert of_source(primary.url) == [
        {
            "server": ("::1", 9),
            "tls": server.tls,
            "user": server.username,
            "database": server.database,
        }
    ]


@pytest.mark.parametrize(
    "url", ["redis+sentinel://host", "redis+sentinel://host:x/main", "redis+sentinel://h/m?sentinel_tls=1"]
)
def test_incomplete_urls_of_sentinels_are_refused(url: str) -> None:
    with pytest.raises(SourceError):
        Address(url)
    with pytest.raises(StoreError):
        parse_target(url)


@pytest.mark.parametrize("url", ["http://host", "host:6379", ""])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(SourceError):
        Address(url)
    with pytest.raises(StoreError):
        parse_url(url)
