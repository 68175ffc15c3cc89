"""How the memory of a machine or container is divided: brokers, their buffers, the embedded server's data."""

from collections.abc import Collection
from typing import Final

import msgspec

from korvet.config.settings import Config

_MB: Final = 1 << 20
# A broker process without its buffers: 55 MB at rest, and what requests and connections take.
_BROKER_BYTES: Final = 64 * _MB
# The embedded server without data: program, tables, connections.
_SERVER_BYTES: Final = 8 * _MB
# The part of the rest that is for data. The remainder is for what the server takes beyond its data: pages
# that change while it rewrites its append-only file in a fork, fragmentation, buffers of connections.
_DATA_SHARE: Final = 2 / 3
# The embedded server holds catalogue and groups in any case.
_LEAST_DATA_BYTES: Final = 16 * _MB
# The buffers of all brokers may take this fraction of the memory.
_BUFFER_SHARE: Final = 6
# Memory that a broker fills under load, and the least size with which it works well.
_BUFFERS: Final = {
    "tail_cache_bytes": _MB,
    "fetch_readahead_bytes": _MB,
    "fetch_buffer_bytes": 4 * _MB,
    "decompression_buffer_bytes": 4 * _MB,
}


def fit(config: Config, chosen: Collection[str], memory_bytes: int) -> Config:
    """Returns the settings with defaults that fit into `memory_bytes`. `chosen`: fields that the user set,
    which stay.
    """
    fitting = {field: size for field, size in _buffers(config, memory_bytes).items() if field not in chosen}
    config = msgspec.structs.replace(config, **fitting)
    if config.redis is not None or config.embedded_maxmemory >= 0:
        return config
    left_bytes = memory_bytes - _of_brokers(config) - _SERVER_BYTES
    return msgspec.structs.replace(
        config, embedded_maxmemory=max(_rounded(left_bytes * _DATA_SHARE), _LEAST_DATA_BYTES)
    )


def needed_bytes(config: Config) -> int:
    """Returns the memory that brokers and embedded server may take together; without maxmemory the server may
    take any amount, which is not counted.
    """
    if config.redis is not None:
        return _of_brokers(config)
    return _of_brokers(config) + _SERVER_BYTES + int(config.embedded_maxmemory / _DATA_SHARE)


def _buffers(config: Config, memory_bytes: int) -> dict[str, int]:
    largest_bytes = {field: getattr(Config(), field) for field in _BUFFERS}
    scale = memory_bytes / _BUFFER_SHARE / config.processes / sum(largest_bytes.values())
    return {
        field: min(max(_rounded(largest * scale), _BUFFERS[field]), largest)
        for field, largest in largest_bytes.items()
    }


def _of_brokers(config: Config) -> int:
    """The memory of all processes except the embedded server."""
    starter_bytes = _BROKER_BYTES if config.processes > 1 else 0
    buffers_bytes: int = sum(getattr(config, field) for field in _BUFFERS)
    return starter_bytes + config.processes * (_BROKER_BYTES + buffers_bytes)


def _rounded(size: float) -> int:
    """A size in whole megabytes."""
    return int(size) // _MB * _MB
