"""Fetches the keys of an issuer: a file, or a page by HTTP. It takes a thread, so the event loop goes on."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from korvet import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

# Limits a fetch: a connection may be silent for this long, and the whole may take twice that.
_TIMEOUT_S: Final = 5.0
# A key set has some kilobytes.
_MOST_BYTES: Final = 1 << 20
_PART_BYTES: Final = 64 * 1024
# Limits the threads that hang, as with a file on a network drive whose server is away. Each listener needs
# one at a time.
_MOST_THREADS: Final = 100
_THREAD: Final = "keys for tokens"


class FetchFailed(Exception):
    """The keys could not be had, for a reason in words."""


async def fetch(url: str, context: ssl.SSLContext) -> bytes:
    """Read a file: or http(s): URL. Raises FetchFailed."""
    read = partial(_read_file, url) if is_file(url) else partial(_get, url, context)
    if sum(each.name == _THREAD for each in threading.enumerate()) >= _MOST_THREADS:
        raise FetchFailed("the fetches before this one have not ended")
    try:
        async with asyncio.timeout(3 * _TIMEOUT_S):
            return await asyncio.wrap_future(_in_thread(read))
    except urllib.error.HTTPError as error:
        with error:
            moved = f" to {error.headers['Location']}" if error.headers["Location"] else ""
            raise FetchFailed(f"HTTP status {error.code}{moved}") from error
    except urllib.error.URLError as error:
        raise FetchFailed(_reason(error.reason)) from error
    # Python's URLs and HTTP raise ValueErrors for what is malformed.
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FetchFailed(_reason(error)) from error


def is_file(url: str) -> bool:
    """Whether a URL names a file of this machine."""
    return urlsplit(url).scheme == "file"


def _in_thread(work: Callable[[], bytes]) -> Future[bytes]:
    """The result of `work` in a thread that doesn't outlive the process, as those of an executor would."""
    outcome: Future[bytes] = Future()

    def run() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(work())
            except Exception as error:  # noqa: BLE001 - passed on to the caller
                outcome.set_exception(error)

    threading.Thread(target=run, name=_THREAD, daemon=True).start()
    return outcome


def _read_file(url: str) -> bytes:
    with Path(urllib.request.url2pathname(urlsplit(url).path)).open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    _check_size(content)
    return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: they could lead to plain HTTP, or to a server that is reached from here only."""

    def redirect_request(self, *_: object) -> None:
        return None


def _get(url: str, context: ssl.SSLContext) -> bytes:
    https = urllib.request.HTTPSHandler(context=context)
    opener = urllib.request.build_opener(_NoRedirects, https)
    headers = {"Accept": "application/json", "User-Agent": f"korvet/{__version__}"}
    end_s = time.monotonic() + 2 * _TIMEOUT_S
    content = bytearray()
    with opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as response:
        while part := response.read1(_PART_BYTES):
            content += part
            _check_size(content)
            if time.monotonic() > end_s:
                raise TimeoutError(f"longer than {2 * _TIMEOUT_S:.0f} s")
    return bytes(content)


def _check_size(content: bytes | bytearray) -> None:
    if len(content) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")


def _reason(error: object) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate cannot be verified: {error.verify_message}"
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or type(error).__name__
