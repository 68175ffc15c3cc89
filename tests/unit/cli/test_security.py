"""Client properties that the commands accept."""

import pytest

from korvet.cli import security
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
    ],
)
def test_properties_that_cannot_be_used(text: str, message: str) -> None:
    with pytest.raises(CommandConfigError, match=message) as caught:
        parse(text)
    assert "secret" not in str(caught.value)


def test_the_file_is_named_by_a_variable(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(security.VARIABLE, raising=False)
    assert security.from_environment() == ClientSecurity()
    monkeypatch.setenv(security.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(CommandConfigError, match="cannot be read"):
        security.from_environment()
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=x")
    monkeypatch.setenv(security.VARIABLE, str(file))
    with pytest.raises(CommandConfigError, match=r"client\.properties: security\.protocol"):
        security.from_environment()
