"""Logging of the command line tools and the broker: one line per event on standard error."""

import logging
import sys
import time


class _Formatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z WARNING korvet.server: message`, always in UTC."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"


def configure(level: str) -> None:
    """Log messages of at least `level` (debug, info, warning, error) to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
