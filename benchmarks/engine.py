"""The engine and the stage before it, without Spark and broker: CPU time a sample, in one process.

Run as `python -m benchmarks.engine [--quick]`: prints a table and writes benchmarks/engine.json. A fleet's rounds of
samples go through the packer and then, bucket by bucket, through the engine, as bytes between the two. Each figure is
the best of several rounds, because the machine has other work. The engine's part is unpacking, routing, filtering,
storing, counting and recording, and packing what has changed of the state; nothing is evaluated.
"""

import gc
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from benchmarks.fleet import BenchmarkFleet, InColumns
from benchmarks.record import machine_now, print_row, publish, quick_command
from engine.families import bucket_engine, bucket_packer, unpack_rows
from engine.kernel.packed import Packed, StoredPart, Written, WrittenPart
from engine.kernel.records import RAW_SCHEMA
from engine.kernel.settings import EngineSettings
from schemas.codecs.columns import hash_of
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import PolicyEvent
from schemas.kafka.topics import CONTROL_EVENTS, SEGMENT_STATS

BUCKETS = 16
ROUNDS = 4
NOW = 1_763_660_000_000
_PERIOD_MS = 10_000
_ROWS = 10_000
"""Of the Arrow batches that Spark hands over, with at most `_BYTES`."""
_BYTES = 8 * 1024 * 1024
_LAYOUTS = 50_000
"""Of a batch."""
_INPUT = pa.schema(
    [*(column for column in RAW_SCHEMA if column.name != "home"), ("now", pa.int64()), ("bucket", pa.int32())]
)


@dataclass(frozen=True)
class EngineCase:
    """A fleet, and how it reports."""

    segments: int
    """Of all topics together."""
    of_each: int
    """Of a topic."""
    reporters: int
    """Of a topic in form 1; brokers in columns."""
    significant: float = 0.1
    rounds: int = 1
    """That a batch has: more than one is what a job sees that catches up."""
    per_message: int = 0
    """Samples of a message in columns; 0: form 1."""

    def named(self) -> dict[str, Any]:
        """Return the case as columns of the table."""
        return {
            "segments": self.segments,
            "of a topic": self.of_each,
            "reporters": self.reporters,
            "significant": self.significant,
            "rounds": self.rounds,
            "form": f"columns of {self.per_message}" if self.per_message else "by topic",
        }


SMALL, LARGE = 100_000, 1_000_000
CASES = (
    *(EngineCase(SMALL, 10, reporters) for reporters in (1, 3, 10)),
    EngineCase(SMALL, 1, 1),
    *(EngineCase(SMALL, of_each, 10, per_message=size) for size, of_each in ((1_000, 10), (1_000, 1), (64, 1))),
    EngineCase(SMALL, 10, 10, significant=1.0, per_message=1_000),
    EngineCase(SMALL, 10, 10, rounds=10, per_message=1_000),
    EngineCase(LARGE, 10, 10, per_message=1_000),
)


@dataclass
class Run:
    """A fleet's job: all buckets of it."""

    case: EngineCase
    stored: dict[int, Packed] = field(default_factory=dict)
    offset: int = 0

    def __post_init__(self) -> None:
        case = self.case
        self.fleet = BenchmarkFleet(
            case.segments // case.of_each, case.of_each, case.significant, reporters=case.reporters
        )
        self.form = InColumns(case.reporters, case.per_message) if case.per_message else None
        self.packer, self.engine = bucket_packer(BUCKETS), bucket_engine(EngineSettings(0.25, 60_000))
        policy = PolicyEvent(v=1, type="policy", scope="cluster", profile="default", policy=None, at=1)
        self.take(CONTROL_EVENTS.name, [(EVERY_TOPIC, policy.to_json().encode())], NOW)
        layouts, self.layouts = self.fleet.layouts(), 0.0
        """CPU seconds of all first layouts."""
        while some := list(islice(layouts, _LAYOUTS)):
            self.layouts += sum(self.take(CONTROL_EVENTS.name, some, NOW))

    def take(self, source: str, messages: Iterable[tuple[str, bytes]], now: int) -> tuple[float, float]:
        """A batch of messages; the CPU seconds of the packer and of the engine."""
        batches = list(self._batches(source, messages, now))
        packed: dict[int, tuple[list[str], list[bytes]]] = {}
        gc.collect()
        began = time.process_time()
        rows = [part for batch in batches for part in self.packer(iter([batch]))]
        packing = time.process_time() - began
        for part in rows:
            cells = (part.column(name).to_pylist() for name in ("bucket", "kind", "body"))
            for bucket, kind, body in zip(*cells, strict=True):
                kinds, bodies = packed.setdefault(bucket, ([], []))
                kinds.append(kind)
                bodies.append(body)
        gc.disable()
        began = time.process_time()
        for bucket, (kinds, bodies) in packed.items():
            before = self.stored.get(bucket, Packed())
            records, *further = unpack_rows(kinds, bodies)
            written, output = self.engine.run(bucket, before, records, now, *further)
            self.stored[bucket] = Packed(written.fingerprint)
            del output
        engine = time.process_time() - began
        gc.enable()
        return packing, engine

    def round(self, number: int) -> tuple[float, float]:
        """The CPU seconds of a batch's rounds."""
        began_at = NOW + number * self.case.rounds * _PERIOD_MS
        several = [began_at + each * _PERIOD_MS for each in range(self.case.rounds)]
        messages = (
            message for sampled_at in several for message in self.fleet.round(sampled_at, *filter(None, [self.form]))
        )
        return self.take(SEGMENT_STATS.name, messages, several[-1])

    def _batches(self, source: str, messages: Iterable[tuple[str, bytes]], now: int) -> Iterable[pa.RecordBatch]:
        rows: list[tuple[Any, ...]] = []
        size = 0
        for key, value in messages:
            if rows and (len(rows) == _ROWS or size + len(value) > _BYTES):
                yield arrow_batch(rows)
                rows, size = [], 0
            bucket = hash_of(key) % BUCKETS
            rows.append((source, key.encode(), value, len(value), 0, self.offset, now, now, bucket))
            self.offset += 1
            size += len(value)
        if rows:
            yield arrow_batch(rows)


def arrow_batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Raw rows of Kafka as Spark hands them over, each with an instant and its bucket."""
    cells = zip(zip(*rows, strict=True), _INPUT, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(column, schema.type) for column, schema in cells], schema=_INPUT)


def stored_after(before: Packed, written: Written) -> Packed:
    """What a store has of a bucket once a batch is written to it."""
    parts = dict(before.parts)
    for name, new in written.parts.items():
        old, change = parts.get(name, StoredPart()), new or WrittenPart()
        if change.base is not None:
            parts[name] = StoredPart(change.base)
        elif change.entry is not None:
            parts[name] = StoredPart(old.base, (*old.log, change.entry))
    return Packed(written.fingerprint, parts)


def stored_bytes(packed: Packed) -> int:
    """Size of what a store has of a bucket."""
    return sum(len(part.base) + sum(map(len, part.log)) for part in packed.parts.values())


def measure(case: EngineCase, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return microseconds of CPU per sample: the first round, then the best of `rounds` further ones."""
    run = Run(case)
    (_, first), *further = [run.round(number) for number in range(rounds + 1)]
    samples = case.segments * case.rounds
    packing, engine = (min(seconds) / samples * 1e6 for seconds in zip(*further, strict=True))
    return {**case.named(), "packer": packing, "engine": engine, "engine, first": first / samples * 1e6}


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    rows = []
    for case in CASES:
        if not quick or case.segments <= SMALL:
            rows.append(measure(case, 2 if quick else ROUNDS))
            print_row(rows[-1])
    publish("engine", {"machine": machine_now(), "buckets": BUCKETS, "microseconds a sample": rows}, quick)


if __name__ == "__main__":
    main()
