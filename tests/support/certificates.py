"""Certificates for tests, made by openssl in a folder of their own."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 60
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A certificate authority; clients that trust it need `certificate`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._serial = 0
        self._key = folder / f"{name}.key"
        self.certificate = folder / f"{name}.pem"
        subject = ("-subj", f"/CN={name}")
        _openssl("req", "-x509", *_KEY, *subject, "-keyout", self._key, "-out", self.certificate)

    def issue(self, name: str, subject: str) -> Path:
        """A PEM file with key and certificate for `localhost` and 127.0.0.1."""
        made = self._folder / f"{name}.pem"
        request, key, signed = (made.with_suffix(end) for end in (".csr", ".key", ".crt"))
        _openssl("req", "-new", *_KEY, "-subj", subject, "-keyout", key, "-out", request)
        extensions = made.with_suffix(".ext")
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._serial += 1
        by = ("-CA", self.certificate, "-CAkey", self._key, "-set_serial", str(self._serial))
        _openssl("x509", "-req", "-in", request, *by, "-extfile", extensions, "-out", signed)
        made.write_bytes(key.read_bytes() + signed.read_bytes())
        return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=_TIMEOUT_S)
