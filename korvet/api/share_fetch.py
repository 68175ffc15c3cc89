"""ShareFetch (key 78), versions 1-2.

Acquires records of share groups (KIP-932), and acknowledges earlier ones. With `share.version` 0 it is
refused (KIP-584). v2 adds renewals of locks (KIP-1222) and a limit of records that is never exceeded
(KIP-1206): korvet keeps to the limit in both acquire modes, as it stores records, not batches.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.sharing.fetch import ShareFetch
from korvet.api.sharing.requests import (
    OK,
    Leaders,
    Outcome,
    acknowledge,
    by_topic,
    denial,
    named_partitions,
)
from korvet.api.sharing.runs import cut_runs
from korvet.api.sharing.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSessionError
from korvet.protocol.durations import milliseconds
from korvet.protocol.registry import api
from korvet.redis.clock import steady_s
from korvet.slices import gathered, sliced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from korvet.api.common.context import RequestContext
    from korvet.api.sharing.acknowledgements import Batch
    from korvet.api.sharing.configs import ShareConfig
    from korvet.api.sharing.fetch import FetchedRecords
    from korvet.api.sharing.sessions import SharedKey

_RENEWALS_ONLY: Final = "A fetch that renews locks cannot acquire records: its limits have to be 0"
_ACQUIRE_MODES: Final = (0, 1)
_NO_SUCH_MODE: Final = "There is no acquire mode {}"
_NO_ACKNOWLEDGEMENTS: Final = "A fetch that opens a share session cannot acknowledge records"


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error."""
    del request
    return _refused(context, Outcome(error))


@api(
    78,
    "ShareFetch",
    (1, 2),
    refuse=refuse,
    waits=True,
    allowed_wait_ms=lambda request: milliseconds(request.max_wait),
)
async def share_fetch(context: RequestContext, request: Any) -> Any:
    """Acknowledge, then acquire, waiting if there are too few records."""
    named = named_partitions(request.topics)
    acknowledged = {key: batches for key, batches in named.items() if batches}
    refusal = denial(context, request) or _invalid(request, acknowledged)
    if refusal is not None:
        return _refused(context, refusal)
    sharing, group, member = context.services.sharing, request.group_id, request.member_id
    config = sharing.config(group)
    epoch = request.share_session_epoch
    try:
        if epoch == FINAL_EPOCH:
            sharing.find(group, member)
            outcomes = await _acknowledge(context, request, config, acknowledged)
            await sharing.close(group, member)
            return await _response(context, request, config, outcomes, {}, {})
        if epoch == INITIAL_EPOCH:
            session = await sharing.open(group, member, context.client)
        else:
            session = sharing.advance(group, member, epoch, context.client)
    except ShareSessionError as error:
        return _refused(context, Outcome(error.code))
    forgotten = [
        (topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions
    ]
    # Kafka's opening fetches forget nothing.
    sharing.update(session, named, forgotten if epoch != INITIAL_EPOCH else ())
    outcomes = await _acknowledge(context, request, config, acknowledged)
    fetch = ShareFetch(context, request, session, config)
    if not _renews(request):
        await fetch.run()
    if not session.is_open and not fetch.found:
        return _refused(context, Outcome(ErrorCode.share_session_not_found))
    return await _response(context, request, config, outcomes, fetch.errors, fetch.found)


def _invalid(request: Any, acknowledged: Mapping[SharedKey, Sequence[Batch]]) -> Outcome | None:
    """What a request asks for that no client may ask for."""
    if request.share_session_epoch == INITIAL_EPOCH and acknowledged:
        return Outcome(ErrorCode.invalid_request, _NO_ACKNOWLEDGEMENTS)
    mode = getattr(request, "share_acquire_mode", 0)
    if mode not in _ACQUIRE_MODES:
        return Outcome(ErrorCode.invalid_request, _NO_SUCH_MODE.format(mode))
    limits = milliseconds(request.max_wait), request.min_bytes, request.max_bytes, request.max_records
    if _renews(request) and any(limits):
        return Outcome(ErrorCode.invalid_request, _RENEWALS_ONLY)
    return None


def _renews(request: Any) -> bool:
    """Whether a fetch renews locks: it asks for no records, also with no error of a partition."""
    return getattr(request, "is_renew_ack", False)


async def _acknowledge(
    context: RequestContext,
    request: Any,
    config: ShareConfig,
    acknowledged: Mapping[SharedKey, Sequence[Batch]],
) -> dict[SharedKey, Outcome]:
    outcomes = await gathered(
        acknowledge(context, request, config, key, batches) for key, batches in acknowledged.items()
    )
    return dict(zip(acknowledged, outcomes, strict=True))


def _refused(context: RequestContext, outcome: Outcome) -> Any:
    return context.make(
        "ShareFetchResponse",
        error_code=outcome.error,
        error_message=outcome.message,
        acquisition_lock_timeout=datetime.timedelta(0),
        responses=(),
        node_endpoints=(),
    )


async def _response(
    context: RequestContext,
    request: Any,
    config: ShareConfig,
    outcomes: Mapping[SharedKey, Outcome],
    errors: Mapping[SharedKey, Outcome],
    found: Mapping[SharedKey, FetchedRecords],
) -> Any:
    """Partitions with news; with all partitions of the request if it opens a session."""
    leaders = Leaders(context, steady_s())
    named = named_partitions(request.topics) if request.share_session_epoch == INITIAL_EPOCH else ()
    keys = dict.fromkeys((*outcomes, *errors, *found, *named))
    structures = {}
    async for key in sliced(keys):
        error, acknowledged, records = errors.get(key, OK), outcomes.get(key, OK), found.get(key)
        structures[key] = context.make(
            "PartitionData",
            partition_index=key[1],
            error_code=error.error,
            error_message=error.message,
            acknowledge_error_code=acknowledged.error,
            acknowledge_error_message=acknowledged.message,
            current_leader=leaders.of(key, error if error.error else acknowledged),
            records=b"" if records is None else b"".join(records.data),
            acquired_records=() if records is None else _acquired(context, records, request.batch_size),
        )
    topics = tuple(
        context.make("ShareFetchableTopicResponse", topic_id=topic_id, partitions=tuple(partitions))
        for topic_id, partitions in by_topic(structures).items()
    )
    return context.make(
        "ShareFetchResponse",
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=datetime.timedelta(milliseconds=config.limits.lock_ms),
        responses=topics,
        node_endpoints=leaders.endpoints(),
    )


def _acquired(context: RequestContext, records: FetchedRecords, batch_size: int) -> tuple[Any, ...]:
    return tuple(
        context.make(
            "AcquiredRecords", first_offset=run.first, last_offset=run.last, delivery_count=run.deliveries
        )
        for run in cut_runs(records.runs, batch_size)
    )
