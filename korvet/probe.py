"""`korvet ready`: whether the broker of this machine or container is ready. It imports nothing heavy.

Every `korvet serve` answers `/livez` and `/readyz` on an abstract unix socket, whatever its listeners and its
admin endpoint: no file, no port, no credentials. Its name holds what tells brokers of one machine apart. The
probe finds the name in /proc/net/unix. Elsewhere than on Linux it asks the configured admin endpoint.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READY, NOT_READY, WRONG_USAGE = 0, 1, 2
OPTIONS: Final = {
    "--listen": ("HOST:PORT", "Ask the broker with this listener, if several run here [the only one]."),
    "--data-dir": ("DIR", "Ask the broker with this data folder, if several run here [the only one]."),
    "--admin": ("HOST:PORT", "Ask this admin endpoint; https://HOST:PORT with TLS, or the path of a socket."),
    "--config": ("FILE", "TOML file of the broker's settings (also KORVET_CONFIG)."),
    "--wait": ("SECONDS", "Ask again until the broker is ready, for at most this time [0]."),
    "--timeout": ("SECONDS", "Longest wait for one answer [5]."),
}
"""The options, which all take a value: its name and the help text."""

_PREFIX: Final = "korvet-probe/"
_ALL: Final = "all"
_LISTENING: Final = 0x10000
_PAUSE_S: Final = 0.2


class Probed(NamedTuple):
    """A broker that can be asked, or the parent of several (`--processes`)."""

    node_id: str
    """`all` for the parent."""
    port: str
    """Of the first listener, as configured."""
    folder: str
    """The checksum of the data folder's path."""
    process: int
    parent: int

    @property
    def path(self) -> str:
        """The socket's address."""
        return "\0" + _PREFIX + "/".join(map(str, self))


def here(node_id: int | None, port: int, data_dir: str) -> Probed:
    """What this process answers as; `node_id` is None for the parent of several brokers."""
    name = _ALL if node_id is None else str(node_id)
    return Probed(name, str(port), _checksum(data_dir), os.getpid(), os.getppid())


def children() -> dict[int, str]:
    """The sockets of the brokers that this process has started, by node ID."""
    return {int(each.node_id): each.path for each in probed() if each.parent == os.getpid()}


def probed() -> list[Probed]:
    """All that answer in this network namespace; none on a system without abstract sockets."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, at, name = line.partition(" @" + _PREFIX)
        parts = name.rstrip("\n").split("/")
        # Any process may give its socket such a name.
        is_ours = len(parts) == len(Probed._fields) and parts[3].isdecimal() and parts[4].isdecimal()
        if at and is_ours and int(line.split()[3], 16) & _LISTENING:
            found.append(Probed(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4])))
    return found


class _UsageError(Exception):
    """The arguments are wrong, or several brokers match them."""


class _NotReady(Exception):
    """Why the broker is not ready."""


def main(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Ask, and say in one line what was answered. Returns the exit status."""
    try:
        options = _parse(arguments)
        until_s = time.monotonic() + _seconds(options, "--wait", 0.0)
        timeout_s = _seconds(options, "--timeout", 5.0)
        settings = _Settings(options, environ)
        while True:
            try:
                _ask(settings, timeout_s)
            except _NotReady as problem:
                if time.monotonic() >= until_s:
                    sys.stderr.write(f"not ready: {problem}\n")
                    return NOT_READY
                time.sleep(_PAUSE_S)
            else:
                sys.stdout.write("ready\n")
                return READY
    except _UsageError as error:
        sys.stderr.write(f"Error: {error}\n")
        return WRONG_USAGE


def _parse(arguments: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        name = "--config" if name == "-c" else name
        if name not in OPTIONS:
            raise _UsageError(f"no such option or argument: {argument}; see korvet ready --help")
        taken = value if equals else next(rest, None)
        if taken is None:
            raise _UsageError(f"{name} needs a value")
        found[name] = taken
    return found


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        seconds = float(options.get(name, default))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise _UsageError(f"{name} {options[name]}: expected seconds")
    return seconds


class _Settings:
    """What is given of the broker's settings: by options, by the environment, by a file, in this order."""

    def __init__(self, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self._options = options
        self._environ = environ
        path = options.get("--config") or environ.get("KORVET_CONFIG")
        self._file = {} if not path else _read_file(path)

    def endpoint(self) -> tuple[str, bool]:
        """The admin endpoint to ask, and whether it uses TLS; empty for the broker's own socket."""
        asked = self._options.get("--admin", "")
        if asked or self._options.keys() & {"--listen", "--data-dir"}:
            scheme, _, place = asked.rpartition("://")
            return place.rstrip("/"), scheme == "https"
        if path := self.get("admin.socket"):
            return path, False
        listen = self.get("admin.listen")
        # The port of port 0 is unknown.
        known = listen and not listen.endswith(":0")
        return listen if known else "", bool(self.get("admin.ssl.keystore.location"))

    def get(self, key: str) -> str:
        """A setting's value; empty if it is not given."""
        option = self._options.get("--" + key.replace("_", "-"))
        return option or self._environ.get("KORVET_" + key.replace(".", "_").upper()) or self._of_file(key)

    def _of_file(self, key: str) -> str:
        found = self._file.get(key)
        if found is None:
            found = self._file
            for part in key.split("."):
                found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, str) else ""


def _read_file(path: str) -> dict[str, object]:
    import tomllib  # noqa: PLC0415  # only with a file

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise _UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _UsageError(f"{path}: not a TOML file: {error}") from error


def _ask(settings: _Settings, timeout_s: float) -> None:
    """Raise _NotReady with the checks that fail, or if nobody answers."""
    place, tls = settings.endpoint()
    if not place:
        found = _choose(probed(), settings)
        if found is None:
            raise _NotReady("no broker answers here: it does not run, or its embedded server loads its data")
        place = found.path
    try:
        status, lines = _fetch(place, tls, timeout_s)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _NotReady(f"the broker at {place.removeprefix(chr(0))} does not answer: {reason}") from error
    if status != "200":
        # A check that is met may have a note.
        problems = [line for line in lines if not line.endswith(": ok") and ": ok, but " not in line]
        raise _NotReady("; ".join(problems) or f"status {status}")


def _choose(found: Sequence[Probed], settings: _Settings) -> Probed | None:
    """The broker that the settings mean; None if there is none."""
    parents = {each.process for each in found if each.node_id == _ALL}
    chosen = [each for each in found if each.parent not in parents]
    folder = settings.get("data_dir")
    if listen := settings.get("listen") or settings.get("listeners").partition(",")[0]:
        chosen = [each for each in chosen if each.port == listen.rpartition(":")[2]]
    if folder:
        chosen = [each for each in chosen if each.folder == _checksum(folder)]
    if len(chosen) > 1:
        ports = ", ".join(sorted(each.port for each in chosen))
        raise _UsageError(f"several brokers run here, with the ports {ports}: name one with --listen")
    return chosen[0] if chosen else None


def _fetch(place: str, tls: bool, timeout_s: float) -> tuple[str, list[str]]:
    """The status and the lines of /readyz. Raises OSError and ValueError."""
    if ":" not in place or place.startswith(("/", ".")):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        connection.connect(place)
    else:
        host, _, port = place.rpartition(":")
        if not port.isdecimal():
            raise ValueError("expected HOST:PORT, or the path of a socket")
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
        connection = socket.create_connection((host, int(port)), timeout_s)
    with connection:
        if tls:
            connection = _unverified(connection)
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: korvet\r\nConnection: close\r\n\r\n")
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    head, blank, body = answer.decode("utf-8", "replace").partition("\r\n\r\n")
    if not blank or not head.startswith("HTTP/1."):
        raise ValueError("it is no admin endpoint of korvet")
    return head.split(" ", 2)[1], body.splitlines()


def _unverified(connection: socket.socket) -> socket.socket:
    """TLS without a look at the certificate, as kubelets probe: nothing secret is sent or learned."""
    import ssl  # noqa: PLC0415  # takes longer than everything else, and only TLS needs it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def _checksum(data_dir: str) -> str:
    return f"{crc32(os.path.realpath(data_dir).encode('utf-8', 'surrogateescape')):08x}"
