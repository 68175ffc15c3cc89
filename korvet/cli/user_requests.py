"""Requests about users that authenticate with SCRAM (KIP-554). No request has a password."""

import secrets

from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResponse
from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.static.primitive import i8, i32

from korvet.cli.client import Cluster, check
from korvet.security.scram import BY_NUMBER, SALT_BYTES, ScramMechanism, salt_password


def set_password(
    cluster: Cluster, name: str, password: str, mechanism: ScramMechanism, iterations: int
) -> None:
    """Create a user's credential, or replace it."""
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


def delete_credential(cluster: Cluster, name: str, mechanism: ScramMechanism) -> None:
    """Delete a user's credential."""
    deletion = ScramCredentialDeletion(name=name, mechanism=i8(mechanism.number))
    _alter(cluster, AlterUserScramCredentialsRequest(deletions=(deletion,), upsertions=()))


def credentials(cluster: Cluster) -> list[tuple[str, ScramMechanism, int]]:
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
