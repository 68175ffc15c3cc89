"""The `korvet` command."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from korvet import probe

if TYPE_CHECKING:
    from types import FrameType


def main() -> None:
    """Entry point of the `korvet` command."""
    command, *arguments = sys.argv[1:] or [""]
    if command == "serve":
        # The imports of a broker take half a second. The first process of a container does not get signals
        # for which it has no handler.
        signal.signal(signal.SIGTERM, _leave)
    if command == "ready" and not {"-h", "--help"}.intersection(arguments):
        # A probe runs every few seconds: click and the other commands would take ten times as long.
        raise SystemExit(probe.main(arguments))
    # kio registers strategies if it can import hypothesis, which takes as long as the import of a broker.
    # Programs that use korvet for tests often have it.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    from korvet.cli.app import korvet  # noqa: PLC0415

    korvet(prog_name="korvet")


def _leave(number: int, frame: FrameType | None) -> None:
    """SIGTERM arrived before the event loop runs, which has a handler of its own."""
    raise SystemExit(0)
