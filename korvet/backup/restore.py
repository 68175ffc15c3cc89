"""Restores a backup into an empty data folder, server or cluster.

Nothing is written to the target before the backup is verified, and the target becomes usable by one last
step. Until then brokers refuse it, and the same restore may begin again. Each restore is noted in the backup.
"""

import shutil
import tempfile
from pathlib import Path

from korvet.backup import files, restores
from korvet.backup.errors import BackupError
from korvet.backup.files import Report
from korvet.backup.loading import LastReplyLostError, check_target, is_restored, load
from korvet.backup.manifest import Manifest, read
from korvet.backup.numbers import described_by
from korvet.backup.primaries import primaries
from korvet.backup.staging import stage
from korvet.cluster.versions import format_problem
from korvet.embedded import append_only, folder
from korvet.embedded.binary import find_server
from korvet.embedded.writer import note_writer
from korvet.redis.errors import StoreError


def check(backup: Path, scratch: Path | None, report: Report) -> Manifest:
    """Verify a backup as a restore does, and write nothing but temporary files.

    Call it on the main thread. Raises BackupError and EmbeddedServerError.
    """
    manifest = _read(backup)
    with _scratch(scratch) as name:
        stage(backup, manifest, Path(name), report)
    return manifest


def restore_folder(backup: Path, data_dir: Path, report: Report) -> Manifest:
    """Restore a backup into a data folder that does not exist or holds no data.

    Call it on the main thread. Raises BackupError and EmbeddedServerError; the folder then has no data.
    """
    manifest, data_dir = _read(backup), data_dir.absolute()
    _check_database(manifest, 0, "`korvet serve` uses database 0 of a data folder: restore into a server")
    folder.open_folder(data_dir)
    with folder.locked(data_dir):
        target, staging = data_dir / append_only.FOLDER, data_dir / folder.RESTORING
        if target.exists():
            raise BackupError(
                f"{data_dir} contains data already: name another folder, or move {target} away first"
            )
        if staging.exists():
            # The server of a killed restore may not have ended yet.
            with folder.locked(staging):
                shutil.rmtree(staging, ignore_errors=True)
        try:
            staging.mkdir(mode=0o700)
            files.sync_folder(data_dir)
            stage(backup, manifest, staging, report, earlier=restores.note(backup))
            note_writer(data_dir, find_server())
            files.sync_tree(staging)
            (staging / append_only.FOLDER).rename(target)
            files.sync_folder(data_dir)
        except OSError as error:
            raise BackupError(f"{data_dir} cannot be written: {error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return manifest


def restore_server(backup: Path, url: str, scratch: Path | None, report: Report) -> Manifest:
    """Restore a backup into a server or a cluster that holds no keys, or an unfinished restore of the same
    backup.

    Call it on the main thread. Raises BackupError, StoreError and EmbeddedServerError. After a failure the
    server may hold a part of the data; brokers refuse it until the restore is repeated. If the connection
    breaks during the last step and the server stays away, the restore may be complete: the message says so.
    """
    manifest = _read(backup)
    with _scratch(scratch) as name:
        with primaries(url) as target:
            database = target.connections[0].address.database
            _check_database(manifest, database, f"the URL names database {database}: name the other one")
            check_target([described_by(manifest)], manifest, target)
        staged = stage(backup, manifest, Path(name), report, earlier=restores.note(backup))
        # Servers close connections that are idle for as long as that takes (timeout).
        try:
            with primaries(url) as target:
                if target.is_cluster and any(staged.databases):
                    raise BackupError(
                        f"the backup holds keys in the databases {staged.databases}, and a Redis Cluster has "
                        "database 0 only: restore into a server"
                    )
                load(append_only.parts(Path(name)), staged.keyspaces, manifest, target, report)
        except LastReplyLostError as lost:
            _confirm(manifest, url, lost)
    return manifest


def _confirm(manifest: Manifest, url: str, lost: LastReplyLostError) -> None:
    """Look whether the last step of a restore has succeeded. Raises BackupError unless it has."""
    try:
        with primaries(url) as target:
            restored = is_restored(manifest, target)
    except (BackupError, StoreError) as error:
        raise BackupError(
            f"{lost}. The restore may be complete: look with `korvet doctor` when the server answers again. "
            f"Now: {error}"
        ) from error
    if not restored:
        raise BackupError(f"{lost}. The restore is not finished: run it again") from lost


def _check_database(manifest: Manifest, database: int, what: str) -> None:
    """Refuse a target in which brokers would not find the keyspace, and would begin an empty one."""
    if manifest.database != database:
        raise BackupError(
            f"the backup has the keyspace {manifest.keyspace!r} in database {manifest.database}, and {what}"
        )


def _read(backup: Path) -> Manifest:
    manifest = read(backup)
    problem = format_problem(b"%d" % manifest.format)
    if problem is not None:
        raise BackupError(f"the keyspace in {backup} {problem}")
    return manifest


def _scratch(parent: Path | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="korvet-restore-", dir=parent)
    except OSError as error:
        raise BackupError(f"no temporary folder can be created: {error}") from error
