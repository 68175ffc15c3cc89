"""A primary, its replicas, and the sentinels that watch them, on the loopback address."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import redis

from korvet.embedded.allocator import server_environment
from korvet.embedded.binary import identify
from tests.support.module import module_options
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis_server import await_answer

if TYPE_CHECKING:
    from tests.support.cluster import Tls

NAME: Final = "main"
"""The name by which the sentinels know the primary."""
_FORMED_S: Final = 30
# Silence after which a sentinel takes a server for dead.
_DOWN_AFTER_MS: Final = 2000
# Limits each phase of a failover; the next one begins at the earliest after twice this time.
_FAILOVER_TIMEOUT_MS: Final = 2000
# A sentinel that did not run for this time does nothing for 30 s. Tests may keep the machine busy.
_TILT_TRIGGER_MS: Final = 60_000
# Interval of the sentinels' greetings: they find each other by these, and demote a former primary that comes
# back after four of them.
_PUBLISH_PERIOD_MS: Final = 300
# Interval at which the sentinels read the roles of the servers if no failover is in progress.
_INFO_PERIOD_MS: Final = 1000
# The default of replica-priority; sentinels never promote a replica whose priority is 0.
_PRIORITY: Final = 100


class _Process:
    """A process that listens on a port of its own. Clients trust any certificate of the test's authority."""

    def __init__(self, command: list[str], port: int, tls: Tls | None, password: str | None) -> None:
        self.port = port
        self._command = command
        self._environ = server_environment(identify(Path(command[0])), os.environ)
        trusted: dict[str, Any] = {} if tls is None else {"ssl": True, "ssl_ca_certs": str(tls.authority)}
        self.client: Any = redis.Redis(
            "127.0.0.1", port, password=password, decode_responses=True, socket_timeout=5, **trusted
        )
        self.start()

    def start(self, *options: str) -> None:
        """Start the process, or restart it after its end."""
        command = [*self._command, *options]
        self.paused = False
        self.process = subprocess.Popen(command, env=self._environ, stdout=subprocess.DEVNULL)
        await_answer(self.process, self.client)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self.client.connection_pool.disconnect()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing is answered."""
        self.paused = True
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def stop(self) -> None:
        self.client.close()
        self.kill()


class ReplicatedServer(_Process):
    """A primary or a replica, without persistence."""

    def __init__(self, program: str, folder: Path, tls: Tls | None, password: str | None) -> None:
        folder.mkdir()
        port = free_port()
        command = [
            program,
            *(("--port", str(port)) if tls is None else tls.options(port, cluster=False)),
            *("--bind", "127.0.0.1", "--save", "", "--dir", str(folder), "--logfile", "log"),
            *("--repl-diskless-sync-delay", "0"),
            *(() if password is None else ("--requirepass", password, "--masterauth", password)),
            *module_options(program),
        ]
        super().__init__(command, port, tls, password)

    def replication(self) -> dict[str, Any]:
        """INFO replication."""
        return dict(self.client.info("replication"))

    @property
    def is_primary(self) -> bool:
        return bool(self.replication()["role"] == "master")

    def follows(self, primary: ReplicatedServer) -> bool:
        """Whether this server is a replica that has all data that `primary` had at this call."""
        # The link is up before the primary sends what was written during the synchronization.
        end = primary.replication()["master_repl_offset"]
        found = self.replication()
        follows = found.get("master_port") == primary.port and found.get("master_link_status") == "up"
        return follows and found["slave_repl_offset"] >= end


class Sentinel(_Process):
    """A sentinel that watches one primary."""

    def __init__(
        self,
        program: str,
        folder: Path,
        primary: ReplicatedServer,
        quorum: int,
        tls: Tls | None,
        passwords: tuple[str | None, str | None],
        down_after_ms: int,
    ) -> None:
        """`passwords`: of the servers, of the sentinels."""
        folder.mkdir()
        port = free_port()
        of_servers, of_sentinels = passwords
        lines = [
            f"port {port if tls is None else 0}",
            "bind 127.0.0.1",
            f"dir {folder}",
            "logfile log",
            *([] if tls is None else tls.lines(port)),
            f"sentinel monitor {NAME} 127.0.0.1 {primary.port} {quorum}",
            f"sentinel down-after-milliseconds {NAME} {down_after_ms}",
            f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT_MS}",
            *([] if of_servers is None else [f"sentinel auth-pass {NAME} {of_servers}"]),
            *([] if of_sentinels is None else [f"requirepass {of_sentinels}"]),
            *([] if of_sentinels is None else [f"sentinel sentinel-pass {of_sentinels}"]),
        ]
        # A sentinel writes what it learns into its configuration file.
        file = folder / "sentinel.conf"
        file.write_text("\n".join(lines) + "\n")
        super().__init__([program, str(file), "--sentinel"], port, tls, of_sentinels)
        times = {
            "tilt-trigger": _TILT_TRIGGER_MS,
            "publish-period": _PUBLISH_PERIOD_MS,
            "info-period": _INFO_PERIOD_MS,
        }
        for name, milliseconds in times.items():
            self.client.execute_command("SENTINEL DEBUG", name, milliseconds)

    def view(self) -> dict[str, Any]:
        """What the sentinel knows about the primary (SENTINEL MASTER)."""
        return dict(self.client.sentinel_master(NAME))

    def replicas(self) -> set[int]:
        """The ports of the replicas that the sentinel would promote, and would not demote after that: it has
        seen them as replicas.
        """
        found = self.client.sentinel_slaves(NAME)
        useful = (each for each in found if not (each["is_sdown"] or each["is_disconnected"]))
        return {each["port"] for each in useful if each["role-reported"] == "slave"}


class SentinelGroup:
    """One primary with replicas, and sentinels that agree on a failover by a majority."""

    def __init__(
        self,
        program: str,
        folder: Path,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        tls: Tls | None = None,
        password: str | None = None,
        sentinel_password: str | None = None,
        down_after_ms: int = _DOWN_AFTER_MS,
    ) -> None:
        """`password`: of the servers; `sentinel_password`: of the sentinels. `down_after_ms`: the silence
        after which a sentinel takes a server for dead.
        """
        self._tls = tls
        self._passwords = password, sentinel_password
        # The options of a planned failover that has not ended.
        self._planned: tuple[str, ...] | None = None
        folder.mkdir()
        self.servers: list[ReplicatedServer] = []
        self.sentinels: list[Sentinel] = []
        try:
            for number in range(1 + replicas):
                folder_of = folder / f"server-{number}"
                self.servers.append(ReplicatedServer(program, folder_of, tls, password))
            first, *others = self.servers
            for other in others:
                other.client.replicaof("127.0.0.1", first.port)
            until(lambda: all(other.follows(first) for other in others), _FORMED_S, "replicas follow")
            quorum = sentinels // 2 + 1
            for number in range(sentinels):
                folder_of = folder / f"sentinel-{number}"
                self.sentinels.append(
                    Sentinel(program, folder_of, first, quorum, tls, self._passwords, down_after_ms)
                )
            self.wait_whole()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """Names all sentinels, with the passwords."""
        of_servers, of_sentinels = (password and quote(password, safe="") for password in self._passwords)
        scheme = "redis" if self._tls is None else "rediss"
        user = f":{of_servers}@" if of_servers else ""
        query = f"?sentinel_password={of_sentinels}" if of_sentinels else ""
        nodes = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"{scheme}+sentinel://{user}{nodes}/{NAME}{query}"

    @property
    def primary(self) -> ReplicatedServer:
        """The primary by the newest view of the sentinels that answer."""
        views = [each.view() for each in self.sentinels if each.running and not each.paused]
        newest = max(views, key=lambda view: int(view["config-epoch"]))
        return next(server for server in self.servers if server.port == newest["port"])

    @property
    def replica(self) -> ReplicatedServer:
        """The first server that is not the primary."""
        primary = self.primary
        return next(server for server in self.servers if server is not primary)

    def wait_whole(self) -> None:
        """Wait until all servers and sentinels run, know each other, and all replicas have all data."""
        until(self._is_whole, _FORMED_S, "the group is whole")

    def _is_whole(self) -> bool:
        primary = self.primary
        replicas = {server.port for server in self.servers if server is not primary}
        views = [sentinel.view() for sentinel in self.sentinels]
        return (
            primary.is_primary
            and all(server.follows(primary) for server in self.servers if server is not primary)
            and all(sentinel.replicas() == replicas for sentinel in self.sentinels)
            and all(view["port"] == primary.port and view["flags"] == "master" for view in views)
            and all(view["num-other-sentinels"] == len(self.sentinels) - 1 for view in views)
        )

    def fail_over(self, *options: str) -> None:
        """Begin a planned failover (SENTINEL FAILOVER); `wait_switched` waits for its end."""
        self._planned = options
        self.sentinels[0].client.execute_command("SENTINEL FAILOVER", NAME, *options)

    def _fail_over_again(self, former: ReplicatedServer) -> None:
        """Repeat a planned failover that the sentinel has given up: on a busy machine it may find no replica
        that has answered lately.
        """
        if self._planned is None:
            return
        asked = self.sentinels[0]
        view = asked.view()
        if view["port"] == former.port and "failover_in_progress" not in view["flags"].split(","):
            with contextlib.suppress(redis.ResponseError):
                asked.client.execute_command("SENTINEL FAILOVER", NAME, *self._planned)

    def wait_switched(self, former: ReplicatedServer) -> ReplicatedServer:
        """Wait until another server than `former` is the primary; returns it."""

        def switched() -> ReplicatedServer | None:
            found = self.primary
            if found is not former:
                return found
            self._fail_over_again(former)
            return None

        found = until(switched, _FORMED_S, "the sentinels have chosen another primary")
        self._planned = None
        return found

    def rejoin(self, server: ReplicatedServer) -> None:
        """Make a killed or paused server a replica of the primary, and wait until the group is whole."""
        if not server.running:
            self._restart(server)
        else:
            server.resume()
        self.wait_whole()

    def _restart(self, server: ReplicatedServer) -> None:
        """Sentinels may fail over once more on a busy machine, and would promote a replica that is empty
        still: its priority keeps it from that until it has all data.
        """
        primary = self.primary
        server.start("--replicaof", f"127.0.0.1 {primary.port}", "--replica-priority", "0")
        until(lambda: server.follows(primary), _FORMED_S, "the restarted server has all data")
        server.client.config_set("replica-priority", _PRIORITY)

    def stop(self) -> None:
        for process in (*self.sentinels, *self.servers):
            process.stop()
