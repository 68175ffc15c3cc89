"""Ids that Kafka's command line tools accept as arguments."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from korvet.cluster.ids import random_uuid
from korvet.offsets.wire import uuid_text

if TYPE_CHECKING:
    import pytest


def test_no_id_begins_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    dashed, plain = uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\xfc" + bytes(15))
    assert [uuid_text(one.bytes)[:2] for one in (dashed, plain)] == ["-A", "_A"]
    drawn = iter((dashed, dashed, plain))
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert random_uuid() == plain
