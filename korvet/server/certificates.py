"""The certificates of listeners, and what is said of them before they expire.

| validity | until | logged, reported |
|---|---|---|
| pending | the certificate's begin | warning |
| valid | 30 days before its end | nothing |
| ending | its end | warning |
| expired | | warning, fault |

A line is logged when a file is read, and when the validity changes.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.outlook.findings import FAULT, OK, WARNING, Finding
from korvet.security.certificates import Certificate, InvalidCertificate, certificates_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

KEYSTORE: Final = "keystore"
TRUSTSTORE: Final = "truststore"
_DAY_S: Final = 86_400
# Time enough to get a certificate from people.
_ENDING_S: Final = 30 * _DAY_S


class Validity(StrEnum):
    """Whether a certificate can be used now; see the table above."""

    PENDING = "pending"
    VALID = "valid"
    ENDING = "ending"
    EXPIRED = "expired"


_STATES: Final = {
    Validity.PENDING: WARNING,
    Validity.VALID: OK,
    Validity.ENDING: WARNING,
    Validity.EXPIRED: FAULT,
}


class UsedCertificate(NamedTuple):
    """A certificate, with the listener that uses it and the kind of file that it is in."""

    listener: str
    file: str
    certificate: Certificate

    def validity(self, now_s: float) -> Validity:
        """now_s: seconds since the epoch."""
        _, begins_s, ends_s = self.certificate
        if now_s >= ends_s:
            return Validity.EXPIRED
        if now_s < begins_s:
            return Validity.PENDING
        return Validity.ENDING if ends_s - now_s < _ENDING_S else Validity.VALID

    def describe(self, now_s: float) -> str:
        """For operators, in words."""
        subject, begins_s, ends_s = self.certificate
        named = f"the certificate {subject} in the {self.file} of listener {self.listener}"
        match self.validity(now_s):
            case Validity.EXPIRED:
                return f"{named} expired at {_time(ends_s)}"
            case Validity.PENDING:
                return f"{named} is not valid before {_time(begins_s)}"
            case _:
                days = int((ends_s - now_s) // _DAY_S)
                return (
                    f"{named} expires at {_time(ends_s)}, {'within a day' if days < 1 else f'in {days} days'}"
                )


class ExpiryLog:
    """Warns of certificates that cannot be used, or not for long."""

    def __init__(self) -> None:
        self._said: dict[UsedCertificate, Validity] = {}

    def note(self, used: Iterable[UsedCertificate], now_s: float) -> None:
        """Log the validity of certificates if it is another one than at the last call."""
        now = {each: each.validity(now_s) for each in used}
        for each, validity in now.items():
            if validity is not Validity.VALID and self._said.get(each) is not validity:
                log.warning("%s", each.describe(now_s))
        self._said = now


def used_certificates(listener: str, file: str, path: str) -> list[UsedCertificate]:
    """Read the certificates in a file. Raises OSError if it cannot be read.

    Returns one of each subject: of a key store the first to expire, of a trust store the last one. An
    authority's next certificate may be beside its present one.
    """
    try:
        found = certificates_in(Path(path).read_text("latin-1"))
    except InvalidCertificate as error:
        log.warning("when the certificates in %s expire is not known: %s", path, error)
        return []
    found.sort(key=lambda each: each.ends_s, reverse=file == KEYSTORE)
    return [UsedCertificate(listener, file, each) for each in {each.subject: each for each in found}.values()]


def certificate_findings(used: Iterable[UsedCertificate], now_s: float) -> Iterator[Finding]:
    """Returns what to tell operators of certificates. now_s: seconds since the epoch."""
    for each in used:
        yield Finding(f"certificate, {each.listener}", _STATES[each.validity(now_s)], each.describe(now_s))


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
