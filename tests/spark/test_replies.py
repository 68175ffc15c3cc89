"""Pages of entries as Redis sends them: the kernel's columns equal those built entry by entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from korvet.spark.records.arrow import record_batch
from korvet.spark.records.columns import Origin
from korvet.spark.records.entries import columns_of
from korvet.spark.records.page import Page
from korvet.spark.source.address import Address
from korvet.spark.source.connection import connected
from korvet.spark.source.extents import StreamRange
from korvet.spark.source.pages import pages
from korvet.spark.versions import arrow_schema
from tests.spark.direct import batch, schema_of
from tests.spark.forms import FORMS, INSTALLED, UNCOMPILED, using

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.spark.records.page import Entry
    from tests.spark.keyspace import Keyspace

MS = 1_700_000_000_000
SCHEMA = arrow_schema(schema_of())
ORIGINS = [Origin("t", 3, 0, 0), Origin("t", 3, 1, 0), Origin("t", 3, 0, 1, append_times=True)]
# Values that look like RESP.
FRAMES = [
    b"*2\r\n$15\r\n1700000000000-1\r\n*4\r\n$3\r\nkey\r\n$1\r\nk\r\n",
    b"$3\r\nkey\r\n$1\r\nx\r\n",
    b"\r\n",
    b"*2\r\n$",
]
data = st.sampled_from([b"", b"0123456789", b"x" * 1000, *FRAMES]) | st.binary(max_size=12)


def raw(entries: Sequence[Entry]) -> bytes:
    """Encodes an array of entries in RESP2."""
    return b"*%d\r\n" % len(entries) + b"".join(
        b"*2\r\n%b*%d\r\n%b" % (text(entry), len(fields), b"".join(map(text, fields)))
        for entry, fields in entries
    )


def text(string: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(string), string)


def reply_of(entries: Sequence[Entry], behind: bytes = b"") -> Page:
    """The entries as a page; bytes after it in memory don't matter."""
    page = raw(entries)
    return Page(np.frombuffer(page + behind, dtype=np.uint8).copy(), len(page))


@st.composite
def fields(draw: st.DrawFn) -> list[bytes]:
    """Mostly the fields that korvet writes, in its order."""
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
    """Pages whose entries have a few combinations of fields."""
    forms = draw(st.lists(fields(), min_size=1, max_size=3))
    steps = draw(st.lists(st.sampled_from([1, 7, 1023]), min_size=1, max_size=20))
    entries, at = [], draw(st.sampled_from([1, 999 << 10, MS << 10]))
    for number, step in enumerate(steps):
        at += step
        sequence = at & 1023 if draw(st.integers(0, 200)) else 5000
        entries.append((b"%d-%d" % (at >> 10, sequence), forms[number % len(forms)]))
    return entries


@pytest.mark.parametrize("form", FORMS)
@given(pages_of_entries(), st.sampled_from(ORIGINS), st.booleans())
def test_the_same_as_entry_by_entry(form: Any, entries: list[Entry], origin: Origin, dropped: bool) -> None:
    page = reply_of(entries, raw(entries))
    assert page.first_id == entries[0][0]
    last_id = entries[-1][0]
    if dropped:
        page.drop_first()
        entries = entries[1:]
    assert len(page) == len(entries)
    with using(form):
        found, expected = columns_of(page, origin), columns_of(entries, origin)
    assert page.last_id == last_id
    assert record_batch(found, origin, SCHEMA).equals(record_batch(expected, origin, SCHEMA))
    assert (found.producers or [-1] * len(found.keys)) == (expected.producers or [-1] * len(expected.keys))
    assert [(entry_id, list(strings)) for entry_id, strings in page] == entries


def taken(form: Any, data: bytes, origin: Origin, skipped: int = 0) -> list[Any] | None:
    """A kernel's result for a reply."""
    rows = form.Rows(64, len(data), len(data), True)
    if not rows.take_entries(data, len(data), skipped, origin.bias, origin.has_append_time):
        return None
    assert rows.last_id in data
    columns = (rows.offsets, rows.timestamps_ms, rows.producers)
    strings = (rows.keys, rows.values, rows.header_names, rows.header_values)
    return [
        rows.transactional,
        rows.header_ends[: rows.count + 1].tolist(),
        *(column[: rows.count].tolist() for column in columns),
        *(strings_of(one) for one in strings),
    ]


def strings_of(column: Any) -> list[bytes | None]:
    ends = column.ends[: column.count + 1].tolist()
    there = np.unpackbits(column.validity, bitorder="little")[: column.count].tolist()
    assert column.nulls == there.count(0)
    data = column.data[: column.size].tobytes()
    return [data[begin:end] if one else None for begin, end, one in zip(ends, ends[1:], there, strict=False)]


@given(pages_of_entries(), st.data())
def test_damage_is_no_harm(entries: list[Entry], data: st.DataObject) -> None:
    """No byte after the end is read (the uncompiled form would raise). Both forms give the same result."""
    page = bytearray(raw(entries))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(page) - 1))
        page[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"9", b"0", b"-", b"\r", b"\n", b"$", b"*", b"99999999999", b"\xff"])
        )
    if data.draw(st.booleans()):
        del page[data.draw(st.integers(0, len(page))) :]
    damaged, origin, skipped = bytes(page), data.draw(st.sampled_from(ORIGINS)), data.draw(st.integers(0, 1))
    found = taken(UNCOMPILED, damaged, origin, skipped)
    batches = UNCOMPILED.batches_in(damaged, len(damaged), skipped, origin.bias)
    if INSTALLED is not None:
        assert taken(INSTALLED, damaged, origin, skipped) == found
        assert INSTALLED.batches_in(damaged, len(damaged), skipped, origin.bias) == batches


@pytest.mark.parametrize("form", FORMS)
def test_there_is_never_more_than_room(form: Any) -> None:
    """For all numbers in a reply."""
    if form is None:
        pytest.skip("no compiled kernel")
    entry = (b"1-1", [b"key", b"k" * 8, b"value", b"v" * 8, b"header.a", b"1"])
    page = raw([entry] * 3)
    assert form.Rows(3, 24, 3, True).take_entries(page, len(page), 0, 0, False)
    for room in ((2, 24, 3), (3, 23, 3), (3, 24, 2), (0, 0, 0)):
        assert not form.Rows(*room, True).take_entries(page, len(page), 0, 0, False)
    assert form.Rows(3, 24, 0, False).take_entries(page, len(page), 0, 0, False)
    assert not form.Rows(3, 24, 3, True).take_entries(page, len(page) + 1, 0, 0, False)
    assert not form.Rows(3, 24, 3, True).take_entries(b"", 0, 0, 0, False)
    for lie in (b"*4\r\n", b"*2\r\n", b"*99999999999999999999\r\n", b"*-1\r\n"):
        assert not form.Rows(9, 99, 9, True).take_entries(lie + page[4:], len(lie + page[4:]), 0, 0, False)
    assert form.batches_in(b"", 0, 0, 0) is None
    assert form.batches_in(page, len(page) + 1, 0, 0) is None


@pytest.mark.parametrize("form", FORMS)
def test_limits_of_numbers(form: Any) -> None:
    """Entries outside the limits are left to Python, which has rows for them."""
    if form is None:
        pytest.skip("no compiled kernel")
    highest = b"%d-1023" % ((1 << 53) - 1)
    latest = b"253402300799999-0"
    cases: list[tuple[bytes, list[bytes], list[int] | None]] = [
        (b"0-1", [b"value", b""], [1, 0]),
        (highest, [b"value", b"", b"ts", b"-9007199254740991"], [(1 << 63) - 1, 0]),
        (b"5-1024", [b"value", b""], []),
        (b"%d-0" % (1 << 53), [b"value", b""], []),
        (b"%d-0" % (1 << 63), [b"value", b""], []),
        (b"%d-0" % (1 << 64), [b"value", b""], None),
        (latest, [b"value", b""], [253402300799999 << 10, 253402300799999]),
        (latest, [b"value", b"", b"ts", b"1"], None),
        (b"1-0", [b"ts", b"-62135596800001"], [1 << 10, -62_135_596_800_000]),
        (b"1-0", [b"ts", b"-62135596800002"], None),
        (b"1-0", [b"ts", b"-"], None),
        (b"1-0", [b"ts", b""], None),
        (b"1-0", [b"ts", b"00"], [1 << 10, 1]),
        (b"1-0", [b"pid", b"9" * 18, b"epoch", b"0"], [1 << 10, 1]),
        (b"1-0", [b"pid", b"9" * 19, b"epoch", b"0"], None),
        (b"1-0", [b"epoch", b"0"], None),
        (b"1-0", [b"ctl", b"commit", b"pid", b"1"], None),
        (b"1-0", [b"ctl", b"commit", b"pid", b"1", b"epoch", b"0", b"key", b""], None),
        (b"1-0", [b"epoch", b"0", b"pid", b"1", b"ctl", b"abort"], []),
        (b"1-0", [b"header.", b"", b"nullheader.", b"x", b"nullheader", b""], None),
        (b"1-0", [b"header.", b"", b"nullheader.", b""], [1 << 10, 1]),
        (b"1-0", [b"nullheader.a", b"x"], None),
        (b"1-0", [b"pid", b"7", b"epoch", b"32768"], None),
        (b"1-0", ["header.é".encode(), b""], [1 << 10, 1]),
        (b"1-0", [b"header.\xff", b""], None),
        (b"1-0", [b"value", b"", b"value", b""], None),
        (b"1-0", [b"value", b"", b"key"], None),
    ]
    for entry_id, strings, expected in cases:
        found = taken(form, raw([(entry_id, strings)]), ORIGINS[0])
        numbers = None if found is None else [*found[2], *found[3]]
        assert numbers == expected, (entry_id, strings)


PLAIN = [
    [b"key", b"k", b"value", b"v", b"ts", b"-1", b"header.a", b"1"],
    [b"value", FRAMES[0]],
    [b"key", b"only"],
    [b"key", b"k", b"value", b"v" * 1000, b"ts", b"0", b"pid", b"12", b"epoch", b"3"],
    [b"value", b"v", b"key", b"k", b"nullheader.b", b"", b"header.a", b"1", b"header.a", b"2"],
    [b"ctl", b"abort", b"pid", b"12", b"epoch", b"3"],
]


@pytest.mark.skipif(INSTALLED is None, reason="no compiled kernel")
@pytest.mark.parametrize("forms", [PLAIN[:1], PLAIN[2:3], PLAIN[3:], PLAIN])
def test_what_korvet_writes_is_never_parsed(forms: list[list[bytes]]) -> None:
    """Also with values of different lengths, tombstones and markers."""
    page = reply_of([(b"%d-%d" % (MS, number), forms[number % len(forms)]) for number in range(100)])
    assert page.rows(0, append_times=False) is not None
    assert page.mean_bytes > 20


def test_a_value_like_an_entry_is_a_value() -> None:
    page = reply_of([(b"%d-%d" % (MS, number), PLAIN[1]) for number in range(100)])
    assert page.probable_last_id() == b"1700000000000-1"
    rows = record_batch(columns_of(page, ORIGINS[0]), ORIGINS[0], SCHEMA)
    assert rows.column("value").to_pylist() == [PLAIN[1][1]] * 100
    assert page.last_id == b"%d-99" % MS
    assert tuple(page[99]) == (b"%d-99" % MS, PLAIN[1])


def test_a_read_that_fails_names_the_cause(keyspace: Keyspace) -> None:
    keyspace.client.set("korvet:t:0", "text")
    part = StreamRange("korvet:t:0", ORIGINS[0], 0, 10, 1)
    with connected(Address(keyspace.url)) as connection:
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            list(pages(connection, part))
        assert connection.call("EXISTS", "korvet:t:0") == 1


@pytest.mark.parametrize("mute", [False, True])
def test_pages_by_connection(keyspace: Keyspace, mute: bool) -> None:
    """Also if the user may not use ECHO, which marks the end of a page."""
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
        # An error reply in place of a page leaves the connection usable.
        connection.send_for_page("XRANGE", "{korvet}:topics", "-", "+", "COUNT", 1)
        with pytest.raises(Exception, match="WRONGTYPE"):
            connection.page()
        connection.send_for_page("XRANGE", "korvet:t:0", "-", "+", "COUNT", 100)
        page = connection.page()
        assert (page.rows(0, append_times=False) is None) == (mute or INSTALLED is None)
        assert len(columns_of(page, ORIGINS[0]).offsets) == 100
    got = batch(keyspace, topic="t", redis_user="reader")
    assert [int(row["key"]) for row in got] == list(range(3000))
    assert [len(row["value"]) for row in got] == [
        100_000 if number % 1000 == 500 else number % 100 for number in range(3000)
    ]
