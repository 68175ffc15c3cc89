"""The keys of the settings: in files, in documentation, as environment variables and for one listener."""

import os
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec import Meta

from korvet.config.fields import in_variable
from korvet.config.settings import Config

PREFIX = "KORVET_"
# Settings that may hold a password.
SECRETS = frozenset(
    {
        "redis",
        "oauthbearer.sasl.jaas.config",
        "plain.sasl.jaas.config",
        "ssl.key.password",
        "admin.token",
        "admin.basic.password",
        "admin.ssl.key.password",
    }
)
# Settings that a listener may have of its own, as `listener.name.NAME.KEY`: see `key_of_listener`.
OF_A_LISTENER = frozenset(
    {
        "connections.max.reauth.ms",
        "max.connection.creation.rate",
        "max.connections",
        "oauthbearer.sasl.jaas.config",
        "oauthbearer.sasl.server.callback.handler.class",
        "plain.sasl.jaas.config",
        "sasl.enabled.mechanisms",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.principal.mapping.rules",
        "ssl.truststore.location",
    }
)
LISTENER_PREFIX = "listener.name."
_OAUTHBEARER = "oauthbearer."


class Setting(NamedTuple):
    """One key of `Config`, as documentation and error messages name it."""

    key: str
    variable: str
    field: str
    type: object
    default: object
    description: str


@cache
def settings() -> tuple[Setting, ...]:
    """All settings in the order of `Config`."""
    return tuple(_declared())


def _declared() -> Iterator[Setting]:
    for field in msgspec.structs.fields(Config):
        if field.name == "listener_settings":
            continue
        notes = [part for part in field.type.__metadata__ if isinstance(part, Meta)]
        description = next((note.description for note in reversed(notes) if note.description), "")
        key = field.encode_name
        yield Setting(key, variable_of(key), field.name, field.type, field.default, description)


def variable_of(key: str) -> str:
    """The environment variable of a key: `num.partitions` is `KORVET_NUM_PARTITIONS`."""
    return PREFIX + in_variable(key)


def key_of_listener(listener: str, key: str) -> str:
    """The key of a listener's own setting. As in Kafka, those of a mechanism have its name before them."""
    mechanism = _OAUTHBEARER if key.startswith(f"sasl.{_OAUTHBEARER}") else ""
    return f"{LISTENER_PREFIX}{listener}.{mechanism}{key}"


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of korvet, which could lead to production data."""
    own = {setting.variable for setting in settings()} | {"KORVET_CONFIG"}
    of_listeners = variable_of(LISTENER_PREFIX)
    return {
        name: value
        for name, value in os.environ.items()
        if name not in own and not name.startswith(of_listeners)
    }


# The listener that a setting belongs to (None: the whole broker), and the setting.
Found = tuple[str | None, Setting]


def find(key: str) -> Found | None:
    """The setting with that key, which may be a listener's; None if no such setting exists."""
    setting = next((setting for setting in settings() if setting.key == key), None)
    if setting is not None:
        return None, setting
    return find_of_listener(variable_of(key)) if key.startswith(LISTENER_PREFIX) else None


def find_of_listener(variable: str) -> Found | None:
    """The setting that a variable `KORVET_LISTENER_NAME_...` sets; None if no such setting exists."""
    before = variable_of(LISTENER_PREFIX)
    rest = variable.removeprefix(before)
    if rest == variable:
        return None
    for setting in settings():
        name = rest.removesuffix(variable_of(key_of_listener("", setting.key)).removeprefix(before))
        if setting.key in OF_A_LISTENER and name and name != rest:
            return name, setting
    return None
