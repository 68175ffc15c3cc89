"""The `korvet` command."""

from korvet.cli.app import korvet


def main() -> None:
    """Entry point of the `korvet` command."""
    korvet(prog_name="korvet")
