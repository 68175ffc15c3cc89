"""Starts, watches and stops the embedded server process.

Its configuration is made for durability. The server has an append-only file from the first start, and flushes
it on every write by default. With `everysec`, Redis may answer before write(2) while a flush runs, so a kill
could lose acknowledged records. The file contains plain commands (`aof-use-rdb-preamble no`) that other
versions can read.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from korvet.config.machine_memory import described_end, memory_kills
from korvet.embedded import append_only, folder, privacy, shim, sockets, writer
from korvet.embedded.allocator import server_environment
from korvet.embedded.binary import ServerBinary, find_server
from korvet.embedded.conf import conf
from korvet.embedded.disk_space import DiskSpace
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.log_end import last_lines
from korvet.embedded.module import AUTO, MODULE_MISSING, MODULE_REFUSED, OFF, module_needed
from korvet.embedded.probe import Probe, ProbeError
from korvet.redis.module import find_module

logger = logging.getLogger(__name__)

# Longest time without progress during a start, enough to begin listening on a busy machine. Loading the
# append-only file may take longer: each progress restarts the clock.
START_TIMEOUT_S = 60.0
# Longest wait for a stop: the server flushes its append-only file first, and the disk may be slow.
STOP_TIMEOUT_S = 120.0
# The first Valkey that reads snapshots of Redis 7.4 and newer, as far as it knows the types in them.
_READS_FOREIGN_SNAPSHOTS = (9, 0, 0)
_POLL_S = 0.01
# Longest wait for the answer to a request to stop.
_ASKING_TIMEOUT_S = 1.0
_WRITES_NEED_REPLICAS = "min-replicas-to-write"
# Lines of the server's log when it refuses its own files.
_DAMAGED = (
    "Bad file format reading the append only file",
    "Unexpected end of file reading the append only file",
)
_LOG_MAX_BYTES = 8 * 1024 * 1024


class _ModuleRefusedError(EmbeddedServerError):
    """The server does not load the server module, and has exited."""


class EmbeddedServer:
    """A private server process on one data folder.

    Above `maxmemory_bytes` of data it refuses writes (0: never); it always loads what its files contain.
    Calls `on_loading(loaded_bytes, total_bytes)` while a start reads the append-only file.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        appendfsync: str = "always",
        module: str = AUTO,
        binary: ServerBinary | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        reserve_bytes: int = 0,
        maxmemory_bytes: int = 0,
        on_loading: Callable[[int, int], None] | None = None,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.binary = binary
        self._appendfsync = appendfsync
        self._module_setting = module
        self._start_timeout_s = start_timeout_s
        self._maxmemory_bytes = maxmemory_bytes
        self._on_loading = on_loading
        self.disk_space = DiskSpace(self.data_dir, reserve_bytes)
        """Below `reserve_bytes` of free space the server refuses writes; reads continue."""
        self._owner_lock = folder.FolderLock(self.data_dir / folder.OWNER_LOCK)
        self._server_lock = folder.FolderLock(self.data_dir / folder.SERVER_LOCK)
        self.loaded_module: Path | None = None
        """The server module that the server loads. `start` sets it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._socket = Path()
        self._sizes: dict[str, int] = {}
        """Sizes of the append-only file's parts, in bytes, at the launch of the server."""
        self._memory_kills: int | None = None
        """Processes that the kernel had killed at the launch of the server."""

    @property
    def socket(self) -> Path:
        """The Unix socket of the running server."""
        return self._socket

    @property
    def url(self) -> str:
        """The `unix://` URL of the running server."""
        return sockets.url_of(self._socket)

    @property
    def pid(self) -> int:
        """The server's process ID. Raises EmbeddedServerError if it isn't running."""
        if self._process is None:
            raise EmbeddedServerError(f"no server is running on {self.data_dir}")
        return self._pid

    def start(self, meanwhile: Callable[[], None] | None = None) -> str:
        """Start the server, call `meanwhile` while it starts, and wait until it answers. Returns its
        `unix://` URL.

        Call it on the main thread: the kernel ends the server with the *thread* that started it. Raises
        EmbeddedServerError: no program, folder in use, folder of another server, incomplete copy of a folder,
        folder that needs the server module, or the end of the server's log if the server exits.
        """
        if threading.current_thread() is not threading.main_thread():
            raise EmbeddedServerError("the embedded server must be started from the main thread")
        self.binary = self.binary or find_server()
        folder.open_folder(self.data_dir)
        if not self._owner_lock.acquire():
            holder = folder.describe_holder(self._owner_lock.holder())
            raise EmbeddedServerError(f"the data folder {self.data_dir} is in use by {holder}")
        try:
            self._owner_lock.write(os.getpid())
            folder.check_restored(self.data_dir)
            append_only.check_manifest(self.data_dir)
            self._socket = sockets.socket_path(self.data_dir)
            self._end_orphan()
            self._check_disk_space()
            writer.check_writer(self.data_dir, self.binary)
            writer.note_writer(self.data_dir, self.binary)
            self.loaded_module = self._find_module()
            self.launch()
            if meanwhile is not None:
                meanwhile()
            self._wait_started()
        except BaseException:
            self._end()
            self._owner_lock.release()
            raise
        return self.url

    def _find_module(self) -> Path | None:
        if self._module_setting == OFF:
            return None
        module = find_module()
        if module is None:
            logger.warning("the embedded server runs without korvet's server module, which is not built")
        return module

    def _wait_started(self) -> None:
        """Wait until the server answers. If it refuses the module, launch it again without."""
        try:
            self.wait_ready()
        except _ModuleRefusedError as refused:
            logger.warning("the embedded server runs without korvet's server module: %s", refused)
            self.loaded_module = None
            self.launch()
            self.wait_ready()

    def launch(self) -> None:
        """Start, or restart, the process without waiting (see `wait_ready`).

        Call it on the main thread, after `start` has locked the folder.
        """
        assert self.binary is not None
        self._end()
        self._take_server_lock()
        try:
            self._launch()
        finally:
            # Only the server holds the lock from here on, so the lock shows whether the server still runs.
            self._server_lock.release()

    def _launch(self) -> None:
        assert self.binary is not None
        # Without a server there is no rewrite. A killed one has left its file, which may fill the disk.
        for leftover in append_only.unfinished(self.data_dir):
            leftover.unlink()
        self._socket.unlink(missing_ok=True)
        sockets.link_socket(self.data_dir, self._socket)
        log = self.data_dir / "server.log"
        if log.exists() and log.stat().st_size > _LOG_MAX_BYTES:
            log.replace(log.with_suffix(".log.1"))
        self.disk_space.check()
        settings = self.data_dir / "server.conf"
        if not settings.exists() or settings.read_bytes() != os.fsencode(self._settings()):
            privacy.write_private(settings, os.fsencode(self._settings()))
        self._sizes = self._sizes_now()
        self._memory_kills = memory_kills()
        mode = "bind" if sys.platform == "linux" else "watch"
        lock_fd = self._server_lock.fd
        # As an argument, because the disk may have no space for another file.
        program = [str(self.binary.path), str(settings), f"--{_WRITES_NEED_REPLICAS}", self._replicas_needed]
        if self.loaded_module is not None:
            program += ["--loadmodule", str(self.loaded_module)]
        with privacy.append_private(log) as output:
            process = subprocess.Popen(
                shim.shimmed(mode, signal.SIGTERM, lock_fd, program),
                env=server_environment(self.binary, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[lock_fd],
                umask=privacy.UMASK,
                start_new_session=True,  # Ctrl-C in a terminal reaches only us; we stop the server last
            )
        self._pid, self._process = process.pid, process
        self._server_lock.write(self._pid)

    def wait_ready(self) -> None:
        """Wait until the launched server answers and has loaded its files. Raises EmbeddedServerError."""
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_s
        loaded_bytes = -1
        while (status := self._process.poll()) is None:
            try:
                with Probe(self._socket) as probe:
                    state = probe.info("persistence")
                    if state["loading"] == "0":
                        probe.ping()
                        self._pid = int(probe.info("server")["process_id"])
                        self._report_cut()
                        return
            except ProbeError as error:
                reason = str(error)
            else:
                now_bytes = int(state.get("loading_loaded_bytes", "0"))
                if now_bytes > loaded_bytes:
                    loaded_bytes, deadline = now_bytes, time.monotonic() + self._start_timeout_s
                    self._report_loading(now_bytes, int(state.get("loading_total_bytes", "0")))
                reason = f"it is loading its files, {loaded_bytes} bytes so far"
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"{self.binary} does not become ready: {reason}{self.log_tail()}")
            time.sleep(_POLL_S)
        log_tail = self.log_tail()
        if MODULE_MISSING in log_tail.lower():
            raise module_needed(self.data_dir, log_tail)
        if self.loaded_module is not None and MODULE_REFUSED in log_tail.lower():
            raise _ModuleRefusedError(f"{self.binary} does not load it{log_tail}")
        if any(sign in log_tail for sign in _DAMAGED):
            raise EmbeddedServerError(
                f"the append-only file in {self.data_dir} is damaged: "
                f"`korvet repair --data-dir {self.data_dir}` makes a backup and "
                f"cuts it off at the damage{log_tail}"
            )
        raise EmbeddedServerError(
            f"{self.binary} {described_end(status, self._memory_kills)} while starting{log_tail}"
        )

    def _sizes_now(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in (self.data_dir / append_only.FOLDER).glob("*.aof")}

    def _report_cut(self) -> None:
        """Log how much of the append-only file the server cut off: an incomplete command
        (`aof-load-truncated`).
        """
        # A rewrite may have deleted parts that it replaced.
        now = self._sizes_now()
        cut_bytes = sum(max(before - now.get(name, before), 0) for name, before in self._sizes.items())
        if cut_bytes > 0:
            logger.warning(
                "the append-only file in %s ended within a command, %d bytes of it were cut off: "
                "a write that was not acknowledged, unless the disk has lost more",
                self.data_dir,
                cut_bytes,
            )

    def apply_disk_space(self) -> None:
        """Make the server refuse or accept writes, depending on `disk_space`. Raises ProbeError.

        The server has no replicas, so it refuses all writes (NOREPLICAS) if they need one. Then it appends
        nothing to its file, and doesn't exit because of a failed append.
        """
        with Probe(self._socket) as probe:
            probe.config_set(_WRITES_NEED_REPLICAS, self._replicas_needed)

    @property
    def _replicas_needed(self) -> str:
        return "1" if self.disk_space.is_short else "0"

    def _check_disk_space(self) -> None:
        self.disk_space.check()
        if self.disk_space.is_short:
            raise EmbeddedServerError(
                f"the disk of {self.data_dir} has {self.disk_space.free_bytes} bytes left, and "
                f"{self.disk_space.reserve_bytes} are needed: free some space, or lower disk.reserve.bytes"
            )

    def exit_status(self) -> int | None:
        """Returns the server's exit status (negative: the signal that ended it); None while it runs."""
        return None if self._process is None else self._process.poll()

    def described_end(self) -> str | None:
        """Returns how the server has ended, for a message; None while it runs."""
        status = self.exit_status()
        return None if status is None else described_end(status, self._memory_kills)

    def terminate(self) -> None:
        """Send SIGTERM to the server, and don't wait for its end: `stop` does."""
        if self._process is not None:
            self._process.terminate()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the server, wait until it has written everything, and release the folder.

        Does nothing if the server wasn't started. Raises EmbeddedServerError if the server had to be killed.
        """
        if self._process is None:
            self._owner_lock.release()
            return
        try:
            if not self._end(timeout_s):
                raise EmbeddedServerError(
                    f"{self.binary} did not stop within {timeout_s:g} s and was killed{self.log_tail()}"
                )
        finally:
            self._socket.unlink(missing_ok=True)
            self._owner_lock.release()

    def log_tail(self) -> str:
        """Returns the last lines of the server's log, as the end of a message."""
        path = self.data_dir / "server.log"
        if not path.exists():
            return ""
        with path.open("rb") as log:
            return f". The end of {path}:\n{last_lines(log.fileno())}"

    def _settings(self) -> str:
        pairs = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "daemonize": "no",
            "pidfile": "",
            "dir": str(self.data_dir),
            "logfile": "",  # standard output, which is server.log
            "save": "",
            # A snapshot for a backup begins at once, and goes to the connection without a file.
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "aof-use-rdb-preamble": "no",
            # With `always`, an incomplete command at the end was never acknowledged: the cut loses nothing.
            "aof-load-truncated": "yes",
            "maxmemory": str(self._maxmemory_bytes),
            "maxmemory-policy": "noeviction",
        }
        assert self.binary is not None
        if self.binary.kind == "valkey" and self.binary.version >= _READS_FOREIGN_SNAPSHOTS:
            # A backup may hold the snapshot of another server. One with unknown types is refused.
            pairs["rdb-version-check"] = "relaxed"
        return "# Every start of the embedded server replaces this file.\n" + conf(pairs)

    def _take_server_lock(self) -> None:
        """Take the lock, which is free once the last server is gone. A killed server may need a moment."""
        deadline = time.monotonic() + self._start_timeout_s
        while not self._server_lock.acquire():
            if time.monotonic() > deadline:
                holder = folder.describe_holder(self._server_lock.holder())
                raise EmbeddedServerError(f"a server still runs on {self.data_dir}: {holder}; stop it first")
            time.sleep(_POLL_S)

    def _end_orphan(self) -> None:
        """Shut down a server that outlived its owner, before we start our own.

        The old server can't continue, because nothing would end it when we end.
        """
        if self._server_lock.acquire():
            self._server_lock.release()
            return
        # Only a server started on this folder holds the lock and creates the socket.
        try:
            with Probe(self._socket) as probe:
                logger.warning(
                    "taking over %s: server process %s has outlived its owner",
                    self.data_dir,
                    probe.info("server")["process_id"],
                )
                probe.shut_down()
        except ProbeError as error:
            logger.warning(
                "a server on %s has outlived its owner and may be stopping: %s", self.data_dir, error
            )

    def _end(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """End the process, if there is one, in order. Returns False if it had to be killed."""
        process, self._process = self._process, None
        if process is None:
            return True
        try:
            self._ask_to_end(process)
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.kill(self._pid, signal.SIGKILL)
            process.wait()
            return False
        return True

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            try:
                # At once; the server sees a signal only at its next tick, after up to 100 ms.
                with Probe(self._socket, _ASKING_TIMEOUT_S) as probe:
                    probe.shut_down()
            except ProbeError:
                process.terminate()

    def _report_loading(self, loaded_bytes: int, total_bytes: int) -> None:
        if self._on_loading is not None:
            self._on_loading(loaded_bytes, total_bytes)
