"""Message schemas of Kafka 4.4 that kio lacks, in kio's form (the names of the JSON schemas)."""

# No postponed annotations: kio's readers look at the types.
import uuid
from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.api_versions.v4 import request as api_versions_request
from kio.schema.api_versions.v4 import response as api_versions_response
from kio.schema.delete_groups.v2 import request as delete_groups_request
from kio.schema.delete_groups.v2 import response as delete_groups_response
from kio.schema.txn_offset_commit.v5 import request as txn_offset_commit_request
from kio.schema.txn_offset_commit.v5 import response as txn_offset_commit_response
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

SupportedFeatureKey = api_versions_response.SupportedFeatureKey
FinalizedFeatureKey = api_versions_response.FinalizedFeatureKey
ApiVersion = api_versions_response.ApiVersion
TxnOffsetCommitResponsePartition = txn_offset_commit_response.TxnOffsetCommitResponsePartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest(api_versions_request.ApiVersionsRequest):
    """Version 5: the cluster and broker that the client expects (KIP-1242)."""

    __version__: ClassVar[i16] = i16(5)
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse(api_versions_response.ApiVersionsResponse):
    """Version 5: as version 4, with another error."""

    __version__: ClassVar[i16] = i16(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic:
    """A topic of version 6, by its ID (KIP-1319)."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[txn_offset_commit_request.TxnOffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest(txn_offset_commit_request.TxnOffsetCommitRequest):
    """Version 6."""

    __version__: ClassVar[i16] = i16(6)
    topics: tuple[TxnOffsetCommitRequestTopic, ...]  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic:
    """A topic of version 6."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse(txn_offset_commit_response.TxnOffsetCommitResponse):
    """Version 6."""

    __version__: ClassVar[i16] = i16(6)
    topics: tuple[TxnOffsetCommitResponseTopic, ...]  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest(delete_groups_request.DeleteGroupsRequest):
    """Version 3, as version 2."""

    __version__: ClassVar[i16] = i16(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult(delete_groups_response.DeletableGroupResult):
    """A result of version 3."""

    __version__: ClassVar[i16] = i16(3)
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse(delete_groups_response.DeleteGroupsResponse):
    """Version 3: the reason why a group was not deleted."""

    __version__: ClassVar[i16] = i16(3)
    results: tuple[DeletableGroupResult, ...]
