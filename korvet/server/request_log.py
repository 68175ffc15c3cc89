"""The request log: one line for each request that a rule selects (`request.log.*`)."""

from __future__ import annotations

import logging
import math
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from korvet.logs import fields
from korvet.request_log.rules import OFF_MS, Asking, Rules, parse_clients, parse_failed
from korvet.request_log.trace import Trace, topics_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from korvet.api.common.context import RequestContext
    from korvet.api.common.services import Services
    from korvet.config.live import LiveConfig
    from korvet.config.settings import Config
    from korvet.protocol.registry import Api
    from korvet.request_log.trace import Timed

log = logging.getLogger(__name__)

# Limits the topics, and the characters of a client's texts, in one line.
_MOST_TOPICS: Final = 10
_MOST_CHARACTERS: Final = 200
# Limits the clients whose selection is remembered, and the length of their IDs: clients choose the IDs, and
# must not fill the memory.
_MOST_CLIENTS: Final = 10_000
_LONGEST_ID: Final = 255


class RequestLog:
    """Follows requests while any rule is in force. Without rules a request costs one look at `active`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._rules = Rules()
        self._selected: dict[Asking, bool] = {}
        # The longest duration that is not slow.
        self._fast_ms = math.inf
        # Bound once: it is part of every trace.
        self._done = self._answered
        self.active = False
        """Whether any rule is in force."""

    def follow(self, live: LiveConfig) -> None:
        """Take the rules of these settings, and follow their changes."""
        live.follow(self.take)
        self.take(live.now)

    def take(self, config: Config) -> None:
        """Let the rules of these settings be in force. Raises ValueError for rules that `check` refuses."""
        self._rules = Rules(
            config.request_log_slow_ms,
            parse_failed(config.request_log_failed),
            parse_clients(config.request_log_clients),
        )
        self._selected.clear()
        self._fast_ms = math.inf if self._rules.slow_ms == OFF_MS else self._rules.slow_ms
        self.active = self._rules.active

    def trace(
        self, api: Api, context: RequestContext, request: Any, correlation_id: int, size_bytes: int
    ) -> Trace | None:
        """Follow a request; None if no rule can select it."""
        selected = self._selects(api.name, context)
        if not (selected or self._rules.need_outcome):
            return None
        client = context.client
        return Trace(
            self._done,
            api,
            context.api_version,
            context.client_id,
            client,
            correlation_id,
            size_bytes,
            request,
            selected,
        )

    def _selects(self, api: str, context: RequestContext) -> bool:
        if not self._rules.clients:
            return False
        client = context.client
        asking = Asking(
            api, client.client_host.removeprefix("/"), context.client_id, client.session.principal
        )
        selected = self._selected.get(asking)
        if selected is None:
            selected = self._rules.selects(asking)
            if len(asking.client) <= _LONGEST_ID:
                if len(self._selected) >= _MOST_CLIENTS:
                    self._selected.clear()
                self._selected[asking] = selected
        return selected

    def _answered(self, trace: Trace, times: Timed, size_bytes: int) -> None:
        duration_ms = (times.answered_s - (times.held_since_s or times.began_s)) * 1000
        if not trace.selected and trace.errors is None and duration_ms <= self._fast_ms:
            return
        allowed_wait_ms = trace.api.allowed_wait_ms
        busy_ms = duration_ms - (0 if allowed_wait_ms is None else allowed_wait_ms(trace.request))
        reasons = self._rules.reasons(busy_ms=busy_ms, errors=trace.errors or (), selected=trace.selected)
        if not reasons:
            return
        try:
            self._write(trace, reasons, duration_ms, size_bytes)
        except Exception:
            # The response is sent already.
            log.exception("%s v%d could not be logged", trace.api.name, trace.version)

    def _write(self, trace: Trace, reasons: list[str], duration_ms: float, size_bytes: int) -> None:
        api, client = trace.api.name, trace.client
        errors = [error.name.upper() for error in trace.errors or ()]
        named = trace.failed_topics or topics_of(trace.request)
        topics = self._names(islice(named, _MOST_TOPICS))
        client_id, group = _cut(trace.client_id), getattr(trace.request, "group_id", None)
        address = client.client_host.removeprefix("/")
        parts = [f"correlation ID {trace.correlation_id}"]
        parts += [" ".join(errors)] if errors else []
        parts += [f"topics {_listed(topics, len(named))}"] if topics else []
        parts += [f"group {_cut(group)}"] if group else []
        log.info(
            "%s: %s v%d of client %r (%s, %s): %.1f ms, %d bytes, %d bytes of response, %s",
            ", ".join(reasons),
            api,
            trace.version,
            client_id,
            client.session.principal,
            address,
            duration_ms,
            trace.size_bytes,
            size_bytes,
            ", ".join(parts),
            extra=fields(
                reasons=reasons,
                api=api,
                version=trace.version,
                client_id=client_id,
                principal=client.session.principal,
                address=address,
                correlation_id=trace.correlation_id,
                request_bytes=trace.size_bytes,
                response_bytes=size_bytes,
                duration_ms=round(duration_ms, 3),
                errors=errors,
                topics=topics,
                topics_in_all=len(named),
                **({"group": _cut(group)} if group else {}),
            ),
        )

    def _names(self, topics: Iterable[str | UUID]) -> list[str]:
        found = []
        for each in topics:
            known = None if isinstance(each, str) else self._services.topics.by_id(each)
            found.append(_cut(str(each) if known is None else known.name))
        return found


def _listed(topics: list[str], count: int) -> str:
    more = f" and {count - len(topics)} more" if count > len(topics) else ""
    return ", ".join(topics) + more


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
