"""Regular expressions of subscriptions: RE2's syntax, what it means, and that none takes long."""

from __future__ import annotations

import contextlib
import random
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from korvet.groups.consumer.automaton import InvalidRegex
from korvet.groups.consumer.regex import compile_regex

ATOMS = st.sampled_from(["a", "b", ".", r"\.", "[ab]", "[^a]", r"\d", r"\W", "^", "$", r"\b", "(?i:A)", "-"])
OPERATORS = st.sampled_from(["", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{0,1}", "{2,}", "{0}"])


def _combined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.builds("({}){}".format, parts, OPERATORS)
    return st.one_of(st.builds("{}{}".format, parts, group), st.builds("{}|{}".format, parts, parts), group)


# An assertion takes no operator: what it would mean is not the same everywhere.
PARTS = st.builds(
    lambda atom, operator: atom + ("" if atom in {"^", "$", r"\b"} else operator), ATOMS, OPERATORS
)
PATTERNS = st.recursive(PARTS, _combined, max_leaves=8)


@settings(max_examples=300)
@given(pattern=PATTERNS, text=st.text("ab.-1A", max_size=8))
@example(pattern="(a{1,2}){2}", text="aaaa")
@example(pattern="(a|b){2,}c?", text="abab")
def test_same_as_an_engine_that_goes_back(pattern: str, text: str) -> None:
    assert compile_regex(pattern).matches(text) == bool(re.fullmatch(pattern, text, re.ASCII))


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", ".*.*.*.*.*.*.*.*b", "(.*a){20}b", "(((a*)*)*)*b"]
)
def test_no_expression_takes_for_ever(pattern: str) -> None:
    assert not compile_regex(pattern).matches("a" * 249)
    assert compile_regex(pattern).matches("a" * 100 + "b")


@pytest.mark.parametrize("pattern", ["(.?){1000}", "((.?){30}){30}", "(a?b?c?.?){250}", "([a-z]*.?){400}x"])
def test_expressions_that_take_too_long(pattern: str) -> None:
    draw = random.Random(0)
    names = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz._-", k=60)) for _ in range(2_000)]
    began = time.thread_time()
    with pytest.raises(InvalidRegex, match="too long"):
        list(compile_regex(pattern).select(names))
    assert time.thread_time() - began < 20


def test_a_search_lets_go_after_each_step() -> None:
    """Nobody who waits for the names of others waits for more than one step."""
    search = compile_regex("(.?){200}").select(["some.topic-1", "other"])
    taken = []
    with contextlib.suppress(StopIteration):
        while True:
            began = time.thread_time()
            next(search)
            taken.append(time.thread_time() - began)
    assert len(taken) > 12
    assert max(taken) < 0.5


def test_expressions_in_use_are_quick() -> None:
    names = [f"team-{number % 50}.orders.v{number}" for number in range(100_000)]
    pattern = r"(team-1|team-[2-9]+)\.(orders|payments|[a-z]{3,20})\..{0,40}"
    expected = [name for name in names if re.fullmatch(pattern, name)]
    assert [name for name in compile_regex(pattern).select(names) if name is not None] == expected


@settings(max_examples=50)
@given(
    ranges=st.lists(st.tuples(st.integers(0x80, 0x120), st.integers(0, 40)), min_size=1, max_size=8),
    char=st.integers(0x70, 0x150),
)
def test_ranges_of_letters(ranges: list[tuple[int, int]], char: int) -> None:
    inside = any(first <= char <= first + more for first, more in ranges)
    pattern = "[" + "".join(f"{chr(first)}-{chr(first + more)}" for first, more in ranges) + "]"
    assert compile_regex(pattern).matches(chr(char)) is inside


@pytest.mark.parametrize("pattern", ["((a{1000}){1000}){1000}", "(" * 500 + ")" * 500, "((a{50}){50}){50}"])
def test_expressions_that_are_too_large(pattern: str) -> None:
    with pytest.raises(InvalidRegex):
        compile_regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders", "orders", "orders2"),
        ("^ord.*$", "orders", "xorders"),
        ("(orders|pay.*)", "payments", "order"),
        (r"a\.b", "a.b", "axb"),
        (r"\Qa.b\E.", "a.bc", "axbc"),
        (r"\Qa.b\E+", "a.bb", "a.ba.b"),
        (r"(?i)x\Q|_\é\E?y\Q*", "X|_\\Y*", "x|_\\ééy*"),
        (r"a\z", "a", "ab"),
        ("[[:alpha:]-]+", "a-b", "a1"),
        (r"[^a-c\d]+", "xyz", "x1"),
        ("(?i)ORDERS", "orders", "order"),
        ("(?i:O)rders", "orders", "oRDERS"),
        ("(?P<name>a)b", "ab", "a"),
        ("(?<name>a)b", "ab", "a"),
        (r"\x61\x{62}", "ab", "ba"),
        ("a{2,3}?", "aaa", "aaaa"),
        ("a{,2}", "a{,2}", "aa"),
        ("[]a]+", "a", "b"),
        (r"\w+-\d*", "orders-7", "orders"),
        ("", "", "a"),
        ("[д-ю]+[z-ü]", "жz", "жý"),
        ("[^à-ü]", "z", "é"),
        (r"[\Wд-ю]+", "-ж", "a"),
    ],
)
def test_expressions_mean_what_they_mean_to_re2(pattern: str, matching: str, other: str) -> None:
    assert compile_regex(pattern).matches(matching)
    assert not compile_regex(pattern).matches(other)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(",
            ")",
            "[a",
            "a**",
            "a*+",
            "a++",
            "a{2}{3}",
            "*a",
            "a{1001}",
            "(?=a)",
            "(?!a)",
            "(?<=a)b",
            "(?>a)",
        ),
        *(r"(a)\1", "(?P=n)", r"\Z", "\\", r"\q", r"\x", "[[:no:]]", "(?(1)a|b)", "(?#x)", "[b-a]", r"[\b]"),
    ],
)
def test_expressions_that_re2_would_not_take(pattern: str) -> None:
    with pytest.raises(InvalidRegex):
        compile_regex(pattern)
