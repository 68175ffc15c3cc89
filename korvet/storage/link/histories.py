"""Whether a server may lack what another one had executed. No I/O.

A Redis server names the history of its data by an id (master_replid). A replica has the id of its primary; a
replica that becomes a primary gets a new id, and reports up to which offset it has the former history
(second_repl_offset). A server that was restarted has a new id too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from korvet.storage.link.replication import Replication


def end_of(history: str, former: Replication) -> int | None:
    """The replication offset of the newest write that the primary of a history had executed when it reported
    `former`, perhaps as a replica by then; None if it does not report that offset.
    """
    if former.history == history:
        return former.offset
    if former.former_history == history and former.former_end > 0:
        return former.former_end - 1
    return None


def may_lack(history: str, end: int | None, now: Replication) -> bool:
    """Whether the server that reports `now` may lack writes of `history`, the newest of which has the
    replication offset `end` (None if that is unknown).
    """
    if now.history == history:
        return False
    return now.former_history != history or end is None or now.former_end <= end
