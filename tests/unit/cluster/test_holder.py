"""Whether the holder of a lease is dead, as another process of the machine sees it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from korvet.cluster.lease import Holder

if TYPE_CHECKING:
    import pytest


def test_a_holder_whose_process_is_hidden_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid=invisible (systemd: ProtectProc=invisible), /proc lacks the processes of other users."""
    holder = Holder.this_process()
    hidden, read_text = Path(f"/proc/{os.getpid()}/stat"), Path.read_text

    def read(path: Path, *args: str) -> str:
        if path == hidden:
            raise FileNotFoundError(path)
        return read_text(path, *args)

    monkeypatch.setattr(Path, "read_text", read)
    assert not holder.is_dead()
