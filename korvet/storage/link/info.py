"""The reply to INFO. No I/O."""

from __future__ import annotations

import re


def parse_info(reply: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    return dict(re.findall(r"^([a-z0-9_]+):(.*?)\r?$", reply.decode("utf-8", "replace"), re.MULTILINE))
