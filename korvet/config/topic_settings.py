"""The settings that apply to topics without configs of their own; Kafka's synonyms of topic configs."""

from typing import Annotated, Literal

from msgspec import Meta

from korvet.config.fields import INT64_MAX, Duration, Limit, Size, key_of
from korvet.config.share_settings import ShareSettings


class TopicSettings(ShareSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """The part of `Config` that topics can replace."""

    min_insync_replicas: Annotated[
        Size,
        Meta(
            description="Copies of a record, including the primary's, before producers with acks=all and "
            "consumers see it. 1 waits for no replica."
        ),
    ] = 1
    acks_all_fsync: Annotated[
        bool,
        Meta(
            description="Whether these copies must also be on disk, by the append-only files of Redis or "
            "Valkey. Needs `appendfsync always` on some versions."
        ),
    ] = False
    message_max_bytes: Annotated[Size, Meta(description="Largest record batch, as sent (compressed).")] = (
        1_048_588
    )
    max_decompressed_message_bytes: Annotated[
        Size, Meta(description="Largest record batch after decompression.")
    ] = 10 * 1024 * 1024
    log_message_timestamp_before_max_ms: Annotated[
        Duration, Meta(description="How far in the past a record's timestamp may be.")
    ] = INT64_MAX
    log_message_timestamp_after_max_ms: Annotated[
        Duration, Meta(description="How far in the future a record's timestamp may be.")
    ] = 3_600_000
    log_retention_ms: Annotated[
        Limit, Meta(description="Age at which records are deleted; -1 keeps them.")
    ] = 604_800_000
    log_retention_bytes: Annotated[
        Limit,
        Meta(
            description="Size of a partition above which its oldest records are deleted; -1 means unlimited."
        ),
    ] = -1
    log_retention_memory_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=0.95,
            description="Share of a server's maxmemory above which its oldest records are deleted, of all "
            "topics with a retention.ms that are not compacted; 0 turns that off.",
        ),
    ] = 0.0
    log_cleanup_policy: Annotated[
        str, Meta(description="What happens to old records: `delete`, `compact`, both or neither.")
    ] = "delete"
    log_cleaner_delete_retention_ms: Annotated[
        Duration, Meta(description="How long a compacted topic keeps tombstones.")
    ] = 86_400_000
    log_cleaner_min_cleanable_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of new records in a log from which it is compacted."),
    ] = 0.5
    log_cleaner_min_compaction_lag_ms: Annotated[
        Duration, Meta(description="Age below which records are not compacted.")
    ] = 0
    log_cleaner_max_compaction_lag_ms: Annotated[
        int,
        Meta(ge=1, le=INT64_MAX, description="Age of a record at which its log is compacted in any case."),
    ] = INT64_MAX
    log_offset_assignment: Annotated[
        Literal["clock", "dense"],
        Meta(
            description="Offsets of new topics: `clock` (from Redis's clock) or `dense` (0, 1, 2, ... as in "
            "Kafka)."
        ),
    ] = "clock"
    log_storage_layout: Annotated[
        Literal["record", "batch"],
        Meta(description="Stream entries of new topics: one per `record` or one per `batch`."),
    ] = "record"
