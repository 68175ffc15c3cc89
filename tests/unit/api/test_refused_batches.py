"""Refused batches of idempotent producers, and the batches after them."""

from typing import Any

from kio.schema.errors import ErrorCode

from korvet.api.producing import refused_batches
from korvet.api.producing.refused_batches import RefusedBatches
from korvet.offsets.record_batch import MAX_PRODUCER_SEQUENCE
from korvet.records.batch import BatchHeader

ERROR = ErrorCode.not_leader_or_follower


def header(sequence: int, *, count: int = 2, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    fields: dict[str, Any] = dict.fromkeys(BatchHeader.__struct_fields__, 0)
    stamp = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return BatchHeader(**{**fields, **stamp, "record_count": count})


def noted(*sequences: int) -> RefusedBatches:
    """Batches of two records that were refused in this order."""
    refused = RefusedBatches()
    for sequence in sequences:
        refused.note("t-0", header(sequence), ERROR)
    return refused


def test_the_batches_after_a_refused_one_have_its_error() -> None:
    refused = noted(4)
    assert refused.error_before("t-0", header(6)) is ERROR
    refused.note("t-0", header(6), ERROR)
    assert refused.error_before("t-0", header(8)) is ERROR


def test_other_batches_have_no_error() -> None:
    refused = noted(4)
    others = header(4), header(5), header(8), header(6, epoch=1), header(6, producer_id=8)
    assert [refused.error_before("t-0", each) for each in others] == [None] * len(others)
    assert refused.error_before("t-1", header(6)) is None


def test_sequences_wrap() -> None:
    assert noted(MAX_PRODUCER_SEQUENCE).error_before("t-0", header(1)) is ERROR


def test_a_client_that_begins_again_is_served() -> None:
    """It does not matter whether it begins with the batch that was refused first."""
    for again in (header(4), header(6), header(0, epoch=1)):
        refused = noted(4, 6)
        refused.begins("t-0", again)
        assert refused.error_before("t-0", header(8)) is None


def test_a_batch_on_its_way_does_not_end_the_refusal() -> None:
    """Redis decides on it later than on the one before it."""
    refused = noted(4)
    refused.begins("t-0", header(8))
    assert refused.error_before("t-0", header(6)) is ERROR


def test_only_the_newest_are_kept(monkeypatch: Any) -> None:
    monkeypatch.setattr(refused_batches, "_MOST", 2)
    refused = RefusedBatches()
    for number in range(3):
        refused.note(f"t-{number}", header(4), ERROR)
    assert [refused.error_before(f"t-{number}", header(6)) for number in range(3)] == [None, ERROR, ERROR]
