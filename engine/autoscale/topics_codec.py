"""Byte format of the stored part `topics`.

Stage: between `engine.autoscale.topics` and the store. The part is a base and a log of the topics that each batch
changed. An entry is a version byte, two sizes, and compressed: a header in JSON, and its topics in MessagePack, of
which a hundred thousand decode in half a second. Up to version 4 topics were JSON
(`engine.autoscale.topics_codec_v4`).
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pydantic_core

from engine.autoscale.topics import BucketState, ConfiguredPolicy, PolicySender, TopicEnd, TopicState
from engine.autoscale.topics_codec_v4 import LAST_JSON, unpack_entry_v4
from engine.kernel.packed import StateError, StoredPart

STATE_VERSION = 5
_CODEC = "zstd"
_SIZES = struct.Struct(">II")
"""Uncompressed sizes of an entry's header and of the topics after it."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[TopicState]).decode


class TopicsPart:
    """Stored part as the kernel handles it."""

    def __init__(self, state: BucketState) -> None:
        self._state = state

    @property
    def is_changed(self) -> bool:
        """True if the stored form lacks some changes."""
        return self._state.is_changed

    def pack(self) -> bytes:
        """Pack everything as a base."""
        return pack_topics(self._state)

    def pack_changes(self) -> bytes:
        """Pack the changes since the last call of this or of `pack` as a log entry."""
        return pack_topic_changes(self._state)


def pack_topics(state: BucketState) -> bytes:
    """Pack everything as a base."""
    packed = _write_entry(state, [], state.topics.values(), {})
    state.forget_changes()
    return packed


def pack_topic_changes(state: BucketState) -> bytes:
    """Pack the changes since the last call of this or of `pack_topics` as a log entry."""
    changed = sorted(state.changed)
    removed = [name for name in changed if name not in state.topics]
    held = {name: state.topics[name] for name in sorted(state.held - state.changed)}
    only_held = {name: (topic.hold_gate, topic.hold_seq) for name, topic in held.items()}
    packed = _write_entry(state, removed, [state.topics[name] for name in changed if name in state.topics], only_held)
    state.forget_changes()
    return packed


def unpack_topics(part: StoredPart) -> BucketState:
    """Unpack a stored part; raises `StateError` for a newer version or damaged bytes."""
    state = BucketState()
    for entry in ([part.base] if part.base else []) + list(part.log):
        fields, topics = _unpack_entry(entry)
        state.cluster_policy, state.namespace_policies = fields["cluster"], fields["namespaces"]
        configured = fields.get("configured")
        state.configured = None if configured is None else ConfiguredPolicy(*configured)
        state.policy_senders = {
            name: _read_sender(packed_sender) for name, packed_sender in fields.get("policySenders", {}).items()
        }
        state.ended = {name: TopicEnd(*ended) for name, ended in fields.get("ended", {}).items()}
        for name, sender in fields.get("deletedBy", {}).items():
            state.ended.setdefault(name, TopicEnd(0, None, sender, None))
        for name, (gate, seq) in fields.get("held", {}).items():
            topic = state.topics[name]
            topic.hold_gate, topic.hold_seq, topic.observed_at = gate, seq, None
        for name in fields.get("gone", ()):
            state.topics.pop(name, None)
        state.topics.update((topic.name, topic) for topic in topics)
    state.without_layout = sum(topic.known is None for topic in state.topics.values())
    return state


def _unpack_entry(packed: bytes) -> tuple[dict[str, Any], list[TopicState]]:
    """Return the header of an entry and its topics."""
    version = packed[0]
    if not 1 <= version <= STATE_VERSION:
        raise StateError(
            f"state version {version}, this code reads up to {STATE_VERSION}: run the release that wrote it"
        )
    if version <= LAST_JSON:
        return unpack_entry_v4(packed)
    try:
        header, topics = _SIZES.unpack_from(packed, 1)
        plain = pa.decompress(packed[1 + _SIZES.size :], header + topics, _CODEC, asbytes=True)
        return pydantic_core.from_json(plain[:header]), _decode(plain[header:])
    except (struct.error, OSError, ValueError, msgspec.MsgspecError) as error:
        raise StateError(f"the state of a bucket is damaged: {error}") from error


def _read_sender(stored: int | list[int]) -> PolicySender:
    """Return a stored sender; up to version 3 without a time."""
    return PolicySender(stored, 0) if isinstance(stored, int) else PolicySender(*stored)


def _write_entry(
    state: BucketState, removed: list[str], topics: Iterable[TopicState], held: Mapping[str, tuple[str | None, int]]
) -> bytes:
    header = pydantic_core.to_json(
        {
            "cluster": state.cluster_policy,
            "namespaces": state.namespace_policies,
            "gone": removed,
            **({"held": held} if held else {}),
            "policySenders": state.policy_senders,
            "ended": state.ended,
            **({} if state.configured is None else {"configured": state.configured}),
        }
    )
    packed = _encode(list(topics))
    sizes = _SIZES.pack(len(header), len(packed))
    compressed: bytes = pa.compress(header + packed, _CODEC, asbytes=True)
    return bytes([STATE_VERSION]) + sizes + compressed
