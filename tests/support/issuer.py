"""A small OpenID provider: it signs tokens, publishes its keys, and gives tokens for client credentials."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

AUDIENCE = "korvet"
# By algorithm: what makes a private key.
_NEW = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "PS512": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


class SigningKey:
    """A private key with its ID."""

    def __init__(self, algorithm: str = "ES256", name: str | None = "first") -> None:
        self.algorithm = algorithm
        self.name = name
        self.private = _NEW[algorithm]()

    @property
    def published(self) -> dict[str, Any]:
        """The public key as a member of a key set."""
        public = jwt.get_algorithm_by_name(self.algorithm).to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "use": "sig", **({} if self.name is None else {"kid": self.name})}

    def sign(self, claims: dict[str, Any], **headers: Any) -> str:
        """A token with exactly these claims."""
        named = {} if self.name is None else {"kid": self.name}
        # PyJWT itself would refuse to encode odd claims.
        payload = json.dumps(claims).encode()
        return jwt.PyJWS().encode(payload, self.private, self.algorithm, headers=named | headers)


def key_set(keys: Iterable[SigningKey]) -> bytes:
    """The public keys as a JSON Web Key Set."""
    return json.dumps({"keys": [each.published for each in keys]}).encode()


def claims_of(user: str, lifetime_s: float = 300.0, **others: Any) -> dict[str, Any]:
    """Usual claims, from now on. Others of the value None are left out."""
    now_s = int(time.time())
    claims = {"sub": user, "iss": "https://issuer.example", "aud": AUDIENCE, "iat": now_s - 1}
    claims |= {"exp": time.time() + lifetime_s, "scope": "kafka"} | others
    return {name: value for name, value in claims.items() if value is not None}


def unsecured(claims: dict[str, Any]) -> str:
    """A token without a signature, as Kafka's own login makes it for tests."""
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


class Issuer:
    """Serves its keys at /keys, and tokens at /token. The password of every user is `secret`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.key = SigningKey()
        self.published = [self.key]
        """The keys at /keys."""
        self.content: bytes | None = None
        """What is served instead of the keys."""
        self.status = 200
        """The status of /keys."""
        self.fetches = 0
        """The number of requests for keys."""
        self.lifetime_s = 300.0
        self.claims: dict[str, Any] = {}
        """Claims of the tokens at /token that differ from the usual."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                content = key_set(issuer.published) if issuer.content is None else issuer.content
                issuer.answer(self, issuer.status, content)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                form = {
                    name: values[0] for name, values in parse_qs(self.rfile.read(length).decode()).items()
                }
                basic = self.headers.get("Authorization", "").removeprefix("Basic ")
                user, _, password = base64.b64decode(basic).decode().partition(":")
                user, password = form.get("client_id", user), form.get("client_secret", password)
                if password != "secret":
                    issuer.answer(self, 401, b'{"error":"invalid_client"}')
                    return
                granted = {
                    "access_token": issuer.token(user),
                    "token_type": "Bearer",
                    "expires_in": int(issuer.lifetime_s),
                }
                issuer.answer(self, 200, json.dumps(granted).encode())

            def log_message(self, *_: object) -> None:
                """Be silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        scheme, port = "http" if tls is None else "https", self._server.server_address[1]
        self.url = f"{scheme}://localhost:{port}"

    @staticmethod
    def answer(handler: BaseHTTPRequestHandler, status: int, content: bytes) -> None:
        handler.send_response(status)
        if 300 <= status < 400:
            handler.send_header("Location", "http://elsewhere.example/keys")
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def token(self, user: str, **claims: Any) -> str:
        """A token that is signed with the present key."""
        return self.key.sign(claims_of(user, self.lifetime_s, **self.claims | claims))

    def rotate(self, key: SigningKey) -> None:
        """Sign with another key from now on, and publish only that."""
        self.published = [key]
        self.key = key

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
