"""Records of Pulsar: read as the library of Protocol Buffers reads them, and changed in nothing but the attribution."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.bookkeeper.records import (
    STAMP_PROPERTY,
    read_cursor,
    read_data_ledgers,
    read_locator,
    stamp_cursor,
    stamp_locator,
)
from anabranch.bookkeeper.wire import LENGTH, VARINT, BadRecord, join_fields, read_fields, read_values
from tests.bookkeeper.messages import CURSORS, LOCATORS, MESSAGES

STAMPS = st.text(max_size=6) | st.none()


def set_stamp(properties: Any, stamp: str | None) -> None:
    """The same change by the library."""
    there = [at for at, one in enumerate(properties) if one.name == STAMP_PROPERTY]
    if stamp is None:
        for at in there:
            del properties[at]
    elif there:
        properties[there[0]].value = stamp
    else:
        properties.add(name=STAMP_PROPERTY, value=stamp)


@given(LOCATORS)
def test_a_locator_is_read_as_the_library_reads_it(locator: Any) -> None:
    want = {
        (
            entry.version,
            entry.position.ledgerId,
            entry.position.entryId,
            next((one.value for one in entry.position.properties if one.name == STAMP_PROPERTY), None),
        )
        for entry in [locator.info, *locator.index]
    }
    found = read_locator(locator.SerializeToString())
    assert {(one.version, one.ledger, one.entry, one.stamp) for one in found} == want


@given(LOCATORS, st.dictionaries(st.integers(0, 12), STAMPS))
def test_locator_stamp_limited_to_its_ledgers(locator: Any, stamps: dict[int, str | None]) -> None:
    raw = locator.SerializeToString()
    found = stamp_locator(raw, stamps)
    for entry in [locator.info, *locator.index]:
        if entry.position.ledgerId in stamps:
            set_stamp(entry.position.properties, stamps[entry.position.ledgerId])
    assert found == locator.SerializeToString()
    assert stamp_locator(found, stamps) == found


@given(CURSORS, STAMPS)
def test_stamping_a_cursor_changes_only_its_stamp(cursor: Any, stamp: str | None) -> None:
    raw = cursor.SerializeToString()
    found = stamp_cursor(raw, stamp)
    before, after = read_cursor(raw), read_cursor(found)
    set_stamp(cursor.cursorProperties, stamp)
    assert found == cursor.SerializeToString()
    assert (after.ledger, after.mark_delete, after.stamp) == (before.ledger, before.mark_delete, stamp)
    assert after.ledger == cursor.cursorsLedgerId


@given(CURSORS)
def test_removing_new_stamp_restores_bytes(cursor: Any) -> None:
    set_stamp(cursor.cursorProperties, None)
    raw = cursor.SerializeToString()
    assert stamp_cursor(stamp_cursor(raw, "blue"), None) == raw


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_named_fault(raw: bytes) -> None:
    try:
        fields = read_fields(raw)
    except BadRecord:
        return
    assert join_fields(fields) == raw


@given(st.binary(max_size=60) | CURSORS.map(lambda one: one.SerializeToString()), st.frozensets(st.integers(0, 12)))
def test_wanted_values_are_those_of_all_fields(raw: bytes, wanted: frozenset[int]) -> None:
    try:
        fields = read_fields(raw)
    except BadRecord:
        with pytest.raises(BadRecord):
            read_values(raw, wanted)
        return
    assert read_values(raw, wanted) == [
        (one.number, one.value if one.kind == VARINT else one.content)
        for one in fields
        if one.number in wanted and one.kind in (VARINT, LENGTH)
    ]


def test_a_compressed_cursor_is_refused_by_name() -> None:
    with pytest.raises(BadRecord, match="managedCursorInfoCompressionType"):
        read_cursor(b"\x47\x78\x00\x00")


def test_a_locator_without_positions_is_refused() -> None:
    with pytest.raises(BadRecord, match="without a position"):
        read_locator(b"")


def test_data_ledgers_are_read_in_their_order() -> None:
    nested = MESSAGES["Nested"]
    ledgers = [nested(ledgerId=one, entryId=5).SerializeToString() for one in (9, 2**40, 3)]
    raw = b"".join(bytes([0x0A, len(one)]) + one for one in ledgers)
    assert [one.ledger for one in read_data_ledgers(raw)] == [9, 2**40, 3]
