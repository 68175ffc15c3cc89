"""What is counted of the connections of one listener."""

from __future__ import annotations


class ListenerCounts:
    """The connections of one listener since the start."""

    __slots__ = (
        "accepted",
        "authenticated",
        "closed",
        "expired",
        "failed_authentications",
        "idle",
        "reauthenticated",
        "refused",
    )

    def __init__(self) -> None:
        self.accepted = 0
        """Connections within the limits of their number."""
        self.closed = 0
        """Of these, connections that have ended."""
        self.refused = 0
        """Connections beyond the limits of their number or their rate."""
        self.authenticated = 0
        """Connections whose client became known; all of them on listeners without authentication."""
        self.reauthenticated = 0
        """Further authentications on the same connections (KIP-368)."""
        self.failed_authentications = 0
        """Failed SASL exchanges and TLS handshakes, and certificates that name no principal."""
        self.expired = 0
        """Connections closed because their client did not authenticate again in time."""
        self.idle = 0
        """Connections closed because they were idle, or not set up in time."""
