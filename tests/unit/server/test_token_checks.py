"""What the settings of a listener make of tokens: what is fetched, what is missing, and what is warned of."""

from __future__ import annotations

import logging
import sys

import msgspec
import pytest

from korvet.config.dynamic import check_names
from korvet.config.errors import ConfigError
from korvet.config.live import LiveConfig
from korvet.config.loading import load
from korvet.config.log_settings import LogSettings
from korvet.config.oauth_settings import LOGIN_MODULE, UNSECURED, OAuthSettings
from korvet.observe.brokers import collect_tokens
from korvet.quotas.throttle import ClientQuotas
from korvet.security.credentials import Credentials
from korvet.server.listener import Listener
from korvet.server.token_checks import ListenerTokens, listener_tokens

URL = "sasl.oauthbearer.jwks.endpoint.url"
OF_PUBLIC = "listener.name.public.oauthbearer."
LISTENERS = {
    "listeners": "PLAINTEXT://localhost:0,PUBLIC://localhost:0",
    "listener.security.protocol.map": "PUBLIC:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
}


def tokens_of(**pairs: str) -> list[ListenerTokens | None]:
    config = load(pairs=LISTENERS | pairs, environ={})
    return [listener_tokens(each, config.of_listener(each.name)) for each in config.listener_specs]


def test_a_listeners_own_settings_have_the_mechanism_in_their_names() -> None:
    claim = f"{OF_PUBLIC}sasl.oauthbearer.sub.claim.name"
    config = load(
        pairs=LISTENERS | {URL: "https://issuer/keys", claim: "client"},
        environ={
            "KORVET_LISTENER_NAME_PUBLIC_OAUTHBEARER_SASL_OAUTHBEARER_EXPECTED_AUDIENCE": "kafka",
            "KORVET_LISTENER_NAME_PUBLIC_OAUTHBEARER_SASL_JAAS_CONFIG": f"{LOGIN_MODULE} required;",
        },
    )
    public = config.of_listener("PUBLIC")
    assert public.sasl_oauthbearer_expected_audience == "kafka"
    assert public.sasl_oauthbearer_sub_claim_name == "client"
    assert public.sasl_oauthbearer_jwks_endpoint_url == "https://issuer/keys"
    assert public.oauthbearer_sasl_jaas_config.startswith(LOGIN_MODULE)
    assert config.sasl_oauthbearer_expected_audience == ""


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({}, f"OAUTHBEARER needs {OF_PUBLIC}{URL}"),
        ({URL: "issuer/keys"}, "expected https://HOST/PATH"),
        ({URL: "https:///keys"}, "expected https://HOST/PATH"),
        ({URL: "ftp://issuer/keys"}, "expected https://HOST/PATH"),
        ({URL: "file://issuer/keys"}, "expected https://HOST/PATH"),
        ({URL: "https://user:secret@issuer/keys"}, "expected https://HOST/PATH"),
        ({URL: "https://[::1/keys"}, "expected https://HOST/PATH"),
        ({URL: "https://issuer:99999/keys"}, "expected https://HOST/PATH"),
        (
            {URL: "https://issuer/keys", "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "20000"},
            "backoff.ms = 20000 .* is above",
        ),
        (
            {URL: "https://issuer/keys", "oauthbearer.sasl.jaas.config": "x"},
            "expected .*LoginModule",
        ),
        ({"listener.name.public.sasl.oauthbearer.expected.audience": "x"}, "unknown key"),
        ({"oauthbearer.sasl.server.callback.handler.class": "mine"}, "expected one of"),
    ],
)
def test_settings_that_do_not_fit_are_named(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(pairs=LISTENERS | pairs, environ={})


def test_only_listeners_with_sasl_need_keys() -> None:
    plain, public = tokens_of(**{f"{OF_PUBLIC}{URL}": "https://issuer/keys"})
    assert plain is None
    assert public is not None
    assert public.keys is not None
    assert public.missing == "listener PUBLIC has no keys for tokens: they are being fetched"
    assert public.finding().state == "fault"


@pytest.mark.parametrize("package", ["jwt", "cryptography"])
def test_the_packages_that_are_needed_are_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("korvet.server.token_keys", "korvet.security.oauth.keys"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs the package {package}: pip install 'korvet\[oauth\]'"):
        tokens_of(**{URL: "https://issuer/keys"})


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://issuer/keys", True),
        ("http://10.0.0.1/keys", True),
        ("http://localhost/keys", False),
        ("http://[::1]:80/keys", False),
        ("https://issuer/keys", False),
        ("file:///keys", False),
    ],
)
def test_keys_without_tls_are_warned_of(url: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokens_of(**{URL: url})
    assert ("without TLS" in caplog.text) is warns


def test_tokens_without_signatures_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _, public = tokens_of(**{"oauthbearer.sasl.server.callback.handler.class": UNSECURED})
    assert "listener PUBLIC takes tokens without signatures" in caplog.text
    assert public is not None
    assert (public.keys, public.missing, public.stale) == (None, "", "")
    assert public.finding().state == "warning"


MECHANISMS = "sasl.enabled.mechanisms"


def listening(mechanisms: str) -> tuple[LiveConfig, Listener]:
    settings = {**LISTENERS, URL: "https://issuer/keys", MECHANISMS: mechanisms}
    live = LiveConfig(load(pairs=settings, environ={}))
    return live, Listener(live, None, Credentials(), ClientQuotas())


def test_a_listener_gets_tokens_at_a_start_only() -> None:
    live, _ = listening("PLAIN")
    with pytest.raises(ConfigError, match="OAUTHBEARER on listener PUBLIC needs a restart"):
        live.verify({MECHANISMS: "PLAIN,OAUTHBEARER"}, {MECHANISMS}, of_cluster=False)


def test_tokens_that_a_listener_no_longer_takes_do_not_count() -> None:
    """Neither for the health of the broker nor for its metrics. It may take them again."""
    live, listener = listening("PLAIN,OAUTHBEARER")

    def known() -> tuple[list[str], list[object]]:
        (samples,) = collect_tokens(listener)
        return [each.listener for each in listener.tokens], list(samples.rows)

    before = known()
    assert before[0] == ["PUBLIC"]
    assert before[1]
    live.take({}, {MECHANISMS: "PLAIN"})
    assert known() == ([], [])
    live.take({}, {MECHANISMS: "OAUTHBEARER"})
    assert known() == before


@pytest.mark.parametrize("prefix", ["", OF_PUBLIC])
def test_what_is_demanded_of_tokens_changes_at_a_start_only(prefix: str) -> None:
    """As in Kafka."""
    own = {each.encode_name for each in msgspec.structs.fields(OAuthSettings)}
    own -= {each.encode_name for each in msgspec.structs.fields(LogSettings)}
    assert URL in own
    for key in own:
        name = f"{prefix}{key}" if key.startswith("sasl.") else f"{prefix.removesuffix('oauthbearer.')}{key}"
        with pytest.raises(ConfigError, match=rf"Cannot update these configs dynamically: \[{name}\]"):
            check_names({name: "1"}, of_cluster=False)
