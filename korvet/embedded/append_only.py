"""Reads the parts of an append-only file: the names in the manifest, and the commands in a part."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from korvet.embedded.errors import EmbeddedServerError

FOLDER: Final = "appendonlydir"
MANIFEST: Final = "appendonly.aof.manifest"
# Types of parts that a server loads: base and incremental. History ("h") waits for its deletion.
_LOADED: Final = frozenset({"b", "i"})
_PIECE_BYTES: Final = 1 << 20


def has_data(data_dir: Path) -> bool:
    """Whether a server has written an append-only file in the folder."""
    return (data_dir / FOLDER / MANIFEST).exists()


def check_manifest(data_dir: Path) -> None:
    """Refuse parts without a manifest: a server would ignore their data, and overwrite or continue them.

    Raises EmbeddedServerError.
    """
    files = data_dir / FOLDER
    # A first start that was killed has left empty parts.
    if not has_data(data_dir) and any(path.stat().st_size for path in files.glob("appendonly.aof.*")):
        raise EmbeddedServerError(
            f"{files} contains data, but {MANIFEST} is missing: the folder is an incomplete copy. Copy all "
            "of the original while nothing runs on it, or restore a backup; or move the folder away to "
            "begin without data"
        )


def parts(data_dir: Path) -> list[Path]:
    """Returns the files that a server loads, in order. Raises EmbeddedServerError for an unknown manifest."""
    manifest = data_dir / FOLDER / MANIFEST
    found = []
    try:
        for line in manifest.read_text().splitlines():
            words = shlex.split(line, comments=True)
            fields = dict(zip(words[::2], words[1::2], strict=True))
            if fields and fields["type"] in _LOADED:
                found.append(manifest.with_name(fields["file"]))
    except (ValueError, KeyError) as error:
        raise EmbeddedServerError(f"{manifest} is damaged: {error}") from error
    return found


def unfinished(data_dir: Path) -> list[Path]:
    """Returns the files that rewrites have not finished: of the running one, or of a killed server."""
    return list(data_dir.glob("temp-rewriteaof-*.aof"))


def holds_command(path: Path, name: bytes, report: Callable[[int], None]) -> bool:
    """Whether a part holds a command. A part that isn't a sequence of commands counts as one that does if the
    name is in it.

    Calls `report(read_bytes)` after each piece. Raises EmbeddedServerError if the part can't be read.
    """
    try:
        with path.open("rb") as file:
            # Reading every command takes 16 times as long. It is needed if a record looks like the command.
            if not _contains_argument(file, name, report):
                return False
            file.seek(0)
            return any(first.upper() == name for first, *_ in _commands(file))
    except ValueError:
        return True
    except OSError as error:
        raise EmbeddedServerError(f"{path} cannot be read: {error.strerror}") from error


def commands(path: Path) -> Iterator[tuple[bytes, ...]]:
    """Yields each command of a part, with its arguments. Raises EmbeddedServerError if the part isn't a
    sequence of commands or can't be read.
    """
    try:
        with path.open("rb") as file:
            yield from _commands(file)
    except ValueError as error:
        raise EmbeddedServerError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise EmbeddedServerError(f"{path} cannot be read: {error.strerror}") from error


def _contains_argument(file: BinaryIO, word: bytes, report: Callable[[int], None]) -> bool:
    """Whether a word is in the file in the form of an argument, in any case."""
    argument = re.compile(rb"\$%d\r\n(?i:%b)\r\n" % (len(word), re.escape(word)))
    end = b""
    while piece := file.read(_PIECE_BYTES):
        if argument.search(end + piece):
            return True
        end = (end + piece)[-len(word) - len(b"$99\r\n\r\n") :]
        report(len(piece))
    return False


def _commands(file: BinaryIO) -> Iterator[tuple[bytes, ...]]:
    """Yields the words of each command. Raises ValueError at the first byte that is no command."""
    while line := file.readline():
        if line.startswith(b"#"):  # a comment, for example a timestamp
            continue
        words = tuple([_argument(file) for _ in range(_number(line, b"*"))])
        if not words:
            raise ValueError("a command has no name")
        yield words


def _argument(file: BinaryIO) -> bytes:
    size = _number(file.readline(), b"$")
    argument = file.read(size + 2)
    if len(argument) != size + 2:
        raise ValueError("the file ends within a command")
    return argument[:size]


def _number(line: bytes, mark: bytes) -> int:
    if not line.startswith(mark):
        raise ValueError(f"expected {mark!r}, found {line[:20]!r}")
    return int(line[1:])
