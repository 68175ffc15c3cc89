"""The configs of all kinds of resources, as DescribeConfigs returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from korvet.api.common import loggers
from korvet.config.dynamic import Scope, scope_of
from korvet.config.keys import SECRETS, find, settings
from korvet.config.kinds import ConfigSource, ConfigType, type_of
from korvet.config.values import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.config.keys import Setting
    from korvet.config.live import LiveConfig
    from korvet.topics.configs import ConfigView

# Name, value and source of a value that is, or would be, in force.
Layer = tuple[str, "str | None", ConfigSource]


class Described(NamedTuple):
    """One config of a resource."""

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[Layer, ...] = ()
    type: ConfigType = ConfigType.UNKNOWN
    documentation: str = ""
    read_only: bool = False
    sensitive: bool = False


def of_view(view: ConfigView) -> Described:
    """A config of a topic or a group."""
    config = view.config
    return Described(config.name, view.value, view.source, view.synonyms, config.type, config.documentation)


def of_broker(live: LiveConfig) -> Iterator[Described]:
    """All settings of this broker, and the dynamic configs that are none of korvet's."""
    known = set()
    for setting in settings():
        known.add(setting.key)
        read_only = scope_of(setting.key) is Scope.STATIC
        yield _described(setting, setting.key, _plain(live, setting), read_only=read_only)
    for name in {**live.of_broker, **live.of_cluster}:
        if name not in known:
            found = find(name)
            yield _other(name, _dynamic(live, name), [] if found is None else _plain(live, found[1]))


def of_cluster(live: LiveConfig) -> Iterator[Described]:
    """The dynamic configs of all brokers."""
    for name, value in live.of_cluster.items():
        found, layer = find(name), (name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)
        if found is None or found[0] is not None:
            yield _other(name, [layer], [])
        else:
            yield _described(found[1], name, [layer], read_only=False)


def of_loggers() -> Iterator[Described]:
    """The levels of this broker's loggers."""
    for name in loggers.names():
        yield Described(name, loggers.level_of(name), ConfigSource.DYNAMIC_BROKER_LOGGER)


def _other(name: str, dynamic: list[Layer], plain: list[Layer]) -> Described:
    """A dynamic config of a listener, or one that korvet doesn't know, whose value is not shown then."""
    found = find(name)
    if found is not None:
        return _described(found[1], name, dynamic + plain, read_only=True)
    hidden = tuple((each, None, source) for each, _, source in dynamic)
    return Described(name, None, hidden[0][2], hidden, read_only=True, sensitive=True)


def _described(setting: Setting, name: str, layers: list[Layer], *, read_only: bool) -> Described:
    sensitive = setting.key in SECRETS
    if sensitive:
        # Shown as null, as Kafka shows its sensitive configs.
        layers = [(each, None, source) for each, _, source in layers]
    value, source = (layers[0][1], layers[0][2]) if layers else (None, ConfigSource.DEFAULT)
    return Described(
        name,
        value,
        source,
        tuple(layers),
        type_of(setting),
        setting.description,
        read_only,
        sensitive,
    )


def _plain(live: LiveConfig, setting: Setting) -> list[Layer]:
    """The values of a setting without a listener's prefix, that with precedence first."""
    layers: list[Layer] = [(setting.key, value, source) for value, source in live.layers(setting)]
    if setting.default is not None:
        layers.append((setting.key, text_of(setting.default), ConfigSource.DEFAULT))
    return layers


def _dynamic(live: LiveConfig, name: str) -> list[Layer]:
    sources = (
        (live.of_broker, ConfigSource.DYNAMIC_BROKER),
        (live.of_cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
    )
    return [(name, layer[name], source) for layer, source in sources if name in layer]
