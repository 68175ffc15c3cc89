"""The properties of Kafka's Java clients in a file, as Kafka's tools take it (--command-config).

A client gets references to the file in place of the values, by Kafka's own FileConfigProvider (KIP-297). So
Spark's plans, pages, logs, events and checkpoints contain no secret, whatever its property is called. Only
parameters of other config providers can't be references; Spark redacts them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from korvet.properties import check_paths, parse_properties
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROTOCOL: Final = "security.protocol"
# What korvet and Spark's connector set themselves.
_OWN: Final = frozenset(
    (
        "bootstrap.servers",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "auto.offset.reset",
        "enable.auto.commit",
        "allow.auto.create.topics",
        "key.deserializer",
        "value.deserializer",
        "key.serializer",
        "value.serializer",
        "interceptor.classes",
    )
)
# Messages about failures depend on these values, which are no secrets.
_SHOWN: Final = frozenset((PROTOCOL, "sasl.mechanism"))
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PROVIDERS: Final = "config.providers"
_PROVIDER: Final = "korvet"
_PROVIDER_CLASS: Final = "org.apache.kafka.common.config.provider.FileConfigProvider"


def read_command_config(path: Path) -> Mapping[str, str]:
    """Return the properties in a file for Kafka's Java clients on this machine and on executors.

    Without those that korvet sets itself. The others are references, except those of _SHOWN and those that
    refer to other providers of the file. Raises SourceError for a file that is missing or malformed.
    """
    path = path.absolute()
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise SourceError(f"--command-config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(
            f"--command-config {path} is not UTF-8 (byte {error.start}): write other characters as \\uXXXX"
        ) from error
    if set(":}") & set(str(path)):
        raise SourceError(f"--command-config {path}: the path of the file must not contain : and }}")
    try:
        properties = parse_properties(text)
        check_paths(properties, os.path.exists)
    except ValueError as error:
        raise SourceError(f"--command-config {path}, {error}") from error
    # Kafka ignores blanks around the values of _SHOWN.
    found = {name: each.value.strip() if name in _SHOWN else each.value for name, each in properties.items()}
    protocol = found.get(PROTOCOL, _PROTOCOLS[0])
    if protocol.upper() not in _PROTOCOLS:
        raise SourceError(
            f"--command-config {path}: {PROTOCOL} is {protocol!r}, not one of {', '.join(_PROTOCOLS)}"
        )
    return _references(path, {name: value for name, value in found.items() if name not in _OWN})


def _references(path: Path, found: Mapping[str, str]) -> dict[str, str]:
    others = found.get(_PROVIDERS, "")

    def stays(name: str, value: str) -> bool:
        # Kafka does not resolve references within a value that it found by a reference.
        return name in _SHOWN or name.startswith(f"{_PROVIDERS}.") or (bool(others) and "${" in value)

    given = {
        name: value if stays(name, value) else f"${{{_PROVIDER}:{path}:{name}}}"
        for name, value in found.items()
        if name != _PROVIDERS
    }
    named = ",".join(filter(None, (others, _PROVIDER)))
    return {**given, _PROVIDERS: named, f"{_PROVIDERS}.{_PROVIDER}.class": _PROVIDER_CLASS}
