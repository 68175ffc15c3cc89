"""`korvet repair`: backs up and repairs the embedded server's append-only file."""

from pathlib import Path

import click

from korvet.cli.redis_address import data_dir_option
from korvet.embedded.repair import Repair


@click.command(short_help="Repair a damaged data folder of the embedded server.")
@data_dir_option("The data folder. Stop korvet first.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
def repair(data_dir: Path, yes: bool) -> None:
    """Repair a damaged append-only file of the embedded server.

    The command checks the file. If the file is damaged, the command copies it to a folder beside it and cuts
    it off at the damage: everything written after that is lost. A backup of the data folder may contain more,
    so compare first.
    """
    with Repair(data_dir) as folder:
        damage = folder.find()
        if damage is None:
            click.echo(f"{data_dir} is sound; nothing is changed.")
            return
        click.echo(damage.report)
        click.echo(f"\nA cut at the damage removes the last {damage.lost_bytes} bytes of {damage.name}.")
        if not yes:
            click.confirm("Make a backup and cut?", abort=True)
        click.echo(f"The backup is {folder.back_up()}")
        folder.cut()
        click.echo(f"{data_dir} is mended: `korvet serve` can use it.")
