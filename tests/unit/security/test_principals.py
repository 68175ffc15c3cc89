"""Principals from distinguished names, and distinguished names from certificates made by openssl."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from korvet.security.principals import InvalidCertificate, PrincipalMapper, subject_of

if TYPE_CHECKING:
    from pathlib import Path

DN = "CN=Some User,OU=Unit,O=Org,C=DE"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("", f"User:{DN}"),
        ("DEFAULT", f"User:{DN}"),
        ("RULE:^CN=(.*?),.*$/$1/", "User:Some User"),
        ("RULE:^CN=(.*?),.*$/$1/L", "User:some user"),
        ("RULE:^CN=(.*?),.*$/$1/U, DEFAULT", "User:SOME USER"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/", "User:Some User@Unit"),
        ("RULE:^UID=(.*)$/$1/,DEFAULT", f"User:{DN}"),
        ("RULE:CN=(.*?),.*/a\\/$1/L,DEFAULT", "User:a/some user"),
    ],
)
def test_rules(rules: str, principal: str) -> None:
    assert PrincipalMapper(rules).principal(DN) == principal


@pytest.mark.parametrize("rules", ["RULE:x", "RULE:(/a/", "RULE:a/$1/", "DEFAULT DEFAULT", "RULE:a/b/X", "x"])
def test_rules_that_cannot_be_read(rules: str) -> None:
    with pytest.raises(ValueError):
        PrincipalMapper(rules)


def test_a_name_that_no_rule_is_for() -> None:
    with pytest.raises(ValueError, match="no rule"):
        PrincipalMapper("RULE:^UID=(.*)$/$1/").principal(DN)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("/C=DE/O=Org/OU=Unit/CN=Some User", DN),
        ("/DC=com/DC=example/UID=u1/CN=a", "CN=a,UID=u1,DC=example,DC=com"),
        ("/CN=a,b\\+c\\\\d", "CN=a\\,b\\+c\\\\d"),
        ("/CN=#a", "CN=\\#a"),
        ("/CN=Ünï", "CN=Ünï"),
        ("/CN=a/emailAddress=a@b", "1.2.840.113549.1.9.1=#1603614062,CN=a"),
        ("/O=x+OU=y/CN=a", "CN=a,O=x+OU=y"),
    ],
)
def test_subjects_of_certificates(subject: str, expected: str, tmp_path: Path) -> None:
    out = tmp_path / "certificate"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-utf8", "-multivalue-rdn", "-subj", subject, "-outform", "DER", "-out", str(out)]
    subprocess.run([*made, "-keyout", str(tmp_path / "key")], check=True, capture_output=True, timeout=60)
    certificate = out.read_bytes()
    assert subject_of(certificate) == expected
    for end in range(0, 60, 7):
        with pytest.raises(InvalidCertificate):
            subject_of(certificate[:end])


def nested(*parts: int | bytes) -> bytes:
    """DER: content, last, within elements of these tags."""
    *tags, content = parts
    encoded = bytes(content)
    for tag in reversed(tags):
        encoded = bytes([int(tag), len(encoded)]) + encoded  # type: ignore[arg-type]
    return encoded


@given(st.binary(max_size=60))
@example(b"\x00\x00")
@example(nested(0x30, 0x30, b"\x02\x00" + b"\x30\x00" * 3 + nested(0x30, 0x31, 0x30, b"\x06\x01\x55")))
def test_no_bytes_do_more_than_be_refused(content: bytes) -> None:
    with pytest.raises(InvalidCertificate):
        subject_of(content)
