"""Reads the pages of an admin endpoint."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Page:
    """An answer of the endpoint."""

    status: int
    fields: dict[str, str]
    """By lower-case name."""
    text: str


class Pages:
    """The endpoint at a port of the loopback address."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, **fields: str) -> None:
        """fields: header fields of every request."""
        self.port = port
        self._tls = tls
        self._fields = fields

    def read(self, path: str, method: str = "GET", **fields: str) -> Page:
        """Ask for a page on a connection of its own. Raises OSError."""
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
            if self._tls is None
            else http.client.HTTPSConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S, context=self._tls)
        )
        try:
            connection.request(method, path, headers=self._fields | fields)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Page(answer.status, found, answer.read().decode())
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def problems(self) -> dict[str, str] | None:
        """The checks of /readyz with a problem; None if nobody answers."""
        try:
            page = self.read("/readyz")
        except OSError:
            return None
        # The main process of `--processes` names the node before each check.
        checks = dict(_split(line) for line in page.text.splitlines())
        found = {name: text for name, text in checks.items() if text.partition(",")[0] != "ok"}
        assert page.status == (503 if found else 200), page
        return found

    def is_ready(self) -> bool:
        """Whether /readyz answers with 200."""
        return self.problems() == {}

    def status(self) -> Any:
        """/status, decoded."""
        return json.loads(self.read("/status").text)


def _split(line: str) -> tuple[str, str]:
    name, problem = line.removeprefix("node ").split(": ", 1)
    if name.isdigit():
        check, problem = problem.split(": ", 1)
        return f"node {name}: {check}", problem
    return name, problem
