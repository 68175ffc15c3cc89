"""Options and argument types that several commands share."""

from collections.abc import Callable
from typing import Any

import click

bootstrap_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    help="Any broker of the cluster.",
)
json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs."
)


class KeyValue(click.ParamType[tuple[str, str]]):
    """`KEY=VALUE`."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first equals sign; click's own error when there is none."""
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"expected KEY=VALUE, not {value!r}", param, ctx)
        return key, text
