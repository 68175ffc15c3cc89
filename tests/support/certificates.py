"""Certificates for tests, made by openssl in a folder of their own."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.support.polling import patient

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 60
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# Far enough that nothing warns of it.
_DAYS = 3650
# Python 3.13 and later verify strictly, by RFC 5280.
_MAY_SIGN = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
_NAMES = ("countryName", "organizationName", "organizationalUnitName", "commonName", "UID", "domainComponent")
_SETTINGS = """
[ca]
default_ca = authority
[authority]
database = {folder}/{name}.index
new_certs_dir = {folder}
rand_serial = yes
unique_subject = no
default_md = sha256
policy = names
[names]
""" + "\n".join(f"{name} = optional" for name in _NAMES)


class Authority:
    """A certificate authority; clients that trust it need `certificate`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = folder / f"{name}.key"
        self._settings = folder / f"{name}.cnf"
        self._settings.write_text(_SETTINGS.format(folder=folder, name=name))
        (folder / f"{name}.index").touch()
        self.certificate = folder / f"{name}.pem"
        subject = ("-subj", f"/CN={name}", "-days", str(_DAYS))
        _openssl("req", "-x509", *_KEY, *_MAY_SIGN, *subject, "-keyout", self._key, "-out", self.certificate)

    def issue(
        self,
        name: str,
        subject: str,
        begin: datetime | None = None,
        end: datetime | None = None,
        *,
        hosts: str = "DNS:localhost,IP:127.0.0.1",
    ) -> Path:
        """A PEM file with key and certificate for these hosts, valid from now on or `begin`."""
        begin = begin or datetime.now(UTC) - timedelta(minutes=1)
        end = end or begin + timedelta(days=_DAYS)
        made = self._folder / f"{name}.pem"
        request, key, signed = (made.with_suffix(suffix) for suffix in (".csr", ".key", ".crt"))
        _openssl("req", "-new", *_KEY, "-subj", subject, "-keyout", key, "-out", request)
        extensions = made.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={hosts}\nauthorityKeyIdentifier=keyid\n")
        by = ("-config", self._settings, "-cert", self.certificate, "-keyfile", self._key)
        times = ("-startdate", f"{begin:%Y%m%d%H%M%SZ}", "-enddate", f"{end:%Y%m%d%H%M%SZ}")
        how = ("-batch", "-notext", "-preserveDN", "-extfile", extensions)
        _openssl("ca", *by, *times, *how, "-in", request, "-out", signed)
        made.write_bytes(key.read_bytes() + signed.read_bytes())
        return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(
        ["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=patient(_TIMEOUT_S)
    )
