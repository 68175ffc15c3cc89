"""Brokers of several releases on one keyspace: Function libraries, formats and protocols."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet as korvet_command
from korvet.cluster import lease, versions
from korvet.cluster.versions import FORMATS, PROTOCOLS, VersionMisfit, Versions
from korvet.redis import functions
from korvet.redis.address import parse_url
from korvet.redis.functions import library_name, named, public_source
from korvet.redis.library import ensure_library, tidy_libraries
from korvet.redis.link import RedisLink
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from korvet.store import Store
    from tests.support.redis_server import Server


from korvet.config.address import Address

LEASE_MS = 60_000
# The library of an earlier release, which has the name of the library for applications.
FORMER = "#!lua name=korvet\nredis.register_function('korvet_append', function() return 7 end)\n"
OTHER = (
    "#!lua name=korvet_0123abcd\nredis.register_function('korvet_append_0123abcd', function() return 8 end)\n"
)


def broker(server: Server, prefix: str, node_id: int = 1) -> AbstractAsyncContextManager[Store]:
    endpoint = Address("localhost", 9000 + node_id)
    return open_store(server.url, prefix, node_id=node_id, endpoint=endpoint, lease_ms=LEASE_MS)


def joined(server: Server, prefix: str, node_id: int = 1) -> Store:
    async def join() -> Store:
        async with broker(server, prefix, node_id) as store:
            return store

    return asyncio.run(join())


def beside(
    server: Server,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    formats: Versions = FORMATS,
    protocols: Versions = PROTOCOLS,
) -> None:
    """Join as node 2 of another release while node 1 of this release is live."""

    async def work() -> None:
        async with broker(server, prefix):
            with monkeypatch.context() as patch:
                patch.setattr(lease, "FORMATS", formats)
                patch.setattr(lease, "PROTOCOLS", protocols)
                async with broker(server, prefix, 2) as second:
                    assert second.membership is not None
                    spoken = {each.protocols for each in second.membership.leadership.assignment.brokers}
                    assert spoken == {PROTOCOLS, protocols}

    asyncio.run(work())


def test_an_earlier_release_keeps_its_library_while_it_is_live(server: Server, prefix: str) -> None:
    client = server.client
    client.function_flush()
    client.function_load(FORMER, replace=True)
    joined(server, prefix)
    assert client.fcall("korvet_append", 0) == 7
    assert client.fcall(named("korvet_finalise"), 2, "{x}:brokers", "{x}:cluster", "3")[0] == b"done"


async def test_brokers_that_start_together_load_the_libraries(new_server: Callable[..., Server]) -> None:
    (address,) = parse_url(new_server().url)
    links = [await RedisLink.connect(address) for _ in range(5)]
    await asyncio.gather(*map(ensure_library, links))
    for link in links:
        await link.close()


async def test_libraries_are_deleted_with_their_last_broker(server: Server, prefix: str) -> None:
    client = server.client
    client.function_load(FORMER, replace=True)
    client.function_load(OTHER, replace=True)

    def loaded() -> set[bytes]:
        return {each[each.index(b"library_name") + 1] for each in client.function_list("korvet*")}

    async with broker(server, prefix) as store:
        link = store.commands.links(store.commands.keyspace.cluster).server.write
        await tidy_libraries(link, frozenset({library_name(), "korvet_0123abcd"}))
        assert loaded() == {b"korvet", b"korvet_0123abcd", library_name().encode()}
        await tidy_libraries(link, frozenset({library_name(), functions.PUBLIC_LIBRARY}))
        assert loaded() == {b"korvet", library_name().encode()}
        assert client.fcall("korvet_append", 0) == 7
        await tidy_libraries(link, frozenset({library_name()}))
    assert loaded() == {b"korvet", library_name().encode()}
    assert public_source().encode() in client.function_list("korvet", withcode=True)[0]


async def test_both_libraries_return_after_a_flush(server: Server, prefix: str) -> None:
    async with broker(server, prefix) as store:
        server.client.function_flush()
        await store.producer_ids.allocate()
    assert len(server.client.function_list("korvet*")) == 2


def test_brokers_of_neighbouring_releases_join(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Versions(PROTOCOLS.lowest, PROTOCOLS.highest - 1)
    beside(server, prefix, monkeypatch, protocols=before)
    after = Versions(PROTOCOLS.highest, PROTOCOLS.highest + 1)
    beside(server, prefix, monkeypatch, formats=Versions(FORMATS.highest, 99), protocols=after)


@pytest.mark.parametrize(
    ("formats", "protocols", "message"),
    [
        (
            FORMATS,
            Versions(8, 9),
            r"node 1 speaks protocols .* Upgrade node 1 to a release between",
        ),
        (FORMATS, Versions(0, 0), r"node 1 speaks protocols .* Use a release closer to that of node 1"),
        (Versions(1, 2), PROTOCOLS, r"has format 4; this korvet works with formats 1 to 2\. Use the release"),
        (
            Versions(8, 9),
            PROTOCOLS,
            r"has format 4; .* Upgrade with a release between first, .*upgrade`",
        ),
    ],
)
def test_a_distant_release_is_refused(
    server: Server,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    formats: Versions,
    protocols: Versions,
    message: str,
) -> None:
    monkeypatch.setattr(versions, "PROTOCOLS", protocols)
    # The format is right when the keyspace is opened: another broker may finalise an upgrade after that.
    known = versions.format_problem

    def problem(stored: bytes) -> str | None:
        monkeypatch.setattr(versions, "FORMATS", formats)
        return known(stored)

    monkeypatch.setattr(lease, "format_problem", problem)
    with pytest.raises(VersionMisfit) as refused:
        beside(server, prefix, monkeypatch, formats=formats, protocols=protocols)
    assert re.search(message, str(refused.value))
    assert server.client.hkeys(f"{{{prefix}}}:brokers") == []


def test_an_upgrade_is_finalised_when_every_broker_can(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = f"{{{prefix}}}:cluster"
    joined(server, prefix)
    server.client.hset(cluster, "format", FORMATS.lowest)

    def upgrade() -> tuple[int, str]:
        arguments = ["upgrade", "--redis", server.url, "--keyspace", prefix]
        done = CliRunner(env={}).invoke(korvet_command, arguments)
        return done.exit_code, done.output

    async def work(act: Callable[[], None]) -> None:
        async with broker(server, prefix, 7):
            await asyncio.to_thread(act)

    def refused() -> None:
        status, text = upgrade()
        assert status == 1
        assert "node 7 works with formats 3: upgrade it" in text
        assert server.client.hget(cluster, "format") == b"%d" % FORMATS.lowest

    def done() -> None:
        assert upgrade() == (0, f"the keyspace {prefix} has format 4 now; it had format 3\n")
        assert upgrade() == (0, f"the keyspace {prefix} has format 4 already\n")

    with monkeypatch.context() as patch:
        patch.setattr(lease, "FORMATS", Versions(3, 3))
        asyncio.run(work(refused))
    asyncio.run(work(done))
    assert server.client.hget(cluster, "format") == b"4"


def test_no_keyspace_is_made_by_an_upgrade(server: Server, prefix: str) -> None:
    done = CliRunner(env={}).invoke(korvet_command, ["upgrade", "--redis", server.url, "--keyspace", prefix])
    assert done.exit_code == 1
    assert f"there is no keyspace '{prefix}'" in done.output
    assert server.client.keys(f"{{{prefix}}}*") == []
