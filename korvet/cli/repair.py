"""`korvet repair`: mends the embedded server's append-only file, after a backup."""

from pathlib import Path

import click

from korvet.cli.redis_address import data_dir_option
from korvet.embedded.repair import Repair


@click.command(short_help="Mend a damaged data folder of the embedded server.")
@data_dir_option("The data folder. No korvet may run on it.")
@click.option("--yes", is_flag=True, help="Do not ask before the cut.")
def repair(data_dir: Path, yes: bool) -> None:
    """Mend a damaged append-only file of the embedded server.

    The file is checked. If it is damaged, it is copied to a folder beside it, and then cut off at the damage:
    whatever was written after that is lost. A backup of the data folder may hold more: compare first.
    """
    with Repair(data_dir) as folder:
        damage = folder.find()
        if damage is None:
            click.echo(f"{data_dir} is sound; nothing is changed.")
            return
        click.echo(damage.report)
        click.echo(f"\nA cut at the damage takes away the last {damage.lost_bytes} bytes of {damage.name}.")
        if not yes:
            click.confirm("Make a backup and cut?", abort=True)
        click.echo(f"The backup is {folder.back_up()}")
        folder.cut()
        click.echo(f"{data_dir} is mended: `korvet serve` can use it.")
