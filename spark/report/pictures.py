"""Pictures of a report, drawn by a headless Chromium or Chrome."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Names of the browser on different systems.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
VARIABLE = "KORVET_BROWSER"
TIMEOUT_S = 60.0
WIDTH, HEIGHT = 1280, 900
# What page.js adds to the page at #pictures: its height, and each chart's title and data: URL.
_PICTURES = re.compile(r'<pre id="pictures"[^>]*>(.*?)</pre>', re.DOTALL)


class BrowserError(RuntimeError):
    """There is no browser, or it fails. The message states the reason."""


def find_browser() -> str | None:
    """Return the program in KORVET_BROWSER, else the first of NAMES on PATH; None without one."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return shutil.which(chosen)
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def browser_command(profile: str) -> list[str]:
    """Return the command of a headless browser with its profile in that folder.

    Raises BrowserError without a browser.
    """
    program = find_browser()
    if program is None:
        names = ", ".join(NAMES)
        raise BrowserError(f"no browser: install Chromium or Chrome, or set {VARIABLE} (not found: {names})")
    command = [program, "--headless=new", f"--user-data-dir={profile}"]
    command += ["--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    # No name resolution: pages are files.
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]
    if sys.platform != "win32" and os.geteuid() == 0:
        command.append("--no-sandbox")
    return command


def save_pictures(report: Path) -> list[Path]:
    """Write PNGs of the report's first page and of each chart next to it. Raises BrowserError, OSError."""
    url = report.resolve().as_uri()
    shown = _run("--dump-dom", f"--window-size={WIDTH},{HEIGHT}", f"{url}#pictures")
    found = _PICTURES.search(shown)
    if found is None:
        raise BrowserError(f"the browser did not draw the charts of {report}")
    drawn = json.loads(html.unescape(found[1]))
    whole = report.with_suffix(".png")
    whole.unlink(missing_ok=True)
    _run(f"--screenshot={whole.resolve()}", f"--window-size={WIDTH},{drawn['height']}", url)
    if not whole.exists():
        raise BrowserError(f"the browser did not draw {report}")
    written = [whole]
    for title, data in drawn["figures"]:
        written.append(report.with_name(f"{report.stem}-{title.lower().replace(' ', '-')}.png"))
        written[-1].write_bytes(base64.b64decode(data.partition(",")[2]))
    return written


def _run(*arguments: str) -> str:
    """What the browser prints."""
    with tempfile.TemporaryDirectory(prefix="korvet-browser-", ignore_cleanup_errors=True) as profile:
        command = [*browser_command(profile), *arguments]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
            )
        except OSError as error:
            raise BrowserError(f"{command[0]} does not start: {error}") from error
        except subprocess.TimeoutExpired:
            raise BrowserError(f"the browser did not end within {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise BrowserError(f"the browser ended with status {done.returncode}")
    return done.stdout.decode(errors="replace")
