"""Sequences of idempotent producers as the append functions receive them."""

from korvet.storage.log.producer_sequences import pack_sequences
from korvet.storage.log.values import ProducerSequence

LAST = 2**31 - 1


def test_batches_without_an_idempotent_producer_need_nothing() -> None:
    assert pack_sequences([None, None], [1, 2]) == b""


def test_one_batch() -> None:
    assert pack_sequences([ProducerSequence(7, 1, 40)], [3]) == b"7 1 40 3;"
    assert pack_sequences([ProducerSequence(7, 1, 40, transactional=True)], [3]) == b"7 1 40 3t;"


def test_consecutive_batches_of_a_producer_share_an_item() -> None:
    """The item names the sizes of the last five batches, which Redis remembers."""
    producers = [ProducerSequence(7, 1, 10 * number) for number in range(7)]
    assert pack_sequences(producers, [10] * 7) == b"7 1 0 70 10,10,10,10,10;"
    wrapping = [ProducerSequence(7, 1, LAST - 1), ProducerSequence(7, 1, 1)]
    assert pack_sequences(wrapping, [3, 2]) == b"7 1 %d 5 3,2;" % (LAST - 1)


def test_other_batches_have_items_of_their_own() -> None:
    first = ProducerSequence(7, 1, 0)
    for other in (
        ProducerSequence(7, 1, 5),
        ProducerSequence(7, 2, 2),
        ProducerSequence(8, 1, 2),
        ProducerSequence(7, 1, 2, transactional=True),
    ):
        text = b"%d %d %d 1%b;" % (
            other.producer_id,
            other.producer_epoch,
            other.base_sequence,
            b"t" if other.transactional else b"",
        )
        assert pack_sequences([first, other], [2, 1]) == b"7 1 0 2;" + text
    assert pack_sequences([None, first, None, None], [1, 2, 3, 4]) == b"-1 -1 -1 1;7 1 0 2;-1 -1 -1 7 3,4;"
