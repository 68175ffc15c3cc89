"""Go clients: a whole session of franz-go, sarama and segmentio's kafka-go, and transactions of franz-go."""

from __future__ import annotations

import pytest

from tests.support.go import BUILD_TIMEOUT_S, GoPrograms
from tests.support.records import CODECS
from tests.support.sessions import COUNT, check_session

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(2 * BUILD_TIMEOUT_S + 120)]


@pytest.fixture(scope="module")
def go() -> GoPrograms:
    """The programs. Skips the test if Go or its modules are unavailable."""
    return GoPrograms.build()


@pytest.mark.parametrize(
    ("program", "newest"), [("franz", False), ("sarama", False), ("sarama", True), ("segmentio", False)]
)
def test_a_whole_session(broker, go, fresh, program, newest):
    names = {"topic": fresh(program), "group": fresh(program)}
    answer = go.run(program, {"bootstrap": broker.bootstrap, "count": COUNT, "newest": newest, **names})
    check_session(answer, CODECS)


def test_franz_go_ends_empty_transactions_at_once(broker, go, fresh, topic):
    """The abort arrives while the markers of the previous transaction are written."""
    arguments = {"bootstrap": broker.bootstrap, "topic": topic, "group": fresh("producer"), "count": 20}
    answer = go.run("transactions", arguments)
    assert answer == {"committed": [""] * 20, "aborted": [""] * 20}
