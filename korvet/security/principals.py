"""Principals: the names of clients for the authorizer, and their derivation from certificates (KIP-371).

A distinguished name is written according to RFC 2253 and as Java's X500Principal does, so that rules and ACLs
made for Kafka match.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANONYMOUS: Final = "User:ANONYMOUS"

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_ID: Final = 0x06
_INTEGER: Final = 0x02
_EXPLICIT_0: Final = 0xA0
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

_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)


class InvalidCertificate(ValueError):
    """Bytes that are not an X.509 certificate."""


class PrincipalRule(NamedTuple):
    """One rule of `ssl.principal.mapping.rules`; the pattern None matches every name and keeps it
    unchanged.
    """

    pattern: re.Pattern[str] | None
    replacement: str
    change_case: Callable[[str], str]

    def apply(self, name: str) -> str | None:
        """The short name; None if the rule does not match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        return self.change_case(
            _group_reference.sub(lambda ref: found.group(int(ref[1])) or "", self.replacement)
        )


_group_reference: Final = re.compile(r"\$(\d)")


class PrincipalMapper:
    """Maps distinguished names to principals by `ssl.principal.mapping.rules`."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        """Raises ValueError for rules that cannot be parsed."""
        self._rules = tuple(_parse_rules(rules))

    def principal(self, distinguished_name: str) -> str:
        """The principal by the first rule that matches. Raises ValueError if no rule matches."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return f"User:{name}"
        raise ValueError(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _parse_rules(text: str) -> Iterator[PrincipalRule]:
    position = 0
    text = text.strip() or "DEFAULT"
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(f"expected DEFAULT or RULE:pattern/replacement/[LU] at {text[position:]!r}")
        position = found.end()
        rest = text[position:].lstrip()
        if rest and not rest.startswith(","):
            raise ValueError(f"expected a comma at {rest!r}")
        position = len(text) - len(rest[1:].lstrip())
        yield _rule(found)


def _rule(found: re.Match[str]) -> PrincipalRule:
    default, pattern, replacement, case = found.groups()
    if default:
        return PrincipalRule(None, "", str)
    try:
        compiled = re.compile(pattern.replace(r"\/", "/"))
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is no regular expression: {error}") from error
    replaced = replacement.replace(r"\/", "/")
    highest = max(map(int, _group_reference.findall(replaced)), default=0)
    if highest > compiled.groups:
        raise ValueError(f"{replacement!r} refers to group {highest}, which {pattern!r} does not have")
    return PrincipalRule(compiled, replaced, {"L": str.lower, "U": str.upper}.get(case, str))


def subject_of(certificate: bytes) -> str:
    """The subject of an X.509 certificate in DER, as RFC 2253 writes it. Raises InvalidCertificate."""
    try:
        return _name(_subject(certificate))
    except (IndexError, ValueError) as error:
        raise InvalidCertificate(f"the certificate's subject cannot be read: {error}") from error


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


def _subject(certificate: bytes) -> bytes:
    (outer,) = _elements(certificate)
    signed, *_ = _elements(outer.content)
    # Version (optional), serial number, signature, issuer, validity, subject.
    fields = [each for each in _elements(signed.content) if each.tag != _EXPLICIT_0]
    if outer.tag != _SEQUENCE or fields[0].tag != _INTEGER or fields[4].tag != _SEQUENCE:
        raise ValueError("not a certificate")
    return fields[4].content


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
