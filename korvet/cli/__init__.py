"""The `korvet` command."""

import sys

from korvet import probe


def main() -> None:
    """Entry point of the `korvet` command."""
    command, *arguments = sys.argv[1:] or [""]
    if command == "ready" and not {"-h", "--help"}.intersection(arguments):
        # A probe runs every few seconds: click and the other commands would take ten times as long.
        raise SystemExit(probe.main(arguments))
    # kio registers strategies if it can import hypothesis, which takes as long as the import of a broker.
    # Programs that use korvet for tests often have it.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    from korvet.cli.app import korvet  # noqa: PLC0415

    korvet(prog_name="korvet")
