"""Valid quotas, filters, and the stored form."""

from __future__ import annotations

import math

import pytest

from korvet.quotas.entities import (
    EntityFilter,
    InvalidQuota,
    UnsupportedEntity,
    check_entity,
    check_value,
    entity_of,
    field_of,
    parse_field,
)

ALICE = entity_of({"user": "alice"})
EVERY_USER = entity_of({"user": None})
BOTH = entity_of({"user": "alice", "client-id": "app"})
ADDRESS = entity_of({"ip": "127.0.0.1"})
ENTITIES = (ALICE, EVERY_USER, BOTH, ADDRESS)
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@pytest.mark.parametrize("entity", [*ENTITIES, entity_of({"ip": None}), entity_of({"ip": "::1"})])
def test_entities(entity):
    check_entity(entity)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user not supported"),
        ({"ip": "::1", "user": "a"}, "IP entity should not be combined"),
        ({"ip": "nowhere"}, "nowhere is not a valid IP"),
    ],
)
def test_no_entities(names, reason):
    with pytest.raises(InvalidQuota, match=reason):
        check_entity(entity_of(names))


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (ALICE, "producer_byte_rate", 1024.0),
        (BOTH, "consumer_byte_rate", 9.0000001),
        (EVERY_USER, "request_percentage", 12.5),
        (EVERY_USER, "controller_mutation_rate", 0.1),
        (ADDRESS, "connection_creation_rate", 2.0**31 - 1),
    ],
)
def test_values(entity, key, value):
    check_value(entity, key, value)


@pytest.mark.parametrize(
    ("entity", "key", "value", "reason"),
    [
        (ALICE, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (ADDRESS, "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (ALICE, "producer_byte_rate", 0.0, "must be greater than 0"),
        (ALICE, "request_percentage", -1.0, "must be greater than 0"),
        (ALICE, "request_percentage", math.nan, "must be a finite number"),
        (ALICE, "producer_byte_rate", math.inf, "must be a finite number"),
        (ALICE, "producer_byte_rate", 1e19, "too large for a LONG"),
        (ADDRESS, "connection_creation_rate", 2.0**31, "too large for an INT"),
        (ALICE, "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value"),
    ],
)
def test_no_values(entity, key, value, reason):
    with pytest.raises(InvalidQuota, match=reason):
        check_value(entity, key, value)


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, ENTITIES),
        ([], True, ()),
        ([("user", EXACT, "alice")], False, (ALICE, BOTH)),
        ([("user", EXACT, "alice")], True, (ALICE,)),
        ([("user", DEFAULT, None)], False, (EVERY_USER,)),
        ([("user", SPECIFIED, None)], False, (ALICE, EVERY_USER, BOTH)),
        ([("user", SPECIFIED, None)], True, (ALICE, EVERY_USER)),
        ([("user", EXACT, "alice"), ("client-id", SPECIFIED, None)], True, (BOTH,)),
        ([("ip", SPECIFIED, None)], False, (ADDRESS,)),
        ([("client-id", DEFAULT, None)], False, ()),
    ],
)
def test_filters(components, strict, found):
    wanted = EntityFilter(components, strict=strict)
    assert tuple(entity for entity in ENTITIES if wanted.matches(entity)) == found


@pytest.mark.parametrize(
    ("components", "reason"),
    [
        ([("", EXACT, "x")], "Invalid empty entity type"),
        ([("user", EXACT, "x"), ("user", DEFAULT, None)], "cannot appear more than once"),
        ([("user", SPECIFIED, None), ("user", SPECIFIED, None)], "cannot appear more than once"),
        ([("user", EXACT, None)], "set match string to null"),
        ([("user", DEFAULT, "x")], "MATCH_TYPE_DEFAULT, but also"),
        ([("user", SPECIFIED, "x")], "MATCH_TYPE_SPECIFIED, but also"),
        ([("user", 3, None)], "Unknown match type 3"),
        (
            [("ip", DEFAULT, None), ("client-id", DEFAULT, None)],
            "Invalid entity filter component combination",
        ),
    ],
)
def test_no_filters(components, reason):
    with pytest.raises(InvalidQuota, match=reason):
        EntityFilter(components, strict=False)


def test_a_type_that_there_is_not():
    with pytest.raises(UnsupportedEntity, match="Unsupported entity type group"):
        EntityFilter([("group", EXACT, "g")], strict=False)


@pytest.mark.parametrize("entity", [*ENTITIES, entity_of({"user": 'a"\\:é', "client-id": None})])
def test_a_field_is_read_as_it_was_written(entity):
    assert parse_field(field_of(entity, "producer_byte_rate")) == (entity, "producer_byte_rate")


@pytest.mark.parametrize("field", [b"", b"{}", b'[[["user"]],"k"]', b"\xff"])
def test_what_is_no_field(field):
    with pytest.raises(ValueError):
        parse_field(field)
