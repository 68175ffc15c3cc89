"""`korvet users`, `korvet acls` and `korvet quotas` on a broker with SASL and ACLs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from korvet.cli.app import korvet as command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.api.secured import Secured

TIMEOUT_S = 30
ADDED = [
    ["User:writer", "ALLOW", operation, kind, "made", "LITERAL", "*"]
    for kind, operations in (
        ("TOPIC", ("WRITE", "DESCRIBE", "CREATE")),
        ("TRANSACTIONAL_ID", ("WRITE", "DESCRIBE")),
    )
    for operation in operations
]


@pytest.fixture
def run(secured: Secured, tmp_path: Path) -> Callable[..., str]:
    """Runs a command as a user: run("users", "list", user="admin", status=0)."""

    def invoke(
        *arguments: str,
        user: str = "admin",
        password: str = "secret",
        mechanism: str = "PLAIN",
        status: int = 0,
        given: str | None = None,
    ) -> str:
        file = tmp_path / "client.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f'sasl.jaas.config=Module required username="{user}" password="{password}";\n'
        )
        where = ["-b", f"127.0.0.1:{secured.sasl_port}", "--command-config", str(file)]
        done = CliRunner().invoke(command, [*arguments, *where], input=given, catch_exceptions=False)
        assert done.exit_code == status, done.output
        return done.output

    return invoke


def test_a_user_is_made_logs_in_and_is_deleted(run):
    assert run("users", "set", "anna", "--password-file", "-", given="one\n") == "set anna\n"
    made = [{"user": "anna", "mechanism": f"SCRAM-SHA-{size}", "iterations": 4096} for size in (256, 512)]
    assert json.loads(run("users", "list", "--json")) == made
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        assert run("topics", "list", "--json", user="anna", password="one", mechanism=mechanism) == "[]\n"
    run("users", "set", "anna", "-m", "SCRAM-SHA-256", "--iterations", "8192", given="two\ntwo\n")
    assert [row["iterations"] for row in json.loads(run("users", "list", "--json"))] == [8192, 4096]
    other = {"user": "anna", "mechanism": "SCRAM-SHA-256"}
    assert "SASL_AUTHENTICATION_FAILED" in run("topics", "list", password="one", status=1, **other)
    run("topics", "list", password="two", **other)
    assert run("users", "delete", "anna", "-m", "SCRAM-SHA-256", "--yes") == "deleted anna\n"
    assert [line.split() for line in run("users", "list").splitlines()[1:]] == [
        ["anna", "SCRAM-SHA-512", "4096"]
    ]
    assert "Delete anna (SCRAM-SHA-512)? [y/N]" in run("users", "delete", "anna", given="y\n")
    assert json.loads(run("users", "list", "--json")) == []


def test_the_password_is_shown_nowhere(run, tmp_path: Path):
    file = tmp_path / "password"
    file.write_bytes(b"pass word \r\n")
    assert run("users", "set", "berta", "--password-file", str(file)) == "set berta\n"
    assert "pass word" not in run("users", "set", "berta", given="pass word \npass word \n")
    run("topics", "list", user="berta", password="pass word ", mechanism="SCRAM-SHA-512")
    run("users", "delete", "berta", "-y")
    file.write_bytes(b"\xff")
    assert "is not UTF-8" in run("users", "set", "berta", "--password-file", str(file), status=1)
    file.write_bytes(b"\n")
    assert "the password is empty" in run("users", "set", "berta", "--password-file", str(file), status=1)


def test_acls_are_added_found_and_removed(run):
    names = ("--topic", "made", "--transactional-id", "made")
    added = run("acls", "add", *names, "--principal", "User:writer", "--producer")
    assert [line.split() for line in added.splitlines()[1:]] == ADDED
    listed = run("acls", "list", "--principal", "User:writer")
    assert sorted(line.split() for line in listed.splitlines()[1:]) == sorted(ADDED)
    run("acls", "add", "--group", "ma", "--topic", "ma", "--principal", "User:reader", "--consumer")
    prefixed = ("--resource-pattern-type", "prefixed", "--permission", "deny", "--host", "10.0.0.1")
    run("acls", "add", "--topic", "ma", "--principal", "User:reader", "--operation", "read", *prefixed)
    of_reader = json.loads(run("acls", "list", "--principal", "User:reader", "--json"))
    assert {"principal": "User:reader", "permission": "DENY", "operation": "READ", "resource": "TOPIC"} | {
        "name": "ma",
        "pattern": "PREFIXED",
        "host": "10.0.0.1",
    } in of_reader
    assert len(of_reader) == 4
    match = ("--topic", "made", "--resource-pattern-type", "match", "--principal", "User:reader")
    assert [row["pattern"] for row in json.loads(run("acls", "list", *match, "--json"))] == ["PREFIXED"]
    run("acls", "remove", "--principal", "User:reader", "--permission", "deny", given="n\n", status=1)
    assert len(json.loads(run("acls", "list", "--principal", "User:reader", "--json"))) == 4
    run("acls", "remove", "--principal", "User:reader", "--permission", "deny", given="y\n")
    run("acls", "remove", "--principal", "User:writer", "--topic", "made", "-y")
    assert len(json.loads(run("acls", "list", "--principal", "User:writer", "--json"))) == 2
    for user in ("reader", "writer"):
        run("acls", "remove", "--principal", f"User:{user}", "-y")
        assert json.loads(run("acls", "list", "--principal", f"User:{user}", "--json")) == []


def test_an_acl_lets_a_user_work(run, secured: Secured):
    assert "hidden: " in run("topics", "describe", "hidden", user="other", status=1)
    allowed = ("--principal", "User:other", "--topic", "hidden", "--operation", "describe")
    run("acls", "add", *allowed, "--operation", "describe_configs")
    assert run("topics", "describe", "hidden", user="other").startswith("hidden  (id ")
    run("acls", "remove", *allowed[:4], "-y")


def test_quotas_are_set_listed_and_removed(run):
    assert json.loads(run("quotas", "list", "--json")) == []
    rates = ("producer_byte_rate=1048576", "request_percentage=12.5")
    assert run("quotas", "set", "--user", "anna", "--client-defaults", *rates) == (
        "set producer_byte_rate, request_percentage of user anna, client-id <default>\n"
    )
    run("quotas", "set", "--user-defaults", "consumer_byte_rate=5")
    run("quotas", "set", "--ip", "10.0.0.1", "connection_creation_rate=7")
    assert json.loads(run("quotas", "list", "--user", "anna", "--json")) == [
        {
            "entity": {"user": "anna", "client-id": None},
            "quotas": {"producer_byte_rate": 1048576, "request_percentage": 12.5},
        }
    ]
    assert [line.split() for line in run("quotas", "list").splitlines()[1:]] == [
        ["10.0.0.1", "connection_creation_rate", "7"],
        ["<default>", "consumer_byte_rate", "5"],
        ["anna", "<default>", "producer_byte_rate", "1048576"],
        ["anna", "<default>", "request_percentage", "12.5"],
    ]
    run("quotas", "remove", "--user", "anna", "--client-defaults", "producer_byte_rate")
    assert "has no producer_byte_rate" in run(
        "quotas", "remove", "--user", "anna", "--client-defaults", "producer_byte_rate", status=1
    )
    assert "user anna has no quotas" in run("quotas", "remove", "--user", "anna", status=1)
    run("quotas", "remove", "--user", "anna", "--client-defaults")
    run("quotas", "remove", "--user-defaults")
    run("quotas", "remove", "--ip", "10.0.0.1")
    assert json.loads(run("quotas", "list", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (("users", "list"), None),
        (("users", "set", "x"), "p\np\n"),
        (("users", "delete", "x", "-y"), None),
        (("acls", "list"), None),
        (("acls", "add", "--topic", "t", "--principal", "User:u", "--operation", "read"), None),
        (("acls", "remove", "--topic", "t", "-y"), None),
        (("quotas", "list"), None),
        (("quotas", "set", "--user", "u", "producer_byte_rate=1"), None),
        (("quotas", "remove", "--user", "u"), None),
    ],
)
def test_a_user_without_acls_is_refused(run, arguments, given):
    said = run(*arguments, user="nobody", given=given, status=1)
    assert said.splitlines()[-1].startswith("Error: ")
    assert "CLUSTER_AUTHORIZATION_FAILED" in said


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("users", "delete", "nobody-knows", "-y"), 1, "there is no user nobody-knows"),
        (("users", "set", "x", "--iterations", "100"), 2, "100 is not in the range"),
        (("acls", "add", "--topic", "t", "--operation", "read"), 2, "give a resource"),
        (("acls", "add", "--topic", "t", "--principal", "User:u"), 2, "give --operation"),
        (("acls", "add", "--cluster", "--principal", "User:u", "--producer"), 2, "--producer is for topics"),
        (
            ("acls", "add", "--topic", "t", "--principal", "u", "--operation", "read"),
            2,
            "Could not parse principal",
        ),
        (("acls", "remove", "-y"), 2, "name the ACLs to remove"),
        (("quotas", "set", "--user", "u", "producer_byte_rate=fast"), 2, "expected a number"),
        (("quotas", "set", "producer_byte_rate=1"), 2, "name an entity"),
        (("quotas", "set", "--user", "u", "no_rate=1"), 1, "Invalid configuration key no_rate"),
        (("quotas", "set", "--user", "u", "--user-defaults", "x=1"), 2, "exclude each other"),
        (("quotas", "remove"), 2, "name an entity"),
    ],
)
def test_mistakes(run, arguments, status, message):
    assert message in run(*arguments, status=status)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("groups", "reset-offsets", "readers", "-t", "orders", "--to-latest"), "group readers: "),
        (("topics", "delete-records", "orders", "--all", "-y"), "orders: "),
        (("transactions", "describe", "mover"), "transactional id mover: "),
        (("transactions", "abort", "orders", "0", "--producer-id", "7", "-y"), "orders: "),
    ],
)
def test_what_is_refused_is_named(run, arguments, said):
    found = run(*arguments, user="nobody", status=1).splitlines()[-1]
    assert found.startswith(f"Error: {said}")
    assert "AUTHORIZATION_FAILED" in found


def test_offsets_that_may_be_shown_and_not_committed_stay(run, secured: Secured):
    client = Producer(
        {"bootstrap.servers": f"127.0.0.1:{secured.sasl_port}", "security.protocol": "SASL_PLAINTEXT"}
        | {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": "secret"}
    )
    client.produce("orders", b"unread")
    assert client.flush(TIMEOUT_S) == 0
    for resource in ("--topic=orders", "--group=readers"):
        run("acls", "add", resource, "--principal", "User:other", "--operation", "describe")
    shown = ("groups", "reset-offsets", "readers", "-t", "orders", "--to-latest")
    before = run("groups", "offsets", "readers", "--json")
    # Redis isn't named, and the configs may not be read.
    preview = run(*shown, user="other")
    assert "records are not counted" in preview
    assert "Nothing was changed" in preview
    said = run(*shown, "--execute", user="other", status=1)
    assert "group readers, orders partition 0: " in said
    assert "GROUP_AUTHORIZATION_FAILED" in said
    assert "0 of 1 offsets were reset" in said
    assert run("groups", "offsets", "readers", "--json") == before
    run("acls", "remove", "--principal", "User:other", "-y")
