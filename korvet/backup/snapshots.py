"""Snapshots of one moment: of one server, or of all primaries of a Redis Cluster.

In a cluster, all primaries pause writes before the first one forks, and continue when the last one has: no
write is executed between the forks, so the snapshots are of one moment. Reads continue.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Final, NamedTuple

from korvet.backup.connection import RedisConnection, ServerError
from korvet.backup.errors import BackupError
from korvet.backup.primaries import Primaries

log = logging.getLogger(__name__)

# Limits the pause: a fork takes some 10 ms for each GB, and brokers renew leases of 5 s by writes
# (broker.session.timeout.ms).
_PAUSE_MS: Final = 2000
_PAUSE_S: Final = _PAUSE_MS / 1000
_ATTEMPTS: Final = 3
_POLL_S: Final = 0.2
_DELAY: Final = "repl-diskless-sync-delay"
_CHILDREN: Final = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "module_fork_in_progress")


class Begun(NamedTuple):
    """A snapshot that has begun."""

    connection: RedisConnection
    """Receives the snapshot."""
    history: str
    offset: int


class _TooLateError(BackupError):
    """Writes may have been executed before all snapshots have begun."""


@contextlib.contextmanager
def begun(servers: Primaries, first: RedisConnection) -> Iterator[list[Begun]]:
    """Yields the snapshots of all servers, that of the server `first` before the others. They hold every
    write that was answered before this call. Raises BackupError.
    """
    if not servers.is_cluster:
        yield [Begun(first, *first.begin_snapshot())]
        return
    nodes = sorted(servers.connections, key=lambda each: each is not first)
    with contextlib.ExitStack() as stack:
        for _ in range(_ATTEMPTS):
            _await_idle(nodes)
            receivers = [stack.enter_context(RedisConnection(each.address)) for each in nodes]
            try:
                found = _at_one_moment(nodes, receivers)
            except _TooLateError:
                stack.close()
                continue
            servers.check_unchanged()
            yield found
            return
    raise BackupError(
        f"the nodes of the {servers} have not begun their snapshots within {_PAUSE_MS} ms, the longest pause "
        f"of writes, in {_ATTEMPTS} attempts: other programs start snapshots there or end the pause, or "
        "forks take too long"
    )


@contextlib.contextmanager
def threads(connections: Sequence[RedisConnection]) -> Iterator[ThreadPoolExecutor]:
    """Yields an executor with a thread for each connection. If the block fails, their calls end."""
    with ThreadPoolExecutor(len(connections)) as pool:
        try:
            yield pool
        except BaseException:
            for each in connections:
                each.shut_down()
            raise


def _at_one_moment(nodes: Sequence[RedisConnection], receivers: Sequence[RedisConnection]) -> list[Begun]:
    """Begin a snapshot on each receiver. Raises BackupError; _TooLateError if another attempt may succeed."""
    with threads(receivers) as pool, _without_delay(nodes), _paused(nodes) as end_s:
        before = [_changes(each) for each in nodes]
        asked = [pool.submit(_begin, each) for each in receivers]
        done, late = wait(asked, max(end_s - time.monotonic(), 0), FIRST_EXCEPTION)
        replies = [each.result() for each in done]
        # Another backup, for example, may have ended the pause. A snapshot on a disk resets the count.
        written = any(_changes(each) not in {count, 0} for each, count in zip(nodes, before, strict=True))
        if late or None in replies or written:
            raise _TooLateError
    return [
        Begun(receiver, *reply)
        for receiver, future in zip(receivers, asked, strict=True)
        if (reply := future.result()) is not None
    ]


def _begin(receiver: RedisConnection) -> tuple[str, int] | None:
    return receiver.begin_snapshot_since(receiver.info("replication"))


def _changes(node: RedisConnection) -> int:
    """The number of changes of data that the node has executed since its last snapshot on a disk."""
    return int(node.info("persistence")["rdb_changes_since_last_save"])


def _await_idle(nodes: Sequence[RedisConnection]) -> None:
    """Return when no node has a child process, which would delay its fork."""
    for each in nodes:
        while any(each.info("persistence").get(name, "0") != "0" for name in _CHILDREN):
            time.sleep(_POLL_S)


@contextlib.contextmanager
def _paused(nodes: Sequence[RedisConnection]) -> Iterator[float]:
    """No node executes writes in the block, until the time (monotonic, in s) that is yielded."""
    end_s = time.monotonic() + _PAUSE_S
    try:
        for each in nodes:
            _ask(each, "CLIENT", "PAUSE", _PAUSE_MS, "WRITE")
        yield end_s
    finally:
        for each in nodes:
            # A node that cannot be reached continues by itself, and the next call reports it.
            with contextlib.suppress(BackupError):
                each.call("CLIENT", "UNPAUSE")


@contextlib.contextmanager
def _without_delay(nodes: Sequence[RedisConnection]) -> Iterator[None]:
    """In the block, nodes fork at once when they are asked for a snapshot."""
    delays = [(each, delay) for each in nodes for delay in _ask(each, "CONFIG", "GET", _DELAY)[1:]]
    changed = [(each, delay) for each, delay in delays if delay != b"0"]
    try:
        for each, _ in changed:
            _ask(each, "CONFIG", "SET", _DELAY, 0)
        yield
    finally:
        for each, delay in changed:
            try:
                each.call("CONFIG", "SET", _DELAY, delay)
            except BackupError as error:
                log.warning(
                    "the server at %s may keep %s 0 until it is restarted, instead of %s: %s",
                    *(each.address, _DELAY, delay.decode(), error),
                )


def _ask(node: RedisConnection, *command: str | int) -> Any:
    try:
        return node.call(*command)
    except ServerError as error:
        raise BackupError(
            f"the server at {node.address} cannot be backed up at one moment with the others: {error}. Its "
            "user needs the permissions +client|pause +client|unpause +config|get +config|set"
        ) from error
