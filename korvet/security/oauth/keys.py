"""The public keys of an issuer, a JSON Web Key Set (RFC 7517), and what they verify.

An algorithm belongs to the type of a key: a token can't choose `none`, nor HMAC with a public key as secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jwt
import msgspec
from cryptography import exceptions

from korvet.security.oauth.tokens import RefusedToken, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from korvet.security.oauth.tokens import Token

# Limits the tries for a token: issuers publish a handful of keys.
_MOST_KEYS: Final = 100
# As in Kafka: a longer ID of a key is nobody's.
_LONGEST_ID: Final = 1000
# RFC 7518, section 3.3.
_LEAST_RSA_BITS: Final = 2048
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVES: Final = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
# RFC 8037, and its fully specified name of RFC 9864.
_ED25519: Final = ("EdDSA", "Ed25519")
_ALGORITHMS: Final = frozenset((*_RSA, *_ED25519, *(name for names in _OF_CURVES.values() for name in names)))


class _Jwk(msgspec.Struct):
    """The members of a JSON Web Key that matter here."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None
    crv: str | None = None
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    d: str | None = None


class _Set(msgspec.Struct):
    keys: list[msgspec.Raw]


class _Key(NamedTuple):
    id: str | None
    algorithms: tuple[str, ...]
    public: Any


class KeySet:
    """The keys of one issuer that can verify signatures."""

    def __init__(self, keys: Iterable[_Key], unused: Iterable[str] = ()) -> None:
        self._keys = tuple(keys)
        self.unused = tuple(unused)
        """Why other keys of the issuer cannot be used."""

    @classmethod
    def parse(cls, content: bytes) -> KeySet:
        """Read a key set. Keys for other purposes are left out. Raises ValueError if none is left."""
        try:
            raw = msgspec.json.decode(content, type=_Set).keys
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"no JSON Web Key Set: {error}") from error
        if len(raw) > _MOST_KEYS:
            raise ValueError(f"{len(raw)} keys, more than {_MOST_KEYS}")
        keys, unused = [], []
        for number, each in enumerate(raw):
            name = f"key {number}"
            try:
                jwk = msgspec.json.decode(each, type=_Jwk)
                name += "" if jwk.kid is None else f" ({shown(jwk.kid)})"
                keys.append(_key(jwk))
            except (
                msgspec.DecodeError,
                UnicodeDecodeError,
                jwt.PyJWTError,
                exceptions.UnsupportedAlgorithm,
                ValueError,
            ) as error:
                unused.append(f"{name}: {error}")
        if not keys:
            raise ValueError(f"no key that verifies signatures{': ' if unused else ''}{'; '.join(unused)}")
        return cls(keys, unused)

    @property
    def names(self) -> tuple[str, ...]:
        """The IDs of the keys; those without one are left out."""
        return tuple(each.id for each in self._keys if each.id is not None)

    def __len__(self) -> int:
        return len(self._keys)

    def lacks(self, token: Token) -> bool:
        """Whether a token is signed with a key that is not in the set, but that the issuer may have by now.
        The ID of the key tells that; if the token names no key, the signature does.
        """
        try:
            found = self._find(token.header)
        except RefusedToken:
            return False
        if "kid" in token.header:
            return not found
        try:
            self.verify(token)
        except RefusedToken:
            return True
        return False

    def verify(self, token: Token) -> None:
        """Return if the issuer has signed a token. Raises RefusedToken."""
        found = self._find(token.header)
        if not found:
            raise RefusedToken(f"the token is signed with the unknown key {shown(token.header.get('kid'))}")
        algorithm = token.header["alg"]
        fitting = [each for each in found if algorithm in each.algorithms]
        if not fitting:
            raise RefusedToken(f"the algorithm {algorithm} of the token is not that of the key")
        if "kid" not in token.header and len(fitting) > 1:
            raise RefusedToken("the token names no key, and the issuer has several of that algorithm")
        verifier = jwt.get_algorithm_by_name("EdDSA" if algorithm in _ED25519 else algorithm)
        if not any(verifier.verify(token.signed, each.public, token.signature) for each in fitting):
            raise RefusedToken("the signature of the token is wrong")

    def _find(self, header: Mapping[str, Any]) -> list[_Key]:
        """The keys that a token may be signed with: those with the ID that it names, else all. Raises
        RefusedToken if no key of the kinds above can have signed it.
        """
        if "crit" in header:
            raise RefusedToken("the token has extensions that must be understood (crit)")
        algorithm = header.get("alg")
        if not isinstance(algorithm, str):
            raise RefusedToken("the algorithm of the token is no text (alg)")
        if algorithm not in _ALGORITHMS:
            raise RefusedToken(f"the algorithm {shown(algorithm)} of the token is none for public keys")
        if "kid" not in header:
            return list(self._keys)
        name = header["kid"]
        if not isinstance(name, str) or len(name) > _LONGEST_ID:
            raise RefusedToken("the token names its key by no text, or by a very long one (kid)")
        return [each for each in self._keys if each.id == name]


def _key(found: _Jwk) -> _Key:
    """Raises ValueError, or an error of cryptography or PyJWT, for a key that cannot be used."""
    if found.d is not None:
        raise ValueError("a private key: everybody who has read it can sign tokens")
    if found.use not in (None, "sig") or (found.key_ops is not None and "verify" not in found.key_ops):
        raise ValueError("not for signatures")
    algorithms = _algorithms(found)
    if found.alg is not None:
        mine = found.alg in algorithms
        algorithms = _ED25519 if mine and found.alg in _ED25519 else (found.alg,) if mine else ()
    if not algorithms:
        raise ValueError(f"kty {shown(found.kty)}, crv {shown(found.crv)}, alg {shown(found.alg)}")
    members = {"kty": found.kty, "crv": found.crv, "n": found.n, "e": found.e, "x": found.x, "y": found.y}
    public = jwt.PyJWK({name: value for name, value in members.items() if value}, algorithms[0]).key
    if found.kty == "RSA" and public.key_size < _LEAST_RSA_BITS:
        raise ValueError(f"{public.key_size} bits, fewer than {_LEAST_RSA_BITS}")
    return _Key(found.kid, algorithms, public)


def _algorithms(found: _Jwk) -> tuple[str, ...]:
    """The algorithms of a type of key; empty for a type that is not supported."""
    if found.kty == "EC":
        return _OF_CURVES.get(found.crv or "", ())
    if found.kty == "OKP":
        return _ED25519 if found.crv == "Ed25519" else ()
    return _RSA if found.kty == "RSA" else ()
