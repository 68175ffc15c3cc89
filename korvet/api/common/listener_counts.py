"""What is counted of the connections of one listener."""

from __future__ import annotations

from typing import Final

from korvet.metrics.counted import Counted, counter, shown

_SOCKETS: Final = "kafka_server_socket_server_metrics_"


class ListenerCounts(Counted):
    """The connections of one listener since the start."""

    @property
    @shown(f"{_SOCKETS}connection_count", "Open connections.", "listener")
    def open(self) -> int:
        """The connections that count towards the limits now."""
        return self.accepted - self.closed

    accepted = counter(f"{_SOCKETS}connection_creation_total", "Accepted connections.", "listener")
    """Connections within the limits of their number."""
    closed = counter(f"{_SOCKETS}connection_close_total", "Ended connections.", "listener")
    authenticated = counter(
        f"{_SOCKETS}successful_authentication_total",
        "Connections whose client is known; all of them on listeners without authentication.",
        "listener",
    )
    reauthenticated = counter(
        f"{_SOCKETS}successful_reauthentication_total",
        "Further authentications on the same connections.",
        "listener",
    )
    """KIP-368."""
    failed_authentications = counter(
        f"{_SOCKETS}failed_authentication_total", "Failed SASL exchanges and TLS handshakes.", "listener"
    )
    """And certificates that name no principal."""
    expired = counter(
        "kafka_network_socketserver_expiredconnectionskilled_total",
        "Connections closed because their client did not authenticate again in time.",
        "listener",
    )
    idle = counter(
        "korvet_idle_connections_closed_total",
        "Connections closed because they were idle, or not set up in time.",
        "listener",
    )
    refused = counter(
        "korvet_connections_refused_total",
        "Connections beyond the limits of their number or rate.",
        "listener",
    )
