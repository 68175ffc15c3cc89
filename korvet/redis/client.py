"""A blocking client of one server, redis-py's, for commands that look at a server. Brokers use RedisLink."""

from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from korvet.redis.address import RedisAddress

_CONNECT_TIMEOUT_S: Final = 10.0


def client_of(address: RedisAddress, reply_timeout_s: float) -> redis.Redis:
    """A client with the credentials and the database of an address, which connects at its first command.

    It repeats no command: redis-py's errors say at once that a server does not answer. Its protocol is RESP2,
    which also users without the permission +hello may use.
    """
    options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "protocol": 2, "db": address.database}
    options |= {"socket_connect_timeout": _CONNECT_TIMEOUT_S, "socket_timeout": reply_timeout_s}
    if address.password is not None:
        options |= {"username": address.username, "password": address.password}
    if address.socket_path is not None:
        return redis.Redis(unix_socket_path=address.socket_path, **options)
    if address.tls:
        options |= {"ssl": True, "ssl_check_hostname": True}
    return redis.Redis(address.host, address.port, **options)
