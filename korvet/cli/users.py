"""`korvet users`: the users that authenticate with SCRAM.

A password reaches no command line, which every user of the machine can see, and no broker: a broker gets the
salted password (KIP-554).
"""

from collections.abc import Sequence
from typing import TextIO

import click

from korvet.cli.client import Bootstrap, ClientError, Cluster
from korvet.cli.options import bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.cli.user_requests import credentials, delete_credential, set_password
from korvet.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism

_mechanism_option = click.option(
    "-m",
    "--mechanism",
    "mechanisms",
    type=click.Choice([each.value for each in ScramMechanism]),
    multiple=True,
    help="A mechanism, repeatable [all].",
)


@click.group()
def users() -> None:
    """List, set and delete users that authenticate with SCRAM."""


@users.command("list")
@bootstrap_option
@json_option
def list_users(bootstrap: Bootstrap, as_json: bool) -> None:
    """List the users with their mechanisms. Users of the broker's settings (PLAIN) aren't among them."""
    with Cluster(bootstrap) as cluster:
        rows = [(user, each.value, count) for user, each, count in credentials(cluster)]
    names = ("user", "mechanism", "iterations")
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        table([name.upper() for name in names], rows)


@users.command("set")
@click.argument("name")
@_mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    help="Rounds of hashing that a log-in takes.",
)
@click.option(
    "--password-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Read the password from a file, or from standard input if it is `-` [ask].",
)
@bootstrap_option
def set_user(
    name: str,
    mechanisms: Sequence[str],
    iterations: int,
    password_file: TextIO | None,
    bootstrap: Bootstrap,
) -> None:
    """Create a user, or change its password."""
    if password_file is None:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        try:
            password = password_file.read().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise ClientError(f"the password in {password_file.name} is not UTF-8") from error
    if not password:
        raise ClientError("the password is empty")
    with Cluster(bootstrap) as cluster:
        for mechanism in map(ScramMechanism, mechanisms or [each.value for each in ScramMechanism]):
            set_password(cluster, name, password, mechanism, iterations)
    click.echo(f"set {name}")


@users.command("delete")
@click.argument("name")
@_mechanism_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def delete_user(name: str, mechanisms: Sequence[str], yes: bool, bootstrap: Bootstrap) -> None:
    """Delete a user. Connections that have authenticated stay open until their session ends."""
    with Cluster(bootstrap) as cluster:
        existing = [mechanism for user, mechanism, _ in credentials(cluster) if user == name]
        chosen = [ScramMechanism(each) for each in mechanisms] or existing
        if not chosen:
            raise ClientError(f"there is no user {name}")
        if not yes:
            click.confirm(f"Delete {name} ({', '.join(each.value for each in chosen)})?", abort=True)
        for each in chosen:
            delete_credential(cluster, name, each)
    click.echo(f"deleted {name}")
