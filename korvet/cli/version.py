"""`korvet version`: shows versions for bug reports."""

import importlib.metadata
import json
import platform

import click

from korvet.cli.output import table
from korvet.embedded.binary import installed_servers
from korvet.embedded.errors import EmbeddedServerError
from korvet.records import kernel
from korvet.redis.module import VERSION, find_module


@click.command(short_help="Show the versions of korvet and its environment.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Show the versions of korvet, Python and the servers found."""
    facts = {
        "korvet": _own_version(),
        "python": platform.python_version(),
        "accelerated": kernel.ACCELERATED,
        "module": VERSION if find_module() else None,
        "servers": _servers(),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    accelerated = (
        "yes" if kernel.ACCELERATED else "no: the compiled record kernel is missing, so korvet is slow"
    )
    rows = [
        ("korvet", facts["korvet"]),
        ("Python", f"{facts['python']} ({platform.platform()})"),
        ("accelerated", accelerated),
        (
            "server module",
            f"version {VERSION}" if find_module() else "no: it is not built, so appends are slow",
        ),
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
