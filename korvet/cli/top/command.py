"""`korvet top`: brokers, topics and groups as they change."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from korvet.cli.client import ClientError
from korvet.cli.endpoints import endpoints_of
from korvet.cli.options import admin_option, bootstrap_option, json_option
from korvet.cli.redis_address import RedisSource, redis_options
from korvet.cli.signals import exit_on_sigterm
from korvet.cli.top import terminal, view
from korvet.cli.top.keys import press, split
from korvet.cli.top.poller import Poller
from korvet.cli.top.rows import report

if TYPE_CHECKING:
    from korvet.cli.client import Bootstrap
    from korvet.cli.top.facts import Facts
    from korvet.cli.top.rows import Report
    from korvet.cli.top.terminal import Terminal
    from korvet.cli.top.view import State

# The longest wait for a poll in progress at the end; the terminal is restored by then.
_LAST_POLL_S: Final = 1.0
# The longest time until the screen follows a key, a new report, or a new size of the window.
_TURN_S: Final = 0.25


@click.command()
@bootstrap_option
@redis_options("The Redis that holds the data, for record counts.")
@admin_option("An admin endpoint, for more columns, also as URL; repeat it for each broker.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.2, max=3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two polls.",
)
@click.option(
    "--table",
    type=click.Choice([*view.TABLES]),
    default="topics",
    show_default=True,
    help="The table that is shown first.",
)
@click.option("--sort", metavar="COLUMN", help="Sort that table by a column, such as LAG.")
@click.option("--filter", "pattern", default="", metavar="TEXT", help="Show names that contain this.")
@click.option("--once", is_flag=True, help="Poll twice, print all tables, and end.")
@json_option
def top(
    bootstrap: Bootstrap,
    source: RedisSource,
    admins: tuple[str, ...],
    interval_s: float,
    table: str,
    sort: str | None,
    pattern: str,
    once: bool,
    as_json: bool,
) -> None:
    """Show brokers, topics and groups, and how they change.

    A bootstrap server is enough. Records per second and lag are counted in Redis, as by `korvet groups`, or
    read at admin endpoints, which also have bytes per second, requests and clients. "-" is unknown.

    In a terminal, the view is drawn again at the interval; press ? for its keys. Otherwise the tables are
    printed at the interval. With --json, each poll is one line of JSON.
    """
    state = view.State(table=table, sort=_field(table, sort), pattern=pattern, interval_s=interval_s)
    poller = Poller(bootstrap, source, endpoints_of(admins, bootstrap.security.tls))
    try:
        with exit_on_sigterm():
            if once or as_json or not _is_interactive():
                _print(poller, state, once=once, as_json=as_json)
            else:
                _watch(poller, state)
    except KeyboardInterrupt:
        # The usual end.
        return
    finally:
        poller.close()


def _is_interactive() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _field(table: str, title: str | None) -> str | None:
    if title is None:
        return None
    titles = {column.title: column.field for column in view.TABLES[table]}
    if title.upper() not in titles:
        raise click.BadParameter(f"expected one of {', '.join(titles)}", param_hint="--sort")
    return titles[title.upper()]


def _print(poller: Poller, state: State, *, once: bool, as_json: bool) -> None:
    """Print a report after each interval; the first poll only prepares its rates."""
    before: Facts | None = poller.poll()
    while True:
        time.sleep(state.interval_s)
        try:
            now = poller.poll()
        except ClientError as error:
            if once:
                raise
            click.echo(f"{error}", err=True)
            # Rates over the interruption would be wrong.
            before = None
            continue
        found = report(before, now)
        if as_json:
            click.echo(msgspec.json.encode(found).decode())
        else:
            click.echo("\n".join(view.plain(found, state)))
        before = now
        if once:
            return


class _Polling:
    """Polls on a thread of its own, so that keys are answered at once."""

    def __init__(self, poller: Poller, interval_s: float) -> None:
        self._poller = poller
        self.interval_s = interval_s
        self.paused = False
        self.report: Report | None = None
        self.problem = ""
        self.changed = threading.Event()
        self.failure: BaseException | None = None
        self._hurry = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="polls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the poll in progress; wait for it for a moment."""
        self._ending = True
        self._hurry.set()
        self._thread.join(_LAST_POLL_S)

    def hurry(self) -> None:
        """Poll now."""
        self._hurry.set()

    def _run(self) -> None:
        before: Facts | None = None
        lost_s: float | None = None
        while not self._ending:
            try:
                if not self.paused:
                    now = self._poller.poll()
                    self.report, self.problem, lost_s = report(before, now), "", None
                    before = now
            except ClientError as error:
                lost_s = lost_s or time.monotonic()
                # Rates over the interruption would be wrong.
                before = None
                self.problem = f"{error} (for {time.monotonic() - lost_s:.0f} s)"
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                self.failure = error
                self.changed.set()
                return
            self.changed.set()
            self._hurry.wait(self.interval_s)
            self._hurry.clear()


def _watch(poller: Poller, state: State) -> None:
    """Draw the view until a key or a signal ends it."""
    polling = _Polling(poller, state.interval_s)
    polling.start()
    try:
        with terminal.opened() as screen:
            _draw_until_quit(polling, screen, state)
    finally:
        polling.stop()


def _draw_until_quit(polling: _Polling, screen: Terminal, state: State) -> None:
    drawn: Any = None
    current: State | None = state
    while current is not None:
        if polling.failure is not None:
            raise polling.failure
        size = screen.size
        current = view.clamped(current, polling.report, size[1])
        showing = (current, size, polling.report, polling.problem)
        if showing != drawn:
            screen.show(view.lines(polling.report, current, *size, polling.problem))
            drawn = showing
        typed = screen.read(_TURN_S)
        if typed is None:
            return
        for key in split(typed):
            current = press(current, key)
            if current is None:
                return
        if current.paused != polling.paused or current.interval_s != polling.interval_s:
            polling.paused, polling.interval_s = current.paused, current.interval_s
            polling.hurry()
