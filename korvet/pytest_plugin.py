"""The pytest plugin of korvet, loaded by every pytest where korvet is installed. So it imports nothing but
pytest, and fixtures import the rest.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.testing import KorvetBroker

_SETTINGS = "korvet_settings"
_BROKERS = "korvet_brokers"
# Kafka's topics have at most 249 characters.
_LONGEST_TEST = 200
_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini options."""
    parser.addini(
        _SETTINGS,
        "settings of the brokers of `korvet_broker` and `fresh_korvet_broker`, one KEY=VALUE per line, as "
        "for `korvet serve --set`",
        type="linelist",
        default=[],
    )
    parser.addini(_BROKERS, "number of brokers that share the data of these fixtures", default="1")


@pytest.fixture(scope="session")
def korvet_broker(pytestconfig: pytest.Config) -> Iterator[KorvetBroker]:
    """A Kafka broker that all tests of this process share (with pytest-xdist: of this worker)."""
    with _configured(pytestconfig) as broker:
        yield broker


@pytest.fixture
def fresh_korvet_broker(pytestconfig: pytest.Config) -> Iterator[KorvetBroker]:
    """A Kafka broker for this test alone, without topics and groups. The test may stop it."""
    with _configured(pytestconfig) as broker:
        yield broker


@pytest.fixture
def korvet_topic(korvet_broker: KorvetBroker, request: pytest.FixtureRequest) -> str:
    """The name of a new topic of `korvet_broker`, with one partition. It contains the name of the test."""
    test = "".join(char if char.isascii() and char.isalnum() else "-" for char in request.node.name)
    name = f"{test[:_LONGEST_TEST]}-{next(_numbers)}"
    korvet_broker.create_topic(name)
    return name


def _configured(config: pytest.Config) -> KorvetBroker:
    from korvet.testing import KorvetBroker  # noqa: PLC0415  # only for tests that use a fixture

    settings = {}
    for line in config.getini(_SETTINGS):
        key, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"{_SETTINGS}: expected KEY=VALUE, not {line!r}")
        settings[key.strip()] = value.strip()
    brokers = config.getini(_BROKERS)
    if not (brokers.isdecimal() and int(brokers)):
        raise pytest.UsageError(f"{_BROKERS}: expected a number from 1 on, not {brokers!r}")
    return KorvetBroker(settings=settings, brokers=int(brokers))
