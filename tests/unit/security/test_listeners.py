"""Listeners from the settings."""

from __future__ import annotations

import pytest

from korvet.config.errors import ConfigError
from korvet.config.loading import load
from korvet.config.settings import Config
from korvet.security.listeners import Endpoint, ListenerSpec, listeners, parse_endpoints, parse_protocol_map


def test_endpoints_and_protocols() -> None:
    text = "PLAINTEXT://:9092, internal://[::1]:9093,SASL_SSL://host.example:0"
    assert parse_endpoints(text) == (
        Endpoint("PLAINTEXT", "", 9092),
        Endpoint("INTERNAL", "::1", 9093),
        Endpoint("SASL_SSL", "host.example", 0),
    )
    assert parse_protocol_map("internal:sasl_plaintext") == {"INTERNAL": "SASL_PLAINTEXT"}
    for bad in ("x", "A://h", "A://h:1,a://h:2", "A://h:65536", "://h:1", "A://h:1/x"):
        with pytest.raises(ValueError):
            parse_endpoints(bad)
    for bad in ("A", "A:B", ":SSL", "A:SSL,a:SSL"):
        with pytest.raises(ValueError):
            parse_protocol_map(bad)


def test_settings_put_together() -> None:
    found = listeners(
        parse_endpoints("IN://:9092,OUT://h:9093"),
        parse_endpoints("OUT://public:1234"),
        parse_protocol_map("IN:PLAINTEXT,OUT:SASL_SSL"),
    )
    assert found == (
        ListenerSpec("IN", "", 9092, "PLAINTEXT", None),
        ListenerSpec("OUT", "h", 9093, "SASL_SSL", Endpoint("OUT", "public", 1234)),
    )
    assert [(each.encrypted, each.authenticates) for each in found] == [(False, False), (True, True)]
    assert Config().listener_specs == (ListenerSpec("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT", None),)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"listeners": "X://h:1"}, "no security protocol"),
        ({"listeners": ""}, "there is no listener"),
        ({"listeners": "PLAINTEXT://a..b:1"}, "--listeners: expected a host, not 'a..b'"),
        (
            {"listeners": "PLAINTEXT://h:1", "advertised_listeners": "PLAINTEXT://a..b:1"},
            "--advertised-listeners: expected a host, not 'a..b'",
        ),
        ({"listeners": "PLAINTEXT://h:1,SSL://h:1"}, "different port"),
        ({"listeners": "PLAINTEXT://h:1", "advertised_listeners": "SSL://h:1"}, "no listener SSL"),
        ({"listeners": "PLAINTEXT://h:1", "advertised_listeners": "PLAINTEXT://:1"}, "cannot connect"),
        ({"listeners": "PLAINTEXT://h:1", "advertised_listeners": "PLAINTEXT://h:0"}, "port 0"),
        ({"listeners": "PLAINTEXT://h:1", "advertised_listeners": "PLAINTEXT://0.0.0.0:1"}, "meta-address"),
        ({"listeners": "PLAINTEXT://h:1", "advertised_listeners": "PLAINTEXT://[::]:1"}, "meta-address"),
        ({"listeners": "SSL://h:1"}, "ssl.keystore.location"),
        ({"listeners": "PLAINTEXT://h:1", "advertise": "h:1"}, "advertised.listeners"),
        (
            {"listener.name.b.ssl.client.auth": "none", "listeners": "SSL://h:1"},
            "listener.name.b: no listener",
        ),
        ({"listener.name.plaintext.ssl.client.auth": "maybe"}, r"ssl\.client\.auth = 'maybe'"),
        ({"listener.name.plaintext.ssl.client.auth": "required"}, "need ssl.truststore.location"),
        (
            {"listener.name.plaintext.sasl.enabled.mechanisms": "GSSAPI"},
            r"listener\.name\.plaintext\.sasl\.enabled\.mechanisms: .* not GSSAPI",
        ),
        (
            {"listener.name.plaintext.plain.sasl.jaas.config": "secret"},
            r"listener\.name\.plaintext\.plain\.sasl\.jaas\.config: .*PlainLoginModule",
        ),
        ({"advertised_listeners": "PLAINTEXT://h:1"}, "`listeners` is not set"),
        ({"ssl_client_auth": "required"}, "ssl.truststore.location"),
        ({"sasl_enabled_mechanisms": "GSSAPI"}, "GSSAPI"),
        ({"authorizer_class_name": "x"}, "StandardAuthorizer"),
        ({"super_users": "alice"}, "User:alice"),
        ({"ssl_principal_mapping_rules": "RULE:("}, "RULE"),
        ({"plain_sasl_jaas_config": "secret"}, "PlainLoginModule"),
    ],
)
def test_settings_that_do_not_fit(flags: dict[str, str], text: str) -> None:
    # Keys of a listener have no flag of their own.
    pairs = {key: value for key, value in flags.items() if "." in key}
    with pytest.raises(ConfigError, match=text) as caught:
        load(flags={key: value for key, value in flags.items() if key not in pairs}, pairs=pairs)
    assert "secret" not in str(caught.value)
