"""OffsetCommit requests recognised by their form say what the schema's decoder says, or are left to it."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.constants import EntityType

from korvet.api.common.offset_commit_form import AskedCommit, CommitForm, CommitForms
from korvet.protocol.headers import parse_header
from korvet.protocol.messages import request_schema
from tests.unit.protocol.instances import encode

OFFSET_COMMIT = 8
VERSIONS = (5, 7, 8, 10)
OFFSETS = st.integers(-(2**63), 2**63 - 1)
EPOCHS = st.integers(-(2**31), 2**31 - 1)
PARTITION = st.tuples(EPOCHS, st.none() | st.text(max_size=30))
TOPIC = st.tuples(st.text(max_size=150), st.uuids(), st.lists(PARTITION, max_size=3))
SETTINGS = st.fixed_dictionaries(
    {
        "group_id": st.text(max_size=150),
        "generation": EPOCHS,
        "member_id": st.text(max_size=40),
        "instance": st.none() | st.text(max_size=20),
        "client_id": st.none() | st.text(max_size=40),
        "topics": st.lists(TOPIC, max_size=3),
    }
)
NUMBERS = st.lists(st.tuples(OFFSETS, EPOCHS), min_size=9, max_size=9)
ONE = {
    "group_id": "group",
    "generation": 3,
    "member_id": "member",
    "instance": None,
    "client_id": "client",
    "topics": [("topic", None, [(0, ""), (1, None)])],
}


def frame(
    version: int, settings: dict[str, Any], numbers: list[tuple[int, int]], correlation_id: int = 1
) -> bytes:
    """A request that commits these offsets with these leader epochs, one after the other."""
    schema: Any = kio.index.load_request_schema(OFFSET_COMMIT, version)
    module = kio.index.load_payload_module(OFFSET_COMMIT, version, EntityType.request)
    left = iter(numbers)

    def partition(index: int, metadata: str | None) -> Any:
        offset, epoch = next(left)
        epochs = {"committed_leader_epoch": epoch} if version >= 6 else {}
        return module.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata, **epochs
        )

    topics = tuple(
        module.OffsetCommitRequestTopic(
            **({"topic_id": topic_id} if version >= 10 else {"name": name}),
            partitions=tuple(partition(*each) for each in partitions),
        )
        for name, topic_id, partitions in settings["topics"]
    )
    instance = {"group_instance_id": settings["instance"]} if version >= 7 else {}
    body = schema(
        group_id=settings["group_id"],
        generation_id_or_member_epoch=settings["generation"],
        member_id=settings["member_id"],
        topics=topics,
        **instance,
    )
    client_id = settings["client_id"]
    encoded = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(encoded)
    head = struct.pack(">hhih", OFFSET_COMMIT, version, correlation_id, length)
    return head + encoded + (b"\x00" if version >= 8 else b"") + encode(body)


def decoded(version: int, content: bytes) -> tuple[AskedCommit, memoryview, int]:
    view = memoryview(content)
    schema = request_schema(OFFSET_COMMIT, version)
    _, position = parse_header(view, schema.flexible)
    return AskedCommit.of(schema.decode(view, position)), view, position


def said(asked: AskedCommit) -> tuple[Any, ...]:
    """All that is asked for."""
    return (
        asked.group_id,
        asked.generation_id,
        asked.member_id,
        asked.group_instance_id,
        asked.retention_time_ms,
        asked.topics,
    )


def form_of(version: int, content: bytes) -> CommitForm | None:
    return CommitForm.of(version, *decoded(version, content))


def within(forms: CommitForms, content: bytes) -> AskedCommit | None:
    """What the forms make of a frame as it lies in a connection's buffer, between others."""
    return forms.decode(bytearray(b"\x01\x02" + content + bytes(9)), 2, 2 + len(content))


@pytest.mark.parametrize("version", VERSIONS)
@given(settings=SETTINGS, first=NUMBERS, second=NUMBERS)
def test_the_next_commit_of_a_form(
    version: int, settings: dict[str, Any], first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    form = form_of(version, frame(version, settings, first))
    assert form is not None
    again = frame(version, settings, second, correlation_id=77)
    found = form.decode(memoryview(again))
    assert found is not None
    assert found.form is form
    assert said(found) == said(decoded(version, again)[0])


@pytest.mark.parametrize("version", VERSIONS)
@given(settings=SETTINGS, other=SETTINGS, numbers=NUMBERS)
def test_what_differs_is_left_to_the_schema(
    version: int, settings: dict[str, Any], other: dict[str, Any], numbers: list[tuple[int, int]]
) -> None:
    form = form_of(version, frame(version, settings, numbers))
    assert form is not None
    content = frame(version, other, numbers)
    found = form.decode(memoryview(content))
    assert found is None or said(found) == said(decoded(version, content)[0])


@pytest.mark.parametrize("version", VERSIONS)
@given(numbers=NUMBERS, data=st.data())
def test_damaged_frames_are_left_to_the_schema(
    version: int, numbers: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Cut, lengthened or changed anywhere: what the form accepts, the schema's decoder reads the same."""
    settings = ONE if version < 10 else {**ONE, "topics": [("", data.draw(st.uuids()), [(0, ""), (1, None)])]}
    content = frame(version, settings, numbers)
    form = form_of(version, content)
    assert form is not None
    end = data.draw(st.integers(0, len(content) - 1))
    assert form.decode(memoryview(content[:end])) is None
    assert form.decode(memoryview(content + b"\x00")) is None
    changed = bytearray(content)
    changed[data.draw(st.integers(8, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    found = form.decode(memoryview(bytes(changed)))
    if found is not None:
        assert said(found) == said(decoded(version, bytes(changed))[0])


@pytest.mark.parametrize("version", VERSIONS)
@given(groups=st.lists(st.text(max_size=200), min_size=1, max_size=5, unique=True), data=st.data())
def test_groups_that_take_turns(version: int, groups: list[str], data: st.DataObject) -> None:
    """The first commit of a group is left to the schema, the second makes its form, the third has it."""
    forms: CommitForms | None = None
    for turn in range(3):
        for group in groups:
            content = frame(version, {**ONE, "group_id": group, "topics": []}, [])
            found = None if forms is None else within(forms, content)
            asked, view, position = decoded(version, content)
            if forms is None:
                forms = CommitForms((version, content[8:position]), position)
            assert (found is not None) == (turn == 2)
            if found is None:
                forms.note(asked, view)
            else:
                assert said(found) == said(asked)
    damaged = bytearray(frame(version, {**ONE, "group_id": groups[0], "topics": []}, []))
    end = data.draw(st.integers(0, len(damaged) - 1))
    assert forms is not None
    assert within(forms, bytes(damaged[:end])) is None


def test_a_connection_keeps_forms_of_so_many_groups() -> None:
    """An administrator's tool may commit for thousands of them, one after the other."""
    contents = [frame(8, {**ONE, "group_id": f"g{number:04}", "topics": []}, []) for number in range(300)]
    _, _, position = decoded(8, contents[0])
    forms = CommitForms((8, contents[0][8:position]), position)
    for content in contents:
        for _ in range(2):
            asked, view, _ = decoded(8, content)
            forms.note(asked, view)
    known = sum(within(forms, content) is not None for content in contents)
    assert 0 < known <= 128


def test_forms_that_are_never_met_are_given_up_but_not_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka Streams writes a time of its own into each commit's metadata: no form fits the next one."""
    made = 0
    of = CommitForm.of

    def count(*args: Any) -> CommitForm | None:
        nonlocal made
        made += 1
        return of(*args)

    monkeypatch.setattr(CommitForm, "of", count)
    first = frame(8, ONE, [(0, 0), (0, 0)])
    forms = CommitForms((8, first[8 : decoded(8, first)[2]]), decoded(8, first)[2])

    def commit(metadata: str) -> bool:
        """Whether it was recognised."""
        content = frame(8, {**ONE, "topics": [("topic", None, [(0, metadata), (1, None)])]}, [(1, 1), (2, 2)])
        asked, view, _ = decoded(8, content)
        if within(forms, bytes(view)) is not None:
            return True
        forms.note(asked, view)
        return False

    assert not any(commit(f"{number:013}") for number in range(1_000))
    assert 2 <= made < 25
    same = [commit("0" * 13) for _ in range(100)]
    assert all(same[same.index(True) :])
    # One whose forms were met is given as many chances as at first.
    made = 0
    for number in range(1, 4):
        assert not commit(f"{number:013}")
        assert commit(f"{number:013}")
    assert made == 3


def test_tagged_fields_are_left_to_the_schema() -> None:
    content = frame(9, ONE, [(1, 1), (2, 2)])
    tagged = content[:-1] + b"\x01\x07\x01\x00"
    assert form_of(9, tagged) is None


def test_a_retention_time_is_left_to_the_schema() -> None:
    schema: Any = kio.index.load_request_schema(OFFSET_COMMIT, 4)
    body = schema(
        group_id="group",
        generation_id_or_member_epoch=1,
        member_id="",
        retention_time=datetime.timedelta(seconds=1),
        topics=(),
    )
    assert form_of(4, struct.pack(">hhih", OFFSET_COMMIT, 4, 1, -1) + encode(body)) is None


def test_large_requests_are_left_to_the_schema() -> None:
    topics = [("topic", None, [(number, "") for number in range(400)])]
    numbers = [(number, 0) for number in range(400)]
    assert form_of(9, frame(9, {**ONE, "topics": topics}, numbers)) is None
