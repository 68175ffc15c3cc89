"""The quota of a client: the most specific one for its user and client id."""

from __future__ import annotations

from hashlib import sha256
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.quotas.entities import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# Represents a type that an entity lacks; a name is never empty.
_UNSAID: Final = ""
_OF_CLIENTS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
# Limits the cached limits and the length of names in them: clients choose the names, and must not fill the
# memory.
_MOST_FOUND: Final = 10_000
_LONGEST_KEPT: Final = 255


class Limit(NamedTuple):
    """A rate in units per second, and the clients that share it."""

    rate: float
    sharers: tuple[str, ...]
    """Key, user and client id (empty if all users or client ids share the limit), or key and address."""


class Limits:
    """The limits of all entities."""

    def __init__(self, quotas: Mapping[tuple[Entity, str], float]) -> None:
        """quotas: values by entity and key."""
        self._rates = {
            (key, names.get(USER, _UNSAID), names.get(CLIENT_ID, _UNSAID)): value
            for (entity, key), value in quotas.items()
            if key in _OF_CLIENTS
            for names in [dict(entity)]
        }
        self._connection_rates = {
            _canonical(dict(entity)[IP]): value
            for (entity, key), value in quotas.items()
            if key == CONNECTION_CREATION_RATE
        }
        self._found: dict[tuple[str, str], dict[str, Limit]] = {}

    @property
    def are_for_clients(self) -> bool:
        """Whether any limit is for users or client ids."""
        return bool(self._rates)

    def of_address(self, address: str) -> Limit | None:
        """The limit of connections from an address (KIP-612)."""
        rates = self._connection_rates
        rate = rates.get(address, rates.get(None)) if rates else None
        return None if rate is None else Limit(rate, (CONNECTION_CREATION_RATE, address))

    def of(self, user: str, client_id: str) -> Mapping[str, Limit]:
        """A client's limits by key."""
        found = self._found.get((user, client_id))
        if found is None:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            limits = ((key, self._look_up(key, user, client_id)) for key in _OF_CLIENTS)
            found = {key: limit for key, limit in limits if limit is not None}
            if len(user) + len(client_id) <= _LONGEST_KEPT:
                self._found[user, client_id] = found
        return found

    def _look_up(self, key: str, user: str, client_id: str) -> Limit | None:
        """Look up in Kafka's order: users with client ids, users, client ids; names before defaults."""
        user_key, client_key = _short(user), _short(client_id)
        both, user_only, client_only = (key, user_key, client_key), (key, user_key, ""), (key, "", client_key)
        candidates: tuple[tuple[str | None, str | None, tuple[str, str, str]], ...] = (
            (user, client_id, both),
            (user, None, both),
            (user, _UNSAID, user_only),
            (None, client_id, both),
            (None, None, both),
            (None, _UNSAID, user_only),
            (_UNSAID, client_id, client_only),
            (_UNSAID, None, client_only),
        )
        for of_user, of_client, sharers in candidates:
            rate = self._rates.get((key, of_user, of_client))
            if rate is not None:
                return Limit(rate, sharers)
        return None


def _canonical(address: str | None) -> str | None:
    """The form in which sockets report an address: 2001:DB8:0::1 is 2001:db8::1."""
    return None if address is None else str(ip_address(address))


def _short(name: str) -> str:
    """A short name for the sharers of a quota, kept while it is in use."""
    if len(name) <= _LONGEST_KEPT:
        return name
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
