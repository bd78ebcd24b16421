"""Random streams of raw records, and the digests of what an engine says to them and stores.

A stream is made in a closed loop: what the engine decides is applied, refused or left alone, and people split and merge
by hand. It is recorded, so that any engine can be run over it: `python -m tests.engine.streams TREE COUNT [FIRST]` does
so with that of another work tree (the release before this one, say) and compares every byte that is said, and those of
the stored loads. The stored topics differ: since the job's policy is a message they hold it. What the release before
said to the first streams is kept in `said.json` (`--record TREE`). Long, as all of it must start in the other tree too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

NOW = 1_763_660_000_000
MINUTE = 60_000
BUCKETS = 2
POLICY = ("default", '{"maxSegments":12,"splitMsgRateInThreshold":10000.0}')
SETTINGS = (0.25, 60_000)

Record = tuple[str, bytes | None, bytes | None, int, int]
"""Kafka topic, key, value, partition, offset."""


@dataclass
class Batch:
    """A micro-batch: its time, what was read, and whether the worker is another one than before."""

    now: int
    records: list[Record]
    restart: bool


@dataclass
class Tree:
    """The engine of one release: what it is called where, and one way to run it."""

    engine: Callable[[], Any]
    packer: Any
    unpack: Callable[..., Any]
    nothing: Callable[[], Any]
    stored: Callable[[Any, Any], Any]
    parts: Callable[[Any], Sequence[bytes | None]]


def this_tree() -> Tree:
    """The engine that can be imported here."""
    return _before_engine() if find_spec("streaming.engine") else _present()


def _before_engine() -> Tree:
    """Releases before `engine` was a folder."""
    from streaming.engine import BucketEngine, EngineSettings  # type: ignore[import-not-found]
    from streaming.packed import Packed  # type: ignore[import-not-found]
    from streaming.preparse import BucketPacker, unpack_bucket  # type: ignore[import-not-found]

    return Tree(
        lambda: BucketEngine(EngineSettings(*POLICY, *SETTINGS)),
        BucketPacker(BUCKETS),
        unpack_bucket,
        Packed,
        lambda before, written: _stored_in_two(Packed, before, written),
        _two_parts,
    )


def _present() -> Tree:
    from engine.autoscale.family import LOADS
    from engine.autoscale.topics import ConfiguredPolicy
    from engine.families import bucket_engine, bucket_packer, unpack_rows
    from engine.kernel.packed import WrittenPart
    from engine.kernel.settings import EngineSettings
    from tests.engine.buckets import knowing, stored

    def parts(written: Any) -> Sequence[bytes | None]:
        part = written.parts.get(LOADS, WrittenPart())
        return (part.base, part.entry)

    def nothing() -> Any:
        return knowing(ConfiguredPolicy(*POLICY), EngineSettings(*SETTINGS))  # type: ignore[arg-type]

    return Tree(
        lambda: bucket_engine(EngineSettings(*SETTINGS)), bucket_packer(BUCKETS), unpack_rows, nothing, stored, parts
    )


def _stored_in_two(packed: Any, before: Any, written: Any) -> Any:
    def log(entries: Sequence[bytes], base: bytes | None, entry: bytes | None) -> tuple[bytes, ...]:
        return () if base is not None else (*entries, *([] if entry is None else [entry]))

    return packed(
        written.fence,
        before.topics if written.topics is None else written.topics,
        before.loads if written.loads is None else written.loads,
        log(before.topics_log, written.topics, written.topics_entry),
        log(before.loads_log, written.loads, written.loads_entry),
    )


def _two_parts(written: Any) -> Sequence[bytes | None]:
    return (written.loads, written.loads_entry)


@dataclass
class Runner:
    """Both buckets of a job through the batches of a stream."""

    tree: Tree
    stored: dict[int, Any] = field(default_factory=dict)
    bases: int = 0
    """How often the loads' log outgrew its base."""

    def __post_init__(self) -> None:
        self.engine = self.tree.engine()
        self.digest = hashlib.blake2b(digest_size=16)
        """Of every byte that was said or is to be stored."""
        self.said = hashlib.blake2b(digest_size=16)
        """Of what was said, in a form that no library has a part in."""

    def take(self, batch: Batch) -> list[Any]:
        """One batch; answers the outputs of the buckets."""
        if batch.restart:
            self.engine = self.tree.engine()
        outputs = []
        for bucket, kinds, bodies in _packed(self.tree, batch):
            records, *others = self.tree.unpack(kinds, bodies)
            before = self.stored.get(bucket) or self.tree.nothing()
            written, output = self.engine.run(bucket, before, records, batch.now, *others)
            output.counts.operator_ms = 0.0
            self._add(written, output)
            if bucket in self.stored:
                parts = self.tree.parts(written)
                self.bases += parts[0] is not None
            self.stored[bucket] = self.tree.stored(before, written)
            outputs.append(output)
        return outputs

    def _add(self, written: Any, output: Any) -> None:
        rows = [] if output.loads is None else output.loads.to_pylist()
        letters = sorted(output.dead_letters, key=_place)
        holds = [{name: row[name] for name in _OF_A_HOLD} for row in output.holds]
        # What events say in columns since, their bodies said then.
        events = [{name: row[name] for name in _OF_AN_EVENT} for row in output.events]
        for kind in (output.decisions, holds, events, letters, output.due, rows):
            self.said.update(repr([_told(row) for row in kind]).encode())
        # A count that came later says nothing of streams that have none of it.
        counts = repr(output.counts).replace("samples_refused=0, ", "").replace(", layouts_unknown=0", "")
        self.said.update(counts.encode())
        for kind, body in sorted(output.bodies().items()):
            # What releases word, counts that came later, and rows that are columns now are in the other digest.
            self.digest.update(kind.encode() + (b"" if kind in ("counts", "dead_letters", "events", "holds") else body))
        for part in self.tree.parts(written):
            # Earlier releases stored that nothing had changed.
            self.digest.update(b"none" if part is None or _NOTHING in part else b"some" + part)


_NOTHING = b'{"names":[],"lengths":[%s]}' % b",".join([b"0"] * 13)
_SOURCES = ("control-events", "consumer-events", "segment-stats")


def _place(letter: Any) -> Any:
    source = letter["kafka_topic"]
    return (_SOURCES.index(source), letter["kafka_partition"], letter["kafka_offset"])


_OF_A_HOLD = (
    "family",
    "subject",
    "gate",
    "measured",
    "limit",
    "margin",
    "eligible_at",
    "trigger",
    "since",
    "layout_epoch",
    "policy_digest",
    "seq",
)
_OF_AN_EVENT = (
    "subject",
    "type",
    "cause",
    "body",
    "at",
    "kafka_topic",
    "kafka_partition",
    "kafka_offset",
    "kafka_timestamp",
    "accepted_at",
)


def _told(row: Any) -> Any:
    """A row without what a library or the release words."""
    if not hasattr(row, "items"):
        return row
    told = {k: v for k, v in row.items() if k not in ("detail", "engine_version", "raw_sha256")}
    for name in ("key", "raw"):
        if isinstance(told.get(name), str):  # a dead letter that the packer made
            told[name] = base64.urlsafe_b64decode(told[name])
    return sorted(told.items())


def _packed(tree: Tree, batch: Batch) -> list[tuple[int, list[str], list[bytes]]]:
    columns: dict[str, list[Any]] = {name: [] for name in _RAW.names}
    for source, key, value, partition, offset in batch.records:
        row = (
            source,
            key,
            value,
            -1 if value is None else len(value),
            partition,
            offset,
            batch.now - 700,
            batch.now,
            sum(key or b"") % BUCKETS,
        )
        for name, cell in zip(_RAW.names, row, strict=True):
            columns[name].append(cell)
    rows = pa.RecordBatch.from_pydict(columns, schema=_RAW)
    found: dict[int, tuple[list[str], list[bytes]]] = {}
    # In two halves: messages of one bucket come in several packed rows.
    middle = rows.num_rows // 2
    for part in tree.packer(iter([rows.slice(0, middle), rows.slice(middle)])):
        for row in part.to_pylist():
            kinds, bodies = found.setdefault(row["bucket"], ([], []))
            kinds.append(row["kind"])
            bodies.append(row["body"])
    return [(bucket, *found[bucket]) for bucket in sorted(found)]


_RAW = pa.schema(
    [
        ("source", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("size", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("now", pa.int64()),
        ("bucket", pa.int32()),
    ]
)


class Author:
    """Makes a stream up, one batch after the other, from a seed and from what was decided."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        large = seed % 4 == 0
        self._names = [f"topic://acme/{'shop' if n % 3 else 'bar'}/t{n}" for n in range(40 if large else 5)]
        self._width = 8 if large else 3
        self._count = 25 if large else 30
        self._layouts: dict[str, Any] = {}
        self._open: dict[str, dict[str, Any]] = {}
        self._policies: dict[str, Any] = {}
        self._offset = 0
        self._now = NOW

    def batches(self, run: Callable[[Batch], Iterable[Any]]) -> Iterator[Batch]:
        """All batches; `run` answers each one's outputs."""
        for number in range(self._count):
            self._now += self._random.choice([100, 1_000, 20_000, MINUTE, 4 * MINUTE, 6 * MINUTE])
            records = [*self._created()] if number == 0 else []
            for _ in range(self._random.randint(0, 9)):
                records += self._happens(self._random.choice(self._names))
            if self._random.random() < 0.6:
                records += [one for name in self._names for one in self._report(name)]
            if self._random.random() < 0.7:
                records.append(self._control(None, {"v": 1, "type": "tick", "at": self._now}))
            self._random.shuffle(records)
            if not records:
                continue
            batch = Batch(self._now, records, self._random.random() < 0.2)
            yield batch
            for output in run(batch):
                self._open |= {row["subject"]: row for row in output.decisions}

    def _created(self) -> Iterator[Record]:
        from decisions.topic.layout import SegmentLayout

        for name in self._names:
            self._layouts[name] = SegmentLayout.create(self._random.randint(1, self._width), self._now - MINUTE)
            yield self._layout(name, "created")

    def _happens(self, name: str) -> list[Record]:
        kind = self._random.choice(_KINDS)
        found: list[Record] = getattr(self, f"_{kind}")(name)
        return found

    def _record(self, source: str, key: str | None, value: Any) -> Record:
        body = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        self._offset += 1
        return (source, None if key is None else key.encode(), body, self._offset % 2, self._offset)

    def _control(self, topic: str | None, body: dict[str, Any]) -> Record:
        return self._record("control-events", topic or "*", body)

    def _sender(self) -> dict[str, int]:
        return self._random.choice([{}, {}, {"sender": 5}, {"sender": 6}])

    def _layout(self, name: str, cause: str) -> Record:
        metadata = json.loads(self._layouts[name].to_metadata().to_json())
        if name in self._policies:
            metadata["autoScalePolicy"] = self._policies[name]
        body = {"v": 1, "type": "layout", "topic": name, "cause": cause, "layout": metadata, "at": self._now}
        return self._control(name, body | self._sender())

    def _report(self, name: str) -> list[Record]:
        known = self._layouts.get(name)
        ids = [segment.segment_id for segment in known.active] if known else [0, 1]
        if self._random.random() < 0.05:
            ids = [*ids, max(ids) + self._random.choice([1, 70])]
        at = self._now - self._random.choice([0, 0, 0, 5_000, -2_000, 20 * MINUTE])
        return [self._stats(name, {i: self._rate() for i in ids}, at)]

    def _rate(self) -> float:
        return self._random.choice([0.0, 1.0, 1.2, 500.0, 999.0, 1_000.0, 1_200.0, 9_999.0, 10_001.0, 60_000.0])

    def _stats(self, name: str, rates: dict[int, float], at: int) -> Record:
        segments = [
            {"id": i, "msgRateIn": rate, "bytesRateIn": rate * 900, "msgRateOut": rate * 2, "bytesRateOut": 0.0}
            for i, rate in rates.items()
        ]
        body = {"v": 1, "topic": name, "reporter": "broker-1", "sampledAt": at, "segments": segments}
        return self._record("segment-stats", name, body)

    def _stats_alone(self, name: str) -> list[Record]:
        return self._report(name) * self._random.choice([1, 1, 2])

    def _future(self, name: str) -> list[Record]:
        return [self._stats(name, {0: 1.0}, self._now + 10 * MINUTE)]

    def _stranger(self, name: str) -> list[Record]:
        name = f"topic://acme/shop/stranger{self._random.randint(0, 9)}"
        count = self._random.choice([1, 3, 4_000])
        return [self._stats(name, dict.fromkeys(range(count), 5.0), self._now), *self._consumers(name)]

    def _consumers(self, name: str) -> list[Record]:
        body = {
            "v": 1,
            "topic": name,
            "subscription": self._random.choice(["billing", "audit"]),
            "type": self._random.choice(["STREAM", "QUEUE", "CHECKPOINT"]),
            "consumer": "c",
            "at": self._now,
            "event": self._random.choice(["registered", "unregistered", "snapshot", "deleted"]),
            "consumers": self._random.randint(0, 6),
        }
        return [self._record("consumer-events", name, body | self._sender())]

    def _outcome(self, name: str) -> list[Record]:
        decision = self._open.get(name)
        if decision is None:
            return self._by_hand(name)
        status = self._random.choice(["applied", "applied", "applied", "failed", "superseded", "rejected", "observed"])
        body = {
            "v": 1,
            "type": "outcome",
            "decisionId": decision["decision_id"],
            "topic": name,
            "at": self._now,
            "status": status,
        }
        told = [self._control(name, body)]
        if status == "applied" and self._apply(name, decision):
            told.append(self._layout(name, decision["action"]))
        return told if self._random.random() < 0.8 else told[::-1]

    def _apply(self, name: str, decision: dict[str, Any]) -> bool:
        known, segments = self._layouts.get(name), json.loads(decision["arguments"])["segments"]
        if known is None or not {segment.segment_id for segment in known.active}.issuperset(segments):
            return False
        split = decision["action"] == "split"
        self._layouts[name] = (
            known.split_segment(segments[0], self._now) if split else known.merge_segments(*segments, self._now)
        )
        return True

    def _by_hand(self, name: str) -> list[Record]:
        known = self._layouts.get(name)
        if known is None:
            return list(self._again(name))
        active, at = known.active, self._now - self._random.choice([0, 3_000, -9_000])
        if len(active) > 1 and self._random.random() < 0.5:
            place = self._random.randrange(len(active) - 1)
            pair = (active[place].segment_id, active[place + 1].segment_id)
            self._layouts[name] = known.merge_segments(*pair, at)
            return [self._layout(name, "merge")]
        if len(active) < 20:
            self._layouts[name] = known.split_segment(self._random.choice(active).segment_id, at)
        return [self._layout(name, "split")]

    def _pruned(self, name: str) -> list[Record]:
        known = self._layouts.get(name)
        sealed = [] if known is None else [one.segment_id for one in known.segments.values() if not one.is_active]
        if not sealed:
            return []
        self._layouts[name] = known.prune_segment(self._random.choice(sealed))
        return [self._layout(name, "prune")]

    def _again(self, name: str) -> Iterator[Record]:
        from decisions.topic.layout import SegmentLayout

        self._layouts[name] = SegmentLayout.create(self._random.randint(1, self._width), self._now)
        yield self._layout(name, "created")

    def _gone(self, name: str) -> list[Record]:
        if name not in self._layouts or self._random.random() < 0.5:
            return []
        told = self._layout(name, "deleted")
        del self._layouts[name]
        return [told]

    def _policy(self, name: str) -> list[Record]:
        override = self._random.choice(_OVERRIDES)
        kind = self._random.choice(["cluster", "namespace", "topic", "topic"])
        if kind == "topic":
            self._policies[name] = override
            return [self._layout(name, "policy")] if name in self._layouts else []
        body = {"v": 1, "type": "policy", "scope": kind, "policy": override, "at": self._now}
        if kind == "namespace":
            body["name"] = self._random.choice(["acme/shop", "acme/bar"])
        return [self._control(None, body | self._sender())]

    def _own_tick(self, name: str) -> list[Record]:
        return [self._control(name, {"v": 1, "type": "tick", "topic": name, "at": self._now})]

    def _garbage(self, name: str) -> list[Record]:
        source = self._random.choice(["segment-stats", "consumer-events", "control-events"])
        key = self._random.choice([name, "*", None])
        broken = b'{"v":1,"type":"layout","topic":"%s","cause":"split","at":1,"layout":{' % name.encode()
        gap = {"epoch": 9, "nextSegmentId": 3, "segments": {}, "properties": {}}
        bodies = [
            None,
            b"{",
            b"\xff",
            {"v": 9},
            {"v": 1, "type": "other"},
            broken,
            {"v": 1, "type": "layout", "topic": name, "cause": "split", "layout": gap, "at": 1},
        ]
        return [self._record(source, key, self._random.choice(bodies))]


_KINDS = (
    "stats_alone",
    "stats_alone",
    "consumers",
    "consumers",
    "outcome",
    "outcome",
    "outcome",
    "by_hand",
    "pruned",
    "pruned",
    "policy",
    "own_tick",
    "garbage",
    "gone",
    "future",
    "stranger",
)
_OVERRIDES = (
    None,
    {"enabled": False},
    {"mergeMsgRateInThreshold": 400.0},
    {"mergeMsgRateInThreshold": 2_000.0},
    {"maxSegments": 3, "minSegments": 2},
    {"thresholdCrossing": False},
    {"mergeWindowSeconds": 60},
    {"maxDagDepth": 1, "mergeCooldownSeconds": 0},
    {"splitMsgRateInThreshold": 1.0, "mergeMsgRateInThreshold": 5.0},
)


@dataclass
class Recorded:
    """A stream as it came out, and the digest of the engine that it was made with."""

    batches: list[Batch]
    digest: str
    said: str
    bases: int
    decisions: int


def recorded(seed: int) -> Recorded:
    """A new stream, by the engine of this tree."""
    runner, batches, decisions = Runner(this_tree()), [], 0

    def run(batch: Batch) -> list[Any]:
        nonlocal decisions
        outputs = runner.take(batch)
        decisions += sum(len(output.decisions) for output in outputs)
        return outputs

    for batch in Author(seed).batches(run):
        batches.append(batch)
    return Recorded(batches, runner.digest.hexdigest(), runner.said.hexdigest(), runner.bases, decisions)


def digests_of(batches: Iterable[Batch]) -> str:
    """The two digests of the engine of this tree over a recorded stream."""
    runner = Runner(this_tree())
    for batch in batches:
        runner.take(batch)
    return f"{runner.digest.hexdigest()} {runner.said.hexdigest()}"


def to_json(batches: Sequence[Batch]) -> str:
    """A stream as one line."""

    def cell(value: Any) -> Any:
        return {"b": base64.b64encode(value).decode()} if isinstance(value, bytes) else value

    rows = [[batch.now, batch.restart, [[cell(value) for value in one] for one in batch.records]] for batch in batches]
    return json.dumps(rows)


def from_json(line: str) -> list[Batch]:
    """The inverse of `to_json`."""

    def cell(value: Any) -> Any:
        return base64.b64decode(value["b"]) if isinstance(value, dict) else value

    return [
        Batch(now, [tuple(cell(value) for value in one) for one in records], restart)  # type: ignore[misc]
        for now, restart, records in json.loads(line)
    ]


def compare(tree: str, first: int, count: int) -> list[str]:
    """Runs the engine of another tree over new streams; raises `SystemExit` at the first difference.

    Answers the digests of what it said.
    """
    streams = [recorded(seed) for seed in range(first, first + count)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "streams.jsonl"
        file.write_text("".join(to_json(stream.batches) + "\n" for stream in streams))
        command = [sys.executable, str(Path(__file__).resolve()), "--replay", str(file)]
        environment = {**os.environ, "PYTHONPATH": tree}
        answered = subprocess.run(command, env=environment, cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
    digests = answered.stdout.splitlines()
    for seed, stream, other in zip(range(first, first + count), streams, digests, strict=True):
        if f"{stream.digest} {stream.said}" != other:
            raise SystemExit(f"stream {seed}: {tree} answers otherwise")
    batches, decisions = sum(len(one.batches) for one in streams), sum(one.decisions for one in streams)
    bases = sum(one.bases for one in streams)
    print(f"{count} streams, {batches} batches, {decisions} decisions, {bases} new bases: all the same")
    return [digest.split()[1] for digest in digests]


if __name__ == "__main__":
    if sys.argv[1] == "--replay":
        sys.path[0] = os.environ["PYTHONPATH"]
        for text in Path(sys.argv[2]).read_text().splitlines():
            print(digests_of(from_json(text)))
    elif sys.argv[1] == "--record":
        (Path(__file__).parent / "said.json").write_text(json.dumps(compare(sys.argv[2], 0, 8), indent=1) + "\n")
    else:
        compare(sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else 0, int(sys.argv[2]))
