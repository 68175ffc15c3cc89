"""The last step: runs `korvet report` on the demo's server and checks its tables."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet  # type: ignore[import-untyped]

from korvet.config.keys import clean_environment
from korvet.demo.failure import DemoFailed, expect
from korvet.demo.scenario import GroupClaim
from korvet.demo.server import DemoServer
from korvet.embedded.shim import bound

REPORT_TIMEOUT_S = 300.0
PAGE = "report.html"


def write_report(server: DemoServer, folder: Path) -> Path:
    """Run the command, with its progress on our standard error. Returns the page. Raises DemoFailed."""
    url = f"unix://{quote(str(server.redis_socket))}"
    command = [sys.executable, "-m", "korvet", "report", "--redis", url, "--out", str(folder)]
    # A session of its own, like the broker's: Ctrl-C reaches only us, and we stop the command.
    process = subprocess.Popen(
        bound(command), stdout=subprocess.DEVNULL, env=clean_environment(), start_new_session=True
    )
    try:
        status = process.wait(REPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"`korvet report` took more than {REPORT_TIMEOUT_S:.0f} s") from error
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if status != 0:
        raise DemoFailed(f"`korvet report` exited with status {status}; its messages are above")
    page = folder / PAGE
    if not page.is_file():
        raise DemoFailed(f"`korvet report` wrote no {page}")
    return page


def check_report(folder: Path, claims: Mapping[str, GroupClaim]) -> list[tuple[str, str, int, int, int]]:
    """Compare the table `group_status` and the page with the claims.

    Returns each group's row of the report: (group, status, members, unread records, longest wait in ms).
    Raises DemoFailed.
    """
    table = pyarrow.parquet.read_table(folder / "group_status").to_pylist()
    found = {str(row["group"]): GroupClaim(int(row["record_lag"]), int(row["member_count"])) for row in table}
    expect("groups in the report", found, dict(claims))
    text = (folder / PAGE).read_text("utf-8")
    for group in claims:
        if group not in text:
            raise DemoFailed(f"the page does not contain the group {group}")
    rows = [
        (
            str(row["group"]),
            # As the page has it.
            str(row["status"]).lower(),
            int(row["member_count"]),
            int(row["record_lag"]),
            int(row["time_lag_ms"] or 0),
        )
        for row in table
    ]
    return sorted(rows, key=lambda row: -row[4])
