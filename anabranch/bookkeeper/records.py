"""Pulsar's metadata records of schemas, cursors and topics: their ledgers and cluster stamps.

A stamp attributes a ledger to a BookKeeper cluster. Nothing else in a record is ever changed.

Stage: pure, between `wire` and `metadata`. Sources: SchemaStorageFormat.proto of pulsar-broker and MLDataFormats.proto
of managed-ledger; PIP-477, field 3 of a schema's position for its properties.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.bookkeeper.wire import (
    BadRecord,
    Field,
    content_field,
    contents_of,
    join_fields,
    read_fields,
    read_values,
    varint_of,
)

STAMP_PROPERTY = "_pulsar.bookieClusterName"
BROKERS_OWN = "#pulsar.internal."
"""Prefix of cursor properties that only the broker writes, such as those of delayed delivery."""
_COMPRESSED = b"\x47\x78"
_INFO, _INDEX, _POSITION, _POSITION_PROPERTIES = 1, 2, 2, 3
_CURSOR_PROPERTIES, _POSITION_NUMBERS = 8, 5
_HASH, _HOLES = 3, (4, 7)
"""Fields of an index entry; of a cursor: individualDeletedMessages, batchedEntryDeletionIndexInfo."""
_CLOSED_AT, _OFFLOAD, _LEDGER_PROPERTIES, _DELETED = 4, 5, 6, 4
_DATA_FIELDS = frozenset({1, _CLOSED_AT, _OFFLOAD, _LEDGER_PROPERTIES})


@dataclass(frozen=True)
class SchemaPosition:
    """Location of one version of a schema."""

    version: int
    ledger: int
    entry: int
    stamp: str | None
    """Value of `STAMP_PROPERTY`."""
    hash: str | None = None
    """Hash of the version's content, hex."""


@dataclass(frozen=True)
class Cursor:
    """Contents of a subscription's znode."""

    ledger: int
    """-1: the position is in the znode, so there is no ledger to copy."""
    mark_delete: tuple[int, int]
    """Ledger and entry; (-1, -1) if only the cursor's ledger has the position."""
    properties: Mapping[str, str]
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Properties of the position, such as the ledger of a compacted topic."""
    holes: bytes = b""
    """Encoded fields of messages acknowledged past the position: ranges, and parts of batches."""

    @property
    def stamp(self) -> str | None:
        """Value of `STAMP_PROPERTY`."""
        return self.properties.get(STAMP_PROPERTY)


class DataLedgerPosition(NamedTuple):
    """A ledger of a topic's messages."""

    ledger: int
    stamp: str | None
    """Value of `STAMP_PROPERTY`, in the properties of PIP-404."""
    offloaded: bool = False
    """True: it was offloaded and deleted from BookKeeper."""
    closed_at: int | None = None
    """Time of closing, ms since 1970; None: it is still being written."""


def read_locator(record: bytes) -> tuple[SchemaPosition, ...]:
    """Return all positions of a schema, without duplicates, by version and ledger. Raises `BadRecord`."""
    positions = set()
    for entry in read_fields(record):
        if entry.number not in (_INFO, _INDEX):
            continue
        fields = read_fields(entry.content)
        for content in contents_of(fields, _POSITION):
            position = read_fields(content)
            positions.add(
                SchemaPosition(
                    _required_number(fields, 1, "version"),
                    _required_number(position, 1, "ledgerId"),
                    _required_number(position, 2, "entryId"),
                    _properties(position, _POSITION_PROPERTIES).get(STAMP_PROPERTY),
                    next((content.hex() for content in contents_of(fields, _HASH)), None),
                )
            )
    if not positions:
        raise BadRecord("a schema locator without a position")
    return tuple(sorted(positions, key=lambda schema: (schema.version, schema.ledger, schema.stamp or "")))


def stamp_locator(record: bytes, stamps: Mapping[int, str | None]) -> bytes:
    """Return the locator with its positions stamped; `stamps` by ledger id, None removes one."""

    def stamped_position(field: Field) -> Field:
        position = read_fields(field.content)
        ledger = _required_number(position, 1, "ledgerId")
        if ledger not in stamps:
            return field
        return content_field(_POSITION, _with_property(position, _POSITION_PROPERTIES, stamps[ledger]))

    def stamped_entry(field: Field) -> Field:
        if field.number not in (_INFO, _INDEX):
            return field
        content = join_fields(
            stamped_position(inner) if inner.number == _POSITION else inner for inner in read_fields(field.content)
        )
        return field if content == field.content else content_field(field.number, content)

    return join_fields(stamped_entry(field) for field in read_fields(record))


def read_cursor(record: bytes) -> Cursor:
    """Parse a cursor's znode. Raises `BadRecord`, also for a compressed one."""
    fields = _read_uncompressed(record)
    mark_delete = varint_of(fields, 2), varint_of(fields, 3)
    return Cursor(
        _required_number(fields, 1, "cursorsLedgerId"),
        tuple(-1 if number is None else number for number in mark_delete),  # type: ignore[arg-type]
        _properties(fields, _CURSOR_PROPERTIES),
        _position_numbers(fields),
        join_fields(part for part in fields if part.number in _HOLES),
    )


def stamp_cursor(record: bytes, stamp: str | None) -> bytes:
    """Return the cursor with this stamp; None removes it."""
    return _with_property(_read_uncompressed(record), _CURSOR_PROPERTIES, stamp)


def read_data_ledgers(record: bytes) -> tuple[DataLedgerPosition, ...]:
    """Return the data ledgers named in a topic's znode. Raises `BadRecord`, also for a compressed one."""
    _require_uncompressed(record)
    positions = []
    for _, ledger_info in read_values(record, (1,)):
        fields = read_values(ledger_info, _DATA_FIELDS) if isinstance(ledger_info, bytes) else []
        numbers = {number: value for number, value in fields if isinstance(value, int)}
        if 1 not in numbers:
            raise BadRecord("a record without ledgerId")
        stamp, offloaded = None, False
        if len(fields) > len(numbers):
            inside = read_fields(ledger_info) if isinstance(ledger_info, bytes) else []
            stamp = _properties(inside, _LEDGER_PROPERTIES).get(STAMP_PROPERTY)
            offloaded = any(varint_of(read_fields(each), _DELETED) for each in contents_of(inside, _OFFLOAD))
        positions.append(DataLedgerPosition(numbers[1], stamp, offloaded, numbers.get(_CLOSED_AT) or None))
    return tuple(positions)


def _read_uncompressed(record: bytes) -> list[Field]:
    _require_uncompressed(record)
    return read_fields(record)


def _require_uncompressed(record: bytes) -> None:
    if record[:2] == _COMPRESSED:
        raise BadRecord(
            "compressed metadata: turn managedCursorInfoCompressionType and managedLedgerInfoCompressionType off in "
            "the brokers, and load the topic again"
        )


def _required_number(fields: list[Field], number: int, name: str) -> int:
    if (value := varint_of(fields, number)) is None:
        raise BadRecord(f"a record without {name}")
    return value


def _properties(fields: list[Field], number: int) -> dict[str, str]:
    return dict(_property(content) for content in contents_of(fields, number))


def _position_numbers(fields: list[Field]) -> dict[str, str]:
    numbers = {}
    for content in contents_of(fields, _POSITION_NUMBERS):
        inside = read_fields(content)
        try:
            [name] = contents_of(inside, 1)
            numbers[name.decode()] = str(_required_number(inside, 2, "value"))
        except ValueError:
            raise BadRecord("a property of a position that is not a name and a number") from None
    return numbers


def _property(content: bytes) -> tuple[str, str]:
    fields = read_fields(content)
    try:
        [name], [value] = contents_of(fields, 1), contents_of(fields, 2)
        return name.decode(), value.decode()
    except ValueError:
        raise BadRecord("a property that is not a name and a value") from None


def _with_property(fields: list[Field], number: int, value: str | None) -> bytes:
    """Return the encoded fields with this stamp, or without any if `value` is None.

    It replaces the first stamp, or goes where Pulsar's encoders put it: after all lower and equal field numbers.
    """
    stamps = [
        index
        for index, part in enumerate(fields)
        if part.number == number and _property(part.content)[0] == STAMP_PROPERTY
    ]
    end = max((index + 1 for index, part in enumerate(fields) if part.number <= number), default=0)
    position = stamps[0] if stamps else end
    stamp = []
    if value is not None:
        content = content_field(1, STAMP_PROPERTY.encode()).raw + content_field(2, value.encode()).raw
        stamp = [content_field(number, content)]
    after = [part for index, part in enumerate(fields) if index >= position and index not in stamps]
    return join_fields([*fields[:position], *stamp, *after])
