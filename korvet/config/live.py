"""The settings in force: the static ones, changed by the dynamic ones of the cluster and of this broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import msgspec

from korvet.config.checks import check
from korvet.config.dynamic import Scope, scope_of
from korvet.config.errors import ConfigError
from korvet.config.fields import in_variable, key_of
from korvet.config.keys import find
from korvet.config.kinds import ConfigSource
from korvet.config.settings import Config, ListenerSetting
from korvet.config.values import parse_value, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from korvet.config.keys import Setting


log = logging.getLogger(__name__)


class LiveConfig:
    """A broker's settings while it runs. `now` is replaced by each change, so parts read it when they need a
    value, or follow the changes.
    """

    def __init__(self, static: Config) -> None:
        """`static`: the settings at the start."""
        self.static = static
        self.now = static
        self.of_cluster: Mapping[str, str] = {}
        """The dynamic settings of all brokers: texts by key."""
        self.of_broker: Mapping[str, str] = {}
        """The dynamic settings of this broker: texts by key."""
        self._used: tuple[Mapping[str, str], Mapping[str, str]] = {}, {}
        """Those of all brokers, and of this one, that are in force."""
        self._checks: list[Callable[[Config, Collection[str]], None]] = []
        self._followers: list[Callable[[Config], None]] = []
        self._changed = asyncio.Event()

    def guard(self, check: Callable[[Config, Collection[str]], None]) -> None:
        """Let a part refuse settings, by a ConfigError, before they are in force. `check` gets the settings
        and the names of those that are altered.
        """
        self._checks.append(check)

    def follow(self, changed: Callable[[Config], None]) -> None:
        """Call back after each change, with the new settings."""
        self._followers.append(changed)

    def verify(self, dynamic: Mapping[str, str], names: Collection[str], *, of_cluster: bool) -> None:
        """Raises ConfigError if other dynamic settings, of all brokers or of this one, can't be in force.
        `names`: those that are altered.
        """
        cluster, broker = self._used
        if of_cluster:
            self._verified(dynamic, broker, names)
        else:
            self._verified(cluster, dynamic, names)

    def _verified(
        self, of_cluster: Mapping[str, str], of_broker: Mapping[str, str], names: Collection[str]
    ) -> Config:
        """The settings with these dynamic ones. Raises ConfigError if they can't be in force."""
        config = _combined(self.static, of_cluster, of_broker)
        for refuse in self._checks:
            refuse(config, names)
        return config

    def take(self, of_cluster: Mapping[str, str], of_broker: Mapping[str, str]) -> None:
        """Replace the dynamic settings. Those that can't be in force are logged and have no effect."""
        if (of_cluster, of_broker) == (self.of_cluster, self.of_broker):
            return
        used = of_cluster, of_broker
        try:
            config = self._verified(*used, {*of_cluster, *of_broker})
        except ConfigError as error:
            log.error("some dynamic settings have no effect: %s", error)
            used = self._usable(of_cluster, of_broker)
            config = _combined(self.static, *used)
        self.of_cluster, self.of_broker = of_cluster, of_broker
        self._used, self.now = used, config
        self.renew()

    def renew(self) -> None:
        """Call the followers, also if nothing has changed: files that settings name may have."""
        for follower in self._followers:
            try:
                follower(self.now)
            except Exception:
                log.exception("a part of the broker cannot follow the changed settings")
        self._changed.set()
        self._changed = asyncio.Event()

    async def pause(self, delay_s: Callable[[Config], float]) -> None:
        """Sleep for a time that is a setting: a change applies to the sleep in progress, too."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (left_s := began_s + delay_s(self.now) - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    def _usable(
        self, of_cluster: Mapping[str, str], of_broker: Mapping[str, str]
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """As many of the dynamic settings as can be in force together, one after the other."""
        cluster: dict[str, str] = {}
        broker: dict[str, str] = {}
        left = [(cluster, *pair) for pair in of_cluster.items()]
        left += [(broker, *pair) for pair in of_broker.items()]
        while left:
            waiting = left
            left = []
            for layer, name, text in waiting:
                layer[name] = text
                try:
                    self._verified(cluster, broker, {name})
                except ConfigError:
                    del layer[name]
                    left.append((layer, name, text))
            if len(left) == len(waiting):
                break
        return cluster, broker

    def layers(self, setting: Setting) -> list[tuple[str, ConfigSource]]:
        """The usable values of a setting, except the default, that with precedence first."""
        found = []
        of_cluster, of_broker = self._used
        if setting.key in of_broker:
            found.append((of_broker[setting.key], ConfigSource.DYNAMIC_BROKER))
        if setting.key in of_cluster:
            found.append((of_cluster[setting.key], ConfigSource.DYNAMIC_DEFAULT_BROKER))
        static = getattr(self.static, setting.field)
        if static is not None and static != setting.default:
            found.append((text_of(static), ConfigSource.STATIC_BROKER))
        return found


def _combined(static: Config, of_cluster: Mapping[str, str], of_broker: Mapping[str, str]) -> Config:
    """Raises ConfigError."""
    values: dict[str, object] = {}
    listeners = {in_variable(spec.name) for spec in static.listener_specs}
    of_listeners = {(each.listener, each.field): each for each in static.listener_settings}
    for name, text in (*of_cluster.items(), *of_broker.items()):
        found = find(name)
        if found is None or scope_of(found[1].key) is Scope.STATIC:
            continue
        listener, setting = found
        value = parse_value(setting, name, text)
        if listener is None:
            values[setting.field] = value
        elif listener in listeners:
            of_listeners[listener, setting.field] = ListenerSetting(listener, setting.field, value)
    values["listener_settings"] = tuple(of_listeners.values())
    config = msgspec.structs.replace(static, **values)
    check(config, key_of)
    return config
