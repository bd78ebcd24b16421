"""Backtest of policies on a synthetic history: waves over four segments, as accepted by the filter.

`python -m benchmarks.backtest --topics 1000 --days 30 --policies 5 --processes 2` is the large size; the default is
small. Prints loads read and topic-hours simulated by CPU second (of all processes), and the peak of memory.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from anabranch.simulation.backtest.policies import with_settings
from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.running import backtest
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from lake.tables import create_lake
from schemas.kafka.messages import LayoutEvent, PolicyEvent, TickEvent
from schemas.tables.arrow import arrow_schema, to_arrow
from schemas.tables.rows import BATCHES, EVENTS, SEGMENT_LOAD, BatchRow, EventRow

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
DAY_MS = 86_400_000
SEGMENTS = 4
_DEFAULT = ConfiguredPolicy("default", None)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--days", type=int, default=2)
    parser.add_argument("--policies", type=int, default=5, help="the one that ran among them")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--records-an-hour", type=int, default=10, help="of each segment")
    parser.add_argument("--quick", action="store_true", help="ten topics, a day")
    parser.add_argument("--scratch", help="folder for the lake and for temporary files")
    arguments = parser.parse_args()
    topics, days = (10, 1) if arguments.quick else (arguments.topics, arguments.days)
    with TemporaryDirectory(dir=arguments.scratch) as folder:
        loads = write_lake(f"{folder}/lake", topics, days, arguments.records_an_hour)
        wall, cpu = time.perf_counter(), _cpu()
        history = open_history(f"{folder}/lake", Path(folder) / "loads", None, None, None, _DEFAULT)
        read_wall, read_cpu = time.perf_counter() - wall, _cpu() - cpu
        policies = {f"p{number}": _policy(number) for number in range(1, arguments.policies)}
        result = backtest(history, policies, arguments.processes)
        wall, cpu = time.perf_counter() - wall, _cpu() - cpu
    hours = result.topic_hours * arguments.policies
    own, children = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"{platform.machine()}, {os.cpu_count()} cores, {arguments.processes} processes")
    print(f"{topics:,} topics x {days} days x {arguments.policies} policies: {loads:,} loads, {hours:,.0f} topic-hours")
    print(f"splits {[int(result.totals(name)['splits']) for name in result.topics[0].guessed]}")
    print(f"read   {read_wall:8.1f} s wall {read_cpu:8.1f} s CPU")
    print(f"all    {wall:8.1f} s wall {cpu:8.1f} s CPU   {hours / cpu:,.0f} topic-hours/CPU s")
    print(f"memory {own:,.0f} MB, largest of the other processes {children:,.0f} MB")


def write_lake(lake: str, topics: int, days: int, an_hour: int) -> int:
    """Loads by day, and a layout of each topic that stays."""
    tables = create_lake(lake)
    random = np.random.default_rng(1)
    names = [f"topic://acme/bench/t-{number:05}" for number in range(topics)]
    begin_ms = int(BEGIN.timestamp() * 1000)
    layout = SegmentLayout.create(SEGMENTS, begin_ms).to_metadata()
    messages = [
        ("*", PolicyEvent(v=1, type="policy", scope="cluster", profile="default", at=begin_ms)),
        *(
            (name, LayoutEvent(v=1, type="layout", topic=name, cause="created", layout=layout, at=begin_ms))
            for name in names
        ),
    ]
    rows = [
        _event(subject, message.type, message.to_json(), BEGIN, offset)
        for offset, (subject, message) in enumerate(messages)
    ]
    minutes = [BEGIN + timedelta(minutes=minute) for minute in range(days * 1440 + 1)]
    rows += [
        _event(
            "*",
            "tick",
            TickEvent(v=1, type="tick", at=int(instants.timestamp() * 1000)).to_json(),
            instants,
            len(messages) + offset,
        )
        for offset, instants in enumerate(minutes)
    ]
    write_deltalake(tables[EVENTS.name], to_arrow(EVENTS, rows), mode="append")
    write_deltalake(
        tables[BATCHES.name],
        to_arrow(BATCHES, [_batch(number, instants) for number, instants in enumerate(minutes)]),
        mode="append",
    )
    peak, phase, size = (
        random.uniform(5e3, 6e4, topics),
        random.uniform(0, 1, topics),
        random.uniform(300, 2000, topics),
    )
    share = random.dirichlet(np.full(SEGMENTS, 2.0), topics)
    a_day = an_hour * 24
    schema = arrow_schema(SEGMENT_LOAD.row)
    for day in range(days):
        shape = topics, SEGMENTS, a_day
        instants = np.sort(random.integers(0, DAY_MS // 10_000, shape), axis=2) * 10_000
        wave = np.maximum(0.02, np.sin(2 * np.pi * (instants / DAY_MS + phase[:, None, None])))
        rate = (peak[:, None] * share)[:, :, None] * wave * random.uniform(0.8, 1.2, shape)
        order = np.argsort(instants.ravel(), kind="stable")
        topic = np.broadcast_to(np.arange(topics)[:, None, None], shape).ravel()[order]
        segment = np.broadcast_to(np.arange(SEGMENTS)[None, :, None], shape).ravel()[order]
        when = pa.array((begin_ms + day * DAY_MS + instants.ravel()[order]) * 1000, pa.timestamp("us", "UTC"))
        rate, weight = rate.ravel()[order], size[topic]
        count, date = len(order), (BEGIN + timedelta(days=day)).date()
        columns = {
            "topic": pa.DictionaryArray.from_arrays(pa.array(topic, pa.int32()), pa.array(names)).cast(pa.string()),
            "segment_id": pa.array(segment),
            "msg_rate_in": rate,
            "bytes_rate_in": rate * weight,
            "msg_rate_out": 2 * rate,
            "bytes_rate_out": 2 * rate * weight,
            "reporter": pa.array(["broker-1"]).take(pa.array(np.zeros(count, np.int8))),
            "sampled_at": when,
            "accepted_at": when,
            "kafka_timestamp": when,
            "cause": pa.array(["changed"]).take(pa.array(np.zeros(count, np.int8))),
            "kafka_partition": np.zeros(count, np.int64),
            "kafka_offset": day * count + np.arange(count),
            "batch_id": np.full(count, day),
            "day": pa.array([date] * count, pa.date32()),
        }
        table = pa.table([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)
        write_deltalake(tables[SEGMENT_LOAD.name], table, mode="append")
    return topics * SEGMENTS * a_day * days


def _policy(number: int) -> ConfiguredPolicy:
    return with_settings(
        _DEFAULT,
        {
            "splitMsgRateInThreshold": 10_000.0 - 1_000 * number,
            "mergeMsgRateInThreshold": 1_000.0 - 100 * number,
            "mergeWindowSeconds": 300 * number,
            "mergeCooldownSeconds": 120 * number,
        },
    )


def _event(subject: str, kind: str, body: str, instant: datetime, offset: int) -> EventRow:
    return EventRow(
        subject=subject,
        type=kind,
        cause=None,
        body=body,
        at=instant,
        kafka_topic="control-events",
        kafka_partition=0,
        kafka_offset=offset,
        kafka_timestamp=instant,
        accepted_at=instant,
        batch_id=0,
        day=instant.date(),
    )


def _batch(number: int, batch_at: datetime) -> BatchRow:
    names = (
        "messages",
        "messages_accepted",
        "messages_suppressed",
        "dead_letters",
        "samples",
        "samples_accepted",
        "samples_insignificant",
        "samples_stale",
        "events",
        "decisions",
        "holds",
        "evaluations",
    )
    counts = dict.fromkeys(names, 0)
    return BatchRow(
        batch_id=number,
        generation="g1",
        batch_at=batch_at,
        committed_at=batch_at,
        operator_ms=0.0,
        day=batch_at.date(),
        **counts,
    )  # type: ignore[arg-type]


def _cpu() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    main()
