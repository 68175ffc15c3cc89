"""Principals from distinguished names."""

from __future__ import annotations

import pytest

from korvet.security.principals import PrincipalMapper

DN = "CN=Some User,OU=Unit,O=Org,C=DE"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("", f"User:{DN}"),
        ("DEFAULT", f"User:{DN}"),
        ("RULE:^CN=(.*?),.*$/$1/", "User:Some User"),
        ("RULE:^CN=(.*?),.*$/$1/L", "User:some user"),
        ("RULE:^CN=(.*?),.*$/$1/U, DEFAULT", "User:SOME USER"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/", "User:Some User@Unit"),
        ("RULE:^UID=(.*)$/$1/,DEFAULT", f"User:{DN}"),
        ("RULE:CN=(.*?),.*/a\\/$1/L,DEFAULT", "User:a/some user"),
    ],
)
def test_rules(rules: str, principal: str) -> None:
    assert PrincipalMapper(rules).principal(DN) == principal


@pytest.mark.parametrize("rules", ["RULE:x", "RULE:(/a/", "RULE:a/$1/", "DEFAULT DEFAULT", "RULE:a/b/X", "x"])
def test_rules_that_cannot_be_read(rules: str) -> None:
    with pytest.raises(ValueError):
        PrincipalMapper(rules)


def test_a_name_that_no_rule_is_for() -> None:
    with pytest.raises(ValueError, match="no rule"):
        PrincipalMapper("RULE:^UID=(.*)$/$1/").principal(DN)
