"""SCRAM credentials for users that do not exist, so that an authentication does not reveal which users exist.

A decoy is a function of a secret and the user's name: it is the same on every broker and after every restart.
Its iterations and the form of its salt are those of most stored credentials of its mechanism.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.security.scram import MIN_ITERATIONS, SALT_BYTES, ScramCredential

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.security.scram import ScramMechanism

# Kafka's tools write 130 random bits as a number in base 36 (ScramFormatter.secureRandomString).
_TEXT_SALT: Final = re.compile(rb"[1-9a-z][0-9a-z]{20,25}")
_TEXT_SALT_BITS: Final = 130
_BASE_36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class _Form(NamedTuple):
    """The visible properties of a credential. `salt_bytes` is 0 for salts as Kafka's tools make them."""

    iterations: int
    salt_bytes: int


_USUAL_FORM: Final = _Form(MIN_ITERATIONS, SALT_BYTES)


class Decoys:
    """The credentials of users that do not exist."""

    def __init__(
        self, secret: bytes, stored: Mapping[tuple[str, ScramMechanism], ScramCredential] | None = None
    ) -> None:
        self._secret = secret
        forms: dict[ScramMechanism, Counter[_Form]] = {}
        for (_, mechanism), credential in (stored or {}).items():
            if credential.iterations < MIN_ITERATIONS:
                continue  # never visible to a client
            forms.setdefault(mechanism, Counter())[_form_of(credential)] += 1
        self._forms = {
            # The larger one of two equally frequent forms: the order of users must not matter.
            mechanism: max(counts, key=lambda form: (counts[form], form))
            for mechanism, counts in forms.items()
        }

    def of(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """The decoy of a user; no password matches it."""
        form = self._forms.get(mechanism, _USUAL_FORM)
        key_bytes = hashlib.new(mechanism.hash_name).digest_size

        def derive(purpose: str, size_bytes: int) -> bytes:
            text = "\0".join((mechanism.value, purpose, user)).encode()
            return hashlib.shake_256(self._secret + text).digest(size_bytes)

        if form.salt_bytes:
            salt = derive("salt", form.salt_bytes)
        else:
            salt = _text_salt(derive("salt", -(-_TEXT_SALT_BITS // 8)))
        keys = derive("stored key", key_bytes), derive("server key", key_bytes)
        return ScramCredential(salt, *keys, form.iterations)


def _form_of(credential: ScramCredential) -> _Form:
    is_text = _TEXT_SALT.fullmatch(credential.salt) is not None
    return _Form(credential.iterations, 0 if is_text else len(credential.salt))


def _text_salt(random: bytes) -> bytes:
    number = int.from_bytes(random) >> (8 * len(random) - _TEXT_SALT_BITS)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _BASE_36[digit] + digits
    return digits.encode()
