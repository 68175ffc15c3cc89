"""What a connection keeps while it waits."""

from __future__ import annotations

import weakref

from korvet.server.flow_control import FlowControl


class Client:
    """A connection that can resume."""

    def resume(self) -> None:
        raise AssertionError("it has ended")


async def test_a_muted_connection_that_ends_is_not_kept() -> None:
    flow, client = FlowControl(), Client()
    flow.mute(60, client.resume)
    gone = weakref.ref(client)
    del client
    assert gone() is not None
    flow.close()
    assert gone() is None
