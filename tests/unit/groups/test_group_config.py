"""Group settings: each `group.*` and `offset*` setting of the broker that is about groups takes effect."""

from __future__ import annotations

import msgspec
import pytest

from korvet.config.keys import Setting, settings
from korvet.config.settings import Config
from korvet.groups.config import GroupConfig

# Settings of the topic `__consumer_offsets` itself, and of its retention: topics and storage read these.
OF_THE_TOPIC = {
    "offsets.commit.required.acks",
    "offsets.commit.timeout.ms",
    "offsets.history.retention.ms",
    "offsets.history.retention.bytes",
    "offsets.topic.alias",
    "offsets.topic.num.partitions",
    "offsets.topic.writable",
}
OTHER_VALUES: dict[str, object] = {
    "group.consumer.assignors": "range",
    "group.consumer.migration.policy": "upgrade",
    "offsets.commit.value.version": 4,
}
OF_GROUPS = [
    setting
    for setting in settings()
    if setting.key.startswith(("group.", "offset")) and setting.key not in OF_THE_TOPIC
]


def values(config: Config) -> dict[str, object]:
    taken = msgspec.structs.asdict(GroupConfig.from_settings(config))
    return {name: value for name, value in taken.items() if name != "own"}


def test_the_defaults_of_the_broker_are_those_of_groups() -> None:
    default = msgspec.structs.asdict(GroupConfig())
    assert values(Config()) == {name: value for name, value in default.items() if name != "own"}


@pytest.mark.parametrize("setting", OF_GROUPS, ids=lambda setting: setting.key)
def test_every_setting_of_groups_is_taken(setting: Setting) -> None:
    other = OTHER_VALUES.get(setting.key, 12_345)
    changed = values(msgspec.structs.replace(Config(), **{setting.field: other}))
    assert len(changed.items() - values(Config()).items()) == 1
