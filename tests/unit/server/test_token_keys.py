"""The keys for tokens: fetched at the start, when they change, and again; kept while the issuer is away."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from korvet.config.errors import ConfigError
from korvet.config.loading import load
from korvet.outlook.findings import OK
from korvet.security.oauth.exchange import KeysUnavailable
from korvet.security.oauth.tokens import RefusedToken, TokenRules
from korvet.server import key_fetch
from korvet.server.key_fetch import FetchFailed, fetch
from korvet.server.token_checks import ListenerTokens
from korvet.server.token_keys import SignedTokens, TokenKeys, rules_of
from korvet.supervisor import end, keep
from tests.support.certificates import Authority
from tests.support.issuer import Issuer, SigningKey, claims_of, key_set
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TIMEOUT_S = 20
URL = "sasl.oauthbearer.jwks.endpoint.url"


def keys_of(url: str, options: dict[str, str] | None = None, **pairs: Any) -> TokenKeys:
    settings = {f"sasl.oauthbearer.{name.replace('_', '.')}": str(value) for name, value in pairs.items()}
    config = load(pairs=settings | {URL: url}, environ={})
    return TokenKeys("PUBLIC", config, options or {}, least_between_s=0.05)


@asynccontextmanager
async def running(keys: TokenKeys) -> AsyncIterator[SignedTokens]:
    task = keep("keys", keys.run)
    try:
        yield SignedTokens(keys, TokenRules(audiences=frozenset({"korvet"})))
    finally:
        await end(task)


async def user_of(tokens: SignedTokens, token: str) -> str:
    await tokens.prepare(token)
    return tokens.identity(token).subject


async def test_the_first_token_waits_for_the_keys() -> None:
    with Issuer() as issuer:
        async with running(keys_of(f"{issuer.url}/keys")) as tokens:
            assert await user_of(tokens, issuer.token("alice")) == "alice"
        assert issuer.fetches == 1


async def test_a_token_with_an_unknown_key_waits_for_the_next_keys() -> None:
    with Issuer() as issuer:
        async with running(keys_of(f"{issuer.url}/keys")) as tokens:
            before = issuer.token("alice")
            assert await user_of(tokens, before) == "alice"
            issuer.rotate(SigningKey("EdDSA", "second"))
            many = await asyncio.gather(*(user_of(tokens, issuer.token(f"user{n}")) for n in range(50)))
            assert many == [f"user{n}" for n in range(50)]
            assert issuer.fetches == 2
            with pytest.raises(RefusedToken, match="unknown key 'first'"):
                await user_of(tokens, before)


async def test_keys_that_are_not_used_are_named() -> None:
    with Issuer() as issuer:
        odd = {"kty": "EC", "crv": "P-999", "kid": "odd"}
        issuer.content = json.dumps({"keys": [odd, issuer.key.published]}).encode()
        keys = keys_of(f"{issuer.url}/keys")
        async with running(keys) as tokens:
            assert await user_of(tokens, issuer.token("alice")) == "alice"
        finding = ListenerTokens("PUBLIC", tokens, keys).finding()
        assert (finding.state, finding.text.partition(": ")[::2]) == (
            OK,
            (
                "verified with the keys first, not with key 0 ('odd')",
                "kty 'EC', crv 'P-999', alg None",
            ),
        )


@pytest.mark.parametrize("before", ["ES256", "RS256"])
async def test_tokens_that_name_no_key_wait_for_the_next_keys(before: str) -> None:
    """If no known key verifies them: the issuer has another key by now, of the same kind or of another."""
    with Issuer() as issuer:
        issuer.rotate(SigningKey(before, None))
        async with running(keys_of(f"{issuer.url}/keys")) as tokens:
            first = issuer.token("alice")
            assert await user_of(tokens, first) == "alice"
            assert await user_of(tokens, first) == "alice"
            assert issuer.fetches == 1
            issuer.rotate(SigningKey("ES256", None))
            many = await asyncio.gather(*(user_of(tokens, issuer.token(f"user{n}")) for n in range(50)))
            assert many == [f"user{n}" for n in range(50)]
            assert issuer.fetches == 2
            with pytest.raises(RefusedToken, match="signature" if before == "ES256" else "algorithm"):
                await user_of(tokens, first)
            assert issuer.fetches == 3


async def test_a_token_that_names_no_key_waits_until_its_key_is_the_only_one() -> None:
    with Issuer() as issuer:
        first, second = SigningKey("ES256", None), SigningKey("ES256", None)
        issuer.published = [first, second]
        async with running(keys_of(f"{issuer.url}/keys")) as tokens:
            with pytest.raises(RefusedToken, match="the issuer has several of that algorithm"):
                await user_of(tokens, second.sign(claims_of("alice")))
            issuer.published = [second]
            assert await user_of(tokens, second.sign(claims_of("alice"))) == "alice"


async def test_tokens_that_no_key_could_save_cause_no_fetch() -> None:
    with Issuer() as issuer:
        async with running(keys_of(f"{issuer.url}/keys")) as tokens:
            await user_of(tokens, issuer.token("alice"))
            strange = SigningKey("ES256", "strange")
            issuer.key = strange
            for token in (issuer.token("a", aud="x"), issuer.token("a", exp=1), "a.b.c"):
                with pytest.raises(RefusedToken):
                    await user_of(tokens, token)
            assert issuer.fetches == 1
            with pytest.raises(RefusedToken, match="unknown key 'strange'"):
                await user_of(tokens, issuer.token("a"))
            assert issuer.fetches == 2


async def test_keys_stay_while_the_issuer_is_away() -> None:
    with Issuer() as issuer:
        keys = keys_of(f"{issuer.url}/keys", jwks_endpoint_retry_backoff_ms=10)
        async with running(keys) as tokens:
            await user_of(tokens, issuer.token("alice"))
            issuer.status = 503
            known = issuer.token("alice")
            issuer.rotate(SigningKey("ES256", "second"))
            with pytest.raises(KeysUnavailable, match="HTTP status 503"):
                await user_of(tokens, issuer.token("bob"))
            assert await user_of(tokens, known) == "alice"
            assert "HTTP status 503" in keys.problem
            issuer.status = 200
            assert await until_async(lambda: not keys.problem, TIMEOUT_S, "the keys are fetched")
            assert await user_of(tokens, issuer.token("bob")) == "bob"


async def test_keys_are_fetched_again_after_their_time() -> None:
    """So that a key that an issuer withdraws is no longer accepted."""
    with Issuer() as issuer:
        keys = keys_of(f"{issuer.url}/keys", jwks_endpoint_refresh_ms=50)
        async with running(keys) as tokens:
            stolen = issuer.token("alice")
            assert await user_of(tokens, stolen) == "alice"
            issuer.rotate(SigningKey("ES256", "second"))

            def withdrawn() -> bool:
                return keys.keys is not None and keys.keys.names == ("second",)

            await until_async(withdrawn, TIMEOUT_S, "the key is withdrawn")
            with pytest.raises(RefusedToken, match="unknown key"):
                tokens.identity(stolen)


@pytest.mark.parametrize(
    ("status", "content", "problem"),
    [
        (200, b"<html>", "no JSON Web Key Set"),
        (200, b'{"keys":[]}', "no key that verifies signatures"),
        (200, b" " * (1 << 20) + b"{}", "more than 1048576 bytes"),
        (302, b"", "HTTP status 302 to http://elsewhere.example/keys"),
        (404, b"{}", "HTTP status 404"),
        (204, b"", "no JSON Web Key Set"),
    ],
)
async def test_without_keys_nobody_is_refused_for_good(status: int, content: bytes, problem: str) -> None:
    with Issuer() as issuer:
        issuer.status, issuer.content = status, content
        keys = keys_of(f"{issuer.url}/keys")
        async with running(keys) as tokens:
            with pytest.raises(KeysUnavailable, match=problem):
                await tokens.prepare(issuer.token("alice"))
            assert keys.keys is None


async def test_the_reason_why_nothing_answers_is_told() -> None:
    with Issuer() as issuer:
        pass
    with pytest.raises(FetchFailed, match="Connection refused"):
        await fetch(f"{issuer.url}/keys", ssl.create_default_context())


async def test_a_file_that_hangs_takes_few_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_fetch, "_TIMEOUT_S", 0.01)
    monkeypatch.setattr(key_fetch, "_MOST_THREADS", 2)
    path = tmp_path / "keys.json"
    os.mkfifo(path)
    for reason in ("TimeoutError", "TimeoutError", "have not ended"):
        with pytest.raises(FetchFailed, match=reason):
            await fetch(path.as_uri(), ssl.create_default_context())

    def have_ended() -> bool:
        os.close(os.open(path, os.O_RDWR))
        return key_fetch._THREAD not in {each.name for each in threading.enumerate()}

    await until_async(have_ended, TIMEOUT_S, "the threads end")


async def test_the_issuers_certificate_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("issuer", "/CN=issuer"))
    with Issuer(context) as issuer:
        strange = keys_of(f"{issuer.url}/keys")
        async with running(strange) as tokens:
            with pytest.raises(KeysUnavailable, match="the certificate cannot be verified"):
                await tokens.prepare(issuer.token("alice"))
        trusting = keys_of(f"{issuer.url}/keys", {"ssl.truststore.location": str(authority.certificate)})
        async with running(trusting) as tokens:
            assert await user_of(tokens, issuer.token("alice")) == "alice"
    with pytest.raises(ConfigError, match=r"ssl.truststore.location = .* cannot be used: No such file"):
        keys_of("https://localhost/keys", {"ssl.truststore.location": str(tmp_path / "absent")})


async def test_keys_in_a_file_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "the keys.json"
    first, second = SigningKey("ES256", "first"), SigningKey("ES256", "second")
    file.write_bytes(key_set([first]))
    keys = keys_of(file.as_uri())
    async with running(keys) as tokens:
        assert await user_of(tokens, first.sign(claims_of("alice"))) == "alice"
        file.write_bytes(b"half")
        await until_async(lambda: keys.problem, TIMEOUT_S, "the file is read")
        assert await user_of(tokens, first.sign(claims_of("alice"))) == "alice"
        file.write_bytes(key_set([second]))
        assert await user_of(tokens, second.sign(claims_of("bob"))) == "bob"
        file.unlink()
        await until_async(lambda: "No such file" in keys.problem, TIMEOUT_S, "the file is missed")


def test_rules_are_settings() -> None:
    pairs = {
        "expected.issuer": "https://issuer",
        "expected.audience": "korvet, other,",
        "clock.skew.seconds": "5",
        "scope.claim.name": "roles",
        "sub.claim.name": "client_id",
    }
    config = load(pairs={f"sasl.oauthbearer.{name}": value for name, value in pairs.items()}, environ={})
    audiences = frozenset({"korvet", "other"})
    assert rules_of(config) == TokenRules("https://issuer", audiences, 5, "roles", "client_id")
