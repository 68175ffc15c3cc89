"""The facts about a running broker that decide on its readiness, and the metrics of readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.admin.health import CHECKS, Check, Facts, Server, is_ready, readiness
from korvet.metrics.declared import declare
from korvet.metrics.family import Samples
from korvet.redis.clock import steady_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.observe.lifecycle import Lifecycle
    from korvet.observe.parts import Parts

_READY: Final = declare("korvet_ready", "1 if the broker is ready for clients, as /readyz says.")
_READY_CHECK: Final = declare(
    "korvet_ready_check", "1 for each condition of readiness that is met, 0 for each that is not.", "check"
)


class Readiness:
    """The readiness of one broker, before and after its parts exist."""

    def __init__(self, lifecycle: Lifecycle, most_unheard_ms: int) -> None:
        """most_unheard_ms: `admin.ready.redis.ms`."""
        self._lifecycle = lifecycle
        self._most_unheard_ms = most_unheard_ms
        self.parts: Parts | None = None
        """None until the broker has its lease and the topics."""

    def checks(self) -> tuple[Check, ...]:
        """All checks now."""
        if self.parts is None:
            reason = f"the broker is {self._lifecycle.phase}"
            return tuple(Check(name, reason) for name in CHECKS)
        return readiness(self._facts(self.parts))

    def collect(self) -> Iterator[Samples]:
        """See Collector."""
        checks = self.checks()
        yield _READY.single(int(is_ready(checks)))
        rows = [(_READY_CHECK.text(check.name), int(not check.problem)) for check in checks]
        yield Samples(_READY_CHECK, rows)

    def _facts(self, parts: Parts) -> Facts:
        refusals = parts.store.resources.refusals
        return Facts(
            phase=self._lifecycle.phase,
            holds_lease=parts.member.leadership.holds_lease(steady_s()),
            servers=[
                Server(
                    server.address.named,
                    server.connected,
                    max(server.write.unheard_ms, server.read.unheard_ms),
                )
                for server in parts.store.router.servers()
            ],
            most_unheard_ms=self._most_unheard_ms,
            loading_groups=parts.coordinator.loading,
            loading_transactions=parts.transactions.loading,
            keyspace_lost=refusals.of_keyspace(),
            writes_refused=refusals.of_writes(partial=False),
            writes_limited=refusals.of_writes(partial=True),
            keys_missing="; ".join(filter(None, (each.missing for each in parts.listener.tokens))),
            keys_stale="; ".join(filter(None, (each.stale for each in parts.listener.tokens))),
        )
