"""The state of topics as bytes and back: the stored part `topics`.

Stage: between `engine.autoscale.topics` and the store. A base, and a log with the topics that a batch changed; each
entry is a version byte, then length-prefixed JSON records, compressed. Names in the JSON are those of the first
release.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic_core

from decisions.autoscale.clocks import Cooldowns, Failures, OpenDecision
from engine.autoscale.layout_columns import LayoutColumns
from engine.autoscale.topics import BucketState, ConfiguredPolicy, Ended, Said, TopicState
from engine.kernel.packed import StateError, StoredPart

STATE_VERSION = 5
_LENGTH = struct.Struct(">I")


class TopicsPart:
    """The part as the kernel stores it."""

    def __init__(self, state: BucketState) -> None:
        self._state = state

    @property
    def is_changed(self) -> bool:
        """Whether the stored form does not hold everything yet."""
        return self._state.is_changed

    def pack(self) -> bytes:
        """All of it, as a base."""
        return pack_topics(self._state)

    def pack_changes(self) -> bytes:
        """What has changed since the last call of this or of `pack`, as an entry of the log."""
        return pack_topic_changes(self._state)


def pack_topics(state: BucketState) -> bytes:
    """All of it, as a base."""
    packed = _entry(state, [], state.topics.values(), {})
    state.forget_changes()
    return packed


def pack_topic_changes(state: BucketState) -> bytes:
    """What has changed since the last call of this or of `pack_topics`, as an entry of the log."""
    changed = sorted(state.changed)
    gone = [name for name in changed if name not in state.topics]
    held = {name: state.topics[name] for name in sorted(state.held - state.changed)}
    only_held = {name: (topic.hold_gate, topic.hold_seq) for name, topic in held.items()}
    packed = _entry(state, gone, [state.topics[name] for name in changed if name in state.topics], only_held)
    state.forget_changes()
    return packed


def unpack_topics(part: StoredPart) -> BucketState:
    """What was packed; raises `StateError` for a newer version or damaged bytes."""
    state = BucketState()
    for entry in ([part.base] if part.base else []) + list(part.log):
        header, *records = _records(entry)
        fields = pydantic_core.from_json(header)
        state.cluster_policy, state.namespace_policies = fields["cluster"], fields["namespaces"]
        configured = fields.get("configured")
        state.configured = None if configured is None else ConfiguredPolicy(*configured)
        state.policy_senders = {name: _said(said) for name, said in fields.get("policySenders", {}).items()}
        state.ended = {name: Ended(*ended) for name, ended in fields.get("ended", {}).items()}
        for name, sender in fields.get("deletedBy", {}).items():
            state.ended.setdefault(name, Ended(0, None, sender, None))
        for name, (gate, seq) in fields.get("held", {}).items():
            topic = state.topics[name]
            topic.hold_gate, topic.hold_seq, topic.observed_at = gate, seq, None
        for name in fields.get("gone", ()):
            state.topics.pop(name, None)
        for topic in map(unpack_topic, records):
            state.topics[topic.name] = topic
    state.without_layout = sum(topic.metadata_json is None for topic in state.topics.values())
    return state


def pack_topic(topic: TopicState) -> bytes:
    """One topic as a JSON record."""
    decision = topic.open_decision
    return pydantic_core.to_json({
        "name": topic.name,
        "created_at": topic.created_at,
        "since": topic.since,
        "heard_at": topic.heard_at,
        "consumers": topic.consumers,
        "last_split_at": topic.cooldowns.last_split_at,
        "last_merge_at": topic.cooldowns.last_merge_at,
        "merge_depths": topic.merge_depths,
        "failures": topic.failures.in_a_row,
        "failed_at": topic.failures.failed_at,
        "failed_action": topic.failures.action,
        "attempt_of": topic.attempt_of,
        "attempts": topic.attempts,
        "decision_seq": topic.decision_seq,
        "hold_seq": topic.hold_seq,
        "hold_gate": topic.hold_gate,
        "layout_sender": topic.layout_sender,
        "consumers_sender": topic.consumers_sender,
        "due": topic.due,
        "observed_at": topic.observed_at,
        "metadata": topic.metadata_json,
        "columns": None if topic.columns is None else topic.columns.stored(),
        "flight": None
        if decision is None
        else {
            "decision_id": decision.decision_id,
            "epoch": decision.epoch,
            "since": decision.since,
            "action": decision.action,
            "applied": decision.applied,
        },
    })  # fmt: skip


def unpack_topic(packed: bytes) -> TopicState:
    """The inverse of `pack_topic`; fields that a former release did not have are as in a new topic."""
    record: dict[str, Any] = pydantic_core.from_json(packed)
    decision, columns = record.pop("flight"), record.pop("columns", None)
    return TopicState(
        metadata_json=record.pop("metadata"),
        columns=None if columns is None else LayoutColumns.of_stored(columns),
        consumers={name: (kind, count) for name, (kind, count) in record.pop("consumers").items()},
        cooldowns=Cooldowns(record.pop("last_split_at"), record.pop("last_merge_at")),
        merge_depths={int(key): depth for key, depth in record.pop("merge_depths").items()},
        failures=Failures(record.pop("failures"), record.pop("failed_at"), record.pop("failed_action")),
        open_decision=None if decision is None else OpenDecision(**decision),
        **record,
    )


def _said(stored: int | list[int]) -> Said:
    """Up to version 3 it was not kept when."""
    return Said(stored, 0) if isinstance(stored, int) else Said(*stored)


def _entry(
    state: BucketState, gone: list[str], topics: Iterable[TopicState], held: Mapping[str, tuple[str | None, int]]
) -> bytes:  # fmt: skip
    header = {
        "cluster": state.cluster_policy,
        "namespaces": state.namespace_policies,
        "gone": gone,
        **({"held": held} if held else {}),
        "policySenders": state.policy_senders,
        "ended": state.ended,
        **({} if state.configured is None else {"configured": state.configured}),
    }
    parts: list[bytes] = []
    for record in (pydantic_core.to_json(header), *(pack_topic(topic) for topic in topics)):
        parts += (_LENGTH.pack(len(record)), record)
    return bytes([STATE_VERSION]) + zlib.compress(b"".join(parts), 1)


def _records(packed: bytes) -> list[bytes]:
    version = packed[0]
    if not 1 <= version <= STATE_VERSION:
        raise StateError(
            f"state version {version}, this code reads up to {STATE_VERSION}: run the release that wrote it"
        )
    try:
        plain = zlib.decompress(packed[1:]) if version > 1 else packed[1:]
    except zlib.error as error:
        raise StateError(f"the state of a bucket is damaged: {error}") from error
    records, at = [], 0
    while at < len(plain):
        if at + _LENGTH.size > len(plain):
            raise StateError(f"state is cut short at {at} of {len(plain)} bytes")
        (length,) = _LENGTH.unpack_from(plain, at)
        at += _LENGTH.size
        if at + length > len(plain):
            raise StateError(f"state is cut short: a record of {length} bytes at {at} of {len(plain)}")
        records.append(plain[at : at + length])
        at += length
    if not records:
        raise StateError("the state of a bucket holds no record, not even its header")
    return records
