"""Batches that wait for the first one of their producer."""

from typing import Any

from korvet.log import append_queue
from korvet.log.append_queue import NewProducers
from korvet.log.values import ProducerSequence

FIRST, NEXT, OTHER = ProducerSequence(7, 0, 0), ProducerSequence(7, 0, 1), ProducerSequence(8, 0, 0)


def test_a_batch_waits_for_its_producers_first_one_only() -> None:
    new = NewProducers()
    new.sent(FIRST)
    assert [new.awaits(each) for each in (NEXT, OTHER, None)] == [True, False, False]
    new.ended(FIRST, took_effect=True)
    new.sent(NEXT)
    assert not new.awaits(NEXT)


def test_a_producer_whose_batch_was_refused_stays_new() -> None:
    new = NewProducers()
    new.sent(FIRST)
    new.ended(FIRST, took_effect=False)
    assert not new.awaits(FIRST)
    new.sent(FIRST)
    assert new.awaits(NEXT)


def test_batches_without_a_sequence_do_not_wait() -> None:
    new, coordinators = NewProducers(), ProducerSequence(7, 0, -1)
    for each in (None, coordinators):
        new.sent(each)
        assert not new.awaits(each)


def test_too_many_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(append_queue, "_MOST_KNOWN", 1)
    new = NewProducers()
    for each in (FIRST, OTHER):
        new.sent(each)
        new.ended(each, took_effect=True)
    new.sent(FIRST)
    new.sent(OTHER)
    assert [new.awaits(FIRST), new.awaits(OTHER)] == [True, False]
