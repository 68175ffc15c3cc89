"""Asking Redis for the outcome of a guarded append whose reply was lost with the connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from korvet.offsets.packing import entry_id
from korvet.records.kernel import pack_arguments
from korvet.storage.errors import PASSING, StorageError
from korvet.storage.log.append_replies import irregular_reply
from korvet.storage.log.values import Appended

if TYPE_CHECKING:
    from korvet.records.batch import AppendCommands
    from korvet.storage.link.commands import Commands
    from korvet.storage.log.state import LogState

# How long Redis may be away before the outcome of an append in flight counts as unknown.
READ_BACK_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05


async def read_back(
    state: LogState, commands: Commands, form: AppendCommands, deadline_s: float
) -> Appended | None:
    """The outcome of the first append of a group; None if it did not and will not take effect.

    The function korvet_read_back also breaks the chain of guarded appends, so that Redis refuses one that is
    still in its buffers. Raises StorageError if Redis does not answer until `deadline_s`.
    """
    reply = await _ask(state, commands, form, deadline_s)
    try:
        _, start, now_ms, fields = reply
        found = pack_arguments(*fields)
    except (TypeError, ValueError) as error:
        raise irregular_reply(state, repr(reply).encode()) from error
    if found != form.first_arguments:
        return None
    base = form.position - state.bias
    append_ms = now_ms if form.append_ms < 0 else form.append_ms
    return Appended(base, start, base, append_ms, 0, duplicate=False, last_stable_offset=-1)


async def _ask(state: LogState, commands: Commands, form: AppendCommands, deadline_s: float) -> Any:
    """The reply of korvet_read_back."""
    entry = entry_id(form.first_entry)
    while True:
        left_s = deadline_s - asyncio.get_running_loop().time()
        try:
            return await commands.fcall("korvet_read_back", state.keys[:3], state.bias, entry)
        except StorageError as error:
            if left_s <= 0 or not isinstance(error, PASSING):
                raise
        await asyncio.sleep(_POLL_S)
