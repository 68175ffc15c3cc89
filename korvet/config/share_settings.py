"""The settings of share groups (KIP-932): those of the coordinator, and the bounds of groups' own configs."""

from typing import Annotated

from msgspec import Meta

from korvet.config.broker_settings import BrokerSettings
from korvet.config.fields import Count, Partitions, Size, key_of


class ShareSettings(BrokerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_of):
    """The part of `Config` that is about share groups."""

    group_share_max_size: Annotated[
        int, Meta(ge=1, le=1_000, description="Largest number of members of one share group.")
    ] = 200
    group_share_session_timeout_ms: Annotated[
        Size, Meta(description="Time after which a silent member of a share group is removed.")
    ] = 45_000
    group_share_min_session_timeout_ms: Annotated[
        Size, Meta(description="Smallest session timeout that the config of a share group may set.")
    ] = 45_000
    group_share_max_session_timeout_ms: Annotated[
        Size, Meta(description="Largest session timeout that the config of a share group may set.")
    ] = 60_000
    group_share_heartbeat_interval_ms: Annotated[
        Size,
        Meta(description="Heartbeat interval of members of share groups; shorter than the session timeout."),
    ] = 5_000
    group_share_min_heartbeat_interval_ms: Annotated[
        Size, Meta(description="Smallest heartbeat interval that the config of a share group may set.")
    ] = 5_000
    group_share_max_heartbeat_interval_ms: Annotated[
        Size, Meta(description="Largest heartbeat interval that the config of a share group may set.")
    ] = 15_000
    group_share_assignment_interval_ms: Annotated[
        Count, Meta(description="Shortest time between two assignments of one share group.")
    ] = 1_000
    group_share_min_assignment_interval_ms: Annotated[
        Count, Meta(description="Smallest assignment interval that the config of a share group may set.")
    ] = 0
    group_share_max_assignment_interval_ms: Annotated[
        Count, Meta(description="Largest assignment interval that the config of a share group may set.")
    ] = 15_000
    group_share_initialize_retry_interval_ms: Annotated[
        Size,
        Meta(
            description="Time after which a heartbeat initializes partitions of a share group again, if "
            "their initialization has not ended."
        ),
    ] = 30_000
    group_share_record_lock_duration_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            le=3_600_000,
            description="How long a record stays locked for the member of a share group that has it.",
        ),
    ] = 30_000
    group_share_min_record_lock_duration_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            le=30_000,
            description="Smallest lock duration that the config of a share group may set.",
        ),
    ] = 15_000
    group_share_max_record_lock_duration_ms: Annotated[
        int,
        Meta(
            ge=30_000,
            le=3_600_000,
            description="Largest lock duration that the config of a share group may set.",
        ),
    ] = 60_000
    group_share_delivery_count_limit: Annotated[
        int, Meta(ge=2, le=10, description="How often a share group delivers a record at most.")
    ] = 5
    group_share_min_delivery_count_limit: Annotated[
        int, Meta(ge=2, le=5, description="Smallest such limit that the config of a share group may set.")
    ] = 2
    group_share_max_delivery_count_limit: Annotated[
        int, Meta(ge=5, le=25, description="Largest such limit that the config of a share group may set.")
    ] = 10
    share_coordinator_state_topic_num_partitions: Annotated[
        Partitions,
        Meta(description="Partitions of `__share_group_state`, when it is created on first use."),
    ] = 50
    errors_deadletterqueue_topic_name_prefix: Annotated[
        str, Meta(description="What the names of dead letter topics of share groups begin with.")
    ] = "dlq."
    errors_deadletterqueue_auto_create_topics_enable: Annotated[
        bool, Meta(description="Whether missing dead letter topics of share groups are created.")
    ] = False
    group_share_partition_max_record_locks: Annotated[
        int,
        Meta(
            ge=100,
            le=10_000,
            description="Largest number of locked records of one partition in one share group.",
        ),
    ] = 2_000
    group_share_min_partition_max_record_locks: Annotated[
        int,
        Meta(ge=100, le=2_000, description="Smallest such number that the config of a share group may set."),
    ] = 100
    group_share_max_partition_max_record_locks: Annotated[
        int,
        Meta(
            ge=2_000, le=10_000, description="Largest such number that the config of a share group may set."
        ),
    ] = 4_000
