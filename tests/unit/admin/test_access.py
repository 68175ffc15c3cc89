"""Tokens and passwords of the admin endpoint, from settings and from files."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from korvet.admin.access import Access
from korvet.config.errors import ConfigError
from korvet.config.loading import load
from korvet.config.settings import Config


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


BOTH = Config(admin_token="t0ken", admin_basic_user="ann", admin_basic_password="a:b")


@pytest.mark.parametrize(
    "given", ["Bearer t0ken", "bearer  t0ken ", basic("ann:a:b"), f"b{basic('ann:a:b')[1:]}"]
)
def test_who_knows_a_secret_is_admitted(given: str) -> None:
    assert Access.of(BOTH).admits(given)


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            "Bearer",
            "Bearer ",
            "Bearer t0ke",
            "Bearer t0kens",
            "t0ken",
            "Basic t0ken",
            "Basic",
            "Basic ?",
        ),
        *(basic("ann:a"), basic("ann"), basic("bob:a:b"), basic(":a:b"), f"Bearer {basic('ann:a:b')[6:]}"),
        *("Digest t0ken", "Bearer \xff", "Basic \xff"),
    ],
)
def test_others_are_not(given: str) -> None:
    access = Access.of(BOTH)
    assert not access.is_open
    assert not access.admits(given)
    assert access.challenges == (
        ("WWW-Authenticate", 'Bearer realm="korvet"'),
        ("WWW-Authenticate", 'Basic realm="korvet"'),
    )


def test_one_kind_of_secret_does_not_admit_the_other() -> None:
    assert not Access.of(Config(admin_token="x")).admits(basic("x:x"))
    assert not Access.of(Config(admin_basic_user="x", admin_basic_password="x")).admits("Bearer x")


def test_a_token_may_have_any_characters() -> None:
    # Its last byte in UTF-8 is a space in other encodings.
    token = "voilà"
    assert Access.of(Config(admin_token=token)).admits(f"Bearer {token.encode().decode('latin-1')}")


def test_without_secrets_everybody_is_admitted() -> None:
    assert Access.of(Config()).is_open
    assert Access.of(Config()).admits("")


def test_a_changed_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    access = Access.of(Config(admin_token_location=str(file)))
    assert access.admits("Bearer first")
    other = tmp_path / "other"
    other.write_text("second")
    other.replace(file)
    assert access.admits("Bearer second")
    assert not access.admits("Bearer first")
    file.unlink()
    assert access.admits("Bearer second")
    assert "the old secret stays" in caplog.text
    file.write_text("")
    os.utime(file, ns=(1, 1))
    assert not access.admits("Bearer ")


def test_a_file_is_read_once_it_is_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(f"{path} is not readable")

    file = tmp_path / "token"
    file.write_text("first")
    access = Access.of(Config(admin_token_location=str(file)))
    file.write_text("second")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refused)
        for _ in range(2):
            assert access.admits("Bearer first")
    assert caplog.text.count("the old secret stays") == 1
    # Permissions are no part of the content or of its time.
    assert access.admits("Bearer second")


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_file_without_a_secret_is_refused(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    config = Config(admin_basic_user="ann", admin_basic_password_location=str(file))
    with pytest.raises(ConfigError, match=r"admin\.basic\.password\.location"):
        Access.of(config)


@pytest.mark.parametrize(
    "flags",
    [
        {"admin_token": ""},
        {"admin_token": "a", "admin_token_location": "b"},
        {"admin_basic_user": "a"},
        {"admin_basic_password": "a"},
        {"admin_listen": "9308"},
    ],
)
def test_contradicting_settings_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="admin"):
        load(flags={"admin_listen": "127.0.0.1:0"} | flags)


def test_errors_do_not_show_secrets() -> None:
    with pytest.raises(ConfigError) as refused:
        load(flags={"admin_listen": "h:1", "admin_token": "s3cret", "admin_token_location": "file"})
    assert "s3cret" not in str(refused.value)
