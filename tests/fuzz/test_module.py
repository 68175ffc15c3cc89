"""The server module under sanitizers: it adds what the kernel would add, or nothing; damaged batches do no
harm.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from korvet.offsets import record_batch
from tests.fuzz.harness import MODULE, Harness, corpus, harness, has_fuzzer
from tests.fuzz.oracle import check
from tests.unit.records.forms import BASE_MS, Record, whole_batch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.fuzz.harness import Answer

__all__ = ["harness"]

BATCHES = 20_000
LONG_BATCHES = 10_000_000
LONG_COMPARED = 2_000_000
SEED = 1
VALUES = (None, b"", b"v", b"v" * 64, bytes(range(256)))
HEADERS: tuple[tuple[tuple[bytes, bytes | None], ...], ...] = (
    (),
    ((b"h", None),),
    ((b"", b""), (b"h", b"v"), (b"h", b"w" * 200)),
    tuple((b"", None) for _ in range(1945)),
)


def forms() -> list[bytes]:
    """Inputs with a sound batch of each form: null and empty fields, headers, timestamps, transactions."""
    inputs = []
    for key, value, headers in itertools.product(VALUES, VALUES, HEADERS):
        times = (BASE_MS, BASE_MS + 1, 0, -1, BASE_MS - 5_000_000)
        records = [Record(key, value, time_ms, headers) for time_ms in times]
        for timestamps, transactional in itertools.product((0, 1), (False, True)):
            attributes, producer = (0, (-1, -1, -1))
            if transactional:
                attributes, producer = record_batch.TRANSACTIONAL, (9_000_000_000, 7, 0)
            batch = whole_batch(records, attributes=attributes, producer=producer)
            inputs.append(bytes((timestamps, 1)) + batch)
    return [one for one in inputs if len(one) < 16_384]


def damaged() -> list[bytes]:
    """The inputs that are changed at random."""
    return [*forms()[::16], *many(), *corpus()]


def many() -> list[bytes]:
    """Inputs with so many records that their spans are several."""
    counts = (255, 256, 257, 600)
    batches = [
        whole_batch([Record(None, b"v", BASE_MS - number % 9) for number in range(count)]) for count in counts
    ]
    return [bytes((timestamps, 1)) + batch for batch in batches for timestamps in (0, 1)]


def compare(answers: Iterable[Answer]) -> Counter[bool]:
    """Check all answers. Returns how many batches were added and refused."""
    return Counter(check(answer) for answer in answers)


def test_batches_of_all_forms_are_added(harness: Harness) -> None:
    inputs = [*forms(), *many()]
    assert compare(harness.replay(inputs)) == {True: len(inputs)}


def test_the_corpus(harness: Harness) -> None:
    inputs = corpus()
    found = compare(harness.replay(inputs))
    assert found.total() == len(inputs)
    assert min(found[True], found[False]) > 20, "batches that are added, and some that are refused"


def test_damaged_batches(harness: Harness) -> None:
    found = compare(harness.mutate(damaged(), BATCHES, SEED))
    assert min(found[True], found[False]) > BATCHES // 10


@pytest.mark.parametrize(
    ("sound", "broken"),
    [
        ("size < 1 || size > end - p", "size < 1"),
        ("bits && p < end", "bits"),
        ("delta != index", "0"),
        ("spans->records == SPAN_RECORDS", "spans->records == SPAN_RECORDS - 1"),
        ("if (time > spans->newest)", "if (time)"),
    ],
)
def test_faults_of_the_module_are_found(harness: Harness, tmp_path: Path, sound: str, broken: str) -> None:
    source = MODULE.read_text("utf-8")
    assert sound in source
    changed = tmp_path / MODULE.name
    changed.write_text(source.replace(sound, broken), "utf-8")
    faulty = Harness(harness.compiler, tmp_path, changed)
    with pytest.raises(AssertionError):
        compare(faulty.mutate(damaged(), BATCHES, SEED))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_million_batches(harness: Harness) -> None:
    """With libFuzzer, if the compiler has it: it keeps what reaches new code. Else changes at random."""
    inputs = damaged()
    if has_fuzzer(harness.compiler):
        inputs = harness.explore(inputs, LONG_BATCHES)
        compared = LONG_COMPARED
    else:
        compared = LONG_BATCHES
    found = compare(harness.mutate(inputs, compared, SEED + 1))
    assert min(found[True], found[False]) > compared // 10
