"""SCRAM against the vectors of RFC 7677 and Kafka's rules; stored credentials; every kind of malformed
message.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.security.errors import InvalidCredentials, SaslFailure
from korvet.security.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    new_credential,
    salt_password,
)

SHA_256 = ScramMechanism.SHA_256
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()


def credential_of(password: str, iterations: int = 4096) -> ScramCredential:
    return ScramCredential.of(SHA_256, SALT, salt_password(SHA_256, password, SALT, iterations), iterations)


def server_of(credential: ScramCredential) -> ScramServer:
    return ScramServer(SHA_256, lambda _: credential, lambda: SERVER_NONCE)


def begun() -> ScramServer:
    server = server_of(credential_of("pencil"))
    server.evaluate(f"n,,n=user,r={CLIENT_NONCE}".encode())
    return server


def proof_for(
    mechanism: ScramMechanism, password: str, first_bare: str, server_first: str, final: str
) -> str:
    """The client's side of RFC 5802, computed independently."""
    fields = dict(part.split("=", 1) for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(
        mechanism.hash_name, password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    stored = hashlib.new(mechanism.hash_name, client_key).digest()
    signature = hmac.digest(stored, f"{first_bare},{server_first},{final}".encode(), mechanism.hash_name)
    return base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()


def test_the_exchange_of_rfc_7677() -> None:
    server = server_of(credential_of("pencil"))
    first = server.evaluate(f"n,,n=user,r={CLIENT_NONCE}".encode())
    assert first == f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert not server.complete
    assert server.evaluate(RFC_FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.complete
    assert server.username == "user"


@pytest.mark.parametrize(
    "first",
    [
        "",
        "n,,n=user",
        "p=tls-unique,,n=user,r=abc",
        "n,,n=,r=abc",
        "n,,n=a=b,r=abc",
        "n,,n==2C=,r=abc",
        "n,,n===2C3D,r=abc",
        "n,,m=ext,n=user,r=abc",
        "n,,n=user,r=",
        "n,,n=user,r=a b",
        "n,,n=user,r=abc,",
        "n,,n=user,r=abc,1=x",
        "n,,n=user,r=abc,x=,y=z",
        "n,,n=user,r=abc,tokenauth=true",
    ],
)
def test_first_messages_that_are_refused(first: str) -> None:
    with pytest.raises(InvalidCredentials):
        server_of(credential_of("pencil")).evaluate(first.encode())


@pytest.mark.parametrize(
    "final",
    [
        RFC_FINAL.replace(b"dHzb", b"dHzc"),
        RFC_FINAL.replace(b"c=biws", b"c=eSws"),
        RFC_FINAL.replace(b"r=rOpr", b"r=rOps"),
        RFC_FINAL.replace(b"r=rOpr", b"r=xrOpr"),
        RFC_FINAL.split(b",p=")[0],
        RFC_FINAL.split(b"p=")[0] + b"p=AAAA",
        b"\xff\xfe",
    ],
)
def test_final_messages_that_are_refused(final: bytes) -> None:
    server = begun()
    with pytest.raises(InvalidCredentials):
        server.evaluate(final)
    assert not server.complete


@pytest.mark.parametrize(
    ("nonce", "reason"),
    [
        (CLIENT_NONCE + CLIENT_NONCE + SERVER_NONCE, "librdkafka before 2.6.1"),
        (CLIENT_NONCE, "the nonce is not the server's"),
        (CLIENT_NONCE + SERVER_NONCE + "x", "the nonce is not the server's"),
    ],
)
def test_a_client_that_repeats_its_nonce_is_refused_with_a_hint(nonce: str, reason: str) -> None:
    final = RFC_FINAL.replace((CLIENT_NONCE + SERVER_NONCE).encode(), nonce.encode())
    with pytest.raises(InvalidCredentials, match=reason):
        begun().evaluate(final)


@pytest.mark.parametrize(
    "message",
    [
        "n,,n=" + "a" * 500_000 + ",r=abc",
        "n,,n=" + "=2C" * 170_000 + ",r=abc,",
        "n,,n=user,r=abc" + ",a=b" * 120_000 + ",",
        "c=" + "A" * 500_000 + ",r=abc,p=AAAA",
        "c=biws,r=abc" + ",a=b" * 120_000 + ",p=AAA",
    ],
    ids=lambda message: message[:14],
)
def test_long_messages_take_little_memory(message: str) -> None:
    server = begun() if message.startswith("c=") else server_of(credential_of("pencil"))
    token = message.encode()
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidCredentials):
            server.evaluate(token)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * len(token)


def test_extensions_before_the_proof_are_signed() -> None:
    final = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},x=y,pp=z"
    server_first = f"r={CLIENT_NONCE}{SERVER_NONCE},s={base64.b64encode(SALT).decode()},i=4096"
    server = begun()
    proof = proof_for(SHA_256, "pencil", f"n=user,r={CLIENT_NONCE}", server_first, final)
    assert server.evaluate(f"{final},p={proof}".encode()).startswith(b"v=")
    assert server.complete


def test_a_wrong_password_and_a_token_too_many() -> None:
    server = server_of(credential_of("other"))
    server.evaluate(f"n,,n=user,r={CLIENT_NONCE}".encode())
    with pytest.raises(InvalidCredentials):
        server.evaluate(RFC_FINAL)
    server = begun()
    server.evaluate(RFC_FINAL)
    with pytest.raises(InvalidCredentials):
        server.evaluate(RFC_FINAL)


def test_authorization_as_somebody_else() -> None:
    server = server_of(credential_of("pencil"))
    with pytest.raises(SaslFailure, match="authorization id"):
        server.evaluate(b"n,a=admin,n=user,r=abc")
    assert server_of(credential_of("pencil")).evaluate(b"n,a=user,n=user,r=abc").startswith(b"r=abc")


@given(
    user=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20),
    password=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    wrong=st.booleans(),
)
def test_any_user_authenticates_with_the_right_password_only(user: str, password: str, wrong: bool) -> None:
    mechanism = ScramMechanism.SHA_512
    salted = salt_password(mechanism, password, SALT, 4096)
    credential = ScramCredential.of(mechanism, SALT, salted, 4096)
    assert ScramCredential.decode(credential.encode()) == credential
    server = ScramServer(mechanism, {user: credential}.__getitem__)
    name = user.replace("=", "=3D").replace(",", "=2C")
    bare = f"n={name},r=nonce"
    first = server.evaluate(f"n,,{bare}".encode()).decode()
    final = f"c=biws,{first.split(',')[0]}"
    proof = proof_for(mechanism, password + "x" * wrong, bare, first, final)
    if wrong:
        with pytest.raises(InvalidCredentials):
            server.evaluate(f"{final},p={proof}".encode())
    else:
        server.evaluate(f"{final},p={proof}".encode())
        assert server.username == user
    assert server.complete is not wrong


@given(st.binary(max_size=80), st.booleans())
def test_no_bytes_do_more_than_be_refused(token: bytes, started: bool) -> None:
    server = begun() if started else server_of(credential_of("pencil"))
    with contextlib.suppress(InvalidCredentials, SaslFailure):
        server.evaluate(token)
    assert not server.complete


def test_secrets_are_not_shown_and_salts_differ() -> None:
    one, other = (new_credential(SHA_256, "pencil") for _ in range(2))
    assert one.salt != other.salt
    assert one.proves(SHA_256, "pencil")
    assert not one.proves(SHA_256, "Pencil")
    assert repr(one) == "ScramCredential(iterations=4096)"
    for bad in (b"", b"salt=AA==", one.encode() + b",x=1", one.encode().replace(b"salt=", b"salt=!")):
        with pytest.raises(ValueError):
            ScramCredential.decode(bad)


def exchange(client: ScramClient, server: ScramServer) -> None:
    token = client.first()
    while not client.complete:
        token = client.answer(server.evaluate(token))


@pytest.mark.parametrize("mechanism", list(ScramMechanism), ids=lambda each: each.value)
def test_our_client_and_our_server(mechanism: ScramMechanism) -> None:
    credential = new_credential(mechanism, "pencil")
    server = ScramServer(mechanism, {"a=b,c": credential}.__getitem__)
    exchange(ScramClient(mechanism, "a=b,c", "pencil"), server)
    assert server.username == "a=b,c"
    with pytest.raises(InvalidCredentials, match="proof"):
        exchange(
            ScramClient(mechanism, "a=b,c", "pen"), ScramServer(mechanism, {"a=b,c": credential}.__getitem__)
        )


def test_our_client_in_the_exchange_of_rfc_7677() -> None:
    client = ScramClient(SHA_256, "user", "pencil", lambda: CLIENT_NONCE)
    assert client.first() == f"n,,n=user,r={CLIENT_NONCE}".encode()
    first = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert client.answer(first) == RFC_FINAL
    assert client.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") == b""
    assert client.complete


@pytest.mark.parametrize(
    "first",
    [
        "",
        f"r={CLIENT_NONCE},s=AAAA,i=4096",
        f"r=x{CLIENT_NONCE}y,s=AAAA,i=4096",
        f"r={CLIENT_NONCE}y,s=AAAA,i=4095",
        f"r={CLIENT_NONCE}y,s=A,i=4096",
        "e=other-error",
    ],
)
def test_servers_that_our_client_does_not_trust(first: str) -> None:
    client = ScramClient(SHA_256, "user", "pencil", lambda: CLIENT_NONCE)
    with pytest.raises(InvalidCredentials):
        client.answer(first.encode())
    begun_client = ScramClient(SHA_256, "user", "pencil", lambda: CLIENT_NONCE)
    begun_client.answer(f"r={CLIENT_NONCE}y,s=AAAA,i=4096".encode())
    with pytest.raises(InvalidCredentials, match="signature"):
        begun_client.answer(b"v=AAAA")
    assert not begun_client.complete
