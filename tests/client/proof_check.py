"""Checker of `tests.client.proof`: knows every message from the records of all processes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

KINDS = ("stream", "queue", "checkpoint")
Line = dict[str, Any]


@dataclass
class Verdict:
    """Counts of messages; those of consumers by kind, and of checkpoint consumers, which read everything, summed."""

    produced: int = 0
    """Acknowledged by Kafka."""
    consumed: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    out_of_order: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """Where lost messages are: a consumer has not come so far, or has passed over them."""

    @property
    def is_unread(self) -> bool:
        """Return whether consumers may read more: those of a kind that none has left with a fault."""
        return any(self.lost[kind] and not any(f.startswith(f"{kind}:") for f in self.faults) for kind in KINDS)

    @property
    def is_right(self) -> bool:
        """Return whether everything arrived, in order where it has to."""
        return not (self.faults or self.lost.total() or self.out_of_order.total())

    def __str__(self) -> str:
        lines = [f"{self.produced} produced and acknowledged", *self.faults[:20]]
        lines += (
            f"{kind}: {self.consumed[kind]} consumed, {self.lost[kind]} lost, "
            f"{self.out_of_order[kind]} out of order, {self.duplicates[kind]} duplicates"
            for kind in KINDS
            if kind in self.consumed
        )
        return "\n".join(lines + self.losses)


def read_lines(file: Path) -> list[Line]:
    """Return the lines of a record; the last one of a killed process may be incomplete."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


def check(records: dict[str, list[list[Line]]]) -> Verdict:
    """Judge the records of all processes, by kind: `producer` and those of `KINDS`."""
    verdict = Verdict()
    lines = [(kind, line) for kind, processes in records.items() for process in processes for line in process]
    verdict.faults = [f"{kind}: {line['fault']}" for kind, line in lines if "fault" in line]
    acknowledged: Counter[str] = Counter()
    produced: dict[str, int] = {}
    for kind, line in lines:
        if kind == "producer":
            for key, count in line.get("acknowledged", {}).items():
                acknowledged[key] = max(acknowledged[key], count)
            produced |= line.get("produced", {})
    for key, count in produced.items():
        if acknowledged[key] != count:
            verdict.faults.append(f"{key}: {count} produced, {acknowledged[key]} acknowledged")
    verdict.produced = acknowledged.total()
    stored = _last_offsets([line for kind, line in lines if kind == "producer"], "stored")
    for kind in KINDS:
        processes = records.get(kind, [])
        # The consumers of a subscription share its messages; each checkpoint consumer reads all of them.
        for group in [[process] for process in processes] if kind == "checkpoint" else [processes] if processes else []:
            lines_of_group = [line for process in group for line in process]
            lost = verdict.lost[kind]
            _check_group(verdict, kind, lines_of_group, acknowledged)
            if verdict.lost[kind] > lost:
                verdict.losses += _unread_segments(kind, stored, _last_offsets(lines_of_group, "read"))
    return verdict


def _last_offsets(lines: Iterable[Line], name: str) -> dict[str, int]:
    """Return the greatest recorded offset of each segment."""
    offsets: dict[str, int] = {}
    for line in lines:
        for segment, offset in line.get(name, {}).items():
            offsets[segment] = max(offset, offsets.get(segment, -1))
    return offsets


def _unread_segments(kind: str, stored: dict[str, int], read: dict[str, int]) -> list[str]:
    """Return a sentence for each segment that was not read to its end, or for their lack."""
    behind = [segment for segment in sorted(stored, key=int) if read.get(segment, -1) < stored[segment]]
    unread = [f"{kind}: segment {id} read up to {read.get(id, -1)}, written up to {stored[id]}" for id in behind]
    return unread or [f"{kind}: every segment was read to its end, so messages were passed over"]


def _check_group(verdict: Verdict, kind: str, lines: Iterable[Line], acknowledged: Counter[str]) -> None:
    seen: dict[str, bytearray] = defaultdict(bytearray)
    received, lost = 0, verdict.lost[kind]
    for line in sorted((line for line in lines if "runs" in line), key=itemgetter("at")):
        for key, first, last in line["runs"]:
            numbers = seen[key]
            received += last + 1 - first
            if kind != "queue" and first > len(numbers):
                # The first delivery of a message comes after those of all messages of its key before it.
                verdict.out_of_order[kind] += 1
            numbers.extend(bytes(max(last + 1 - len(numbers), 0)))
            numbers[first : last + 1] = b"\x01" * (last + 1 - first)
    different = sum(numbers.count(1) for numbers in seen.values())
    verdict.consumed[kind] += different
    verdict.duplicates[kind] += received - different
    verdict.lost[kind] += sum(count - seen[key][:count].count(1) for key, count in acknowledged.items())
    # Beyond the acknowledged ones there may be some of a killed producer, but none without those before it.
    verdict.lost[kind] += sum(numbers[acknowledged[key] :].count(0) for key, numbers in seen.items())
    if verdict.lost[kind] > lost:
        short = [key for key, count in acknowledged.items() if len(seen[key]) < count]
        passed = [key for key, numbers in seen.items() if numbers.count(0)]
        verdict.losses.append(f"{kind}: lost at the ends of {len(short)} keys, before later ones of {len(passed)} keys")
