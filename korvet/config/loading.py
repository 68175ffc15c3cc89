"""Putting a `Config` together from four sources.

Later sources win: built-in defaults, then one TOML file, then `KORVET_...` environment variables, then flags
of the command line. A key that does not exist or a value that does not fit is a `ConfigError` that names the
source and the key.

In TOML, Kafka's dotted names may be written as dotted keys (`num.partitions = 3`), quoted keys or tables; in
the environment `num.partitions` is `KORVET_NUM_PARTITIONS`.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from korvet.config.checks import check
from korvet.config.errors import ConfigError
from korvet.config.keys import PREFIX, SECRETS, Found, Setting, find, find_of_listener, settings
from korvet.config.kinds import shape_of
from korvet.config.memory_plan import fit
from korvet.config.settings import Config

# Variables of the build and of tools, which are not settings.
_OTHER_VARIABLES = re.compile(
    r"KORVET_(CONFIG|COMMAND_CONFIG|JOIN|REQUIRE_EXT|JARS_DIR|JDBC_PASSWORD|BROWSER"
    r"|REDIS_(USER|PASSWORD|PASSWORD_FILE|SENTINEL_PASSWORD|CA|CERT|KEY)|TEST_.*|DEV_.*)\Z"
)
# Kubernetes services named "korvet" or "korvet-..." put these into every container of their namespace.
_SERVICE_LINKS = re.compile(
    r"KORVET_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_\w+=|PORT=(tcp|udp|sctp)://)"
)


def load(
    *,
    defaults: Mapping[str, str] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    pairs: Mapping[str, str] | None = None,
    memory_bytes: int | None = None,
) -> Config:
    """Build a `Config`; `defaults` are keys and values that replace built-in defaults. `flags` maps field
    names to values; None means that a flag was not given. `pairs` are the keys and values of --set. Defaults
    are made to fit into `memory_bytes`, if that is known.

    Raises ConfigError for an unreadable file, an unknown key or a value that does not fit.
    """
    by_key = {setting.key: setting for setting in settings()}
    values: dict[str, object] = {}
    of_listeners: dict[tuple[str, str], object] = {}
    origins: dict[str, str] = {}

    def take(found: Found, raw: object, origin: str, *, text: bool) -> None:
        listener, setting = found
        value = _convert(setting, raw, origin, text=text)
        if listener is None:
            values[setting.field] = value
            origins[setting.field] = origin
        else:
            of_listeners[listener, setting.field] = value

    for key, text in (defaults or {}).items():
        take((None, by_key[key]), text, "default", text=True)
    if file is not None:
        for key, raw in _read_file(file):
            found = find(key)
            if found is None:
                raise ConfigError(f"{file}: unknown key {key!r}{_suggestion(key, by_key)}")
            take(found, raw, f"{file}: {key}", text=False)
    for variable, found, raw in _read_environment(environ or {}, by_key):
        take(found, raw, variable, text=True)
    by_field = {setting.field: setting for setting in by_key.values()}
    for field, flag in (flags or {}).items():
        if flag is not None:
            take((None, by_field[field]), flag, f"--{field.replace('_', '-')}", text=True)
    for key, text in (pairs or {}).items():
        found = find(key)
        if found is None:
            raise ConfigError(f"--set {key}={text}: unknown key {key!r}{_suggestion(key, by_key)}")
        take(found, text, f"--set {key}", text=True)

    named = {by_field[field].key: value for field, value in values.items()}
    own = [(listener, field, value) for (listener, field), value in of_listeners.items()]
    config = msgspec.convert({**named, "listener.settings": own}, Config)
    if memory_bytes is not None:
        config = fit(config, values.keys(), memory_bytes)
    check(config, lambda field: origins.get(field, "default"))
    return config


def _read_file(file: Path) -> Iterator[tuple[str, object]]:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a TOML file: {error}") from error
    seen: set[str] = set()
    for key, raw in _flatten(document, ""):
        if key in seen:
            raise ConfigError(f"{file}: {key} is given twice")
        seen.add(key)
        yield key, raw


def _flatten(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _read_environment(
    environ: Mapping[str, str], by_key: Mapping[str, Setting]
) -> Iterator[tuple[str, Found, str]]:
    by_variable = {setting.variable: setting for setting in by_key.values()}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX):
            continue
        setting = by_variable.get(variable)
        found = find_of_listener(variable) if setting is None else (None, setting)
        if found is not None:
            if environ[variable]:  # compose files pass variables that are not set as empty ones
                yield variable, found, environ[variable]
        elif not (
            _OTHER_VARIABLES.match(variable) or _SERVICE_LINKS.match(f"{variable}={environ[variable]}")
        ):
            raise ConfigError(f"{variable}: unknown setting{_suggestion(variable, by_variable)}")


def _suggestion(name: str, known: Mapping[str, Setting]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _convert(setting: Setting, raw: object, origin: str, *, text: bool) -> object:
    value = raw
    try:
        if text and isinstance(raw, str) and raw.isdecimal() and isinstance(setting.default, int):
            value = int(raw)  # msgspec's lax mode does not read numbers into literals
        return msgspec.convert(value, setting.type, strict=not text)
    # A ValueError: too many digits, or a text that is not UTF-8.
    except (msgspec.ValidationError, ValueError) as error:
        shape = shape_of(setting)
        literal = isinstance(shape, msgspec.inspect.LiteralType)
        reason = f"expected one of {', '.join(map(repr, shape.values))}" if literal else str(error)
    shown = "***" if setting.key in SECRETS else repr(raw)
    raise ConfigError(f"{origin} = {shown}: {reason[:1].lower()}{reason[1:]}")
