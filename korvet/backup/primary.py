"""The server that a URL leads to."""

import asyncio
import contextlib
from collections.abc import Iterator

from korvet.backup.connection import Connection, ServerError
from korvet.backup.errors import BackupError
from korvet.storage.link.sentinel import servers_of


@contextlib.contextmanager
def primary(url: str) -> Iterator[Connection]:
    """Yields a connection to one server that is neither a replica nor a node of a cluster; the primary if the
    URL names sentinels. Raises BackupError and StoreError.
    """
    address, *others = asyncio.run(servers_of(url))
    with Connection(address) as connection:
        try:
            info = connection.info("cluster")
        except ServerError as error:
            raise BackupError(f"the server at {address} refuses the connection: {error}") from error
        if others or info.get("cluster_enabled") == "1":
            raise BackupError(
                "a Redis Cluster can't be backed up or restored: its servers can't be copied at one moment, "
                "and copies of several moments would contradict each other"
            )
        if connection.info("replication").get("role") != "master":
            raise BackupError(
                f"the server at {address} is a replica, which may lack acknowledged records: name its primary"
            )
        yield connection
