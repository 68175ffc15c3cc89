"""Redis URLs mean the same to brokers and to the data source, which redis-py connects."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.spark.source.address import Address
from korvet.spark.source.errors import SourceError
from korvet.storage.errors import StoreError
from korvet.storage.link.address import parse_url


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


@pytest.mark.parametrize("url", ["http://host", "host:6379", ""])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(SourceError):
        Address(url)
    with pytest.raises(StoreError):
        parse_url(url)
