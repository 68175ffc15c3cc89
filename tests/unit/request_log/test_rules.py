"""Which requests are logged."""

from __future__ import annotations

from types import SimpleNamespace as Request
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from korvet.request_log.rules import OFF_MS, Asking, Rules, parse_clients, parse_failed
from korvet.request_log.trace import topics_of

ASKING = Asking("Produce", "10.1.2.3", "orders-7", "User:ada")
TOPIC_ID = UUID(int=7)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", set()),
        (" ,", set()),
        ("OFFSET_OUT_OF_RANGE", {ErrorCode.offset_out_of_range}),
        ("not_coordinator, NOT_CONTROLLER", {ErrorCode.not_coordinator, ErrorCode.not_controller}),
        (
            "!NOT_C*,NOT_*",
            {code for code in ErrorCode if code.name.startswith("not_") and code.name[4] != "c"},
        ),
        ("*", {code for code in ErrorCode if code}),
    ],
)
def test_errors_are_named_by_patterns(text: str, found: set[ErrorCode]) -> None:
    assert parse_failed(text) == found


@pytest.mark.parametrize("text", ["NONE", "NOT_A_CODE", "*,!NOTHING*", "!"])
def test_a_pattern_that_matches_no_error_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no error of Kafka matches"):
        parse_failed(text)


@pytest.mark.parametrize(
    ("text", "selects"),
    [
        ("", False),
        ("client=orders-*", True),
        ("client=orders", False),
        ("client=ORDERS-*", False),
        ("api=Produce,client=orders-*,principal=User:ada", True),
        ("api=Fetch,client=orders-*", False),
        ("api=Fetch; principal=User:a?a ;", True),
        ("address=10.1.0.0/16", True),
        ("address=10.2.0.0/16", False),
        ("address=fe80::/10", False),
        ("address=10.1.*", True),
    ],
)
def test_clients_are_selected_by_all_conditions_of_one_selector(text: str, selects: bool) -> None:
    rules = Rules(clients=parse_clients(text))
    assert rules.selects(ASKING) is selects
    assert rules.active is bool(text)


def test_an_address_is_selected_in_any_spelling() -> None:
    rules = Rules(clients=parse_clients("address=2001:DB8:0::1"))
    assert rules.selects(ASKING._replace(address="2001:db8::1"))
    assert not rules.selects(ASKING)


def test_an_address_that_is_none_is_in_no_network() -> None:
    assert not Rules(clients=parse_clients("address=::/0")).selects(ASKING._replace(address="unix"))


@pytest.mark.parametrize(
    "text", ["orders", "client=", "=x", "who=x", "client=a,,api=b", "address=10.0.0.0/99"]
)
def test_a_wrong_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|does not appear"):
        parse_clients(text)


@pytest.mark.parametrize(
    ("busy_ms", "errors", "selected", "reasons"),
    [
        (99, (), False, []),
        (100, (), False, []),
        (100.1, (), False, ["slow"]),
        (1, (ErrorCode.not_coordinator,), False, ["failed"]),
        (1, (ErrorCode.corrupt_message,), False, []),
        (999, (ErrorCode.corrupt_message, ErrorCode.not_coordinator), True, ["slow", "failed", "selected"]),
    ],
)
def test_a_request_has_its_reasons(
    busy_ms: float, errors: tuple[ErrorCode, ...], selected: bool, reasons: list[str]
) -> None:
    rules = Rules(100, parse_failed("NOT_COORDINATOR"))
    assert rules.active
    assert rules.need_outcome
    assert rules.reasons(busy_ms=busy_ms, errors=errors, selected=selected) == reasons


def test_without_rules_nothing_is_logged() -> None:
    rules = Rules()
    assert not rules.active
    assert rules.slow_ms == OFF_MS
    assert rules.reasons(busy_ms=1e9, errors=(ErrorCode.corrupt_message,), selected=False) == []


def test_zero_ms_logs_every_request() -> None:
    assert Rules(0).reasons(busy_ms=0.01, errors=(), selected=False) == ["slow"]


@pytest.mark.parametrize(
    ("request_", "topics"),
    [
        (Request(), []),
        (Request(topics=None), []),
        (Request(topics=(Request(name="a"), Request(name="b"), Request(name="a"))), ["a", "b"]),
        (Request(topics=(Request(name=None, topic_id=TOPIC_ID), Request(topic="c"))), [TOPIC_ID, "c"]),
        (Request(topics=(Request(key=TOPIC_ID), Request(key=None))), [TOPIC_ID]),
        (Request(topic_names=("a",)), ["a"]),
        (Request(topics=("a",)), ["a"]),
        (Request(groups=("g", Request(topics=(Request(name="a"),)))), ["a"]),
        (Request(transactions=(Request(topics=(Request(name="a"),)),)), ["a"]),
    ],
)
def test_topics_of_any_request_are_found(request_: Request, topics: list[object]) -> None:
    assert list(topics_of(request_)) == topics
