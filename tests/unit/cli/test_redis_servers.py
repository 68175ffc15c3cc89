"""The servers that a URL leads to."""

from contextlib import AbstractContextManager

import click
import pytest

from korvet.cli import redis_servers
from korvet.redis.address import parse_url


class _NodeWithoutSlots(AbstractContextManager):
    """A client of a node of a cluster that has just been started: no node has slots."""

    def info(self, section):
        assert section == "cluster"
        return {"cluster_enabled": 1}

    def execute_command(self, *words):
        assert words == ("CLUSTER", "SLOTS")
        return []

    def __exit__(self, *exception):
        return None


def test_a_cluster_without_slots_is_an_error_of_the_user(monkeypatch):
    monkeypatch.setattr(redis_servers, "client_of", lambda address, timeout_s: _NodeWithoutSlots())
    with pytest.raises(click.ClickException, match="one:6379: no node of the cluster has slots"):
        redis_servers.find_servers(parse_url("redis://one:6379,two:6379"))
