"""After which failovers a server may lack writes."""

from __future__ import annotations

import pytest

from korvet.storage.link.histories import end_of, may_lack
from korvet.storage.link.replication import Replication, parse_replication

NONE = "0" * 40


def report(
    history: str, offset: int = 0, former: str = NONE, former_end: int = -1, role: str = "master"
) -> Replication:
    return parse_replication(
        f"role:{role}\r\nconnected_slaves:0\r\nmaster_replid:{history}\r\nmaster_replid2:{former}\r\n"
        f"master_repl_offset:{offset}\r\nsecond_repl_offset:{former_end}\r\n".encode()
    )


@pytest.mark.parametrize(
    ("former", "end"),
    [
        (report("a", 500), 500),
        (report("a", 500, role="slave"), 500),
        # It has continued with the history of the new primary.
        (report("b", 900, "a", 501, role="slave"), 500),
        # It has copied all data of a new primary.
        (report("b", 900, role="slave"), None),
        (report("c", 900, "b", 700), None),
        (parse_replication(b""), None),
    ],
)
def test_the_end_of_a_history(former: Replication, end: int | None) -> None:
    assert end_of("a", former) == end


@pytest.mark.parametrize(
    ("end", "now", "lacks"),
    [
        (None, report("a", 10), False),
        # A replica became the primary; it had received 500 bytes.
        (500, report("b", 600, "a", 501), False),
        (499, report("b", 600, "a", 501), False),
        (501, report("b", 600, "a", 501), True),
        (None, report("b", 600, "a", 501), True),
        # Two failovers, a restart, another server.
        (500, report("c", 900, "b", 700), True),
        (500, report("b", 600), True),
        (500, parse_replication(b""), True),
    ],
)
def test_a_server_may_lack_writes(end: int | None, now: Replication, lacks: bool) -> None:
    assert may_lack("a", end, now) is lacks
