"""The keys of the settings: in files, in documentation, as environment variables and for one listener."""

import os
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec import Meta

from korvet.config.settings import Config, in_variable

PREFIX = "KORVET_"
# What may hold a password.
SECRETS = frozenset({"redis", "plain.sasl.jaas.config", "ssl.key.password"})
# What a listener may have of its own, as `listener.name.NAME.KEY`.
OF_A_LISTENER = frozenset(
    {
        "connections.max.reauth.ms",
        "max.connections",
        "plain.sasl.jaas.config",
        "sasl.enabled.mechanisms",
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


def clean_environment() -> dict[str, str]:
    """Ours without settings of korvet, which would lead to somebody's real data."""
    own = {setting.variable for setting in settings()} | {"KORVET_CONFIG"}
    of_listeners = variable_of(LISTENER_PREFIX)
    return {
        name: value
        for name, value in os.environ.items()
        if name not in own and not name.startswith(of_listeners)
    }


# A setting and the listener whose it is, None for all.
Found = tuple[str | None, Setting]


def find(key: str) -> Found | None:
    """The setting of that key, which may be one listener's; None where there is none."""
    setting = next((setting for setting in settings() if setting.key == key), None)
    if setting is not None:
        return None, setting
    return find_of_listener(variable_of(key)) if key.startswith(LISTENER_PREFIX) else None


def find_of_listener(variable: str) -> Found | None:
    """What `KORVETLISTENER_PREFIX_...` means; None where that is nothing."""
    rest = variable.removeprefix(variable_of(LISTENER_PREFIX))
    if rest == variable:
        return None
    for setting in settings():
        name = rest.removesuffix("_" + in_variable(setting.key))
        if setting.key in OF_A_LISTENER and name and name != rest:
            return name, setting
    return None
