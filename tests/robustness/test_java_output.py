"""The output of Kafka's verifiable clients."""

from __future__ import annotations

from robustness.load.java import Lines


def test_a_line_is_complete_when_its_end_is_there() -> None:
    lines = Lines()
    assert lines.take('{"name": "rec') == []
    assert lines.take('ords"}\n{"name":') == ['{"name": "records"}']
    assert lines.take("") == []
    assert lines.take(' "end"}\n\nlog\n') == ['{"name": "end"}', "", "log"]
