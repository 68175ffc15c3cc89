"""Arguments that commands refuse before they ask a broker or write anything."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet

# No broker answers there: a command that asks one says so.
NOBODY = ["-b", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("topics create t -p 2147483648", "2147483648 is not in the range"),
        ("topics alter t -p 2147483648", "2147483648 is not in the range"),
        ("quotas set producer_byte_rate=nan --user u", "producer_byte_rate: expected a number, not 'nan'"),
        (
            "quotas set producer_byte_rate=1e999 --user u",
            "producer_byte_rate: expected a number, not '1e999'",
        ),
        ("quotas set producer_byte_rate=fast --user u", "producer_byte_rate: expected a number, not 'fast'"),
        ("quotas set producer_byte_rate=1", "name an entity: --user"),
        ("topics delete-records t -p 0=5 -p 0=7 -y", "give one offset for each partition"),
        ("quotas remove", "name an entity: --user"),
    ],
)
def test_wrong_usage(arguments: str, said: str) -> None:
    result = CliRunner().invoke(korvet, [*arguments.split(), *NOBODY])
    assert (result.exit_code, said in result.output) == (2, True), result.output


@pytest.mark.parametrize("name", ["IdempotentWrite", "idempotent_write", "IDEMPOTENT_WRITE", "Read"])
def test_operations_in_the_words_of_kafka(name: str) -> None:
    named = ["--cluster", "--principal", "User:u", "--operation", name]
    result = CliRunner().invoke(korvet, ["acls", "list", *named, *NOBODY])
    assert result.output.startswith("Error: no broker answers on"), result.output


def test_a_folder_that_takes_no_rules() -> None:
    result = CliRunner().invoke(korvet, ["monitoring", "/dev/null/rules"])
    assert result.exit_code == 1
    assert "Error: /dev/null/rules cannot be written: " in result.output
