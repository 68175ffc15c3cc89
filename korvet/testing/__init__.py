"""A Kafka broker for tests: `with KorvetBroker() as broker:` is ready in a second, and leaves nothing."""

from korvet.testing.broker import KorvetBroker
from korvet.testing.errors import KorvetBrokerError
from korvet.testing.faults import Fault, Faults
from korvet.testing.record import Record

__all__ = ["Fault", "Faults", "KorvetBroker", "KorvetBrokerError", "Record"]
