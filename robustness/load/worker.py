"""Threads of clients."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TopicPartition

if TYPE_CHECKING:
    from robustness.history import Place

# Faults cut connections, which clients would log. They find a broker again soon. With replicas that are late,
# several requests on one connection take several seconds.
LIBRDKAFKA: Final[dict[str, Any]] = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 250,
    "socket.timeout.ms": 15_000,
    "topic.metadata.refresh.interval.ms": 2_000,
    # librdkafka 2.16 waits forever for a group's coordinator that it has forgotten to bootstrap again.
    "metadata.recovery.strategy": "none",
}
# After this long a record or request without an answer counts as unknown.
REQUEST_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 120.0


class Worker(ABC):
    """A client that works on its own thread until it is closed."""

    def __init__(self, name: str, subject: str | None = None) -> None:
        self.name = name
        self.subject = subject
        """The producer, group or reader to which it belongs, and which must make progress."""
        self.progress = 0
        """The number of records that were acknowledged or read."""
        self.closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self) -> None:
        """Work until `closing` is set."""

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._failure = error
            raise

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Wait for the end of the thread. Raises what ended it early, or AssertionError if it hangs."""
        self.closing.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self._failure is not None:
            raise AssertionError(f"{self.name} ended early") from self._failure


def as_partitions(places: tuple[Place, ...]) -> list[TopicPartition]:
    """Returns places as librdkafka names them."""
    return [TopicPartition(place.topic, place.partition, place.offset) for place in places]


def silent_logger(name: str) -> logging.Logger:
    """Returns a logger that writes nothing."""
    logger = logging.Logger(name)
    logger.addHandler(logging.NullHandler())
    return logger
