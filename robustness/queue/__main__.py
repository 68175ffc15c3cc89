"""`python -m robustness.queue`: a queue of many records, workers of both kinds, and kills."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click

from robustness.queue.run import Plan, run

_PLAN = Plan()


@click.command
@click.option("--records", default=_PLAN.records, show_default=True)
@click.option("--kafka", default=_PLAN.kafka, show_default=True, help="Share consumers (librdkafka).")
@click.option("--java", default=_PLAN.java, show_default=True, help="Share consumers (Java).")
@click.option("--redis", default=_PLAN.redis, show_default=True, help="Redis clients (redis-py).")
@click.option("--kill-s", default=_PLAN.kill_s, show_default=True, help="Time between two kills.")
@click.option("--seed", default=_PLAN.seed, show_default=True, help="Decides who is killed.")
def main(records: int, kafka: int, java: int, redis: int, kill_s: float, seed: int) -> None:
    """Let workers take and accept all records of one partition while some are killed and replaced."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="korvet-queue-") as folder:
        found = run(Plan(records, kafka, java, redis, kill_s, seed), Path(folder))
    click.echo(f"{found.deliveries}; {found.kills} kills; {time.monotonic() - began_s:.0f} s")
    for violation in found.violations[:20]:
        click.echo(f"{violation.kind}: offset {violation.offset}: {violation.message}")
    sys.exit(bool(found.violations))


if __name__ == "__main__":
    main()
