"""X.509 certificates (RFC 5280): whom they name, and how long they are valid.

A distinguished name is written according to RFC 2253 and as Java's X500Principal does, so that rules and ACLs
made for Kafka match.
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_ID: Final = 0x06
_INTEGER: Final = 0x02
_EXPLICIT_0: Final = 0xA0
_UTC_TIME: Final = 0x17
# The choices of DirectoryString that Java writes as text: UTF8, printable, T.61; BMP and universal strings.
_TEXTS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x1E: "utf-16-be", 0x1C: "utf-32-be"}
# Keywords of RFC 2253; other attributes are written as object identifier and #hex.
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = re.compile(r'([,+"\\<>;])')

_PEM: Final = re.compile(
    "-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----(.*?)-----END (?:TRUSTED |X509 )?CERTIFICATE-----",
    re.DOTALL,
)


class InvalidCertificate(ValueError):
    """Bytes that are not an X.509 certificate."""


class Certificate(NamedTuple):
    """Whom a certificate names, and the seconds since the epoch between which it is valid."""

    subject: str
    begins_s: int
    ends_s: int


def certificate_of(encoded: bytes) -> Certificate:
    """Reads a certificate in DER. Raises InvalidCertificate."""
    try:
        return _certificate(encoded)
    except (IndexError, ValueError) as error:
        raise InvalidCertificate(f"the certificate cannot be read: {error}") from error


def certificates_in(text: str) -> list[Certificate]:
    """Reads all certificates in a PEM file, without its keys. Raises InvalidCertificate."""
    return [certificate_of(_base64(found[1])) for found in _PEM.finditer(text)]


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes


def _elements(content: bytes) -> Iterator[_Element]:
    position = 0
    while position < len(content):
        tag, size = content[position], content[position + 1]
        begin = position + 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(content[begin : begin + count])
            begin += count
        end = begin + size
        if end > len(content):
            raise ValueError("an element goes beyond its end")
        yield _Element(tag, content[begin:end], content[position:end])
        position = end


def _certificate(encoded: bytes) -> Certificate:
    # What OpenSSL trusts a certificate for may follow it.
    outer, *_ = _elements(encoded)
    signed, *_ = _elements(outer.content)
    # Version (optional), serial number, signature, issuer, validity, subject.
    fields = [each for each in _elements(signed.content) if each.tag != _EXPLICIT_0]
    if outer.tag != _SEQUENCE or fields[0].tag != _INTEGER or fields[4].tag != _SEQUENCE:
        raise ValueError("not a certificate")
    begin, end = _elements(fields[3].content)
    return Certificate(_name(fields[4].content), _seconds(begin), _seconds(end))


def _base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text)
    except binascii.Error as error:
        raise InvalidCertificate(f"the certificate cannot be read: {error}") from error


def _seconds(time: _Element) -> int:
    """UTCTime has two digits of the year, GeneralizedTime has four."""
    text = time.content.decode("ascii")
    if time.tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())


def _name(subject: bytes) -> str:
    """RFC 2253 begins with the last relative name."""
    return ",".join(reversed([_relative_name(each.content) for each in _elements(subject)]))


def _relative_name(attributes: bytes) -> str:
    return "+".join([_attribute(each.content) for each in _elements(attributes)])


def _attribute(pair: bytes) -> str:
    kind, value = _elements(pair)
    identifier = _object_id(kind.content)
    keyword = _KEYWORDS.get(identifier)
    encoding = _TEXTS.get(value.tag)
    if keyword == "DC" and value.tag == 0x16:
        encoding = "ascii"
    if keyword is None or encoding is None:
        return f"{keyword or identifier}=#{value.encoded.hex()}"
    text = _ESCAPED.sub(r"\\\1", value.content.decode(encoding))
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return f"{keyword}={text}"


def _object_id(content: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
