"""Pulsar's records by the library of Protocol Buffers, from an independent description of their fields."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import strategies as st

_INT64, _STRING, _MESSAGE, _BYTES = 3, 9, 11, 12
_FIELDS: dict[str, dict[str, tuple[int, int, int | str]]] = {
    "StringProperty": {"name": (1, 2, _STRING), "value": (2, 2, _STRING)},
    "SchemaPosition": {
        "ledgerId": (1, 2, _INT64),
        "entryId": (2, 2, _INT64),
        "properties": (3, 3, "StringProperty"),
        "later": (9, 1, _BYTES),
    },
    "IndexEntry": {"version": (1, 2, _INT64), "position": (2, 2, "SchemaPosition"), "hash": (3, 2, _BYTES)},
    "SchemaLocator": {"info": (1, 2, "IndexEntry"), "index": (2, 3, "IndexEntry"), "later": (12, 1, _INT64)},
    "Nested": {"ledgerId": (1, 2, _INT64), "entryId": (2, 2, _INT64)},
    "Range": {"lower": (1, 2, "Nested"), "upper": (2, 2, "Nested")},
    "LedgerInfo": {"ledgerId": (1, 2, _INT64), "timestamp": (4, 1, _INT64), "properties": (6, 3, "StringProperty")},
    "ManagedLedgerInfo": {"ledgerInfo": (1, 3, "LedgerInfo")},
    "LongProperty": {"name": (1, 2, _STRING), "value": (2, 2, _INT64)},
    "ManagedCursorInfo": {
        "cursorsLedgerId": (1, 2, _INT64),
        "markDeleteLedgerId": (2, 1, _INT64),
        "markDeleteEntryId": (3, 1, _INT64),
        "holes": (4, 3, "Range"),
        "properties": (5, 3, "LongProperty"),
        "lastActive": (6, 1, _INT64),
        "cursorProperties": (8, 3, "StringProperty"),
        "later": (11, 1, _BYTES),
    },
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="records.proto", package="records", syntax="proto2")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, label, kind) in fields.items():
            added = message.field.add(name=field, number=number, label=label)
            added.type = _MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                added.type_name = f".records.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"records.{name}")) for name in _FIELDS}


MESSAGES = _classes()
IDS = st.integers(0, 12) | st.integers(0, 2**63 - 1)
NAMES = st.sampled_from(["_pulsar.bookieClusterName", "owner", "größe"])
_PROPERTIES = st.dictionaries(NAMES, st.text(max_size=5)).map(
    lambda found: [{"name": name, "value": value} for name, value in found.items()]
)


def made(name: str, **fields: Any) -> Any:
    """A message of that name; nested ones as dictionaries."""
    return MESSAGES[name](**{field: value for field, value in fields.items() if value is not None})


_POSITIONS = st.fixed_dictionaries(
    {"ledgerId": IDS, "entryId": IDS, "properties": _PROPERTIES}, optional={"later": st.binary(max_size=5)}
)
_ENTRIES = st.fixed_dictionaries({"version": IDS, "position": _POSITIONS, "hash": st.binary(max_size=9)})
LOCATORS = st.fixed_dictionaries(
    {"info": _ENTRIES, "index": st.lists(_ENTRIES, max_size=4)}, optional={"later": IDS}
).map(lambda fields: made("SchemaLocator", **fields))
_NESTED = st.fixed_dictionaries({"ledgerId": IDS, "entryId": IDS})
CURSORS = st.fixed_dictionaries(
    {
        "cursorsLedgerId": IDS | st.just(-1),
        "cursorProperties": _PROPERTIES,
        "holes": st.lists(st.fixed_dictionaries({"lower": _NESTED, "upper": _NESTED}), max_size=3),
    },
    optional={
        "markDeleteLedgerId": IDS,
        "markDeleteEntryId": IDS | st.just(-1),
        "lastActive": IDS,
        "later": st.binary(max_size=5),
    },
).map(lambda fields: made("ManagedCursorInfo", **fields))
