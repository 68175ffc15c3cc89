"""Tokens and first messages: korvet says the same of each as the code of Kafka's brokers, but of two."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from korvet.security.errors import InvalidCredentials
from korvet.security.oauth.exchange import parse_first
from korvet.security.oauth.keys import KeySet
from korvet.security.oauth.tokens import RefusedToken, TokenRules, parse_token
from tests.support.issuer import AUDIENCE, SigningKey, claims_of, key_set, unsecured

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.java import JavaTools

pytestmark = pytest.mark.clients

ISSUER = "https://issuer.example"
KEYS = {name: SigningKey(name, name) for name in ("RS256", "PS512", "ES256", "ES384", "ES512", "EdDSA")}
NOW_S = int(time.time())
CLAIMS: dict[str, dict[str, Any]] = {
    "usual": {},
    "without exp": {"exp": None},
    "without iat": {"iat": None},
    "without sub": {"sub": None},
    "without iss": {"iss": None},
    "without aud": {"aud": None},
    "without scope": {"scope": None},
    "expired": {"exp": NOW_S - 60, "iat": NOW_S - 90},
    "expired within the skew": {"exp": NOW_S - 1, "iat": NOW_S - 90},
    "exp before iat": {"exp": NOW_S + 100, "iat": NOW_S + 200},
    "exp before nbf": {"exp": NOW_S + 100, "nbf": NOW_S + 200},
    "iat in the future": {"iat": NOW_S + 100},
    "nbf in the future": {"nbf": NOW_S + 100},
    "nbf within the skew": {"nbf": NOW_S + 10},
    "exp is a text": {"exp": str(NOW_S + 100)},
    "exp is a fraction": {"exp": NOW_S + 100.75},
    "exp is true": {"exp": True},
    "exp is negative": {"exp": -1},
    "nbf is a text": {"nbf": "soon"},
    "other iss": {"iss": "https://other"},
    "iss with a slash": {"iss": f"{ISSUER}/"},
    "iss is a list": {"iss": [ISSUER]},
    "other aud": {"aud": "other"},
    "aud is a list": {"aud": ["other", AUDIENCE]},
    "aud is an empty list": {"aud": []},
    "aud is a number": {"aud": 7},
    "aud has a number": {"aud": [AUDIENCE, 7]},
    "sub is blank": {"sub": "  "},
    "sub has blanks": {"sub": " alice "},
    "sub is a number": {"sub": 7},
    "scope is blank": {"scope": ""},
    "scope is a list": {"scope": ["a", "b"]},
    "scope is an empty list": {"scope": []},
    "scope repeats": {"scope": ["a", " a"]},
    "scope has a blank": {"scope": ["a", " "]},
    "scope is a number": {"scope": 7},
}
# What korvet does not take, but Kafka does. A secret that is published is none. Of several keys, Kafka tries
# the first for a token that names none.
STRICTER = {"a secret key of the set", "no ID of the first key of several"}


def tokens() -> dict[str, str]:
    """Tokens by what is special of them."""
    found = {name: KEYS["ES256"].sign(claims(**others)) for name, others in CLAIMS.items()}
    found |= {f"signed with {name}": key.sign(claims()) for name, key in KEYS.items()}
    found |= {f"no ID of {what}": nameless(key).sign(claims()) for what, key in NAMELESS.items()}
    good = found["usual"]
    header, body, signature = good.split(".")
    found |= {
        "a forged signature": SigningKey("ES256", "ES256").sign(claims()),
        "an unknown key": SigningKey("ES256", "unknown").sign(claims()),
        "a key of another kind": SigningKey("RS256", "ES256").sign(claims()),
        "no signature": f"{header}.{body}.",
        "unsecured": unsecured(claims()),
        "two parts": f"{header}.{body}",
        "four parts": f"{good}.{signature}",
        "padded": f"{header}=.{body}.{signature}",
        "no token": "rubbish",
        "dots": "..",
        "a secret key of the set": jwt.encode(claims(), "s" * 32, "HS256", headers={"kid": "secret"}),
        "the public key as secret": jwt.encode(claims(), "x" * 64, "HS256", headers={"kid": "RS256"}),
        "extensions that must be understood": KEYS["ES256"].sign(claims(), crit=["exp"]),
    }
    return found


NAMELESS = {
    "the only key of its kind": KEYS["ES256"],
    "another key of that kind": SigningKey("ES256"),
    "another of several": KEYS["PS512"],
    "the first key of several": KEYS["RS256"],
}


def nameless(key: SigningKey) -> SigningKey:
    """The same key, for tokens that don't name it."""
    found = SigningKey(key.algorithm, None)
    found.private = key.private
    return found


def claims(**others: Any) -> dict[str, Any]:
    return claims_of("alice", 3000, **{"iss": ISSUER, "exp": NOW_S + 3000} | others)


MESSAGES = {
    "usual": b"n,,\x01auth=Bearer a.b.c\x01\x01",
    "authorization": b"n,a=alice,\x01auth=Bearer a.b.c\x01\x01",
    "escaped authorization": b"n,a=al=2Cice,\x01auth=Bearer a.b.c\x01\x01",
    "badly escaped authorization": b"n,a=al=2Xice,\x01auth=Bearer a.b.c\x01\x01",
    "empty authorization": b"n,a=,\x01auth=Bearer a.b.c\x01\x01",
    "channel binding": b"p=x,,\x01auth=Bearer a.b.c\x01\x01",
    "y": b"y,,\x01auth=Bearer a.b.c\x01\x01",
    "other case": b"n,,\x01auth=bEARER a.b.c\x01\x01",
    "two blanks": b"n,,\x01auth=Bearer  a.b.c\x01\x01",
    "no blank": b"n,,\x01auth=Bearera.b.c\x01\x01",
    "basic": b"n,,\x01auth=Basic a.b.c\x01\x01",
    "extensions": b"n,,\x01host=h\x01auth=Bearer a.b.c\x01port=9 \t\r\n=2\x01\x01",
    "extension without value": b"n,,\x01auth=Bearer a.b.c\x01host=\x01\x01",
    "extension with a digit": b"n,,\x01auth=Bearer a.b.c\x01h0st=x\x01\x01",
    "extension with DEL": b"n,,\x01auth=Bearer a.b.c\x01host=\x7f\x01\x01",
    "no end": b"n,,\x01auth=Bearer a.b.c\x01",
    "more after the end": b"n,,\x01auth=Bearer a.b.c\x01\x01x",
    "padded token": b"n,,\x01auth=Bearer a.b.c=\x01\x01",
    "no token": b"n,,\x01auth=Bearer \x01\x01",
    "no auth": b"n,,\x01host=x\x01\x01",
    "nothing": b"n,,\x01\x01",
    "acknowledgement": b"\x01",
    "not UTF-8": b"n,,\x01auth=Bearer \xff\x01\x01",
}


def korvets(rules: TokenRules, keys: KeySet, text: str) -> str:
    """The verdict of korvet."""
    try:
        token = parse_token(text)
        identity = rules.identity(token.claims, time.time())
        keys.verify(token)
    except RefusedToken:
        return "no"
    return f"yes {identity.subject} {int(token.claims['exp'])}"


def kafkas(line: str) -> str:
    """The verdict of Kafka, without its reason."""
    return "no" if line.startswith("no ") else line


@pytest.mark.parametrize(("issuer", "audience"), [(ISSUER, AUDIENCE), ("", ""), (ISSUER, ""), ("", AUDIENCE)])
def test_the_same_tokens_are_accepted(java: JavaTools, tmp_path: Path, issuer: str, audience: str) -> None:
    published = json.loads(key_set(KEYS.values()))
    published["keys"].append(
        {"kty": "oct", "k": jwt.utils.base64url_encode(b"s" * 32).decode(), "kid": "secret"}
    )
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(published))
    rules = TokenRules(issuer or None, frozenset(filter(None, [audience])))
    keys = KeySet.parse(file.read_bytes())
    all_tokens = tokens()
    lines = "".join(f"{each}\n" for each in all_tokens.values()).encode()
    said = java.run("TokenVerdicts", file.as_uri(), issuer, audience, stdin=lines).splitlines()
    theirs = dict(zip(all_tokens, map(kafkas, said), strict=True))
    ours = {name: korvets(rules, keys, each) for name, each in all_tokens.items()}
    differ = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
    assert differ.keys() <= STRICTER, differ
    assert all(mine == "no" for mine, _ in differ.values())
    assert ours["without aud" if not audience else "usual"] != "no"


def test_the_same_messages_are_accepted(java: JavaTools, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(KEYS.values()))
    lines = "".join(f"@{each.hex()}\n" for each in MESSAGES.values()).encode()
    said = java.run("TokenVerdicts", file.as_uri(), "", "", stdin=lines).splitlines()
    for (name, message), line in zip(MESSAGES.items(), said, strict=True):
        try:
            ours = f"yes {parse_first(message).token}"
        except InvalidCredentials:
            ours = "no"
        assert ours == kafkas(line), (name, line)
