"""The parts of an append-only file: the manifest, and the search for a command."""

from pathlib import Path

import pytest

from korvet.embedded import append_only
from korvet.embedded.append_only import holds_command, parts
from korvet.embedded.errors import EmbeddedServerError

NAME = b"KORVET.ADD"


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


PLAIN = command(b"MULTI") + command(b"XADD", b"s", b"1-0", b"value", b"v" * 50) + command(b"EXEC")
ADD = command(NAME, b"s", b"2-0", b"0", b"1", b"batch")
# A record that has the bytes of the command in its value.
ALIKE = command(b"XADD", b"s", b"3-0", b"value", ADD)


def holds(tmp_path: Path, content: bytes) -> bool:
    path = tmp_path / "part.aof"
    path.write_bytes(content)
    return holds_command(path, NAME, lambda read_bytes: None)


@pytest.mark.parametrize(
    ("content", "held"),
    [
        (b"", False),
        (PLAIN * 3, False),
        (PLAIN + ADD, True),
        (PLAIN + ADD.lower(), True),
        (command(b"MULTI") + ADD + command(b"EXEC"), True),
        (ALIKE * 2, False),
        (ALIKE + ADD + PLAIN, True),
        (command(b"SET", b"name", NAME), False),
        (b"#TS:1760000000\r\n" + ALIKE, False),
        (b"#TS:1760000000\r\n" + ADD, True),
        # What can't be read as commands may hold the command.
        (b"REDIS0011" + PLAIN, False),
        (b"REDIS0011" + ALIKE, True),
        (ALIKE + PLAIN[:-9], True),
    ],
)
def test_a_command_is_found_and_a_record_that_looks_like_it_is_not(
    tmp_path: Path, content: bytes, *, held: bool
) -> None:
    assert holds(tmp_path, content) is held


def test_a_command_is_found_across_two_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_only, "_PIECE_BYTES", 64)
    for filler in range(130):
        assert holds(tmp_path, command(b"SET", b"k", b"v" * filler) + ADD), filler


def test_every_piece_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_only, "_PIECE_BYTES", 64)
    path = tmp_path / "part.aof"
    path.write_bytes(PLAIN * 3)
    seen: list[int] = []
    assert not holds_command(path, NAME, seen.append)
    assert sum(seen) == len(PLAIN * 3)


def test_a_part_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"gone\.aof cannot be read: No such file"):
        holds_command(tmp_path / "gone.aof", NAME, lambda read_bytes: None)


def manifest(data_dir: Path, text: str) -> Path:
    folder = data_dir / append_only.FOLDER
    folder.mkdir(parents=True)
    (folder / append_only.MANIFEST).write_text(text)
    return folder


def test_the_manifest_names_what_a_server_loads(tmp_path: Path) -> None:
    assert not append_only.has_data(tmp_path)
    folder = manifest(
        tmp_path,
        "# a comment\n"
        "file appendonly.aof.2.base.aof seq 2 type b\n"
        "file appendonly.aof.1.incr.aof seq 1 type h\n"
        'file "append only.aof.2.incr.aof" seq 2 type i\n',
    )
    assert append_only.has_data(tmp_path)
    assert parts(tmp_path) == [
        folder / "appendonly.aof.2.base.aof",
        folder / "append only.aof.2.incr.aof",
    ]


@pytest.mark.parametrize("text", ["file", "file a seq 1", 'file "a seq 1 type b'])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    manifest(tmp_path, text)
    with pytest.raises(EmbeddedServerError, match=r"appendonly\.aof\.manifest is damaged"):
        parts(tmp_path)
