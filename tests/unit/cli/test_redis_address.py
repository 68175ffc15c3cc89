"""Which Redis a command uses, from options and variables."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet
from korvet.cli.redis_address import RedisSource, redis_options

URL, OTHER = "redis://variable:6379", "redis://option:6379"


@click.command()
@redis_options("The server.")
def show(source: RedisSource) -> None:
    """Print what a command gets."""
    click.echo(f"{source.url} {source.data_dir} {source.keyspace}")


@pytest.mark.parametrize(
    ("arguments", "variables", "found"),
    [
        ([], {}, "None korvet-data korvet"),
        ([], {"KORVET_REDIS": URL}, f"{URL} korvet-data korvet"),
        ([], {"KORVET_REDIS": URL, "KORVET_DATA_DIR": "folder"}, f"{URL} folder korvet"),
        (["--data-dir", "folder"], {"KORVET_REDIS": URL}, "None folder korvet"),
        (["--data-dir", "korvet-data"], {"KORVET_REDIS": URL}, "None korvet-data korvet"),
        (["--data-dir", "folder", "--redis", OTHER], {"KORVET_REDIS": URL}, f"{OTHER} folder korvet"),
        (["--redis", OTHER], {"KORVET_REDIS": URL, "KORVET_DATA_DIR": "folder"}, f"{OTHER} folder korvet"),
    ],
)
def test_a_flag_precedes_a_variable(arguments: list[str], variables: dict[str, str], found: str) -> None:
    unset = dict.fromkeys(("KORVET_REDIS", "KORVET_DATA_DIR", "KORVET_KEYSPACE"))
    done = CliRunner(env=unset | variables).invoke(show, arguments)
    assert done.output == f"{found}\n"


@pytest.mark.parametrize("arguments", [["doctor"], ["upgrade"], ["backup", "new"], ["restore", "."]])
def test_commands_use_the_folder_that_is_named(tmp_path: Path, arguments: list[str]) -> None:
    """They would not get far with either."""
    runner = CliRunner(env={"KORVET_REDIS": "redis://127.0.0.1:1"})
    done = runner.invoke(korvet, [*arguments, "--data-dir", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "127.0.0.1:1" not in done.output
