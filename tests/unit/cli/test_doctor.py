"""What `korvet doctor` says about versions of servers."""

import pytest

from korvet.cli.doctor import check_version
from korvet.outlook.findings import FAULT, OK


@pytest.mark.parametrize(
    ("info", "state", "text"),
    [
        ({"redis_version": "7.0.15"}, OK, "Redis 7.0.15"),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.1"}, OK, "Valkey 9.0.1"),
        ({"redis_version": "8.0-rc1"}, OK, "Redis 8.0-rc1"),
        ({"redis_version": "unstable"}, OK, "Redis unstable"),
        ({"redis_version": "6.2.14"}, FAULT, "Redis 6.2.14; 7.0.0 or newer is needed"),
        ({"redis_version": "6.9-beta"}, FAULT, "Redis 6.9-beta; 7.0.0 or newer is needed"),
    ],
)
def test_versions(info, state, text):
    assert check_version(info) == ("version", state, text)
