"""Replies of korvet_append and korvet_begin, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.log.append_calls import LACKS_MODULE, effects_of, read_decisions, read_session
from korvet.log.appends import RecordsAppend
from korvet.log.values import Appended
from korvet.records import kernel
from korvet.redis.errors import RedisFault
from tests.unit.records.forms import BASE_MS

HEAD = b":20\r\n:10\r\n:1700000000000\r\n:3\r\n:0\r\n:15\r\n"
NOW_MS = 1_700_000_000_000


def appends(*record_counts: int) -> list[RecordsAppend]:
    made = []
    for count in record_counts:
        form = kernel.encode_append_records([(b"k", b"v", BASE_MS)] * count)
        made.append(RecordsAppend(form, None, "", lambda _: None))
    return made


def reply(*verdicts: int | str) -> memoryview:
    parts = [
        b":%d\r\n" % each if isinstance(each, int) else b"$%d\r\n%b\r\n" % (len(each), each.encode())
        for each in verdicts
    ]
    return memoryview(b"*%d\r\n" % (6 + len(parts)) + HEAD + b"".join(parts))


def test_each_batch_has_its_own_verdict() -> None:
    said = reply(30, -1 - 12, "OUTOFORDERSEQUENCE 5 follows 3", 33)
    (first, again, refused, last), now_ms, index_stale = read_decisions(said, appends(3, 2, 1, 4))
    assert first == Appended(30, 10, 20, NOW_MS, 3, duplicate=False, last_stable_offset=15)
    assert again == Appended(12, 10, 33, NOW_MS, 3, duplicate=True, last_stable_offset=15)
    assert last == Appended(33, 10, 33, NOW_MS, 3, duplicate=False, last_stable_offset=15)
    assert isinstance(refused, RedisFault)
    assert (refused.code, refused.message) == ("OUTOFORDERSEQUENCE", "OUTOFORDERSEQUENCE 5 follows 3")
    assert (now_ms, index_stale) == (NOW_MS, 0)


def test_a_batch_at_offset_0_that_was_appended_before() -> None:
    ((found,), _, _) = read_decisions(reply(-1), appends(2))
    assert isinstance(found, Appended)
    assert (found.base_offset, found.duplicate) == (0, True)


@pytest.mark.parametrize("number", [0, 1, LACKS_MODULE])
def test_the_index_lacks_entries(number: int) -> None:
    """Also if the server has no module."""
    said = bytes(reply(30)).replace(b":0\r\n:15", b":%d\r\n:15" % number)
    assert read_decisions(memoryview(said), appends(1))[2] == number


@pytest.mark.parametrize(
    "wrong",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*6\r\n" + HEAD,
        b"*8\r\n" + HEAD + b":30\r\n:33\r\n",
        b"*7\r\n" + HEAD + b"*0\r\n",
        b"*7\r\n" + HEAD + b"$-1\r\n",
        b"*7\r\n" + HEAD.replace(b":20", b"$2\r\n20") + b":30\r\n",
    ],
)
def test_another_reply_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_decisions(memoryview(wrong), appends(3))


@pytest.mark.parametrize("verdicts", [(19,), (9,), (30, 32), (30, 30), (30, -1 - 31), (-1 - 18,)])
def test_a_reply_that_contradicts_itself(verdicts: tuple[int, ...]) -> None:
    """Offsets before the log end, offsets of two batches, and earlier batches that reach beyond the end."""
    with pytest.raises(AssertionError, match=r"."):
        read_decisions(reply(*verdicts), appends(*[3] * len(verdicts)))


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["append", "repeat", "refuse"]), st.integers(0, 9)))
)
def test_decisions_are_those_of_redis(batches: list[tuple[int, str, int]]) -> None:
    verdicts: list[int | str] = []
    end = 20
    expected: list[tuple[Any, int]] = []
    for count, kind, gap in batches:
        if kind == "append":
            verdicts.append(end + gap)
            expected.append((end + gap, False))
            end += gap + count
        elif kind == "repeat":
            verdicts.append(-1 - gap)
            expected.append((gap, True))
        else:
            verdicts.append(f"SEQUENCEGAP {gap}")
            expected.append(("SEQUENCEGAP", gap))
    found, _, _ = read_decisions(reply(*verdicts), appends(*[count for count, _, _ in batches]))
    assert [
        (each.base_offset, each.duplicate)
        if isinstance(each, Appended)
        else (each.code, int(each.message.split()[1]))
        for each in found
    ] == expected


def test_what_a_session_says_of_earlier_calls() -> None:
    session = read_session([4, 60, 10, NOW_MS, 7, 20, 0b101, 9, 40, 0b1])
    assert (session.number, session.log_start, session.now_ms) == (4, 10, NOW_MS)
    one, other, third = sent = appends(3, 2, 4)
    done, rest = effects_of(session, 7, sent)
    assert [(append, found.base_offset) for append, found in done] == [(one, 20), (third, 23)]
    assert rest == [other]
    assert all(not found.duplicate and found.append_ms == NOW_MS for _, found in done)
    assert effects_of(session, 8, sent) == ([], sent)
    assert read_session([1, 10, 10, NOW_MS]).effects == {}


@pytest.mark.parametrize(
    "wrong", [[], [1, 2, 3], [4, 60, 10, NOW_MS, 7], [4, 60, 10, NOW_MS, 7, 20], [4, 9, 10, NOW_MS], None, 4]
)
def test_what_is_no_session(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_session(wrong)
