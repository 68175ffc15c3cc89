"""The sentences for releases that are too old or too new, and the names of Function libraries."""

from __future__ import annotations

import re

import pytest

from korvet.cluster.versions import FORMATS, PROTOCOLS, Versions, format_problem, protocol_problem
from korvet.redis.functions import (
    PUBLIC_LIBRARY,
    is_versioned,
    library_name,
    library_source,
    named,
    public_source,
)


@pytest.mark.parametrize(
    ("stored", "advice"),
    [
        (b"%d" % (FORMATS.highest + 1), "Use the release that the other brokers have"),
        (b"%d" % (FORMATS.lowest - 1), "Upgrade with a release between first"),
        (b"", "The field is damaged"),
        (b"four", "The field is damaged"),
    ],
)
def test_the_advice_for_a_format(stored: bytes, advice: str) -> None:
    problem = format_problem(stored)
    assert problem is not None
    assert problem.startswith(
        f"has format {stored.decode()}; this korvet works with formats 3 to 4. {advice}"
    )


def test_known_formats_have_no_problem() -> None:
    formats = range(FORMATS.lowest, FORMATS.highest + 1)
    assert [format_problem(b"%d" % number) for number in formats] == [None] * len(formats)


def test_the_advice_for_a_protocol() -> None:
    older, newer = Versions(0, PROTOCOLS.lowest - 1), Versions(PROTOCOLS.highest + 1, 9)
    assert protocol_problem(2, older).endswith("Upgrade node 2 to a release between first")
    assert protocol_problem(2, newer).endswith("Use a release closer to that of node 2")


def test_every_function_for_brokers_has_the_name_of_its_release() -> None:
    assert is_versioned(library_name())
    assert not is_versioned(PUBLIC_LIBRARY)
    registered = re.findall(r"register_function\([^']*'(\w+)'( \.\. RELEASE)?", library_source())
    assert registered
    assert all(release for _, release in registered)
    assert named("korvet_append").removeprefix("korvet_append_") == library_name().removeprefix("korvet_")
    public = re.findall(r"register_function\([^']*'(\w+)'", public_source())
    assert public == ["korvet_xadd"]
