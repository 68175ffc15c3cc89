"""Certificates made by openssl: whom they name, and how long they are valid."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from korvet.security.certificates import InvalidCertificate, certificate_of, certificates_in
from tests.support.certificates import Authority
from tests.support.polling import patient

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("/C=DE/O=Org/OU=Unit/CN=Some User", "CN=Some User,OU=Unit,O=Org,C=DE"),
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
    subprocess.run(
        [*made, "-keyout", str(tmp_path / "key")], check=True, capture_output=True, timeout=patient(60)
    )
    certificate = out.read_bytes()
    assert certificate_of(certificate).subject == expected
    for end in range(0, 60, 7):
        with pytest.raises(InvalidCertificate):
            certificate_of(certificate[:end])


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
        certificate_of(content)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)),
        (datetime(1949, 12, 31, tzinfo=UTC), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (datetime(1999, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_times_of_certificates(begin: datetime, end: datetime, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    both = authority.issue("server", "/CN=server", begin, end).read_text() + authority.certificate.read_text()
    found = certificates_in(both)
    assert [each.subject for each in found] == ["CN=server", "CN=authority"]
    assert (found[0].begins_s, found[0].ends_s) == (begin.timestamp(), end.timestamp())


def test_certificates_with_what_openssl_trusts_them_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = ["openssl", "x509", "-in", str(authority.certificate), "-trustout", "-addtrust", "serverAuth"]
    done = subprocess.run(trusted, check=True, capture_output=True, text=True, timeout=patient(60))
    assert "BEGIN TRUSTED CERTIFICATE" in done.stdout
    assert certificates_in(done.stdout) == certificates_in(authority.certificate.read_text())


def test_a_damaged_certificate_is_refused(tmp_path: Path) -> None:
    text = Authority(tmp_path).certificate.read_text()
    for damaged in (text.replace("\nMII", "\n!I"), text.replace("\nMII", "\nAAAA")):
        with pytest.raises(InvalidCertificate):
            certificates_in(damaged)
