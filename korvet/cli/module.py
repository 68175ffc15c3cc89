"""`korvet module`: shows where the server module is."""

import click

from korvet.redis.module import find_module


@click.command(short_help="Show the path of the server module, for `loadmodule`.")
def module() -> None:
    """Show the path of the server module, for `loadmodule` of your own Redis or Valkey.

    redis-server --loadmodule $(korvet module)
    """
    path = find_module()
    if path is None:
        raise click.ClickException(
            "the server module is not built: the installation found no C compiler. Install one, for example "
            "the package gcc, and install korvet again."
        )
    click.echo(path)
