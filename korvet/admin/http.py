"""HTTP/1.1 requests with small bodies, and responses (RFC 9110, RFC 9112). Pure: bytes in, bytes out."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_HEAD_BYTES: Final = 16 * 1024
"""Limits a request: scrapers and probes send less than 1 KB."""
PLAIN: Final = "text/plain; charset=utf-8"

_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])")
# The space around a value is stripped afterwards: an expression for it would take cubic time for long ones.
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\x20-\x7e\x80-\xff\t]*)")
_LENGTH: Final = re.compile(r"[0-9]{1,12}")
_QUALITY: Final = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\Z", re.IGNORECASE)


class Request(NamedTuple):
    """A request as its handler sees it."""

    method: str
    path: str
    fields: Mapping[str, str] = {}
    """The header fields by lower-case name."""
    keeps_alive: bool = True
    body_bytes: int = 0
    """The size of the body."""
    body: bytes = b""

    def field(self, name: str) -> str:
        """Returns a header field; empty if the request has none of that name (in lower case)."""
        return self.fields.get(name, "")


class Response(NamedTuple):
    """The answer to a request, with its body in pieces."""

    status: HTTPStatus
    body: Sequence[bytes]
    content_type: str = PLAIN
    fields: Sequence[tuple[str, str]] = ()
    """Further header fields."""


class BadRequest(Exception):
    """A request that is answered with an error, after which the connection ends."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def text_response(status: HTTPStatus, text: str, *fields: tuple[str, str]) -> Response:
    """Returns a response of one line."""
    return Response(status, [f"{text}\n".encode()], fields=fields)


def take_request(buffer: bytearray, most_body_bytes: int) -> Request | None:
    """Remove the first request from what was received; None if it is not complete. Raises BadRequest.

    `most_body_bytes`: limits a body; 0 if no request has one.
    """
    head = take_head(buffer)
    if head is None:
        return None
    request = parse_head(head, most_body_bytes)
    if len(buffer) < request.body_bytes:
        buffer[:0] = head + _END
        return None
    body = bytes(buffer[: request.body_bytes])
    del buffer[: request.body_bytes]
    return request._replace(body=body)


def take_head(buffer: bytearray) -> bytes | None:
    """Remove the first request from what was received; None if it is not complete.

    Raises BadRequest if it is too long.
    """
    while buffer.startswith(b"\r\n"):
        # RFC 9112, 2.2: older clients send an empty line after a request.
        del buffer[:2]
    end = buffer.find(_END, 0, MOST_HEAD_BYTES)
    if end >= 0:
        head = bytes(buffer[:end])
        del buffer[: end + len(_END)]
        return head
    if len(buffer) >= MOST_HEAD_BYTES:
        reason = f"the request has more than {MOST_HEAD_BYTES} bytes"
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
    return None


def parse_head(head: bytes, most_body_bytes: int = 0) -> Request:
    """Decode a request without its last empty line and its body. Raises BadRequest."""
    first, *lines = head.decode("latin-1").split("\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the first line is not METHOD PATH HTTP/1.1")
    method, target, minor = found.groups()
    fields: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header field is malformed")
        name, value = field[1].lower(), field[2].strip(" \t")
        if name in fields and name in {"host", "authorization", "content-length"}:
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"there are two fields {name}")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    if minor == "1" and "host" not in fields:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "there is no field host")
    body_bytes = _body_bytes(fields, most_body_bytes)
    options = {option.strip().lower() for option in fields.get("connection", "").split(",")}
    keeps_alive = "close" not in options and (minor == "1" or "keep-alive" in options)
    return Request(method, _path_of(target), fields, keeps_alive, body_bytes)


def _body_bytes(fields: Mapping[str, str], most_bytes: int) -> int:
    length = fields.get("content-length", "0")
    if "transfer-encoding" in fields or (length != "0" and not most_bytes):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "a request has no body here")
    if not _LENGTH.fullmatch(length):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the field content-length is malformed")
    if int(length) > most_bytes:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {most_bytes} bytes here")
    return int(length)


def _path_of(target: str) -> str:
    try:
        path = urlsplit(target).path
    except ValueError:
        path = ""
    if not path.startswith("/"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the request names no path")
    return path


def encode_head(response: Response, *, keeps_alive: bool) -> bytes:
    """Returns the status line and header fields of a response."""
    fields = [
        ("Content-Type", response.content_type),
        ("Content-Length", str(sum(map(len, response.body)))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "keep-alive" if keeps_alive else "close"),
        *response.fields,
    ]
    status = f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
    return (status + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n").encode("latin-1")


def quality(accepted: str, name: str, general: str = "*") -> float:
    """Returns how much a client wants `name` by a field such as Accept: its weight (0 to 1) there, or that of
    the `general` name; 0 if neither is there. Of several weights the highest counts.
    """
    weights: dict[str, float] = {}
    for part in accepted.split(","):
        word, *parameters = (text.strip() for text in part.split(";"))
        given = [found[1] for text in parameters if (found := _QUALITY.match(text))]
        weight = float(given[0]) if given else 1.0
        weights[word.lower()] = max(weight, weights.get(word.lower(), 0.0))
    return weights.get(name, weights.get(general, 0.0))
