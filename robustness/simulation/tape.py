"""Records what a simulated server was asked and answered in whole runs, for a comparison with a real server.

`python -m robustness.simulation.tape SEED...` writes, for each run, null and then an array for each command
or transaction: [time in microseconds, [commands], [replies]]. A Fault is {"fault": text}, a status reply
{"status": text}. Each is msgpack after its length.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from robustness.plan import KINDS
from robustness.simulation import worker
from robustness.simulation.replay import LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator

# Faults that a real server would need to have, too.
_LEFT_OUT: Final = frozenset({"maxmemory", "kill_and_return", "power_loss", "flush_functions"})


def main(seeds: list[str]) -> int:
    """Write the tapes of seeds, one after the other."""
    worker.prepare()
    for seed in map(int, seeds):
        for one in (None, *record(seed)):
            encoded = msgspec.msgpack.encode(one)
            sys.stdout.buffer.write(LENGTH.pack(len(encoded)) + encoded)
    return 0


def record(seed: int) -> Iterator[list[Any]]:
    """Yields the commands of one run on a single server."""
    from robustness.simulation import plan, world  # noqa: PLC0415 - imports korvet
    from robustness.simulation.redis.server import RedisServer, Session  # noqa: PLC0415
    from robustness.simulation.redis.values import Fault  # noqa: PLC0415

    tape: list[list[Any]] = []
    execute, execute_all = RedisServer.execute, RedisServer.execute_all

    def recorded(self: RedisServer, session: Session, args: list[bytes]) -> Any:
        at = self.now_us()
        try:
            reply = execute(self, session, args)
        except Fault as fault:
            tape.append([at, [args], [plain(fault)]])
            raise
        tape.append([at, [args], [plain(reply)]])
        return reply

    def all_recorded(self: RedisServer, session: Session, queue: list[list[bytes]]) -> list[Any]:
        at = self.now_us()
        replies = execute_all(self, session, queue)
        tape.append([at, queue, [plain(each) for each in replies]])
        return replies

    RedisServer.execute, RedisServer.execute_all = recorded, all_recorded  # type: ignore[method-assign]
    try:
        planned = plan.make(seed)
        faults = tuple(
            fault
            for fault in planned.faults
            if fault.kind not in _LEFT_OUT and "alone" in KINDS[fault.kind].topologies
        )
        # How long members have had records cannot be replayed: a real server has a clock of its own for that.
        world.run(dataclasses.replace(planned, topology="alone", faults=faults, sharers=()))
    finally:
        RedisServer.execute, RedisServer.execute_all = execute, execute_all  # type: ignore[method-assign]
    yield from tape


def plain(reply: Any) -> Any:
    """A reply without the classes of the simulation."""
    from robustness.simulation.redis.values import Fault, Status  # noqa: PLC0415 - as in `record`

    if isinstance(reply, Fault):
        return {"fault": str(reply)}
    if isinstance(reply, Status):
        return {"status": bytes(reply)}
    if isinstance(reply, list):
        return [plain(each) for each in reply]
    return reply if isinstance(reply, bytes | int | None) else {"other": repr(reply)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
