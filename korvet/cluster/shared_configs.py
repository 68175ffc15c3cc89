"""Users, ACLs, client quotas, configs of groups and brokers, and levels of features: stored in Redis, and
applied in each broker after a change by any broker.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from korvet.config.features import Features, greatest_level
from korvet.groups.own_configs import GROUP_CONFIGS
from korvet.quotas import entities
from korvet.redis.errors import KeyspaceLost, OutOfMemory, StorageError
from korvet.redis.fields import DamageLog, counter_of, pairs_of, read_fields
from korvet.security import acls
from korvet.security.credentials import field_of, parse_field
from korvet.security.scram import MAX_ITERATIONS, ScramCredential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from korvet.config.live import LiveConfig
    from korvet.groups.own_configs import OwnConfigs
    from korvet.quotas.entities import Entity
    from korvet.quotas.throttle import ClientQuotas
    from korvet.redis.commands import Commands
    from korvet.redis.keys import Keyspace
    from korvet.security.acls import Acl
    from korvet.security.authorizer import Authorizer
    from korvet.security.credentials import Credentials
    from korvet.security.scram import ScramMechanism

T = TypeVar("T")

# Interval of reads of other brokers' changes if clients must be authenticated or authorized.
_POLL_S: Final = 0.25
# Interval of reads otherwise: then only quotas, configs and features matter.
_QUOTAS_POLL_S: Final = 1.0
# Limits the fields of one function call: a script accepts some thousands of arguments.
_FIELDS_AT_ONCE: Final = 1000

log = logging.getLogger(__name__)


class SharedConfigs:
    """Writes changes to Redis first; a change applies in this broker when its method returns. Raises
    StorageError if Redis fails.
    """

    def __init__(
        self,
        commands: Commands,
        authorizer: Authorizer | None,
        credentials: Credentials,
        quotas: ClientQuotas,
        group_configs: OwnConfigs,
        live: LiveConfig,
    ) -> None:
        """authorizer: None if every client may do everything. `live`: this broker's settings."""
        self._commands = commands
        self.damage = DamageLog()
        self.authorizer = authorizer
        self.credentials = credentials
        self.quotas = quotas
        self.group_configs = group_configs
        self.live = live
        self.features = Features()
        # The history of Redis's data and the counter of changes when they were read last, even if the counter
        # is damaged. A failover that loses changes lets the counter repeat, in another history.
        self._known: tuple[str, bytes] | None = None
        self._loading = asyncio.Lock()

    async def keep_up(self, *, guards: bool) -> None:
        """Apply changes of other brokers until cancelled; `guards`: a listener authenticates or an authorizer
        is configured, so apply them sooner.
        """
        failing = False
        while True:
            await asyncio.sleep(_POLL_S if guards else _QUOTAS_POLL_S)
            try:
                await self.refresh()
            except StorageError as error:
                if not failing:
                    log.warning(
                        "users, ACLs and quotas cannot be read, the known ones stay in force: %s", error
                    )
                failing = True
            else:
                failing = False

    async def refresh(self) -> None:
        """Apply what is shared if any broker has changed it (HGETALL).

        Fields that cannot be read are left out. Raises StorageError; KeyspaceLost if Redis does not hold our
        keyspace any more. After an error the known values stay in force.
        """
        async with self._loading:
            keys = self._commands.keyspace
            history = self._commands.links(keys.cluster).server.history.id
            version = await self._stored_version()
            if (history, version) == self._known:
                return
            users = await self._read(keys.users, parse_user)
            bindings = await self._read(keys.acls, parse_acl)
            quotas = await self._read(keys.quotas, parse_quota)
            group_configs = await self._read(keys.group_configs, parse_group_config)
            broker_configs = await self._read(keys.broker_configs, parse_broker_config)
            levels = await self._read(keys.features, parse_level)
            decoy_secret = await self._decoy_secret()
            # The keyspace may have been lost while the hashes were read.
            await self._stored_version()
            self.credentials.replace(dict(users), decoy_secret)
            self.quotas.replace(dict(quotas))
            self.group_configs.replace(_by_resource(group_configs))
            self.features.replace(dict(levels), counter_of(version))
            by_broker = _by_resource(broker_configs)
            self.live.take(by_broker.get("", {}), by_broker.get(str(self.live.static.node_id), {}))
            if self.authorizer is not None:
                self.authorizer.replace(bindings)
            # A change during the reads has a later version, and is read again.
            self._known = history, version

    async def _stored_version(self) -> bytes:
        """The counter of changes in Redis. Raises StorageError and KeyspaceLost."""
        cluster = self._commands.keyspace.cluster
        cluster_id, version = await self._commands.call("HMGET", cluster, "id", "security")
        if cluster_id != self._commands.cluster_id.encode():
            raise KeyspaceLost(f"{cluster.decode()} does not have our cluster id {self._commands.cluster_id}")
        return version or b"0"

    async def _decoy_secret(self) -> bytes:
        """The secret from which decoys are derived: created once for all brokers (HSETNX). A server whose
        memory is full refuses the command, even if the secret exists.
        """
        cluster = self._commands.keyspace.cluster
        stored = await self._commands.call("HGET", cluster, "decoy_secret")
        if stored is None:
            await self._commands.call("HSETNX", cluster, "decoy_secret", secrets.token_hex())
            stored = await self._commands.call("HGET", cluster, "decoy_secret")
        return bytes(stored)

    async def _read(self, key: bytes, parse: Callable[[bytes, bytes], T]) -> list[T]:
        found, damaged = read_fields(pairs_of(await self._commands.call("HGETALL", key)), parse)
        self.damage.note(key, damaged)
        return found

    async def change_users(
        self,
        upsertions: Mapping[tuple[str, ScramMechanism], ScramCredential],
        deletions: Iterable[tuple[str, ScramMechanism]],
    ) -> None:
        """Store some credentials and delete others (KIP-554)."""
        await self._change(
            self._commands.keyspace.users,
            [(field_of(*user), credential.encode()) for user, credential in upsertions.items()],
            [field_of(*user) for user in deletions],
        )

    async def change_acls(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Store some bindings and delete others (KIP-140)."""
        await self._change(
            self._commands.keyspace.acls,
            [(acls.encode(acl), b"") for acl in added],
            [acls.encode(acl) for acl in removed],
        )

    async def change_quotas(self, changes: Mapping[tuple[Entity, str], float | None]) -> None:
        """Store client quotas by entity and key; a value of None deletes the quota (KIP-546)."""
        await self._change(
            self._commands.keyspace.quotas,
            [
                (entities.field_of(*quota), repr(value).encode())
                for quota, value in changes.items()
                if value is not None
            ],
            [entities.field_of(*quota) for quota, value in changes.items() if value is None],
        )

    async def change_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace all configs of a group."""
        await self.refresh()
        before = self.group_configs.of(group_id)
        await self._replace(self._commands.keyspace.group_configs, group_id, before, configs)

    async def change_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Replace all dynamic configs of this broker, or of all brokers if `broker` is empty (KIP-226)."""
        await self.refresh()
        before = self.live.of_broker if broker else self.live.of_cluster
        await self._replace(self._commands.keyspace.broker_configs, broker, before, configs)

    async def change_features(self, levels: Mapping[str, int]) -> None:
        """Store the levels of features (KIP-584)."""
        fields = [(name.encode(), str(level).encode()) for name, level in levels.items()]
        await self._change(self._commands.keyspace.features, fields, [])

    async def _replace(
        self, key: bytes, resource: str, before: Mapping[str, str], configs: Mapping[str, str]
    ) -> None:
        """Only what differs, so that no change of another broker is undone."""
        encode = msgspec.json.encode
        sets = [
            (encode((resource, name)), value.encode())
            for name, value in configs.items()
            if before.get(name) != value
        ]
        await self._change(key, sets, [encode((resource, name)) for name in before if name not in configs])

    async def _change(
        self, key: bytes, sets: Sequence[tuple[bytes, bytes]], deletions: Sequence[bytes]
    ) -> None:
        keyspace = self._commands.keyspace
        keys = [key, keyspace.cluster]
        # Redis at maxmemory takes what frees memory; what limits clients, within the allowance; no new users.
        frees = key == keyspace.broker_configs or not sets
        function = "korvet_change_configs" if frees else "korvet_change_security"
        for start in range(0, max(len(sets), len(deletions)), _FIELDS_AT_ONCE):
            some = sets[start : start + _FIELDS_AT_ONCE]
            pairs = [part for pair in some for part in pair]
            gone = deletions[start : start + _FIELDS_AT_ONCE]
            arguments: list[bytes | str | int] = [self._commands.cluster_id, len(some), *pairs, *gone]
            try:
                await self._commands.fcall(function, keys, *arguments)
            except OutOfMemory:
                if key not in (keyspace.group_configs, keyspace.quotas):
                    raise
                await self._commands.fcall("korvet_change_within", keys, *arguments)
        await self.refresh()


def parse_user(field: bytes, value: bytes) -> tuple[tuple[str, ScramMechanism], ScramCredential]:
    """The user of a field of the users' hash. Raises ValueError."""
    user, mechanism = parse_field(field)
    credential = ScramCredential.decode(value)
    if not user:
        raise ValueError("it names no user")
    # With more iterations one password would keep the broker busy for minutes.
    if not 1 <= credential.iterations <= MAX_ITERATIONS:
        raise ValueError(f"{credential.iterations} iterations: it has to be from 1 to {MAX_ITERATIONS}")
    return (user, mechanism), credential


def parse_acl(field: bytes, value: bytes) -> Acl:
    """The binding of a field of the ACLs' hash. Raises ValueError."""
    del value
    acl = acls.decode(field)
    acl.check()
    return acl


def parse_quota(field: bytes, value: bytes) -> tuple[tuple[Entity, str], float]:
    """The quota of a field of the quotas' hash. Raises ValueError."""
    entity, key = entities.parse_field(field)
    entities.check_entity(entity)
    quota = float(value)
    entities.check_value(entity, key, quota)
    return (entity, key), quota


def parse_group_config(field: bytes, value: bytes) -> tuple[str, str, str]:
    """Group, name and value of a field of the hash of groups' configs. Raises ValueError."""
    group_id, name = msgspec.json.decode(field, type=tuple[str, str])
    config = GROUP_CONFIGS.get(name)
    if config is None:
        raise ValueError(f"{name} is no config of groups")
    return group_id, name, config.parse(value.decode())


def parse_broker_config(field: bytes, value: bytes) -> tuple[str, str, str]:
    """Broker, name and value of a field of the hash of brokers' configs. Raises ValueError."""
    broker, name = msgspec.json.decode(field, type=tuple[str, str])
    if broker and not broker.isdecimal():
        raise ValueError(f"{broker} is no broker's id")
    return broker, name, value.decode()


def parse_level(field: bytes, value: bytes) -> tuple[str, int]:
    """Feature and level of a field of the hash of features. Raises ValueError."""
    name, level = field.decode(), int(value)
    if not 0 <= level <= greatest_level(name):
        raise ValueError(f"{name} has no level {level}")
    return name, level


def parsers_of(keys: Keyspace) -> dict[bytes, Callable[[bytes, bytes], object]]:
    """The parsers of the fields of all hashes, by their keys."""
    return {
        keys.users: parse_user,
        keys.acls: parse_acl,
        keys.quotas: parse_quota,
        keys.group_configs: parse_group_config,
        keys.broker_configs: parse_broker_config,
        keys.features: parse_level,
    }


def _by_resource(configs: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for resource, name, value in configs:
        found.setdefault(resource, {})[name] = value
    return found
