"""Users, ACLs, client quotas and configs of groups in Redis, and their counterparts in this process, which
follow what any broker changes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.groups.config import CONFIG_NAMES
from korvet.quotas import entities
from korvet.security import acls
from korvet.security.credentials import field_of, parse_field
from korvet.security.scram import ScramCredential
from korvet.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from korvet.groups.config import OwnConfigs
    from korvet.quotas.entities import Entity
    from korvet.quotas.throttle import ClientQuotas
    from korvet.security.acls import Acl
    from korvet.security.authorizer import Authorizer
    from korvet.security.credentials import Credentials
    from korvet.security.scram import ScramMechanism
    from korvet.storage.store import Store

# How soon changes of other brokers are in force here, where clients have to be known and where not.
_POLL_S: Final = 0.25
_QUOTAS_POLL_S: Final = 1.0
# Fields that one call of the library takes: a script has room for some thousands of arguments.
_FIELDS_AT_ONCE: Final = 1000

log = logging.getLogger(__name__)


class SecurityStore:
    """Changes go to Redis first and are in force here when they return. Raises StorageError where Redis does
    not answer.
    """

    def __init__(
        self,
        store: Store,
        authorizer: Authorizer | None,
        credentials: Credentials,
        quotas: ClientQuotas,
        group_configs: OwnConfigs,
    ) -> None:
        """authorizer: None where everybody may do everything."""
        self._store = store
        self.authorizer = authorizer
        self.credentials = credentials
        self.quotas = quotas
        self.group_configs = group_configs
        self._version = -1
        self._loading = asyncio.Lock()

    async def keep_up(self, *, guards: bool) -> None:
        """Follow what is changed elsewhere, until cancelled; sooner where a listener or an authorizer
        `guards`.
        """
        failing = False
        while True:
            await asyncio.sleep(_POLL_S if guards else _QUOTAS_POLL_S)
            try:
                await self.refresh()
            except StorageError as error:
                if not failing:
                    log.warning(
                        "users, ACLs and quotas cannot be read, those that were known stay: %s", error
                    )
                failing = True
            else:
                failing = False

    async def refresh(self) -> None:
        """Take over users, ACLs, quotas and groups' configs where somebody has changed them (HGETALL)."""
        async with self._loading:
            keys = self._store.keyspace
            version = int(await self._store.call("HGET", keys.cluster, "security") or 0)
            if version == self._version:
                return
            users = await self._store.call("HGETALL", keys.users)
            bindings = await self._store.call("HKEYS", keys.acls)
            quotas = await self._store.call("HGETALL", keys.quotas)
            group_configs = await self._store.call("HGETALL", keys.group_configs)
            self.credentials.replace(_credentials(users), await self._decoy_secret())
            self.quotas.replace(_quotas(quotas))
            self.group_configs.replace(_group_configs(group_configs))
            if self.authorizer is not None:
                self.authorizer.replace(_acls(bindings))
            # What is changed in between has a later version, and is read again.
            self._version = version

    async def _decoy_secret(self) -> bytes:
        """What decoys are made from: made once, and then the same for all brokers (HSETNX)."""
        cluster = self._store.keyspace.cluster
        await self._store.call("HSETNX", cluster, "decoy_secret", secrets.token_hex())
        return bytes(await self._store.call("HGET", cluster, "decoy_secret"))

    async def change_users(
        self,
        upsertions: Mapping[tuple[str, ScramMechanism], ScramCredential],
        deletions: Iterable[tuple[str, ScramMechanism]],
    ) -> None:
        """Store credentials and forget others (KIP-554)."""
        await self._change(
            self._store.keyspace.users,
            [(field_of(*user), credential.encode()) for user, credential in upsertions.items()],
            [field_of(*user) for user in deletions],
        )

    async def change_acls(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Store bindings and forget others (KIP-140)."""
        await self._change(
            self._store.keyspace.acls,
            [(acls.encode(acl), b"") for acl in added],
            [acls.encode(acl) for acl in removed],
        )

    async def change_quotas(self, changes: Mapping[tuple[Entity, str], float | None]) -> None:
        """Store client quotas by entity and key, and forget those that are None (KIP-546)."""
        await self._change(
            self._store.keyspace.quotas,
            [
                (entities.field_of(*quota), repr(value).encode())
                for quota, value in changes.items()
                if value is not None
            ],
            [entities.field_of(*quota) for quota, value in changes.items() if value is None],
        )

    async def change_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Store all configs of a group, and forget those that it had beside them."""
        encode = msgspec.json.encode
        await self._change(
            self._store.keyspace.group_configs,
            [(encode((group_id, name)), value.encode()) for name, value in configs.items()],
            [encode((group_id, name)) for name in self.group_configs.of(group_id) if name not in configs],
        )

    async def _change(
        self, key: bytes, sets: Sequence[tuple[bytes, bytes]], deletions: Sequence[bytes]
    ) -> None:
        keys = [key, self._store.keyspace.cluster]
        for start in range(0, max(len(sets), len(deletions)), _FIELDS_AT_ONCE):
            some = sets[start : start + _FIELDS_AT_ONCE]
            pairs = [part for pair in some for part in pair]
            gone = deletions[start : start + _FIELDS_AT_ONCE]
            await self._store.fcall("korvet_change_security", keys, len(some), *pairs, *gone)
        await self.refresh()


def _credentials(reply: list[bytes]) -> dict[tuple[str, ScramMechanism], ScramCredential]:
    found = {}
    for field, value in zip(reply[::2], reply[1::2], strict=True):
        try:
            found[parse_field(field)] = ScramCredential.decode(value)
        except ValueError:
            log.error("the users' hash has a field that is no credential: %r", field)
    return found


def _acls(reply: list[bytes]) -> list[Acl]:
    found = []
    for field in reply:
        try:
            found.append(acls.decode(field))
        except msgspec.DecodeError:
            log.error("the ACLs' hash has a field that is no binding: %r", field)
    return found


def _quotas(reply: list[bytes]) -> dict[tuple[Entity, str], float]:
    found = {}
    for field, value in zip(reply[::2], reply[1::2], strict=True):
        try:
            found[entities.parse_field(field)] = float(value)
        except ValueError:
            log.error("the quotas' hash has a field that is no quota: %r", field)
    return found


def _group_configs(reply: list[bytes]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for field, value in zip(reply[::2], reply[1::2], strict=True):
        try:
            group_id, name = msgspec.json.decode(field, type=tuple[str, str])
            if name in CONFIG_NAMES:
                found.setdefault(group_id, {})[name] = str(int(value))
        except ValueError:
            log.error("the hash of groups' configs has a field that is no config: %r", field)
    return found
