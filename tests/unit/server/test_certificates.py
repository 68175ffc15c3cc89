"""What is said of a listener's certificates, by their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.outlook.findings import FAULT, OK, WARNING
from korvet.security.certificates import Certificate
from korvet.server.certificates import ExpiryLog, UsedCertificate, certificate_findings, used_certificates
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 86_400
# 2026-01-01
BEGIN_S = 1_767_225_600
USED = UsedCertificate("SSL", "keystore", Certificate("CN=a", BEGIN_S, BEGIN_S + 90 * DAY_S))
NAMED = "the certificate CN=a in the keystore of listener SSL"
TIMES = [
    (-1, "pending", WARNING, f"{NAMED} is not valid before 2026-01-01 00:00 UTC"),
    (0, "valid", OK, f"{NAMED} expires at 2026-04-01 00:00 UTC, in 90 days"),
    (60 * DAY_S, "valid", OK, f"{NAMED} expires at 2026-04-01 00:00 UTC, in 30 days"),
    (60 * DAY_S + 1, "ending", WARNING, f"{NAMED} expires at 2026-04-01 00:00 UTC, in 29 days"),
    (90 * DAY_S - 1, "ending", WARNING, f"{NAMED} expires at 2026-04-01 00:00 UTC, within a day"),
    (90 * DAY_S, "expired", FAULT, f"{NAMED} expired at 2026-04-01 00:00 UTC"),
]


@pytest.mark.parametrize(("after_s", "validity", "state", "text"), TIMES)
def test_validity(after_s: int, validity: str, state: str, text: str) -> None:
    now_s = BEGIN_S + after_s
    assert USED.validity(now_s) == validity
    assert [tuple(each) for each in certificate_findings([USED], now_s)] == [
        ("certificate, SSL", state, text)
    ]


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = ExpiryLog()
    for after_s, *_ in TIMES:
        for more_s in (0.0, 0.5):
            log.note([USED], BEGIN_S + after_s + more_s)
    assert caplog.messages == [TIMES[0][3], TIMES[3][3], TIMES[5][3]]
    assert {each.levelname for each in caplog.records} == {"WARNING"}


def test_one_certificate_of_each_subject_counts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old, new = authority.certificate.read_text(), Authority(tmp_path).certificate.read_text()
    server = authority.issue("server", "/CN=server").read_text()
    path = tmp_path / "both"
    path.write_text(server + new + old)
    for file, chosen in (("keystore", min), ("truststore", max)):
        found = used_certificates("SSL", file, str(path))
        assert sorted(each.certificate.subject for each in found) == ["CN=authority", "CN=server"]
        (kept,) = [each.certificate for each in found if each.certificate.subject == "CN=authority"]
        path.with_suffix(".1").write_text(old)
        path.with_suffix(".2").write_text(new)
        both = [used_certificates("SSL", file, str(path.with_suffix(end)))[0] for end in (".1", ".2")]
        assert kept.ends_s == chosen(each.certificate.ends_s for each in both)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "odd"
    path.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert used_certificates("SSL", "truststore", str(path)) == []
    assert f"when the certificates in {path} expire is not known" in caplog.text
