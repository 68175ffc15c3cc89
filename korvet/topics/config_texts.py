"""What each topic config means, for DescribeConfigs and for docs/reference/topic-configs.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_STORED: Final = " korvet stores the value; it has no effect."

_WITH_EFFECT: Final = {
    "cleanup.policy": "What happens to old records of the topic: delete removes them after the retention "
    "time or above the retention size, compact keeps the newest record of each key; both may be given.",
    "delete.retention.ms": "How long a compacted topic keeps tombstones after they were compacted, in ms. A "
    "reader that needs longer from the log start may miss deletions.",
    "max.compaction.lag.ms": "Longest time that a record stays without compaction, in ms. Only for "
    "compacted topics.",
    "max.decompressed.message.bytes": "Largest size of a record batch after decompression, in bytes; larger "
    "ones are refused.",
    "max.message.bytes": "Largest record batch that the topic accepts, as sent: compressed if the producer "
    "compresses, in bytes.",
    "message.timestamp.after.max.ms": "How far a record's timestamp may be ahead of the broker's clock, in "
    "ms. Records beyond that are refused, if message.timestamp.type is CreateTime.",
    "message.timestamp.before.max.ms": "How far a record's timestamp may be behind the broker's clock, in "
    "ms. Records beyond that are refused, if message.timestamp.type is CreateTime.",
    "message.timestamp.type": "Whether the timestamp of a record is the time of its creation, from the "
    "producer (CreateTime), or the time of the append (LogAppendTime).",
    "min.cleanable.dirty.ratio": "How often the log is compacted: the share of the log that is not "
    "compacted yet from which that happens, from 0 to 1. Only for compacted topics.",
    "min.compaction.lag.ms": "Shortest time that a record stays without compaction, in ms. Only for "
    "compacted topics.",
    "min.insync.replicas": "Copies of a record, including the primary's, that a write with acks=all needs. "
    "With fewer, such writes are refused. 1 waits for no replica.",
    "retention.bytes": "Largest size of a partition with cleanup.policy=delete, in bytes; above it, the "
    "oldest records are deleted. -1 means no limit.",
    "retention.ms": "Longest time that a record is kept with cleanup.policy=delete, in ms; after it, the "
    "record is deleted. -1 means no limit.",
    "acks.all.fsync": "Whether the copies that a write with acks=all needs must also be on disk, by the "
    "append-only files of Redis or Valkey.",
    "delete.accepted.records": "Whether records are deleted that all groups are done with: share groups have "
    "accepted or archived them, other Kafka groups have committed them, Redis groups have acknowledged them. "
    "Not while the topic has no group, nor if it is compacted only.",
    "offset.assignment": "clock: offset = entry ms << 10 | sequence. dense: 0, 1, 2 and so on as in Kafka.",
    "storage.layout": "record: a stream entry for each record. batch: one for each record batch, as it was "
    "produced; faster and smaller, and no use to Redis applications.",
    "errors.deadletterqueue.group.enable": "Whether share groups may write dead letters to the topic.",
    "native.format": "How an entry that a Redis application wrote with its own fields is served: json gives "
    "all fields as one object, field:<name> the bytes of that field.",
}
_WITHOUT_EFFECT: Final = {
    "compression.gzip.level": "Compression level if compression.type is gzip.",
    "compression.lz4.level": "Compression level if compression.type is lz4.",
    "compression.type": "Final codec of the topic's batches; producer keeps the codec that the producer has "
    "chosen.",
    "compression.zstd.level": "Compression level if compression.type is zstd.",
    "file.delete.delay.ms": "Time before a deleted file is removed from the file system, in ms.",
    "flush.messages": "Number of records after which the log is flushed to disk (fsync).",
    "flush.ms": "Time after which the log is flushed to disk (fsync), in ms.",
    "follower.replication.throttled.replicas": "Replicas whose replication is throttled on the follower's "
    "side, as PARTITION:BROKER, or * for all.",
    "index.interval.bytes": "Bytes of the log after which the offset index gets its next entry.",
    "leader.replication.throttled.replicas": "Replicas whose replication is throttled on the leader's side, "
    "as PARTITION:BROKER, or * for all.",
    "local.retention.bytes": "Largest size of a partition's local segments before the oldest ones are "
    "deleted, in bytes, with tiered storage. -2 means retention.bytes.",
    "local.retention.ms": "How long a local segment is kept, in ms, with tiered storage. -2 means "
    "retention.ms.",
    "preallocate": "Whether the file of a new segment is allocated on disk in advance.",
    "remote.copy.lag.bytes": "Size by which copying segments to remote storage may lag behind, in bytes.",
    "remote.copy.lag.ms": "Time by which copying segments to remote storage may lag behind, in ms.",
    "remote.log.copy.disable": "Whether the topic's tiered data is read-only, and nothing more is copied to "
    "remote storage.",
    "remote.log.delete.on.disable": "Whether tiered data is deleted when tiered storage is turned off for "
    "the topic.",
    "remote.storage.enable": "Whether the topic uses tiered storage, which korvet does not have.",
    "segment.bytes": "Size of the files (segments) of the log, in bytes.",
    "segment.index.bytes": "Size of the index from offsets to positions in a file, in bytes.",
    "segment.jitter.ms": "Largest random time that is subtracted from segment.ms, in ms, so that not all "
    "segments roll at once.",
    "segment.ms": "Time after which a new segment begins even if the old one is not full, in ms.",
    "unclean.leader.election.enable": "Whether a replica that is not in sync may become leader as a last "
    "resort, although records may be lost.",
}
CONFIG_TEXTS: Final[Mapping[str, str]] = {
    **_WITH_EFFECT,
    **{name: text + _STORED for name, text in _WITHOUT_EFFECT.items()},
}
