"""Commands about the server itself: INFO, CONFIG, CLIENT, FUNCTION, ROLE, WAIT."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any, Final

from robustness.simulation.redis.values import OK, Fault, integer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from robustness.simulation.redis.server import RedisServer, Session

Args = list[bytes]
_VERSION: Final = "7.4.0"


def _accept(server: RedisServer, session: Session, args: Args) -> Any:
    return OK


def _info(server: RedisServer, session: Session, args: Args) -> bytes:
    sections = {name.decode().lower() for name in args} or {"everything"}
    lines: list[str] = []
    for name, section in _SECTIONS.items():
        if sections & {name, "everything", "all", "default"}:
            lines += [f"# {name.capitalize()}", *section(server), ""]
    return "\r\n".join(lines).encode()


def _server(server: RedisServer) -> list[str]:
    return [f"redis_version:{_VERSION}", f"run_id:{server.replication.history}", "redis_mode:standalone"]


def _memory(server: RedisServer) -> list[str]:
    # A full server has used little of the allowance, so groups continue.
    used, limit = (1_100_000, 1_000_000) if server.is_full else (1_000_000, 0)
    policy = server.settings["maxmemory-policy"]
    return [f"used_memory:{used}", f"maxmemory:{limit}", f"maxmemory_policy:{policy}"]


def _persistence(server: RedisServer) -> list[str]:
    return ["loading:0", f"aof_enabled:{int(server.settings['appendonly'] == 'yes')}"]


def _stats(server: RedisServer) -> list[str]:
    return ["evicted_keys:0"]


def _replication(server: RedisServer) -> list[str]:
    state = server.replication
    lines = [f"role:{'master' if state.primary is None else 'slave'}"]
    if state.primary is not None:
        lines += [f"master_host:{state.primary.process.name}", "master_port:6379", "master_link_status:up"]
    lines.append(f"connected_slaves:{len(state.replicas)}")
    if state.least_replicas:
        lines.append(f"min_slaves_good_slaves:{sum(map(state.is_good, state.replicas.values()))}")
    for number, (name, replica) in enumerate(state.replicas.items()):
        online = "online" if replica.acknowledged_s >= 0 else "wait_bgsave"
        lag_s = int(server.loop.time() - max(replica.acknowledged_s, 0)) if not state.is_good(replica) else 0
        lines.append(f"slave{number}:ip={name},port=6379,state={online},offset={replica.offset},lag={lag_s}")
    return [
        *lines,
        f"master_replid:{state.history}",
        f"master_replid2:{state.second_history}",
        f"master_repl_offset:{state.offset}",
        f"second_repl_offset:{state.second_offset}",
    ]


def _cluster(server: RedisServer) -> list[str]:
    return ["cluster_enabled:0"]


_SECTIONS: Final[dict[str, Callable[[RedisServer], list[str]]]] = {
    "server": _server,
    "memory": _memory,
    "persistence": _persistence,
    "stats": _stats,
    "replication": _replication,
    "cluster": _cluster,
}


def _role(server: RedisServer, session: Session, args: Args) -> list[Any]:
    state = server.replication
    if state.primary is not None:
        return [b"slave", state.primary.process.name.encode(), 6379, b"connected", state.offset]
    replicas = [[name.encode(), b"6379", b"%d" % replica.offset] for name, replica in state.replicas.items()]
    return [b"master", state.offset, replicas]


def _config(server: RedisServer, session: Session, args: Args) -> list[bytes]:
    if args[0].upper() != b"GET":
        raise Fault("ERR the simulated server has no CONFIG SET")
    settings = {
        **server.settings,
        "min-replicas-to-write": str(server.replication.least_replicas),
        "min-replicas-max-lag": f"{server.replication.largest_lag_s:.0f}",
    }
    patterns = [pattern.decode() for pattern in args[1:]]
    chosen = (
        pair for pair in settings.items() if any(fnmatch.fnmatchcase(pair[0], each) for each in patterns)
    )
    return [part.encode() for pair in chosen for part in pair]


def _function(server: RedisServer, session: Session, args: Args) -> Any:
    if args[0].upper() == b"LIST":
        wanted = args[args.index(b"LIBRARYNAME") + 1] if b"LIBRARYNAME" in args else None
        return [
            [b"library_name", name, b"engine", b"LUA", b"functions", [], b"library_code", source]
            for name, source in server.libraries.items()
            if wanted is None or fnmatch.fnmatchcase(name.decode(), wanted.decode())
        ]
    if server.replication.primary is not None:
        raise Fault("READONLY You can't write against a read only replica.")
    reply = server.change_functions(args)
    server.note([b"FUNCTION", *args])
    return reply


def _wait(server: RedisServer, session: Session, args: Args) -> Any:
    return server.replication.wait(session, integer_of(args[0]), integer_of(args[1]))


def _wait_for_disk(server: RedisServer, session: Session, args: Args) -> Any:
    local, replicas, timeout_ms = map(integer_of, args)
    return server.replication.wait(session, replicas, timeout_ms, bool(local))


ADMINISTRATION: Final[dict[bytes, Callable[[RedisServer, Session, Args], Any]]] = {
    b"CLIENT": _accept,
    b"SELECT": _accept,
    b"AUTH": _accept,
    b"INFO": _info,
    b"ROLE": _role,
    b"CONFIG": _config,
    b"FUNCTION": _function,
    b"WAIT": _wait,
    b"WAITAOF": _wait_for_disk,
}
"""Each returns its reply, or None if the reply follows later."""
