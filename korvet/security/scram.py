"""SCRAM on bytes: both sides of RFC 5802 and RFC 7677, and the stored credentials.

As in Kafka, there is no channel binding, at least 4096 iterations are required, and extensions are ignored
except mandatory ones and delegation tokens; nobody can authenticate with a delegation token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.security.errors import InvalidCredentials, SaslFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MIN_ITERATIONS: Final = 4096
# Limits the iterations of new credentials as Kafka does: a client must compute as many.
MAX_ITERATIONS: Final = 16384
_NONCE_BYTES: Final = 24
SALT_BYTES: Final = 24

# No group is repeated: each repetition takes time and a hundred bytes, and any client may send half a
# megabyte. `_match`, `plain_name` and `_decoded` check the rest.
_NAME: Final = r"[^\x00,]+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"[a-zA-Z0-9/+]*={0,2}"
_EXTENSIONS: Final = r"(?P<extensions>(?:,[^\x00]*)?)"
_NOT_AN_EXTENSION: Final = re.compile(r",(?![A-Za-z]+=[^,])")
_CLIENT_FIRST: Final = re.compile(
    f"(?P<header>[ny],(?:a=(?P<authorization>{_NAME}))?,)"
    f"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
)
_CLIENT_FINAL: Final = re.compile(
    f"(?P<unproved>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)

_SERVER_FIRST: Final = re.compile(
    f"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[1-9][0-9]{{0,8}}){_EXTENSIONS}"
)


class ScramMechanism(Enum):
    """SCRAM mechanisms by their SASL names."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> int:
        """The protocol's number (KIP-554)."""
        return 1 if self is ScramMechanism.SHA_256 else 2

    @property
    def hash_name(self) -> str:
        """The name of the hash function in hashlib."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"


BY_NUMBER: Final[Mapping[int, ScramMechanism]] = {each.number: each for each in ScramMechanism}


class ScramCredential(msgspec.Struct, frozen=True):
    """What a server stores of a password; a stored credential is not enough to authenticate."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"

    @classmethod
    def of(cls, mechanism: ScramMechanism, salt: bytes, salted: bytes, iterations: int) -> ScramCredential:
        """Derive a credential from a salted password, which is what clients send (KIP-554)."""
        stored_key = hashlib.new(mechanism.hash_name, _mac(mechanism, salted, b"Client Key")).digest()
        return cls(salt, stored_key, _mac(mechanism, salted, b"Server Key"), iterations)

    def proves(self, mechanism: ScramMechanism, password: str) -> bool:
        """Whether `password` is the credential's password. Takes milliseconds."""
        salted = salt_password(mechanism, password, self.salt, self.iterations)
        stored_key = ScramCredential.of(mechanism, self.salt, salted, self.iterations).stored_key
        return hmac.compare_digest(stored_key, self.stored_key)

    def encode(self) -> bytes:
        """The credential in the form that Kafka stores (ScramCredentialUtils)."""
        return b"salt=%b,stored_key=%b,server_key=%b,iterations=%d" % (
            base64.b64encode(self.salt),
            base64.b64encode(self.stored_key),
            base64.b64encode(self.server_key),
            self.iterations,
        )

    @classmethod
    def decode(cls, text: bytes) -> ScramCredential:
        """Parse `encode`. Raises ValueError."""
        parts = dict(part.split(b"=", 1) for part in text.split(b",") if b"=" in part)
        if set(parts) != {b"salt", b"stored_key", b"server_key", b"iterations"}:
            raise ValueError("not a SCRAM credential")
        keys = [
            base64.b64decode(parts[name], validate=True) for name in (b"salt", b"stored_key", b"server_key")
        ]
        return cls(keys[0], keys[1], keys[2], int(parts[b"iterations"]))


def new_credential(
    mechanism: ScramMechanism, password: str, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """A credential for a password, with a new salt. Takes milliseconds."""
    salt = secrets.token_bytes(SALT_BYTES)
    return ScramCredential.of(
        mechanism, salt, salt_password(mechanism, password, salt, iterations), iterations
    )


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi() of RFC 5802; passwords are not normalised (no SASLprep), as in Kafka."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


class ScramServer:
    """The server's side of one authentication. Raises SaslFailure and InvalidCredentials."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential],
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        """find(user) returns the user's credential, or one that no password matches if the user does not
        exist.
        """
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._header = b""
        self._credential: ScramCredential | None = None
        self._first_bare = ""
        self._server_first = ""
        self._expected_nonce = ""
        self.username = ""
        """The user name that the client claims; valid once `complete`."""
        self.complete = False

    def evaluate(self, token: bytes) -> bytes:
        """Answer the client's first message, then its final one."""
        try:
            message = token.decode()
        except UnicodeDecodeError:
            raise InvalidCredentials("a SCRAM message is not UTF-8") from None
        if self._credential is None:
            return self._take_first(message)
        if self.complete:
            raise InvalidCredentials("a token after the final one")
        return self._take_final(message, self._credential)

    def _take_first(self, message: str) -> bytes:
        found = _match(_CLIENT_FIRST, message)
        if found is None:
            raise InvalidCredentials("the client's first message has another form")
        if "tokenauth=true" in found["extensions"].split(","):
            raise InvalidCredentials("delegation tokens are not supported")
        username = plain_name(found["name"])
        authorization = found["authorization"]
        if authorization and plain_name(authorization) != username:
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.username = username
        self._credential = credential = self._find(username)
        self._header = found["header"].encode()
        self._first_bare = found["bare"]
        self._expected_nonce = found["nonce"] + self._nonce()
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._expected_nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def _take_final(self, message: str, credential: ScramCredential) -> bytes:
        found = _match(_CLIENT_FINAL, message)
        if found is None:
            raise InvalidCredentials("the client's final message has another form")
        if not hmac.compare_digest(found["nonce"].encode(), self._expected_nonce.encode()):
            raise InvalidCredentials(_other_nonce(found["nonce"], self._expected_nonce))
        if _decoded(found["channel"]) != self._header:
            raise InvalidCredentials("the channel binding does not repeat the first message's header")
        signed = f"{self._first_bare},{self._server_first},{found['unproved']}".encode()
        signature = _mac(self._mechanism, credential.stored_key, signed)
        proof = _decoded(found["proof"])
        if len(proof) != len(signature):
            raise InvalidCredentials("the proof has another length")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._mechanism.hash_name, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise InvalidCredentials("the proof is wrong")
        self.complete = True
        return b"v=" + base64.b64encode(_mac(self._mechanism, credential.server_key, signed))


class ScramClient:
    """The client's side of one authentication. Raises InvalidCredentials if the server does not know the
    password.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        password: str,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        self._signature: bytes | None = None
        self.complete = False

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._first_bare}".encode()

    def answer(self, token: bytes) -> bytes:
        """The answer to the server's first message; empty for its final message."""
        if self._signature is None:
            return self._prove(token)
        if not hmac.compare_digest(token, b"v=" + base64.b64encode(self._signature)):
            raise InvalidCredentials("the server's signature is wrong")
        self.complete = True
        return b""

    def _prove(self, token: bytes) -> bytes:
        found = _match(_SERVER_FIRST, token.decode("utf-8", "replace"))
        if found is None or not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise InvalidCredentials("the server's first message has another form")
        if int(found["iterations"]) < MIN_ITERATIONS:
            raise InvalidCredentials("the server asks for too few iterations")
        salt, iterations = _decoded(found["salt"]), int(found["iterations"])
        salted = salt_password(self._mechanism, self._password, salt, iterations)
        credential = ScramCredential.of(self._mechanism, salt, salted, iterations)
        unproved = f"c=biws,r={found['nonce']}"
        signed = f"{self._first_bare},{found[0]},{unproved}".encode()
        mask = _mac(self._mechanism, credential.stored_key, signed)
        client_key = _mac(self._mechanism, salted, b"Client Key")
        self._signature = _mac(self._mechanism, credential.server_key, signed)
        proof = bytes(left ^ right for left, right in zip(client_key, mask, strict=True))
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()


def _other_nonce(sent: str, expected: str) -> str:
    """What is wrong with the nonce of a final message. RFC 5802 demands the server's, and so does Kafka 4."""
    if sent.endswith(expected):
        return "the client repeats its own nonce, as librdkafka before 2.6.1 does: update it, or use PLAIN"
    return "the nonce is not the server's"


def _mac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _match(form: re.Pattern[str], message: str) -> re.Match[str] | None:
    found = form.fullmatch(message)
    return None if found is None or _NOT_AN_EXTENSION.search(found["extensions"]) else found


def plain_name(name: str) -> str:
    """A name of RFC 5801, in which =2C stands for a comma and =3D for =. Raises InvalidCredentials."""
    if name.count("=") != name.count("=2C") + name.count("=3D"):
        raise InvalidCredentials("a name has '=' other than in =2C and =3D")
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    if len(text) % 4:
        raise InvalidCredentials("not base64")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise InvalidCredentials("not base64") from None
