"""Validation of repeated layouts' digests, entry by entry, and their distribution to buckets.

Stage: in the job, before the shuffle (`engine.kernel.packing`), behind `schemas.kafka.messages`.
"""

import re
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
from pydantic_core import to_json

from schemas.base import MAX_SEGMENT_ID
from schemas.codecs.bulk_columns import topic_hashes
from schemas.codecs.columns import Ints, RefusedItem, is_topic
from schemas.codecs.known_layouts import LayoutEntry, columns_json
from schemas.kafka.messages import DIGEST_PATTERN, LayoutsKnown, RejectReason

MAX_REFUSED_BYTES = 2048
"""Bytes kept of a refused entry; a valid topic name takes at most half of them."""


def shared_out(message: LayoutsKnown, buckets: int) -> tuple[dict[int, bytes], list[RefusedItem]]:
    """Split a message by bucket, each part in JSON; also return its refused entries. Total: never raises."""
    columns, hashes, refused = _judge_entries(message)
    if not len(hashes):
        return {}, refused
    bucket = np.mod(hashes, buckets)
    order = np.argsort(bucket, kind="stable")
    ends = np.flatnonzero(np.diff(bucket[order])) + 1
    parts = {}
    for rows in np.split(order, ends):
        chosen: list[int] = rows.tolist()
        topics, epochs, digests = ([column[row] for row in chosen] for column in columns)
        parts[int(bucket[chosen[0]])] = columns_json(topics, epochs, digests, message.at, message.sender)
    return parts, refused


def nothing_of(message: LayoutsKnown) -> bytes:
    """Return the message without entries, in JSON."""
    return columns_json([], [], [], message.at, message.sender)


_DIGEST_LENGTH = 32
_is_digest = re.compile(DIGEST_PATTERN.replace("$", r"\Z")).match
_are_hexadecimal = re.compile("[0-9a-f]*").fullmatch


def _judge_entries(message: LayoutsKnown) -> tuple[Sequence[list[Any]], Ints, list[RefusedItem]]:
    """Return the valid entries in columns, their hashes (`columns.hash_of`), and the refused ones."""
    columns = (message.topics, message.epochs, message.digests)
    if (hashes := _hashes_of_good(message)) is not None:
        return columns, hashes, []
    faults = [_fault_of(*entry) for entry in zip(*columns, strict=True)]
    refused = [
        _refuse_entry(index, fault, LayoutEntry(*entry))
        for index, (*entry, fault) in enumerate(zip(*columns, faults, strict=True))
        if fault is not None
    ]
    good = [list(compress(column, (fault is None for fault in faults))) for column in columns]
    good_hashes = topic_hashes(good[0])
    assert good_hashes is not None, "each name was found to be a topic's"
    return good, good_hashes, refused


def _hashes_of_good(message: LayoutsKnown) -> Ints | None:
    """Validate all entries at once; None if one is bad."""
    topics, epochs, digests = message.topics, message.epochs, message.digests
    kinds: Sequence[tuple[list[Any], type]] = ((topics, str), (epochs, int), (digests, str))
    if any(set(map(type, column)) - {kind} for column, kind in kinds):
        return None
    if set(map(len, digests)) - {_DIGEST_LENGTH} or not _are_hexadecimal("".join(digests)):
        return None
    if epochs and not 0 <= min(epochs) <= max(epochs) <= MAX_SEGMENT_ID:
        return None
    return topic_hashes(topics)


def _fault_of(topic: Any, epoch: Any, digest: Any) -> str | None:
    if not isinstance(topic, str) or not is_topic(topic):
        return "topic is not topic://tenant/namespace/name"
    if type(epoch) is not int or not 0 <= epoch <= MAX_SEGMENT_ID:
        return f"epoch is not an integer from 0 to {MAX_SEGMENT_ID}"
    if not isinstance(digest, str) or not _is_digest(digest):
        return "digest is not 32 hexadecimal digits"
    return None


def _refuse_entry(index: int, fault: str, entry: LayoutEntry) -> RefusedItem:
    raw = to_json(entry._asdict(), inf_nan_mode="constants")[:MAX_REFUSED_BYTES]
    return RefusedItem(index, RejectReason.INVALID, f"entry {index}: {fault}", raw)
