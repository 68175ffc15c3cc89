"""`korvet rewrite`: makes a data folder loadable by a server without korvet's server module."""

from pathlib import Path

import click

from korvet.cli.options import json_option
from korvet.cli.output import bytes_progress, print_json
from korvet.cli.redis_address import data_dir_option
from korvet.embedded.rewrite import make_plain


@click.command(short_help="Make a data folder loadable without korvet's server module.")
@data_dir_option("The data folder. Stop korvet first.")
@json_option
def rewrite(data_dir: Path, as_json: bool) -> None:
    """Rewrite the embedded server's append-only file without commands of korvet's server module.

    After that, a server without the module can load the folder, also with an earlier release of korvet. The
    next `korvet serve` uses the module again, unless embedded.module is off.

    The command needs the module, and as much free space as the data take. If it is interrupted, the folder is
    as before.
    """
    with bytes_progress("reading", "loading", "rewriting") as report:
        done = make_plain(data_dir, report)
    if as_json:
        print_json(done._asdict())
    elif done.changed:
        click.echo(
            f"{data_dir} is plain: a server without the module can load it. The append-only file had "
            f"{done.before_bytes} bytes and has {done.after_bytes}."
        )
    else:
        click.echo(f"{data_dir} was plain already: a server without the module can load it.")
