"""Numbers that a restored keyspace must not give out again, because clients may have seen them after the
backup.
"""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from korvet.backup.connection import RedisConnection
from korvet.backup.errors import BackupError
from korvet.backup.manifest import Manifest
from korvet.cluster.producer_ids import FIRST_ID
from korvet.cluster.versions import FORMATS, format_problem, is_known_format
from korvet.redis.fields import counter_of, pairs_of
from korvet.redis.keys import Keyspace, literal_pattern

_CLUSTER_KEY: Final = re.compile(rb"\{([^{}\s]{1,100})\}:cluster")
# Limits the versions of the assignment (leader epochs) that a keyspace can have got since a backup: at once,
# because servers and brokers kept restarting, and for each second in the mean.
_VERSIONS_AT_ONCE: Final = 1 << 22
_VERSIONS_PER_S: Final = 5
# Limits the versions at once if the keyspace was restored before: its version has been raised already. With
# a larger number, a later restore of an older backup would not be above.
_VERSIONS_AT_ONCE_AGAIN: Final = 1 << 12
# Limits the versions that the keyspace of an earlier restore can have got at once: brokers of it may have
# served clients a minute ago.
_VERSIONS_PER_RESTORE: Final = 1 << 16
# Leader epochs are signed numbers of 32 bits in Kafka's protocol. The restored keyspace needs some, too.
_LARGEST_VERSION: Final = (1 << 31) - 1 - _VERSIONS_AT_ONCE
# Producer IDs of each millisecond: see korvet_take_producer_ids.
_IDS_PER_MS: Final = 1024
_PAGE: Final = 1000
_DAY_MS: Final = 86_400_000


class Found(NamedTuple):
    """A keyspace on a server."""

    database: int
    prefix: str

    @property
    def keyspace(self) -> Keyspace:
        """Its keys."""
        return Keyspace(self.prefix)


def find_keyspaces(connection: RedisConnection) -> list[Found]:
    """All keyspaces of a server that this korvet can use, of every prefix, in all databases. Raises
    BackupError if one is of a later release: its numbers would repeat.
    """
    found = []
    for database in databases(connection):
        connection.call("SELECT", database)
        for key in _scan(connection, "{*}:cluster"):
            match = _CLUSTER_KEY.fullmatch(key)
            if match is None:
                continue
            cluster_id, data_format = connection.call("HMGET", key, "id", "format")
            if is_known_format(data_format):
                found.append(Found(database, match[1].decode()))
            elif cluster_id is not None and counter_of(data_format) > FORMATS.highest:
                problem = format_problem(data_format)
                raise BackupError(f"the keyspace {match[1].decode()!r} in database {database} {problem}")
    return sorted(found)


def described_by(manifest: Manifest) -> Found:
    """The keyspace that a manifest describes."""
    return Found(manifest.database, manifest.keyspace)


def databases(connection: RedisConnection) -> dict[int, int]:
    """The databases of a server that hold keys, with the number of their keys. Redis command INFO."""
    fields = connection.info("keyspace").items()
    return {int(name[2:]): int(value.split(",")[0].partition("=")[2]) for name, value in fields}


def raise_numbers(connection: RedisConnection, found: Found, created_ms: int, earlier: int) -> None:
    """Raise the numbers of a keyspace of a backup that was created at `created_ms` and has been restored
    `earlier` times, and end the leases of the brokers of that time.

    Raises BackupError if there are no leader epochs left, which means that a clock is or was wrong.
    """
    keys = found.keyspace
    connection.call("SELECT", found.database)
    cluster = dict(pairs_of(connection.call("HGETALL", keys.cluster)))
    now_ms = time.time_ns() // 1_000_000
    numbers = raised(cluster, created_ms, now_ms, earlier)
    if numbers["assignment"] > _LARGEST_VERSION:
        raise BackupError(
            f"the backup would be {(now_ms - created_ms) // _DAY_MS} days old, and leader epochs, which "
            "rise with its age, would exceed Kafka's limit: is the clock right, and created_ms in the "
            "manifest?"
        )
    connection.call("HSET", keys.cluster, *(part for pair in numbers.items() for part in pair))
    # The raised version counts for the history of the new server, too.
    connection.call("HDEL", keys.cluster, "history")
    connection.call("DEL", keys.brokers)
    # The next leader of each partition notes that former leader epochs end at the restored log end, even if
    # the server has the same history as before: see korvet_claim.
    for meta in _scan(connection, f"{{{literal_pattern(found.prefix)}:*}}:meta"):
        connection.call("HDEL", meta, "history")


def raised(cluster: Mapping[bytes, bytes], created_ms: int, now_ms: int, earlier: int) -> dict[str, int]:
    """The new values of the counters in the hash of the cluster.

    All are higher than any value that the keyspace can have had up to now, also after the backup and after
    `earlier` restores of it: the next broker that joins takes a higher leader epoch for every partition,
    every broker reads the catalogue and the users again, and producers of transactions get new ids.
    """
    # A failover can raise the version to the age of the keyspace: see korvet_lease.
    age_s = max(created_ms - _stored(cluster, "created_ms", created_ms), 0) // 1000
    since = max(now_ms - created_ms, 0) * _VERSIONS_PER_S // 1000
    at_once = _VERSIONS_AT_ONCE_AGAIN if FIRST_ID.encode() in cluster else _VERSIONS_AT_ONCE
    versions = at_once + earlier * _VERSIONS_PER_RESTORE + since
    first_id = max(_stored(cluster, "next_producer_id"), now_ms * _IDS_PER_MS)
    return {
        "assignment": max(_stored(cluster, "assignment"), age_s) + versions,
        "next_producer_id": first_id,
        FIRST_ID: first_id,
        # Counters of changes: no broker can have made one change per millisecond.
        "catalogue": max(_stored(cluster, "catalogue") + 1, now_ms),
        "security": max(_stored(cluster, "security") + 1, now_ms),
    }


def _stored(cluster: Mapping[bytes, bytes], name: str, default: int = 0) -> int:
    return counter_of(cluster.get(name.encode())) or default


def _scan(connection: RedisConnection, pattern: str) -> Iterator[bytes]:
    cursor: bytes | int = 0
    seen: set[bytes] = set()
    while True:
        cursor, keys = connection.call("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE, "TYPE", "hash")
        # SCAN may return a key twice.
        yield from set(keys) - seen
        seen.update(keys)
        if cursor == b"0":
            return
