"""Tokens: what claims, signatures and keys are accepted. Malformed ones raise nothing but the refusal."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import jwt
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import given
from hypothesis import strategies as st

from korvet.security.oauth.keys import KeySet
from korvet.security.oauth.tokens import MOST_CHARACTERS, RefusedToken, TokenRules, parse_token
from korvet.security.oauth.unsecured import UnsecuredRules
from tests.support.issuer import SigningKey, key_set, unsecured

NOW_S = 1_800_000_000.0
CLAIMS = {"sub": "alice", "iss": "https://issuer", "aud": "korvet", "iat": NOW_S - 10, "exp": NOW_S + 100}
RULES = TokenRules("https://issuer", frozenset({"korvet", "other"}), 30)
KEYS = {name: SigningKey(name, name) for name in ("RS256", "PS512", "ES256", "ES384", "ES512", "EdDSA")}
ALL = KeySet.parse(key_set(KEYS.values()))


def changed(**others: Any) -> dict[str, Any]:
    """The claims with others; None leaves one out."""
    return {name: value for name, value in (CLAIMS | others).items() if value is not None}


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_names_its_user_if_a_key_of_the_issuer_has_signed_it(algorithm: str) -> None:
    token = parse_token(KEYS[algorithm].sign(CLAIMS))
    ALL.verify(token)
    assert RULES.identity(token.claims, NOW_S) == ("alice", 100)
    with pytest.raises(RefusedToken, match="signature"):
        ALL.verify(token._replace(signed=token.signed[:-1] + b"A"))
    with pytest.raises(RefusedToken, match="signature"):
        ALL.verify(token._replace(signature=b""))
    others = KeySet.parse(key_set([SigningKey(algorithm, algorithm)]))
    with pytest.raises(RefusedToken, match="signature"):
        others.verify(token)


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"exp": None}, "no claim exp"),
        ({"iat": None}, "no claim iat"),
        ({"exp": NOW_S - 30}, "expired at 2027-01-15 07:59:30 UTC"),
        ({"exp": 1e300, "iat": 2e300}, "expires before it begins"),
        ({"exp": NOW_S - 29, "iat": NOW_S - 28}, "expires before it begins"),
        ({"exp": "soon"}, "exp of the token is no time"),
        ({"exp": True}, "exp of the token is no time"),
        ({"exp": -1}, "exp of the token is no time"),
        ({"exp": 10**400}, "exp of the token is no time"),
        ({"exp": 10**400, "nbf": 10**400}, "no time"),
        ({"iat": [1]}, "iat of the token is no time"),
        ({"nbf": NOW_S + 31}, "not valid before"),
        ({"nbf": NOW_S + 101}, "expires before it begins"),
        ({"iss": None}, "issuer of the token is None"),
        ({"iss": "https://issuer/"}, "issuer of the token is"),
        ({"iss": ["https://issuer"]}, "issuer of the token is no text"),
        ({"aud": None}, "audience of the token is None"),
        ({"aud": "korvet2"}, "audience of the token is 'korvet2'"),
        ({"aud": []}, "audience of the token is"),
        ({"aud": ["x", 1]}, "audience of the token is neither"),
        ({"aud": {"korvet": 1}}, "audience of the token is neither"),
        ({"sub": None}, "names no user"),
        ({"sub": " "}, "names no user"),
        ({"sub": 7}, "names no user"),
        ({"scope": ""}, "scope of the token has a part that is empty"),
        ({"scope": ["a", " a"]}, "scope of the token repeats"),
        ({"scope": ["a", None]}, "scope of the token has a part"),
    ],
)
def test_what_claims_are_refused(others: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedToken) as caught:
        RULES.identity(changed(**others), NOW_S)
    assert reason in str(caught.value)
    assert caught.value.status == "invalid_token"
    assert caught.value.subject == ("" if "sub" in others else "alice")


@pytest.mark.parametrize(
    ("others", "user", "lifetime_s"),
    [
        ({"exp": NOW_S - 29, "iat": NOW_S - 100}, "alice", 1),
        ({"nbf": NOW_S + 30}, "alice", 100),
        ({"iat": NOW_S + 50}, "alice", 100),
        ({"aud": ["x", "other"]}, "alice", 100),
        ({"sub": "  bob "}, "bob", 100),
        ({"sub": "\u2003bob\u00a0"}, "\u2003bob\u00a0", 100),
        ({"scope": ["a", "b c"]}, "alice", 100),
        ({"scope": {"not": "a list"}}, "alice", 100),
        ({"exp": 1e300}, "alice", 366 * 86_400),
    ],
)
def test_what_claims_are_accepted(others: dict[str, Any], user: str, lifetime_s: float) -> None:
    assert RULES.identity(changed(**others), NOW_S) == (user, lifetime_s)


def test_names_of_claims_and_expected_values_are_settings() -> None:
    rules = TokenRules(scope_claim="roles", subject_claim="client_id")
    claims = changed(aud=None, iss=None, client_id="service")
    assert rules.identity(claims, NOW_S).subject == "service"
    with pytest.raises(RefusedToken, match="and none is expected"):
        rules.identity(claims | {"aud": "korvet"}, NOW_S)
    with pytest.raises(RefusedToken, match="roles of the token repeats"):
        rules.identity(claims | {"roles": ["a", "a"]}, NOW_S)


def headed(header: dict[str, Any], key: SigningKey | None = None, secret: bytes = b"") -> str:
    """A token with exactly this header."""
    signed = ".".join(encoded(json.dumps(part).encode()) for part in (header, CLAIMS))
    if key is not None:
        algorithm: Any = jwt.get_algorithm_by_name(key.algorithm)
        return f"{signed}.{encoded(algorithm.sign(signed.encode(), key.private))}"
    hmac: Any = jwt.get_algorithm_by_name("HS256")
    return f"{signed}.{encoded(hmac.sign(signed.encode(), secret)) if secret else ''}"


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def test_a_token_cannot_choose_how_it_is_verified() -> None:
    """`none`; HMAC with the public key as secret; an algorithm of another kind of key, or of another key."""
    rsa = KEYS["RS256"]
    pem = json.dumps(rsa.published).encode()
    for header, reason in (
        ({"alg": "none"}, "none for public keys"),
        ({"alg": "None", "kid": "RS256"}, "none for public keys"),
        ({"alg": "HS256", "kid": "RS256"}, "none for public keys"),
        ({"alg": ["RS256"], "kid": "RS256"}, "algorithm of the token is no text"),
        ({"kid": "RS256"}, "algorithm of the token is no text"),
        ({"alg": "ES256K", "kid": "RS256"}, "none for public keys"),
    ):
        token = parse_token(headed(header, secret=pem))
        with pytest.raises(RefusedToken, match=reason):
            ALL.verify(token)
        assert not ALL.lacks(token)
    for header, reason in (
        ({"alg": "ES256", "kid": "RS256"}, "not that of the key"),
        ({"alg": "RS256", "kid": "RS256", "crit": ["exp"]}, "crit"),
        ({"alg": "RS256", "kid": "RS256", "crit": []}, "crit"),
        ({"alg": "RS256", "kid": "ES256"}, "not that of the key"),
        ({"alg": "RS256", "kid": "PS512"}, "signature"),
        ({"alg": "RS256", "kid": None}, "names its key by no text"),
        ({"alg": "RS256", "kid": 1}, "names its key by no text"),
        ({"alg": "RS256", "kid": "k" * 1001}, "names its key by no text"),
        ({"alg": "RS256"}, "several of that algorithm"),
    ):
        with pytest.raises(RefusedToken, match=reason):
            ALL.verify(parse_token(headed(header, rsa)))


def test_keys_that_a_token_brings_along_count_for_nothing() -> None:
    mine = SigningKey("RS256", "RS256")
    header = {
        "alg": "RS256",
        "kid": "RS256",
        "jwk": mine.published,
        "jku": "https://mine",
        "x5u": "https://mine",
    }
    with pytest.raises(RefusedToken, match="signature"):
        ALL.verify(parse_token(headed(header, mine)))


def test_a_token_without_the_id_of_a_key_needs_a_key_that_is_alone_of_its_kind() -> None:
    key = SigningKey("ES256", None)
    alone = KeySet.parse(key_set([key, KEYS["RS256"]]))
    alone.verify(parse_token(key.sign(CLAIMS)))
    assert alone.names == ("RS256",)


def test_an_unknown_key_may_be_the_issuers_next() -> None:
    token = parse_token(SigningKey("ES256", "next").sign(CLAIMS))
    assert ALL.lacks(token)
    with pytest.raises(RefusedToken, match="unknown key 'next'"):
        ALL.verify(token)
    assert not ALL.lacks(parse_token(KEYS["ES256"].sign(CLAIMS)))


def test_which_keys_of_a_set_are_used() -> None:
    good = KEYS["ES256"].published
    rsa = KEYS["RS256"].published
    short = generate_private_key(65537, 1024).public_key()
    weak = jwt.get_algorithm_by_name("RS256").to_jwk(short, as_dict=True)
    private = jwt.get_algorithm_by_name("ES256").to_jwk(KEYS["ES256"].private, as_dict=True)
    unused = (
        {"kty": "oct", "k": "c2VjcmV0", "kid": "a"},
        {**rsa, "use": "enc"},
        {**rsa, "key_ops": ["encrypt"]},
        {**rsa, "alg": "ES256"},
        {**rsa, "alg": "none"},
        {**rsa, "n": "!"},
        {**rsa, "n": 5},
        {**good, "x": good["y"]},
        {**good, "crv": "secp256k1"},
        {**good, "crv": None},
        {"kty": "OKP", "crv": "Ed448", "x": "AA"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
        {"kid": "no kty"},
        weak,
        private,
        "text",
        None,
    )
    found = KeySet.parse(json.dumps({"keys": [*unused, good, {**rsa, "alg": "PS256"}]}).encode())
    assert found.names == ("ES256", "RS256")
    assert len(found.unused) == len(unused)
    with pytest.raises(RefusedToken, match="not that of the key"):
        found.verify(parse_token(KEYS["RS256"].sign(CLAIMS)))
    for each in unused:
        with pytest.raises(ValueError, match="no key that verifies"):
            KeySet.parse(json.dumps({"keys": [each]}).encode())


def test_a_key_that_the_machine_does_not_support_hides_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ed25519 under FIPS."""

    def unsupported(_: bytes) -> None:
        raise UnsupportedAlgorithm("ed25519 is not supported by this version of OpenSSL.")

    monkeypatch.setattr(Ed25519PublicKey, "from_public_bytes", unsupported)
    found = KeySet.parse(key_set([KEYS["EdDSA"], KEYS["ES256"]]))
    assert found.names == ("ES256",)
    assert found.unused == ("key 0 ('EdDSA'): ed25519 is not supported by this version of OpenSSL.",)


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', b"\xff", b'{"keys":' + b"[" * 9999],
)
def test_what_is_no_key_set(content: bytes) -> None:
    with pytest.raises(ValueError):
        KeySet.parse(content)


def test_a_set_of_many_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 100"):
        KeySet.parse(json.dumps({"keys": [KEYS["ES256"].published] * 101}).encode())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "three parts"),
        ("a.b", "three parts"),
        ("a.b.c.d.e", "three parts"),
        ("a.b.c", "base64url"),
        ("e30=.e30.", "base64url"),
        ("e+/0.e30.", "base64url"),
        ("bnVsbA.e30.", "no JSON object"),
        ("W10.e30.", "no JSON object"),
        ("e30.e30x.", "no JSON object"),
        ("A" * (MOST_CHARACTERS + 1), "characters"),
        (f"{base64.urlsafe_b64encode(b'[' * 30_000).decode()}.e30.", "no JSON object"),
    ],
)
def test_what_is_no_token(text: str, reason: str) -> None:
    with pytest.raises(RefusedToken, match=reason):
        parse_token(text)


def test_values_in_values_are_refused() -> None:
    """Python's stack ends at some depth, wherever that is."""
    for depth in range(800, 1000):
        header = encoded(b'{"alg":' + b"[" * depth + b"]" * depth + b"}")
        with pytest.raises(RefusedToken):
            attempt(f"{header}.{encoded(json.dumps(CLAIMS).encode())}.")


def test_kafkas_unsecured_tokens() -> None:
    rules = UnsecuredRules.of({})
    assert rules.identity(unsecured(CLAIMS), NOW_S) == ("alice", 100)
    assert rules.identity(unsecured(changed(exp=1e300)), NOW_S) == ("alice", 366 * 86_400)
    for others in (
        {"exp": NOW_S},
        {"exp": None},
        {"sub": None},
        {"iat": NOW_S + 1},
        {"iat": NOW_S + 200, "exp": NOW_S + 150},
        {"iat": "now"},
        {"exp": 10**400},
    ):
        with pytest.raises(RefusedToken):
            rules.identity(unsecured(changed(**others)), NOW_S)
    with pytest.raises(RefusedToken, match="signed"):
        rules.identity(KEYS["ES256"].sign(CLAIMS), NOW_S)
    with pytest.raises(RefusedToken, match="signed"):
        rules.identity(unsecured(CLAIMS) + "AAAA", NOW_S)


def test_options_of_kafkas_unsecured_validator() -> None:
    options = {"PrincipalClaimName": "user", "ScopeClaimName": "roles", "RequiredScope": "a  b"}
    options |= {"AllowableClockSkewMs": "2000"}
    rules = UnsecuredRules.of({f"unsecuredValidator{name}": value for name, value in options.items()})
    claims = changed(user="service", roles=["a", "b"], exp=NOW_S - 1)
    assert rules.identity(unsecured(claims), NOW_S) == ("service", 1)
    for roles in (None, "a", ["a"], 7):
        with pytest.raises(RefusedToken) as caught:
            rules.identity(unsecured(changed(user="service", roles=roles)), NOW_S)
        assert (caught.value.status, caught.value.scope) == ("insufficient_scope", "a b")
    for bad in ("-1", "soon", "9" * 11):
        with pytest.raises(ValueError, match="milliseconds"):
            UnsecuredRules.of({"unsecuredValidatorAllowableClockSkewMs": bad})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(["alg", "kid", "crit", "sub", "iss", "aud", "exp", "iat", "nbf", "scope", "typ"])
OBJECTS = st.dictionaries(NAMES, JSON | st.sampled_from(["RS256", "ES256", "EdDSA", "korvet", NOW_S + 9]))


def attempt(text: str) -> None:
    """Do all that a token causes. Raises RefusedToken, or nothing."""
    token = parse_token(text)
    ALL.lacks(token)
    for rules in (RULES, TokenRules()):
        with contextlib.suppress(RefusedToken):
            rules.identity(token.claims, NOW_S)
    with contextlib.suppress(RefusedToken):
        UnsecuredRules.of({}).identity(text, NOW_S)
    ALL.verify(token)


@given(st.text() | st.from_regex(r"[-_a-zA-Z0-9]*\.[-_a-zA-Z0-9]*\.[-_a-zA-Z0-9]*", fullmatch=True))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(RefusedToken):
        attempt(text)


@given(st.binary(), st.binary(), st.binary())
def test_any_parts_are_refused(header: bytes, claims: bytes, signature: bytes) -> None:
    with pytest.raises(RefusedToken):
        attempt(f"{encoded(header)}.{encoded(claims)}.{encoded(signature)}")


@given(OBJECTS, OBJECTS, st.binary(max_size=300))
def test_any_members_are_refused(header: dict[str, Any], claims: dict[str, Any], signature: bytes) -> None:
    parts = (encoded(json.dumps(part).encode()) for part in (header, claims))
    with pytest.raises(RefusedToken):
        attempt(f"{'.'.join(parts)}.{encoded(signature)}")


@given(st.sampled_from(sorted(KEYS)), st.data())
def test_a_damaged_token_is_refused(algorithm: str, data: st.DataObject) -> None:
    text = KEYS[algorithm].sign(CLAIMS)
    # Two tokens that differ in the last character may have the same signature.
    at = data.draw(st.integers(0, len(text) - 2))
    other = data.draw(st.sampled_from("".join({*"aZ0-_."} - {text[at]})))
    with pytest.raises(RefusedToken):
        attempt(text[:at] + other + text[at + 1 :])


@given(st.dictionaries(st.sampled_from(["kty", "crv", "n", "e", "x", "y", "alg", "use", "kid", "d"]), JSON))
def test_any_key_is_used_or_left_out(key: dict[str, Any]) -> None:
    found = KeySet.parse(json.dumps({"keys": [key, KEYS["ES256"].published]}).encode())
    assert "ES256" in found.names
