"""`korvet users`: the users that authenticate with SCRAM.

A password reaches no command line, which every user of the machine can see, and no broker: a broker gets the
salted password (KIP-554).
"""

import secrets
from collections.abc import Sequence
from typing import TextIO

import click
from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResponse
from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.static.primitive import i8, i32

from korvet.cli.client import Bootstrap, ClientError, Cluster, check
from korvet.cli.options import bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.security.scram import (
    BY_NUMBER,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BYTES,
    ScramMechanism,
    salt_password,
)

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
        rows = [(user, each.value, count) for user, each, count in _credentials(cluster)]
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
            salt = secrets.token_bytes(SALT_BYTES)
            upsertion = ScramCredentialUpsertion(
                name=name,
                mechanism=i8(mechanism.number),
                iterations=i32(iterations),
                salt=salt,
                salted_password=salt_password(mechanism, password, salt, iterations),
            )
            # Kafka refuses two changes of a user in one request.
            _alter(cluster, AlterUserScramCredentialsRequest(deletions=(), upsertions=(upsertion,)))
    click.echo(f"set {name}")


@users.command("delete")
@click.argument("name")
@_mechanism_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def delete_user(name: str, mechanisms: Sequence[str], yes: bool, bootstrap: Bootstrap) -> None:
    """Delete a user. Connections that have authenticated stay open until their session ends."""
    with Cluster(bootstrap) as cluster:
        existing = [mechanism for user, mechanism, _ in _credentials(cluster) if user == name]
        chosen = [ScramMechanism(each) for each in mechanisms] or existing
        if not chosen:
            raise ClientError(f"there is no user {name}")
        if not yes:
            click.confirm(f"Delete {name} ({', '.join(each.value for each in chosen)})?", abort=True)
        for each in chosen:
            deletion = ScramCredentialDeletion(name=name, mechanism=i8(each.number))
            _alter(cluster, AlterUserScramCredentialsRequest(deletions=(deletion,), upsertions=()))
    click.echo(f"deleted {name}")


def _credentials(cluster: Cluster) -> list[tuple[str, ScramMechanism, int]]:
    """Returns user, mechanism and iterations of each credential, sorted."""
    request = DescribeUserScramCredentialsRequest(users=None)
    answer = cluster.ask(request, DescribeUserScramCredentialsResponse)
    check(answer.error_code, "users", answer.error_message)
    found = []
    for result in answer.results:
        check(result.error_code, f"user {result.user}", result.error_message)
        found += [
            (result.user, BY_NUMBER[int(info.mechanism)], int(info.iterations))
            for info in result.credential_infos
        ]
    return sorted(found, key=lambda each: (each[0], each[1].value))


def _alter(cluster: Cluster, request: AlterUserScramCredentialsRequest) -> None:
    for result in cluster.ask(request, AlterUserScramCredentialsResponse).results:
        check(result.error_code, f"user {result.user}", result.error_message)
