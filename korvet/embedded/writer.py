"""The record of a data folder (`server.json`): which server has written the folder."""

import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from korvet.embedded.binary import ServerBinary, version_text
from korvet.embedded.errors import EmbeddedServerError

_RECORD = "server.json"


class Writer(NamedTuple):
    """The newest server that has written a folder."""

    kind: str
    version: tuple[int, ...]


def read_writer(folder: Path) -> Writer | None:
    """Returns the record; None if there is none. Raises EmbeddedServerError if it is damaged."""
    record = folder / _RECORD
    try:
        noted = json.loads(record.read_text())
        version = tuple(int(part) for part in str(noted["version"]).split("."))
        return Writer(str(noted["kind"]), version)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EmbeddedServerError(f"{record} is damaged ({error}); delete it to use the folder") from error


def check_writer(folder: Path, server: ServerBinary) -> None:
    """Raises EmbeddedServerError if another kind of server, or a newer version, has written the folder."""
    noted = read_writer(folder)
    if noted is None:
        return
    record = folder / _RECORD
    written_by = (
        f"{folder} was written by {noted.kind} {version_text(noted.version)}, "
        f"but the server found is {server}"
    )
    if noted.kind != server.kind:
        raise EmbeddedServerError(
            f"{written_by}. Install {noted.kind} again, or delete {record} to switch on purpose "
            "(keep a copy of the folder)."
        )
    if server.version < noted.version:
        raise EmbeddedServerError(
            f"{written_by}, which is older and may not read it. Install the newer one again, "
            f"or delete {record} to try on purpose (keep a copy of the folder)."
        )


def note_writer(folder: Path, server: ServerBinary) -> None:
    """Record the server that will write to the folder. The record is on the disk when this returns.

    Raises EmbeddedServerError if it can't be written.
    """
    writer = Writer(server.kind, server.version)
    record = folder / _RECORD
    if read_writer(folder) == writer:
        return
    fields = {"kind": writer.kind, "version": version_text(writer.version)}
    try:
        _write_durably(record, json.dumps(fields) + "\n")
    except OSError as error:
        raise EmbeddedServerError(f"{record} cannot be written: {error.strerror}") from error


def forget_writer(folder: Path) -> None:
    """Delete the record, so that a server of another kind may use the folder."""
    (folder / _RECORD).unlink(missing_ok=True)


def _write_durably(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
    # The new name must be on the disk, too.
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
