"""`korvet monitoring`: writes the Prometheus rules and Grafana dashboards that come with korvet."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def monitoring(folder: Path) -> None:
    """Write rules and alerts for Prometheus, and dashboards for Grafana, into a folder.

    Files of the same names are replaced, others stay.
    """
    with as_file(files("korvet.monitoring")) as source:
        try:
            for kind in ("prometheus", "grafana"):
                shutil.copytree(source / kind, folder / kind, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise click.ClickException(f"{folder} cannot be written: {error}") from error
    click.echo(f"wrote {folder / 'prometheus'} and {folder / 'grafana'}")
