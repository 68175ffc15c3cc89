"""Pages of entries as they come from Redis, read as whole columns: the same as entry by entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from korvet.spark.entries import Origin, columns_of, markers_of, record_batch
from korvet.spark.replies import LEAST_ENTRIES, PADDING, Reply
from korvet.spark.store import Address, connected
from tests.spark.direct import batch, schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.spark.replies import Entry
    from tests.spark.keyspace import Keyspace

MS = 1_700_000_000_000
SCHEMA = to_arrow_schema(schema_of(), timezone="UTC")
ORIGINS = [Origin("t", 3, 0, 0), Origin("t", 3, 1, 0), Origin("t", 3, 0, 1, append_times=True)]
# What a parser could take for the frame around it.
FRAMES = [
    b"*2\r\n$15\r\n1700000000000-1\r\n*4\r\n$3\r\nkey\r\n$1\r\nk\r\n",
    b"$3\r\nkey\r\n$1\r\nx\r\n",
    b"\r\n",
    b"*2\r\n$",
]
data = st.sampled_from([b"", b"0123456789", b"x" * 1000, *FRAMES]) | st.binary(max_size=12)


def raw(entries: Sequence[Entry]) -> bytes:
    """An array of entries in RESP2."""
    return b"*%d\r\n" % len(entries) + b"".join(
        b"*2\r\n%b*%d\r\n%b" % (text(entry), len(fields), b"".join(map(text, fields)))
        for entry, fields in entries
    )


def text(string: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(string), string)


def reply_of(entries: Sequence[Entry], behind: bytes = b"") -> Reply:
    """The entries as a page; what is behind it in memory does not matter."""
    page = raw(entries)
    room = np.frombuffer((page + behind).ljust(len(page) + PADDING, b"7"), dtype=np.uint8)
    return Reply(room[: len(page) + PADDING].copy(), len(page))


@st.composite
def fields(draw: st.DrawFn) -> list[bytes]:
    """Those that korvet writes, in its order, most of the time."""
    found: list[bytes] = []
    for name in (b"key", b"value"):
        if draw(st.booleans()):
            found += [name, draw(data)]
    if draw(st.booleans()):
        found += [b"ts", draw(st.sampled_from([b"0", b"-3", b"1000000", b"now", b"-", b"9" * 18]))]
    for name in draw(st.sampled_from([[], [], [b"header.a"], [b"header.a", b"nullheader.b", b"header.a"]])):
        found += [name, b"" if name.startswith(b"null") else draw(data)]
    if draw(st.integers(0, 3)) == 0:
        found += [b"pid", draw(st.sampled_from([b"7", b"1234", b"x", b""])), b"epoch", b"0"]
    if draw(st.integers(0, 20)) == 0:
        found += draw(
            st.sampled_from([[b"ctl", b"abort"], [b"epoch", b"1"], [b"colour", b"red"], [b"key", b"2"]])
        )
    return found or [b"value", b""]


@st.composite
def pages_of_entries(draw: st.DrawFn) -> list[Entry]:
    """Pages large enough to be worth it, of a few forms each."""
    forms = draw(st.lists(fields(), min_size=1, max_size=3))
    steps = draw(st.lists(st.sampled_from([1, 7, 1023]), min_size=LEAST_ENTRIES, max_size=LEAST_ENTRIES + 8))
    entries, at = [], draw(st.sampled_from([1, 999 << 10, MS << 10]))
    for number, step in enumerate(steps):
        at += step
        sequence = at & 1023 if draw(st.integers(0, 200)) else 5000
        entries.append((b"%d-%d" % (at >> 10, sequence), forms[number % len(forms)]))
    return entries


@given(pages_of_entries(), st.sampled_from(ORIGINS), st.booleans())
def test_the_same_as_entry_by_entry(entries: list[Entry], origin: Origin, dropped: bool) -> None:
    page = reply_of(entries, raw(entries))
    assert page.first_id == entries[0][0]
    if dropped:
        page.drop_first()
        entries = entries[1:]
    assert len(page) == len(entries)
    assert page.last_id == entries[-1][0]
    found, expected = columns_of(page, origin), columns_of(entries, origin)
    assert record_batch(found, origin, SCHEMA).equals(record_batch(expected, origin, SCHEMA))
    assert (found.producers or [-1] * len(found.keys)) == (expected.producers or [-1] * len(expected.keys))
    assert markers_of(page, origin) == markers_of(entries, origin)
    assert [(entry_id, list(strings)) for entry_id, strings in page] == entries


PLAIN = [
    [b"key", b"k", b"value", b"v", b"ts", b"-1", b"header.a", b"1"],
    [b"value", FRAMES[0]],
    [b"key", b"only"],
    [b"key", b"k", b"value", b"v" * 1000, b"ts", b"0", b"pid", b"12", b"epoch", b"3"],
]


@pytest.mark.parametrize("forms", [PLAIN[:1], PLAIN[2:3], PLAIN[3:], PLAIN[2:]])
def test_what_korvet_writes_is_never_parsed(forms: list[list[bytes]]) -> None:
    """Neither are values of another length each, and records among which tombstones are."""
    page = reply_of([(b"%d-%d" % (MS, number), forms[number % len(forms)]) for number in range(100)])
    assert page.plain is not None
    assert page.mean_bytes > 20


def test_a_value_like_an_entry_is_parsed() -> None:
    page = reply_of([(b"%d-%d" % (MS, number), PLAIN[1]) for number in range(100)])
    assert page.plain is None
    assert page.probable_last_id() == b"1700000000000-1"
    assert page.last_id == b"%d-99" % MS
    assert tuple(page[99]) == (b"%d-99" % MS, PLAIN[1])


@pytest.mark.parametrize("mute", [False, True])
def test_pages_by_connection(keyspace: Keyspace, mute: bool) -> None:
    """Also where the user may not use the command that marks a page's end."""
    keyspace.topic("t")
    rights = ["-echo"] if mute else []
    keyspace.client.execute_command(
        "ACL", "SETUSER", "reader", "reset", "on", "nopass", "~*", "+@all", *rights
    )
    pipe = keyspace.client.pipeline(transaction=False)
    for number in range(3000):
        value = bytes([number % 256]) * (100_000 if number % 1000 == 500 else number % 100)
        pipe.execute_command("XADD", "korvet:t:0", f"{MS + number}-0", "key", b"%d" % number, "value", value)
    pipe.execute()
    with connected(Address(keyspace.url.replace("unix://", "unix://reader@"))) as connection:
        # A refusal in the place of a page leaves the connection in order.
        connection.send_for_page("XRANGE", "{korvet}:topics", "-", "+", "COUNT", 1)
        with pytest.raises(Exception, match="WRONGTYPE"):
            connection.page()
        connection.send_for_page("XRANGE", "korvet:t:0", "-", "+", "COUNT", 100)
        assert (connection.page().plain is None) == mute
    got = batch(keyspace, topic="t", redis_user="reader")
    assert [int(row["key"]) for row in got] == list(range(3000))
    assert [len(row["value"]) for row in got] == [
        100_000 if number % 1000 == 500 else number % 100 for number in range(3000)
    ]
