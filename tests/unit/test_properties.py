"""Files of Java properties: read as the documentation of java.util.Properties has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.properties import check_paths, parse_properties
from tests.support.java_properties import TEXTS

# What is escaped when Java stores properties (Properties.store).
ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"} | {
    each: f"\\{each}" for each in "=:#! "
}
CHARACTERS = st.one_of(st.sampled_from([*ESCAPED, "u", "a"]), st.characters(codec="utf-8"))
NAMES = st.text(CHARACTERS, min_size=1)
BETWEEN = st.from_regex(r"[ \t\f]*[=:][ \t\f]*|[ \t\f]+", fullmatch=True)
CONTINUED = st.from_regex(r"(\\(\n|\r\n|\r)[ \t\f]*)?", fullmatch=True)


def values(text: str) -> dict[str, str]:
    return {name: each.value for name, each in parse_properties(text).items()}


@pytest.mark.parametrize("text", TEXTS)
def test_properties_are_read(text: str) -> None:
    assert values(text) == TEXTS[text]


@given(st.lists(st.tuples(CONTINUED, NAMES, BETWEEN, CONTINUED, st.text(CHARACTERS))))
def test_what_is_written_with_escapes_is_read(lines: list[tuple[str, str, str, str, str]]) -> None:
    """Whatever separates names and values, and wherever lines are continued."""

    def written(word: str) -> str:
        return "".join(ESCAPED.get(each, each) for each in word)

    text = "".join(
        f"{before}{written(name)}{between}{within}{written(value)}\n"
        for before, name, between, within, value in lines
    )
    assert values(text) == {name: value for _, name, _, _, value in lines}


@given(st.characters(codec="utf-8"))
def test_every_character_has_an_escape(character: str) -> None:
    """Those beyond U+FFFF have two."""
    units = character.encode("utf-16-be").hex()
    escapes = "".join(f"\\u{units[each : each + 4]}" for each in range(0, len(units), 4))
    assert values(f"a={escapes}") == {"a": character}


@pytest.mark.parametrize("escape", ["\\u", "\\u12", "\\u12g4", "\\u 123"])
def test_a_malformed_escape_is_named(escape: str) -> None:
    with pytest.raises(ValueError, match=r"line 3: \\u needs four hexadecimal digits"):
        parse_properties(f"# first\n\na={escape}\nb=1")


@pytest.mark.parametrize(
    ("path", "read"),
    [
        (r"C:\certs\ca.pem", "C:certsca.pem"),
        (r"C:\temp\new", "C:\temp\new"),
        (r"C\:\\certs\ca.pem", r"C:\certsca.pem"),
        (r"\\server\share\ca.pem", r"\servershareca.pem"),
    ],
)
def test_a_path_that_lost_its_backslashes_is_named(path: str, read: str) -> None:
    found = parse_properties(f"a=1\nssl.truststore.location={path}\n")
    assert found["ssl.truststore.location"].value == read
    with pytest.raises(
        ValueError, match=r"^line 2: ssl\.truststore\.location is read as .* write \\\\ or / for"
    ):
        check_paths(found, lambda _: False)
    check_paths(found, {read}.__contains__)


@pytest.mark.parametrize(
    "path", [r"C:\\certs\\ca.pem", r"C\:/certs", "/etc/ca.pem", r"/my\ certs\u00e4/ca", ""]
)
def test_paths_that_are_written_well_may_be_missing(path: str) -> None:
    """What opens them says so."""
    check_paths(parse_properties(f"ssl.keystore.location={path}\nother=\\x"), lambda _: False)
