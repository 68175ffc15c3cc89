"""The faults: generators that begin a fault, yield while it lasts, and then end it.

A fault that takes a primary's data away begins only when a replica has all that was written before, so that
faults which follow each other never take away all copies.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from tests.support.network import BLOCKED, FREE, Rule
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from robustness.plan import FaultPlan
    from robustness.site.site import Broker, Site

# Added to a broker's number for the node ID of one that joins during a run.
JOINING: Final = 10
# Smaller than any server's use of memory: every write is refused.
TINY_MAXMEMORY: Final = "1"
CLUSTER_PRIMARIES: Final = 3


def _number(fault: FaultPlan) -> int:
    """One of the primaries, the same one in each run of the plan."""
    return fault.at_ms % CLUSTER_PRIMARIES


def _broker(site: Site, fault: FaultPlan) -> Broker:
    """The broker of a target `broker-N` or `link-N`."""
    return site.brokers[f"broker-{fault.target.rpartition('-')[2]}"]


def _matches(site: Site, fault: FaultPlan) -> Callable[[str, str], bool]:
    """Whether a connection from a source to a target belongs to the fault's target."""
    if fault.target == "clients":
        return lambda _, target: target.startswith("broker-")
    broker = _broker(site, fault).name
    return lambda source, target: source == broker and not target.startswith("broker-")


def _network(site: Site, fault: FaultPlan, rule: Rule) -> Iterator[None]:
    """A rule for the connections of a target, which are reset after the fault if they were held."""
    name = f"{fault.kind} {fault.at_ms}"
    matches = _matches(site, fault)
    site.network.impose(name, lambda source, target: rule if matches(source, target) else FREE)
    yield
    if rule.holds_replies:
        site.network.reset(matches)
    site.network.lift(name)


def kill(site: Site, fault: FaultPlan) -> Iterator[None]:
    """kill -9 of a broker, which starts again."""
    broker = _broker(site, fault)
    broker.kill()
    yield
    broker.spawn()


def pause(site: Site, fault: FaultPlan) -> Iterator[None]:
    """SIGSTOP of a broker."""
    broker = _broker(site, fault)
    broker.signal(signal.SIGSTOP)
    yield
    broker.signal(signal.SIGCONT)


def join(site: Site, fault: FaultPlan) -> Iterator[None]:
    """Another broker joins, and leaves."""
    number = JOINING + int(fault.target.rpartition("-")[2])
    broker = site.brokers.get(f"broker-{number}")
    if broker is None:
        broker = site.add_broker(number)
    else:
        broker.spawn()
    yield
    broker.stop()


def leave(site: Site, fault: FaultPlan) -> Iterator[None]:
    """A broker leaves, and joins again."""
    broker = _broker(site, fault)
    broker.stop()
    yield
    broker.spawn()


def clock(site: Site, fault: FaultPlan) -> Iterator[None]:
    """The wall clock of a broker jumps, and jumps back."""
    broker = _broker(site, fault)
    broker.clock.shift(fault.strength)
    yield
    broker.clock.shift(0)


def cut(site: Site, fault: FaultPlan) -> Iterator[None]:
    """Connections are reset, and new ones are refused."""
    return _network(site, fault, Rule(refuses=True))


def cut_requests(site: Site, fault: FaultPlan) -> Iterator[None]:
    """Requests wait in the network, and arrive late."""
    return _network(site, fault, Rule(holds_requests=True))


def cut_replies(site: Site, fault: FaultPlan) -> Iterator[None]:
    """Requests arrive, and their replies never do."""
    return _network(site, fault, Rule(holds_replies=True))


def half_open(site: Site, fault: FaultPlan) -> Iterator[None]:
    """Connections stay open and nothing passes; then they are reset."""
    return _network(site, fault, BLOCKED)


def delay(site: Site, fault: FaultPlan) -> Iterator[None]:
    """Requests and replies take longer."""
    return _network(site, fault, Rule(request_delay_s=fault.strength / 1000))


def flush_functions(site: Site, fault: FaultPlan) -> Iterator[None]:
    """FUNCTION FLUSH on all primaries."""
    for primary in site.topology.primaries():
        primary.client.execute_command("FUNCTION FLUSH")
    yield


def maxmemory(site: Site, fault: FaultPlan) -> Iterator[None]:
    """The memory of a primary is used up: it refuses writes."""
    primary = site.topology.primary(_number(fault))
    primary.client.config_set("maxmemory", TINY_MAXMEMORY)
    yield
    primary.client.config_set("maxmemory", "0")


def kill_and_return(site: Site, fault: FaultPlan) -> Iterator[None]:
    """kill -9 of the only server, which returns with its data."""
    server = site.topology.primary()
    server.kill()
    yield
    site.topology.rejoin(server)


def pause_server(site: Site, fault: FaultPlan) -> Iterator[None]:
    """SIGSTOP of the only server."""
    server = site.topology.primary()
    server.pause()
    yield
    server.resume()


def disk_full(site: Site, fault: FaultPlan) -> Iterator[None]:
    """The disk of the only server is full: it refuses writes, or ends and returns. When this is over, it has
    written what it acknowledged in the moment that the disk filled: another fault would lose that.
    """
    server, disk = site.topology.primary(), site.topology.disk
    if disk is not None:
        disk.fill()
    yield
    if disk is not None:
        disk.make_room()
        if server.pid is None:
            site.topology.rejoin(server)

        def has_written() -> bool:
            return bool(server.client.info("persistence")["aof_last_write_status"] == "ok")

        until(has_written, 20, "the server has written what it acknowledged")


def failover_clean(site: Site, fault: FaultPlan) -> Iterator[None]:
    """A replica takes over without loss."""
    site.topology.fail_over(_number(fault))
    yield


def failover_lossy(site: Site, fault: FaultPlan) -> Iterator[None]:
    """kill -9 of a primary; a replica takes over with what it has; the killed server returns as a replica."""
    number = _number(fault)
    site.topology.settle()
    primary = site.topology.primary(number)
    primary.kill()
    yield
    site.topology.promote(number, primary)
    site.topology.rejoin(primary)


def pause_primary(site: Site, fault: FaultPlan) -> Iterator[None]:
    """SIGSTOP of a primary until a replica has taken over; it goes on as a primary until it learns that."""
    number = _number(fault)
    site.topology.settle()
    primary = site.topology.primary(number)
    primary.pause()
    yield
    site.topology.promote(number, primary)
    primary.resume()
    site.topology.heal(number, primary)


def split_brain(site: Site, fault: FaultPlan) -> Iterator[None]:
    """A primary and the first of several brokers are cut off, and both sides go on."""
    site.topology.settle()
    old = site.topology.primary()
    running = [broker.name for broker in site.brokers.values() if broker.is_running]
    site.topology.separate(0, set(running[:1] if len(running) > 1 else ()))
    site.topology.promote(0, old)
    yield
    site.topology.heal(0, old)


def replica_late(site: Site, fault: FaultPlan) -> Iterator[None]:
    """Replicas fall back further."""
    site.topology.late(site.topology.lag_ms + fault.strength)
    yield
    site.topology.late(site.topology.lag_ms)


def replica_gone(site: Site, fault: FaultPlan) -> Iterator[None]:
    """kill -9 of a replica, which returns without data."""
    replica = site.topology.replica(_number(fault))
    replica.kill()
    yield
    site.topology.rejoin(replica)


FAULTS: Final[dict[str, Callable[[Site, FaultPlan], Iterator[None]]]] = {
    fault.__name__: fault
    for fault in (
        kill,
        pause,
        join,
        leave,
        clock,
        cut,
        cut_requests,
        cut_replies,
        half_open,
        delay,
        flush_functions,
        maxmemory,
        kill_and_return,
        pause_server,
        disk_full,
        failover_clean,
        failover_lossy,
        pause_primary,
        split_brain,
        replica_late,
        replica_gone,
    )
}
