"""The reply to INFO. No I/O."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def used_memory(info: Mapping[str, str]) -> int:
    """The bytes that count for maxmemory: all but the buffers for replicas and the append-only file."""
    return int(info.get("used_memory", "0")) - int(info.get("mem_not_counted_for_evict", "0"))


def parse_info(reply: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    return dict(re.findall(r"^([a-z0-9_]+):(.*?)\r?$", reply.decode("utf-8", "replace"), re.MULTILINE))
