"""Options and argument types of several commands."""

from collections.abc import Callable
from typing import Any

import click

bootstrap_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT,...",
    default="127.0.0.1:9092",
    show_default=True,
    help="One or more brokers of the cluster. The first that answers is asked for the others.",
)
json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON."
)


class KeyValue(click.ParamType[tuple[str, str]]):
    """An argument of the form `KEY=VALUE`."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first equals sign. Fails with click's error if there is none."""
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"expected KEY=VALUE, not {value!r}", param, ctx)
        return key, text
