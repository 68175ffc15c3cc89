"""`korvet version`: what runs here, for bug reports."""

import importlib.metadata
import json
import platform

import click

from korvet.cli.output import table
from korvet.embedded import EmbeddedServerError, installed_servers
from korvet.records import kernel


@click.command(short_help="Show versions, acceleration and servers found.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Show versions of korvet and of what it runs on."""
    facts = {
        "korvet": _own_version(),
        "python": platform.python_version(),
        "accelerated": kernel.ACCELERATED,
        "servers": _servers(),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    accelerated = "yes" if kernel.ACCELERATED else "no: the compiled record kernel is missing, so it is slow"
    rows = [
        ("korvet", facts["korvet"]),
        ("Python", f"{facts['python']} ({platform.platform()})"),
        ("accelerated", accelerated),
    ]
    rows += [("server found", server) for server in _servers() or ["none"]]
    table(("", ""), rows, header=False)


def _own_version() -> str:
    try:
        return importlib.metadata.version("korvet")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _servers() -> list[str]:
    try:
        return [str(server) for server in installed_servers()]
    except EmbeddedServerError as error:
        return [str(error)]
