"""Client properties that the commands accept."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from korvet.cli import security
from korvet.cli.client import Bootstrap
from korvet.cli.options import bootstrap_option
from korvet.cli.security import ClientSecurity, CommandConfigError, parse

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_properties() -> None:
    text = f"""
# a comment
security.protocol=SASL_PLAINTEXT
sasl.mechanism : SCRAM-SHA-256
sasl.jaas.config={LOGIN} required \\
    username="alice" \\
    password="a=b;";
client.id = ignored
"""
    assert parse(text) == ClientSecurity(None, "SCRAM-SHA-256", "alice", "a=b;")
    assert parse("") == ClientSecurity()
    assert "a=b" not in repr(parse(text))


def test_the_files_are_those_of_java() -> None:
    """With its separators, continued lines and escapes. Blanks around most values do not count in Kafka."""
    text = f"""
! a comment
security.protocol SASL_PLAINTEXT\x20
sasl.mechanism:\\
    SCRAM-SHA\\u002d256
sasl.jaas.config = {LOGIN} required username="\\u00e4" password="a\\\\\\"b\\
    c";
"""
    assert parse(text) == ClientSecurity(None, "SCRAM-SHA-256", "ä", 'a"bc')


def test_tls() -> None:
    found = parse("security.protocol=SSL\nssl.endpoint.identification.algorithm=")
    assert found.tls is not None
    assert not found.tls.check_hostname
    assert found.mechanism is None
    strict = parse("security.protocol=ssl").tls
    assert strict is not None
    assert strict.check_hostname


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocol=secret", "security.protocol"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=secret", "sasl.mechanism"),
        ("security.protocol=SASL_PLAINTEXT", "sasl.jaas.config"),
        (f"security.protocol=SASL_PLAINTEXT\nsasl.jaas.config={LOGIN} required password=secret;", "username"),
        ("security.protocol=SSL\nssl.truststore.location=/none", "cannot be used"),
        (
            "security.protocol=SSL\nssl.truststore.location=C:\\certs\\ca.pem",
            r"line 2: ssl.truststore.location is read as 'C:certsca.pem', which does not exist",
        ),
        ("\nssl.truststore.location=C:\\users\\ca.pem", r"line 2: \\u needs four hexadecimal digits"),
    ],
)
def test_properties_that_cannot_be_used(text: str, message: str) -> None:
    with pytest.raises(CommandConfigError, match=message) as caught:
        parse(text)
    assert "secret" not in str(caught.value)


@click.command()
@bootstrap_option
def show(bootstrap: Bootstrap) -> None:
    click.echo(f"{bootstrap.servers} {bootstrap.security.mechanism}")


def test_an_option_or_a_variable_names_the_file(tmp_path: Path) -> None:
    def shown(*arguments: str, name: str | None = None) -> tuple[int, str]:
        done = CliRunner(env={security.VARIABLE: name}).invoke(show, ["-b", "a:1", *arguments])
        return done.exit_code, done.output

    file = tmp_path / "client.properties"
    login = f'sasl.jaas.config={LOGIN} required username="a" password="b";'
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n{login}")
    assert shown() == shown(name="") == (0, "a:1 None\n")
    assert shown("--command-config", str(file)) == (0, "a:1 SCRAM-SHA-256\n")
    assert shown(name=str(file)) == (0, "a:1 SCRAM-SHA-256\n")
    assert shown("--command-config", str(file), name="elsewhere") == (0, "a:1 SCRAM-SHA-256\n")
    status, text = shown(name=str(tmp_path / "none"))
    assert status == 2
    assert "Invalid value for --command-config" in text
    assert "none cannot be read" in text
    file.write_text("security.protocol=x")
    assert "client.properties: security.protocol" in shown(name=str(file))[1].replace("\n", " ")
