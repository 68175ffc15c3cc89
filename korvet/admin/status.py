"""The page of status: what a broker knows about itself, its cluster and Redis, as JSON."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet import __version__, supervisor
from korvet.admin.health import is_ready
from korvet.admin.http import Response
from korvet.admin.open_transactions import open_transactions
from korvet.outlook.findings import (
    OK,
    Finding,
    TransactionNote,
    damage_findings,
    durability_findings,
    module_findings,
    refusal_findings,
    transaction_findings,
)
from korvet.outlook.memory_forecast import memory_findings, usage
from korvet.redis.clock import steady_s
from korvet.redis.refusals import EFFECTS
from korvet.redis.server_facts import ServerFacts, reported
from korvet.server.certificates import certificate_findings
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from korvet.admin.http import Request
    from korvet.admin.readiness import Readiness
    from korvet.observe.lifecycle import Lifecycle
    from korvet.observe.parts import Parts
    from korvet.outlook.durability import Setup
    from korvet.redis.errors import StorageError
    from korvet.redis.server import Server
    from korvet.server.certificates import UsedCertificate

# The time for which an answer is returned again, so that clients of this page cannot load Redis.
_CACHED_S: Final = 5.0
# The same for open transactions, which Redis holds for each partition.
_TRANSACTIONS_CACHED_S: Final = 60.0
# Limits the wait for open transactions.
_REPLY_S: Final = 2.0


class StatusPage:
    """Makes the page from a broker's parts, at most once in five seconds."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        readiness: Readiness,
        certificates: Callable[[], Sequence[UsedCertificate]],
    ) -> None:
        self._lifecycle = lifecycle
        self._readiness = readiness
        self._certificates = certificates
        self.setup: Callable[[], Setup] | None = None
        """What Redis does not report of the setup; None before the broker's parts exist."""
        self._began_s = time.monotonic()
        self._making = asyncio.Lock()
        self._slow: dict[str, Any] = {}
        self._made_s: float | None = None
        self._opened: Sequence[TransactionNote] | None = None
        self._opened_until_s = 0.0

    async def answer(self, request: Request) -> Response:
        """See Page."""
        del request
        async with self._making:
            now_s = time.monotonic()
            parts = self._readiness.parts
            is_due = self._made_s is None or now_s - self._made_s >= _CACHED_S
            if parts is not None and self.setup is not None and is_due:
                if now_s >= self._opened_until_s:
                    self._opened = await open_transactions(parts, _REPLY_S)
                    self._opened_until_s = now_s + _TRANSACTIONS_CACHED_S
                self._slow = await _details(parts, self.setup(), self._opened, self._certificates())
                self._made_s = time.monotonic()
        age_s = 0.0 if self._made_s is None else time.monotonic() - self._made_s
        page = {**self._quick(), **self._slow, "age_ms": int(age_s * 1000)}
        if parts is not None:
            # As it is now, before what may be five seconds old.
            refused = [finding._asdict() for finding in refusal_findings(parts.store.resources.refusals)]
            page["findings"] = [*refused, *page.get("findings", ())]
        return Response(HTTPStatus.OK, [msgspec.json.encode(page) + b"\n"], "application/json")

    def _quick(self) -> dict[str, Any]:
        """What costs nothing, as it is now."""
        checks = self._readiness.checks()
        return {
            "release": __version__,
            "phase": self._lifecycle.phase.value,
            "uptime_s": int(time.monotonic() - self._began_s),
            "ready": is_ready(checks),
            "checks": {check.name: check.text for check in checks},
            "refusals": self._refusals(),
            "background_failures": dict(supervisor.failures),
            "certificates": [_certificate(each) for each in self._certificates()],
        }

    def _refusals(self) -> list[dict[str, Any]]:
        parts, now_s, now_ms = self._readiness.parts, steady_s(), time.time_ns() // 1_000_000
        if parts is None:
            return []
        return [
            {
                "cause": row.cause.value,
                "effect": EFFECTS[row.cause],
                "reason": row.reason,
                "redis": row.place,
                "since_ms": now_ms - int((now_s - row.since_s) * 1000),
                "batches": row.batches,
                "partial": row.partial,
            }
            for row in parts.store.resources.refusals
        ]


async def _details(
    parts: Parts,
    setup: Setup,
    opened: Sequence[TransactionNote] | None,
    certificates: Sequence[UsedCertificate],
) -> dict[str, Any]:
    servers = tuple(parts.store.router.servers())
    found = await asyncio.gather(*(reported(server.read) for server in servers))
    facts = {str(server.address): each for server, each in zip(servers, found, strict=True)}
    now_ms = time.time_ns() // 1_000_000
    memory = {
        place: usage(each.used_memory, each.maxmemory)
        for place, each in facts.items()
        if isinstance(each, ServerFacts) and each.maxmemory
    }
    leadership = parts.member.leadership
    return {
        "node_id": leadership.node_id,
        "cluster": {
            "id": parts.store.commands.cluster_id,
            "version": leadership.assignment.version,
            "controller": leadership.assignment.controller.node_id,
            "brokers": [
                {"node_id": each.node_id, "host": each.host, "port": each.port}
                for each in leadership.assignment.brokers
            ],
        },
        "partitions": await _partitions(parts),
        "redis": [_server(server, facts[str(server.address)]) for server in servers],
        "findings": [
            finding._asdict()
            for finding in (
                *durability_findings(facts, setup),
                *memory_findings(memory, now_ms),
                *_of_parts(parts, servers),
                *certificate_findings(certificates, time.time()),
                *(each.finding() for each in parts.listener.tokens),
                *(() if opened is None else transaction_findings(opened, now_ms)),
            )
        ],
    }


def _certificate(used: UsedCertificate) -> dict[str, Any]:
    return {
        "listener": used.listener,
        "file": used.file,
        "subject": used.certificate.subject,
        "expires_s": used.certificate.ends_s,
        "validity": used.validity(time.time()),
    }


async def _partitions(parts: Parts) -> dict[str, int]:
    led = count = 0
    async for topic in sliced(parts.topics.all()):
        count += topic.partitions
        epochs = (
            parts.member.leadership.leader_epoch_of(topic.name, number) for number in range(topic.partitions)
        )
        led += sum(epoch is not None for epoch in epochs)
    return {"led": led, "all": count}


def _server(server: Server, facts: ServerFacts | StorageError) -> dict[str, Any]:
    return {
        "address": str(server.address),
        "version": facts.version if isinstance(facts, ServerFacts) else "",
        "connected": server.connected,
        "unheard_ms": max(server.write.unheard_ms, server.read.unheard_ms),
        "replicas": len(facts.replication.standing) if isinstance(facts, ServerFacts) else 0,
    }


def _of_parts(parts: Parts, servers: Iterable[Server]) -> Iterator[Finding]:
    """What the broker knows without asking."""
    verdicts = {str(server.address): server.module.verdict for server in servers}
    yield from module_findings({place: each for place, each in verdicts.items() if each is not None})
    if parts.member.leadership.lost is None:
        cluster_id, count = parts.store.commands.cluster_id, len(parts.store.catalogue.topics)
        yield Finding("keyspace", OK, f"cluster id {cluster_id}, {count} topics")
    for damage in (parts.store.catalogue.damage, parts.member.damage, parts.security.damage):
        for key, damaged in damage.known.items():
            yield from damage_findings(key, damaged)
