"""Replies to appends: their numbers as outcomes, or as errors if they have no such numbers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.records.kernel import append_reply
from korvet.storage.errors import LinkLost
from korvet.storage.log.values import Appended

if TYPE_CHECKING:
    from korvet.storage.log.state import LogState
    from korvet.storage.log.values import Form

log = logging.getLogger(__name__)

_LOGGED_BYTES: Final = 200


class Outcome(NamedTuple):
    """What the reply to a successful append states."""

    appended: Appended
    index_stale: bool
    """Whether the index lacks entries of native clients."""


def read_numbers(state: LogState, reply: memoryview, added: int) -> tuple[int, ...] | None:
    """The numbers of a successful append, see `append_reply`; None for any other reply.

    None as well if the kernel fails to read the reply: the outcome is read back then. Without an outcome all
    later appends would wait for ever.
    """
    try:
        return append_reply(reply, added)
    except Exception:
        log.exception("%s: the reply to an append cannot be read", state.name)
        return None


def read_outcome(state: LogState, numbers: tuple[int, ...], form: Form) -> Outcome:
    """The outcome for the batch of this form; takes over the time of Redis's clock."""
    base, previous_end, start, append_ms, lead_ms, duplicate, index_stale, last_stable_offset = numbers
    state.links.clock.observe(append_ms)
    if form.append_ms >= 0:
        append_ms = form.append_ms
    appended = Appended(base, start, previous_end, append_ms, lead_ms, duplicate == 1, last_stable_offset)
    return Outcome(appended, index_stale == 1)


def irregular_reply(state: LogState, reply: bytes | memoryview) -> LinkLost:
    """The error of an append whose reply does not state an outcome."""
    log.error("%s: an append was answered with %r", state.name, bytes(reply[:_LOGGED_BYTES]))
    return LinkLost("Redis answered an append with something else")
