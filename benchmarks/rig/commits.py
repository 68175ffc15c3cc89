"""Offset commits in Redis, as korvet stores them, written by a script in the server: millions in seconds."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.packing import SEQUENCE_BITS
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.spark.source.topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Each group reads READ topics of PARTITIONS partitions.
TOPICS, READ, PARTITIONS = 20, 5, 8
# Records of each partition, and the number that the newest commits leave unread at most.
RECORDS, UNREAD = 200, 20
OFFSETS_PARTITIONS: Final = 50
# Commits of a group that follow each other, and commits of a script.
BLOCK: Final = 5_000
HISTORY_MS: Final = 3_600_000
# Positions of the offset and the time in the encoded value of a commit.
_OFFSET_AT, _NUMBER_BYTES = 2, 8

_RECORDS = f"""
for number = 0, {RECORDS} - 1 do
    redis.call('XADD', KEYS[1], string.format('%d-0', tonumber(ARGV[1]) + number), 'value', 'v')
end
"""
_COMMITS = f"""
local first, commits, done, span = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local began_ms, total, head, middle = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local keys = #ARGV - 8
for number = 0, commits - 1 do
    local id = first + number + 1
    local ms, place = math.floor(id / {1 << SEQUENCE_BITS}), done + number
    local at_ms = began_ms + math.floor(place * span / total)
    local read = {RECORDS} - (place * 7) % {UNREAD}
    local value = head .. struct.pack('>i8', (began_ms + read) * {1 << SEQUENCE_BITS})
        .. middle .. struct.pack('>i8', at_ms)
    redis.call('XADD', KEYS[1], string.format('%d-%d', ms, id % {1 << SEQUENCE_BITS}),
        'key', ARGV[9 + place % keys], 'value', value, 'ts', string.format('%d', at_ms - ms))
end
"""


@dataclass(slots=True)
class _Group:
    keys: list[bytes]
    wanted: int = 0
    done: int = 0


class BulkCommits:
    """The topics of a keyspace, with records, and the commits of their groups."""

    def __init__(self, client: Any, keyspace: str, writers: int = 1) -> None:
        """Add the topics. client: of Redis, or of a cluster; writers: scripts that run at the same time."""
        self.keyspace = keyspace
        self._client = client
        self._writers = writers
        self._began_ms = time.time_ns() // 1_000_000 - HISTORY_MS
        self._ends: dict[int, int] = defaultdict(int)
        self._groups: dict[int, dict[str, _Group]] = defaultdict(dict)
        value = encode_value(OffsetCommitValue(0, commit_timestamp_ms=0))
        self._head = value[:_OFFSET_AT]
        self._middle = value[_OFFSET_AT + _NUMBER_BYTES : -_NUMBER_BYTES]
        self._topic(OFFSETS_TOPIC, OFFSETS_PARTITIONS, {"offset.assignment": "dense"})
        for topic in range(TOPICS):
            self._topic(f"topic-{topic}", PARTITIONS, {})
            for partition in range(PARTITIONS):
                client.eval(_RECORDS, 1, f"{keyspace}:topic-{topic}:{partition}", self._began_ms)

    def _topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        document = {"partitions": partitions, "configs": configs, "internal": name == OFFSETS_TOPIC}
        self._client.hset(f"{{{self.keyspace}}}:topics", name, json.dumps(document))

    def write_up_to(self, commits: Mapping[str, int]) -> None:
        """Add commits until each group has made that number."""
        for number, (name, wanted) in enumerate(commits.items()):
            found = self._groups[partition_for(name)].setdefault(name, _Group(_keys(name, number)))
            found.wanted = wanted
        with ThreadPoolExecutor(self._writers) as pool:
            for _ in pool.map(self._write_partition, self._groups):
                pass

    def _write_partition(self, partition: int) -> None:
        groups = list(self._groups[partition].values())
        while unfinished := [group for group in groups if group.done < group.wanted]:
            for group in unfinished:
                count = min(BLOCK, group.wanted - group.done)
                self._client.eval(
                    _COMMITS,
                    1,
                    f"{self.keyspace}:{OFFSETS_TOPIC}:{partition}",
                    *(self._ends[partition], count, group.done, HISTORY_MS, self._began_ms, group.wanted),
                    *(self._head, self._middle, *group.keys),
                )
                self._ends[partition] += count
                group.done += count

    def remove(self) -> None:
        """Delete everything that was added."""
        topics = {f"topic-{topic}": PARTITIONS for topic in range(TOPICS)}
        topics[OFFSETS_TOPIC] = OFFSETS_PARTITIONS
        for topic, partitions in topics.items():
            for partition in range(partitions):
                self._client.unlink(f"{self.keyspace}:{topic}:{partition}")
        self._client.delete(f"{{{self.keyspace}}}:topics")


def _keys(group: str, number: int) -> list[bytes]:
    """The keys of a group's commits, one for each partition that it reads."""
    return [
        encode_key(OffsetCommitKey(group, f"topic-{(number + topic) % TOPICS}", partition))
        for topic in range(READ)
        for partition in range(PARTITIONS)
    ]


def evenly(groups: int, commits: int) -> dict[str, int]:
    """Returns groups with the same number of commits each."""
    return {f"group-{number}": commits // groups for number in range(groups)}


def one_group_has_half(groups: int, commits: int) -> dict[str, int]:
    """Returns groups of which the first has made half of the commits."""
    half = commits // 2
    return dict.fromkeys(evenly(groups, 0), half // (groups - 1)) | {"group-0": half}


def one_partition_has_half(groups: int, commits: int) -> dict[str, int]:
    """Returns groups of which half, with half of the commits, are in one partition of the offsets topic."""
    partition = partition_for("group-0")

    def some(wanted: Callable[[int], bool]) -> list[str]:
        found, number = [], 0
        while len(found) < groups // 2:
            name = f"group-{number}"
            if wanted(partition_for(name)):
                found.append(name)
            number += 1
        return found

    names = some(lambda found: found == partition) + some(lambda found: found != partition)
    return dict.fromkeys(names, commits // len(names))
