"""In an authentication, users that do not exist look like those that do."""

from __future__ import annotations

import pytest

from korvet.security.credentials import Credentials
from korvet.security.decoys import Decoys
from korvet.security.scram import ScramCredential, ScramMechanism

SHA_256, SHA_512 = ScramMechanism
SECRET = b"a secret"
JAVA_SALT = b"1v4ioruhs5tt4kqrf3vaof61t0"


def stored(
    salt: bytes, iterations: int, count: int, prefix: str = "u"
) -> dict[tuple[str, ScramMechanism], ScramCredential]:
    credential = ScramCredential(salt, b"s" * 32, b"k" * 32, iterations)
    return {(f"{prefix}{number}", SHA_256): credential for number in range(count)}


def test_a_decoy_stays_the_same_with_the_secret_alone() -> None:
    decoy = Decoys(SECRET).of("nobody", SHA_256)
    assert Decoys(SECRET).of("nobody", SHA_256) == decoy
    others = [
        Decoys(SECRET).of("noone", SHA_256),
        Decoys(SECRET).of("nobody", SHA_512),
        Decoys(b"another").of("nobody", SHA_256),
    ]
    assert len({decoy.salt, *(other.salt for other in others)}) == 4


def test_decoys_have_the_form_that_most_credentials_have() -> None:
    users = stored(b"x" * 24, 4096, 2, "few") | stored(b"y" * 64, 8192, 3)
    decoy = Decoys(SECRET, users).of("nobody", SHA_256)
    assert (len(decoy.salt), decoy.iterations) == (64, 8192)
    usual = Decoys(SECRET, users).of("nobody", SHA_512)
    assert (len(usual.salt), usual.iterations) == (24, 4096), "nobody has that mechanism"


def test_salts_look_as_those_of_kafkas_tools() -> None:
    decoys = Decoys(SECRET, stored(JAVA_SALT, 4096, 1))
    salts = [decoys.of(f"nobody{number}", SHA_256).salt for number in range(1000)]
    assert len(set(salts)) == 1000
    assert {len(salt) for salt in salts} >= {25, 26}
    assert all(int(salt, 36) < 2**130 for salt in salts)
    assert {salt[:1] for salt in salts if len(salt) == 26} == {b"1"}


@pytest.mark.parametrize("mechanism", list(ScramMechanism), ids=lambda each: each.value)
def test_too_few_iterations_count_as_no_credential(mechanism: ScramMechanism) -> None:
    credentials = Credentials()
    weak = ScramCredential(b"weak", b"s" * 32, b"k" * 32, 4095)
    credentials.replace({("weak", mechanism): weak}, SECRET)
    first = credentials.server(mechanism.value).evaluate(b"n,,n=weak,r=abc")
    assert b"d2Vhaw==" not in first
    assert first.endswith(b",i=4096")
