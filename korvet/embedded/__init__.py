"""The embedded server: a private Valkey (or Redis) process on one data folder, which ends with its owner."""

from korvet.embedded.binary import ServerBinary, find_server, installed_servers
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.folder import socket_of, url_of
from korvet.embedded.server import EmbeddedServer

__all__ = [
    "EmbeddedServer",
    "EmbeddedServerError",
    "ServerBinary",
    "find_server",
    "installed_servers",
    "socket_of",
    "url_of",
]
