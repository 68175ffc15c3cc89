"""`korvet ready`, for the help of the command line: `korvet.cli.main` calls the probe itself."""

import click

from korvet import probe


def _described(command: click.Command) -> click.Command:
    for name, (metavar, text) in probe.OPTIONS.items():
        names = (name, "-c") if name == "--config" else (name,)
        command.params.append(click.Option(names, metavar=metavar, help=text))
    return command


@_described
@click.command(short_help="Probe the broker of this machine or container.")
def ready(**options: str | None) -> None:
    """Ask whether the broker of this machine or container is ready: the checks of /readyz.

    The exit status is 0 if it is ready, 1 if it is not, with a line that names the checks that fail, and 2
    after a wrong option, or if several brokers run here and none is named. With --processes, all brokers must
    be ready.

    It needs no address and no credentials. If the settings (options, KORVET_... variables, the file) name an
    admin endpoint, that is asked; else the broker itself, on Linux by a socket that every broker has.

    \b
    korvet ready
    korvet ready --wait 60
    korvet ready --admin https://broker1:9308
    """
    given = {"--" + name.replace("_", "-"): value for name, value in options.items() if value is not None}
    raise SystemExit(probe.main([word for pair in given.items() for word in pair]))
