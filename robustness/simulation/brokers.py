"""A korvet broker in a simulated process: the whole program, except its command line."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from korvet import broker
from korvet.cluster import lease, mailbox
from korvet.config import loading
from korvet.redis.errors import StoreError
from korvet.server import listener
from robustness.plan import DELIVERIES, LOCK_MS
from robustness.simulation.process import CURRENT
from robustness.simulation.transport import ListeningSocket

if TYPE_CHECKING:
    from robustness.simulation.process import Process

REDIS_URL: Final = "redis://redis:6379"
PORT: Final = 9092
# Pause before a broker that has ended is started again.
_RESTART_PAUSE_S: Final = 0.5
# A broker that does not end in this time after SIGTERM gets SIGKILL.
_LEAVE_TIMEOUT_S: Final = 5.0

# Short times, so that few virtual seconds show what takes minutes otherwise. One partition of each internal
# topic, so that a broker coordinates all groups or none.
_SETTINGS: Final[dict[str, Any]] = {
    "broker_session_timeout_ms": 2000,
    "redis_socket_timeout_ms": 1500,
    "busy_poll_us": 0,
    "native_poll_interval_ms": 100,
    "native_groups_interval_ms": 1000,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
    "group_consumer_min_session_timeout_ms": 1000,
    "group_consumer_session_timeout_ms": 3000,
    "group_consumer_min_heartbeat_interval_ms": 100,
    "group_consumer_heartbeat_interval_ms": 300,
    "group_min_session_timeout_ms": 1000,
    "group_share_min_session_timeout_ms": 1000,
    "group_share_session_timeout_ms": 3000,
    "group_share_min_heartbeat_interval_ms": 100,
    "group_share_heartbeat_interval_ms": 300,
    "group_share_min_record_lock_duration_ms": 1000,
    "group_share_record_lock_duration_ms": LOCK_MS,
    "group_share_assignment_interval_ms": 0,
    # Faults may cost a record some deliveries that nobody receives.
    "group_share_delivery_count_limit": DELIVERIES,
}


_MAIL_INTERVALS_S: Final = {"_BUSY_S": 0.01, "_QUIET_S": 0.1}


def prepare() -> None:
    """Replace what depends on the machine: sockets, process ids, and the garbage collector's settings."""
    listener.bind = _bind
    broker.freeze_long_lived_objects = lambda: None
    # Brokers ask for mail so often that it would be most of what is simulated.
    for name, interval_s in _MAIL_INTERVALS_S.items():
        setattr(mailbox, name, interval_s)
    holder = lease.Holder("simulated", 1, "1", "")
    lease.Holder.this_process = classmethod(lambda cls: holder)  # type: ignore[method-assign, assignment]


async def _bind(host: str, port: int) -> list[Any]:
    process = CURRENT.get()
    assert process is not None
    return [ListeningSocket(process, port)]


def start(process: Process, node_id: int, settings: dict[str, Any]) -> None:
    """Run a broker in a process, again and again if it ends because Redis cannot be used."""
    address = f"{process.name}:{PORT}"
    flags = {**_SETTINGS, **settings, "node_id": node_id, "listen": address}
    config = loading.load(flags=flags)
    process.program = process.run(_serve(process, config), f"broker {node_id}")


async def stop(process: Process) -> None:
    """Let a broker leave (SIGTERM); it is killed if that takes too long."""
    if process.program is not None and not process.is_dead:
        process.program.cancel()
        await asyncio.wait([process.program], timeout=_LEAVE_TIMEOUT_S)
    process.loop.network.kill(process)


async def _serve(process: Process, config: Any) -> None:
    while True:
        try:
            await broker.run(config, REDIS_URL, partial(_ready, process))
        except StoreError:
            process.is_ready = False
            await asyncio.sleep(_RESTART_PAUSE_S)


def _ready(process: Process, *_: object) -> None:
    process.is_ready = True
