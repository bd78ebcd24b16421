"""Engine cost of a tick: one bucket of ten-segment topics, in one process without Spark or broker.

Run as `python -m benchmarks.ticks [--quick]`: prints a table and writes benchmarks/ticks.json. A job has 16 buckets, so
6,250 topics a bucket are a fleet of 100,000, and 62,500 one of a million. Each number of topics has a process of its
own, and another one for what comes after a restart, a worker with eight such buckets: its memory is that of the state,
decoded and evaluated. Seconds are those of the processor for one bucket; a tick includes its output as bytes. Unpacking
includes that the columns of the fleet are laid out.
"""

import gc
import json
import os
import pickle
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.engine import arrow_batch, stored_after, stored_bytes
from benchmarks.processes import apart, resident_kb
from benchmarks.record import print_row, publish, quick_command
from decisions.topic.layout import SegmentLayout
from engine.families import bucket_engine, bucket_packer, unpack_rows
from engine.kernel.packed import Packed
from engine.kernel.records import RawRecord
from engine.kernel.settings import EngineSettings
from schemas.kafka.messages import LayoutEvent

SIZES = (1_000, 6_250, 62_500)
SEGMENTS = 10
BUCKETS_A_WORKER = 8
NOW = 1_763_660_000_000
MINUTE = 60_000
_AT_ONCE = 5_000
_POLICY = {"v": 1, "type": "policy", "scope": "cluster", "profile": "default", "policy": None, "at": NOW}


@quick_command
def main(quick: bool) -> None:
    """Measures each size in a process of its own, prints, writes."""
    rows = []
    for topics in SIZES[:-1] if quick else SIZES:
        with tempfile.NamedTemporaryFile() as file:
            rows.append(apart(measure, topics, file.name))
            after = apart(measure_after, file.name)
        rows[-1]["seconds"] |= after["seconds"]
        rows[-1] |= {f"{name}_per_topic": after[name] / topics for name in ("memory", "stored")}
        print_row(rows[-1])
    publish("ticks", {"segments": SEGMENTS, "cores": os.cpu_count(), "rows": rows}, quick)


def measure(topics: int, file: str) -> dict[str, Any]:
    """One bucket through all steps but those after a restart; the file has its state then."""
    bucket = _Bucket(Packed())
    bucket.batch(NOW, [_record(0, "*", _POLICY)])
    layouts = list(_layouts(topics))
    seconds = {"layouts": bucket.all(NOW + 1, layouts)}
    del layouts
    seconds["first tick"] = bucket.tick(NOW + MINUTE)
    bucket.all(NOW + 2 * MINUTE, _samples(topics, 5_000.0, NOW + 2 * MINUTE))
    seconds["every hold"] = bucket.tick(NOW + 2 * MINUTE + 1)
    held, bytes_of_holds = bucket.holds, bucket.bytes_of_holds
    seconds["steady tick"] = min(bucket.tick(NOW + 2 * MINUTE + number) for number in range(2, 6))
    Path(file).write_bytes(pickle.dumps(bucket.packed))
    return {"topics": topics, "seconds": seconds, "holds": held, "bytes_per_hold": bytes_of_holds / held}


def measure_after(file: str) -> dict[str, Any]:
    """Measure a worker that takes over a stored bucket, and as many like it as a state partition has."""
    before, measured = resident_kb(os.getpid()), []
    for _ in range(BUCKETS_A_WORKER):
        bucket = _Bucket(pickle.loads(Path(file).read_bytes()))
        stored = stored_bytes(bucket.packed)
        unpacking = bucket.batch(NOW + 3 * MINUTE, [])
        bucket.packed = Packed(bucket.packed.fingerprint)
        measured.append((bucket, unpacking, bucket.tick(NOW + 3 * MINUTE + 1)))
        bucket.packed = Packed(bucket.packed.fingerprint)
        gc.collect()
        gc.freeze()
    seconds = {"unpacking": min(entry[1] for entry in measured), "tick after": min(entry[2] for entry in measured)}
    return {"seconds": seconds, "memory": (resident_kb(os.getpid()) - before) * 1024 / len(measured), "stored": stored}


class _Bucket:
    """A bucket, its store, and the worker that has it decoded."""

    def __init__(self, packed: Packed) -> None:
        self._packer, self.packed = bucket_packer(1), packed
        self._engine = bucket_engine(EngineSettings(0.25, MINUTE))
        self.holds = self.bytes_of_holds = 0

    def tick(self, now: int) -> float:
        return self.batch(now, [_record(now, "*", {"v": 1, "type": "tick", "at": now})])

    def all(self, now: int, records: Any) -> float:
        """Batch after batch; processor seconds."""
        spent, waiting = 0.0, []
        for record in records:
            waiting.append(record)
            if len(waiting) == _AT_ONCE:
                spent += self.batch(now, waiting)
                waiting = []
        return spent + self.batch(now, waiting)

    def batch(self, now: int, records: list[RawRecord]) -> float:
        """One batch; processor seconds of the engine."""
        packed, further = self._unpacked(now, records)
        gc.disable()
        started = time.process_time()
        written, output = self._engine.run(0, self.packed, packed, now, *further)
        bodies = output.bodies()
        spent = time.process_time() - started
        gc.enable()
        self.holds, self.bytes_of_holds = output.counts.holds, len(bodies.get("holds", b""))
        self.packed = stored_after(self.packed, written)
        return spent

    def _unpacked(self, now: int, records: list[RawRecord]) -> tuple[Any, tuple[Any, ...]]:
        if not records:
            return [], ()
        batches = self._packer(iter([arrow_batch([(*record[:7], now, 0) for record in records])]))
        rows = [row for batch in batches for row in batch.to_pylist()]
        packed, *further = unpack_rows([row["kind"] for row in rows], [row["body"] for row in rows])
        return packed, tuple(further)


def _layouts(topics: int) -> Iterator[RawRecord]:
    layout = SegmentLayout.create(SEGMENTS, NOW - MINUTE).to_metadata()
    body = LayoutEvent(v=1, type="layout", topic=_name(0), cause="created", layout=layout, at=NOW).to_json()
    for number in range(topics):
        yield _raw("control-events", number, _name(number), body.replace(_name(0), _name(number)).encode())


def _samples(topics: int, rate: float, sampled_at: int) -> Iterator[RawRecord]:
    """Rates that are all different, as a compression finds them in service."""
    random = Random(7)
    for number in range(topics):
        segments = []
        for segment in range(SEGMENTS):
            messages, size, fan_out = rate * random.uniform(0.9, 1), random.uniform(500, 1_000), random.uniform(1, 2)
            rates = {
                "msgRateIn": messages,
                "bytesRateIn": messages * size,
                "msgRateOut": messages * fan_out,
                "bytesRateOut": messages * size * fan_out,
            }
            segments.append({"id": segment, **rates})
        body = {"v": 1, "topic": _name(number), "reporter": "broker-1", "sampledAt": sampled_at, "segments": segments}
        yield _raw("segment-stats", number, _name(number), json.dumps(body, separators=(",", ":")).encode())


def _record(offset: int, key: str, body: dict[str, Any]) -> RawRecord:
    return _raw("control-events", offset, key, json.dumps(body).encode())


def _raw(source: str, offset: int, key: str, value: bytes) -> RawRecord:
    return RawRecord(source, key.encode(), value, len(value), 0, offset, NOW, True)


def _name(number: int) -> str:
    return f"topic://acme/shop/orders-{number:07}"


if __name__ == "__main__":
    main()
