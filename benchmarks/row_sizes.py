"""Disk size of a row: each committed by itself, as for a calm fleet, and after `lake optimize`.

Decisions of topics of twelve segments whose layouts and rates are all their own, with the whole snapshot as the job
writes it; the holds of the same topics, their layouts as events, and loads. `python -m benchmarks.row_sizes` prints
bytes a row.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

from deltalake import DeltaTable, write_deltalake

from benchmarks.decide import NOW, a_fleet, snapshots_of
from benchmarks.record import machine_now
from decisions.autoscale.answers import gates_to_json
from decisions.autoscale.decide import decide
from decisions.autoscale.policy import PROFILES, policy_digest, policy_override
from decisions.autoscale.snapshot import TopicSnapshot, snapshot_to_json
from decisions.topic.layout import SegmentLayout
from lake.maintenance import compact_by_delta_rs
from lake.tables import create_table
from schemas.ids import decision_id, digest
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table

SEGMENTS, POLICY = 12, PROFILES["default"]
BY_THEMSELVES = 100


def rows_of(table: Table, number: int) -> list[dict[str, Any]]:
    """Rows of decisions (splits by load) or holds of topics with layouts and loads of their own."""
    chance, rows = Random(5), list[dict[str, Any]]()
    for count, snapshot in enumerate(snapshots_of(a_fleet(number, SEGMENTS, hot=1.0), POLICY)):
        instant = datetime.fromtimestamp(NOW / 1000, timezone.utc) + timedelta(seconds=count)
        now = int(instant.timestamp() * 1000)
        layout = SegmentLayout.create(SEGMENTS // 2, now - chance.randrange(10**9))
        while len(layout.active) < SEGMENTS:
            layout = layout.split_segment(chance.choice(layout.active).segment_id, now - chance.randrange(10**8))
        loads = dict(zip((segment.segment_id for segment in layout.active), snapshot.loads.values(), strict=True))
        shift = now - NOW
        loads = {
            number: replace(load, modified_at=load.modified_at + shift, seen_at=load.last_seen_at + shift)
            for number, load in loads.items()
        }
        seen = replace(snapshot, now=now, layout=layout, loads=loads, consumers={"billing": ("STREAM", 4)})
        answer: Any = decide(seen)
        text = snapshot_to_json(seen, layout.to_metadata().to_json(), policy_override(POLICY).to_json())
        if table in (EVENTS, SEGMENT_LOAD):
            rows += _told(table, seen, instant, count)
            continue
        same = {
            "family": "autoscale",
            "subject": seen.topic,
            "trigger": "tick",
            "layout_epoch": layout.epoch,
            "policy_digest": policy_digest(POLICY),
            "engine_version": "benchmark",
            "batch_id": count,
            "seq": 1 + count % 7,
            "day": instant.date(),
        }
        if table is HOLDS:
            reading = answer.gates[-1]
            rows.append(
                {
                    **same,
                    "gate": reading.gate.value,
                    "measured": reading.measured,
                    "limit": reading.limit,
                    "margin": reading.margin,
                    "eligible_at": None,
                    "since": instant,
                    "inputs": None,
                    "gates": None,
                    "layout_digest": digest([text]),
                }
            )
            continue
        rows.append(
            {
                **same,
                "decision_id": decision_id(seen.topic, layout.epoch, "split", [answer.segment], 1, [now]),
                "action": "split",
                "arguments": json.dumps({"segments": [answer.segment]}),
                "reason": answer.reason,
                "decided_at": instant,
                "inputs": text,
                "gates": gates_to_json(answer.gates),
            }
        )
    return rows


def _told(table: Table, seen: TopicSnapshot, instant: datetime, count: int) -> list[dict[str, Any]]:
    """The layout as an event, or the loads of all segments."""
    same = {
        "kafka_partition": 0,
        "kafka_offset": count,
        "kafka_timestamp": instant,
        "accepted_at": instant,
        "batch_id": count,
        "day": instant.date(),
    }
    if table is EVENTS:
        body = {"v": 1, "type": "layout", "topic": seen.topic, "cause": "split", "at": seen.now, "topicCreatedAt": 1}
        text = json.dumps(body, separators=(",", ":"))[:-1] + ',"layout":' + seen.layout.to_metadata().to_json() + "}"
        event = {"subject": seen.topic, "type": "layout", "cause": "split", "body": text, "at": instant}
        return [{**same, **event, "kafka_topic": "control-events"}]
    return [
        {
            **same,
            "topic": seen.topic,
            "segment_id": number,
            "msg_rate_in": load.msg_rate_in,
            "bytes_rate_in": load.bytes_rate_in,
            "msg_rate_out": load.msg_rate_out,
            "bytes_rate_out": load.bytes_rate_out,
            "reporter": f"broker-{count % 12}",
            "sampled_at": instant,
            "cause": "changed",
        }
        for number, load in seen.loads.items()
    ]


def measured(table: Table, number: int, compact: Any = None) -> dict[str, float]:
    """Bytes a row: of the text in it, of files with a row each, and of those files compacted."""
    rows = rows_of(table, number)
    with tempfile.TemporaryDirectory() as folder:
        created = create_table(folder, table)
        for row in rows[:BY_THEMSELVES]:
            write_deltalake(created, to_arrow(table, [row]), mode="append")
        alone = _bytes(folder, table) / BY_THEMSELVES
        log = sum(entry.stat().st_size for entry in Path(folder).rglob("_delta_log/*.json")) / BY_THEMSELVES
        write_deltalake(created, to_arrow(table, rows[BY_THEMSELVES:]), mode="append")
        (compact or compact_by_delta_rs)(folder, table, None)
        whole = _bytes(folder, table) / len(rows)
    text = sum(len(str(value)) for row in rows for value in row.values() if isinstance(value, str)) / len(rows)
    return {"text": round(text), "alone": round(alone), "log": round(log), "optimized": round(whole)}


def _bytes(folder: str, table: Table) -> int:
    return sum(DeltaTable(f"{folder}/{table.name}").get_add_actions(flatten=True).column("size_bytes").to_pylist())


def main() -> None:
    """A table."""
    print(f"bytes a row, {SEGMENTS} segments a topic; {machine_now()}")
    for table in (DECISIONS, HOLDS, EVENTS, SEGMENT_LOAD):
        print(f"{table.name:10}", measured(table, 5_000))


if __name__ == "__main__":
    main()
