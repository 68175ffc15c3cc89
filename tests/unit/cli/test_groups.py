"""What `korvet groups` prints."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from korvet.cli import groups

if TYPE_CHECKING:
    import pytest


def test_a_protocol_that_a_client_chose_does_not_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster: Any = SimpleNamespace(metadata=lambda topics: SimpleNamespace(cluster_id="id"))
    monkeypatch.setattr(groups, "Cluster", lambda bootstrap: contextlib.nullcontext(cluster))
    monkeypatch.setattr(groups, "_described", lambda *_: ("Stable", "range\x1b[2J", []))
    monkeypatch.setattr(groups, "_committed", lambda *_: [])
    done = CliRunner().invoke(groups.groups, ["describe", "g"], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output.startswith("g  Stable  range\ufffd[2J\n")
