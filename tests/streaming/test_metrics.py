"""Metrics: what batches write is what a real scrape says."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pydantic_core
import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.local.broker import free_ports
from engine.kernel.records import LAYOUT_SCHEMA
from schemas.ids import EVERY_TOPIC
from schemas.tables.rows import DEAD_LETTERS, DECISIONS, EVENTS, HOLDS
from streaming.job.meter import StreamMeter, lag_of, serve_meter
from streaming.job.metrics import METRICS, metrics_page
from streaming.sink.output import TableRows
from streaming.sink.sink import WrittenBatch
from tests.engine.records import TOPIC

ROOT = Path(__file__).parents[2]
NOW = 1_763_660_000.0
PIP_483 = {
    "pulsar_scalable_topic_active_segments": "gauge",
    "pulsar_scalable_topic_auto_splits_total": "counter",
    "pulsar_scalable_topic_auto_merges_total": "counter",
    "pulsar_scalable_topic_split_suppressed_max_segments_total": "counter",
    "pulsar_scalable_topic_merge_suppressed_max_depth_total": "counter",
}


@pytest.fixture
def scrape():
    """Serves a meter on a free port and scrapes it: sample name and labels to value."""
    servers = []

    def scraped(meter: StreamMeter) -> dict[tuple, float]:
        if not servers:
            servers.append(serve_meter(meter, free_ports(1)[0]))
        with urlopen(f"http://127.0.0.1:{servers[0].server_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    yield scraped
    for server in servers:
        server.close()


@pytest.mark.process
def test_metrics_served_to_local_programs_only():
    server = serve_meter(StreamMeter(60, NOW), free_ports(1)[0])
    for headers, status in [
        ({}, 200),
        ({"Host": "localhost:9"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Host": "10.0.0.1"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ]:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request("GET", "/metrics", headers=headers)
        assert connection.getresponse().status == status, headers
        connection.close()
    server.close()


_COLUMNS = {
    DECISIONS.name: ("subject", "decision_id", "action", "reason", "trigger"),
    HOLDS.name: ("subject", "gate"),
    EVENTS.name: ("subject", "type", "cause", "body", "at"),
    DEAD_LETTERS.name: ("reason",),
}


def batch(written_at: float = NOW, rows: dict[str, list[tuple]] | None = None, **counts) -> WrittenBatch:
    """A batch with these rows, cut to the columns that metrics read; the counts not given are 0."""
    names = (
        "messages",
        "messages_accepted",
        "messages_suppressed",
        "dead_letters",
        "samples",
        "samples_accepted",
        "samples_insignificant",
        "samples_stale",
        "evaluations",
        "operator_ms",
    )
    rare = {}
    for table, columns in _COLUMNS.items():
        found = (rows or {}).get(table, [])
        kinds = [pa.timestamp("us", tz="UTC") if name == "at" else pa.string() for name in columns]
        arrays = [pa.array([row[i] for row in found], kind) for i, kind in enumerate(kinds)]
        rare[table] = TableRows(pa.table(arrays, names=columns), [])
    row = {**dict.fromkeys(names, 0), **counts, "committed_at": int(written_at * 1000)}
    return WrittenBatch(row, rare, decided_at=None, operator_seconds=0.2, commit_seconds={"events": 0.03})


def event(kind: str, subject: str = TOPIC, cause: str | None = None, body: object = None, at: float = NOW) -> tuple:
    return (subject, kind, cause, pydantic_core.to_json(body).decode(), int(at * 1_000_000))


def outcome(decision_id: str, status: str = "applied") -> tuple:
    return event("outcome", cause=status, body={"decisionId": decision_id, "status": status})


def decision(decision_id: str, action: str = "split") -> tuple:
    return (TOPIC, decision_id, action, "msgRateIn", "tick")


def observed(*batches: WrittenBatch) -> StreamMeter:
    meter = StreamMeter(60, NOW)
    for one in batches:
        meter.observe_batch(one)
    return meter


def test_scrape_counts_messages_and_samples(scrape):
    counts = {
        "messages": 9,
        "messages_accepted": 5,
        "messages_suppressed": 3,
        "dead_letters": 1,
        "samples": 12,
        "samples_accepted": 6,
        "samples_insignificant": 4,
        "samples_stale": 2,
        "evaluations": 8,
        "operator_ms": 250.0,
    }
    rows = {DEAD_LETTERS.name: [("not-json",)], HOLDS.name: [(TOPIC, "merge-window"), (TOPIC, "max-segments")]}
    values = scrape(observed(batch(rows=rows, **counts), batch(NOW + 5, rows, **counts)))
    said = {
        ("anabranch_stream_batches_total",): 2,
        ("anabranch_stream_messages_total", "accepted"): 10,
        ("anabranch_stream_messages_total", "suppressed"): 6,
        ("anabranch_stream_messages_total", "dead_letter"): 2,
        ("anabranch_stream_samples_total", "accepted"): 12,
        ("anabranch_stream_samples_total", "insignificant"): 8,
        ("anabranch_stream_samples_total", "stale"): 4,
        ("anabranch_stream_samples_total", "refused"): 0,
        ("anabranch_stream_dead_letters_total", "not-json"): 2,
        ("anabranch_stream_dead_letters_total", "too-large"): 0,
        ("anabranch_stream_evaluations_total",): 16,
        ("anabranch_stream_operator_seconds_total",): 0.5,
        ("anabranch_stream_holds_total", "merge-window"): 2,
        ("anabranch_stream_holds_total", "in-flight"): 0,
        ("anabranch_stream_last_batch_timestamp_seconds",): NOW + 5,
        ("anabranch_stream_batch_seconds_count", "operator"): 2,
        ("anabranch_stream_write_seconds_sum", "events"): 0.06,
    }
    assert {name: values[name] for name in said} == said


def test_pip_metric_names_exported_literally():
    assert {metric.name: metric.kind for metric in METRICS if metric.name.startswith("pulsar")} == PIP_483
    assert {metric.labels for metric in METRICS if metric.name in PIP_483} == {("topic",)}


def test_split_counts_when_reported_applied(scrape):
    meter = observed(batch(rows={DECISIONS.name: [decision("d1")]}))
    name = ("pulsar_scalable_topic_auto_splits_total", TOPIC)
    assert name not in scrape(meter)
    meter.observe_batch(batch(rows={EVENTS.name: [outcome("another"), outcome("d1"), outcome("d1")]}))
    values = scrape(meter)
    assert values[name] == 1
    assert values["anabranch_stream_decisions_total", "split", "msgRateIn", "tick"] == 1
    assert values["anabranch_stream_outcomes_total", "applied"] == 3


def test_failed_merge_not_counted(scrape):
    values = scrape(
        observed(
            batch(rows={DECISIONS.name: [decision("d1", "merge")]}),
            batch(rows={EVENTS.name: [outcome("d1", "failed")], DECISIONS.name: [decision("d2", "merge")]}),
            batch(rows={EVENTS.name: [outcome("d2")]}),
        )
    )
    assert values["pulsar_scalable_topic_auto_merges_total", TOPIC] == 1
    assert values["anabranch_stream_outcomes_total", "failed"] == 1


def test_caps_that_begin_to_bind_are_counted_by_topic(scrape):
    values = scrape(observed(batch(rows={HOLDS.name: [(TOPIC, "max-segments"), (TOPIC, "max-dag-depth")]})))
    assert values["pulsar_scalable_topic_split_suppressed_max_segments_total", TOPIC] == 1
    assert values["pulsar_scalable_topic_merge_suppressed_max_depth_total", TOPIC] == 1


def of_layouts(*told: tuple[str, int | None], **rows) -> WrittenBatch:
    layouts = [{"subject": subject, "active": active} for subject, active in told]
    return replace(batch(**rows), layouts=[pa.RecordBatch.from_pylist(layouts, LAYOUT_SCHEMA)])


def test_active_segments_follow_workers_and_deletion(scrape):
    """A deleted topic leaves no series."""
    other = f"{TOPIC}-2"
    meter = observed(of_layouts((TOPIC, 5), (other, 7), (TOPIC, 4)))
    values = scrape(meter)
    assert [values["pulsar_scalable_topic_active_segments", name] for name in (TOPIC, other)] == [4, 7]
    meter.observe_batch(batch(rows={HOLDS.name: [(TOPIC, "max-segments")]}))
    meter.observe_batch(of_layouts((TOPIC, None), (TOPIC, None)))
    assert [name for name in scrape(meter) if name[-1] == TOPIC] == []
    meter.observe_batch(of_layouts((TOPIC, None), (TOPIC, 1), (other, None)))
    values = scrape(meter)
    assert values["pulsar_scalable_topic_active_segments", TOPIC] == 1
    assert ("pulsar_scalable_topic_active_segments", other) not in values


def test_consumers_wanted_allow_merges(scrape):
    """With a consumer per segment nothing would ever merge."""
    wanted = ("anabranch_topic_consumers_wanted", TOPIC)
    meter = observed(of_layouts((TOPIC, 4)))
    assert scrape(meter)[wanted] == 4
    meter.observe_batch(batch(rows={HOLDS.name: [(TOPIC, "merge-consumers"), ("another", "merge-consumers")]}))
    values = scrape(meter)
    assert values[wanted] == 3
    assert (wanted[0], "another") not in values
    meter.observe_batch(of_layouts((TOPIC, 3), ("another", 2)))
    values = scrape(meter)
    assert (values[wanted], values[wanted[0], "another"]) == (2, 1)
    meter.observe_batch(batch(rows={HOLDS.name: [(TOPIC, "merge-thresholds")]}))
    assert scrape(meter)[wanted] == 3
    meter.observe_batch(batch(rows={HOLDS.name: [(TOPIC, "merge-consumers"), (TOPIC, "merge-window")]}))
    assert scrape(meter)[wanted] == 3
    meter.observe_batch(of_layouts((TOPIC, None)))
    assert wanted not in scrape(meter)


def test_fleet_tick_sets_lag_and_last_evaluation(scrape):
    of_one_topic = event("tick", TOPIC, at=NOW + 3)
    meter = observed(batch(NOW + 4, {EVENTS.name: [of_one_topic]}))
    assert scrape(meter)["anabranch_stream_last_evaluation_timestamp_seconds",] == NOW
    ticks = [event("tick", EVERY_TOPIC, at=NOW), event("tick", EVERY_TOPIC, at=NOW + 60)]
    meter.observe_batch(batch(NOW + 62.5, {EVENTS.name: ticks}))
    values = scrape(meter)
    assert values["anabranch_stream_tick_lag_seconds",] == 2.5
    assert values["anabranch_stream_last_evaluation_timestamp_seconds",] == NOW + 62.5
    assert values["anabranch_stream_tick_interval_seconds",] == 60


def test_the_lag_is_what_is_left_in_each_topic():
    latest = '{"a":{"0":10,"1":5},"b":{"0":7}}'
    assert lag_of('{"a":{"0":4,"1":5},"b":{"0":7}}', latest) == {"a": 6, "b": 0}
    assert lag_of('{"a":{"0":4}}', latest) == {"a": 11, "b": 7}
    assert lag_of(None, None) == lag_of("null", "null") == {}


@pytest.mark.process
def test_busy_port_stops_start_with_advice(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        settings = tmp_path / "job.toml"
        settings.write_text(f'[stream]\ncheckpoint = "{tmp_path}/checkpoint"\nmetrics_port = {port}\n')
        command = [sys.executable, "-m", "anabranch", "--config", str(settings), "stream"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: cannot serve metrics at 127.0.0.1:{port}: Address already in use; "
        "choose another stream.metrics_port, or 0 for none\n"
    )


def test_the_page_is_made_from_the_table():
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_page()


def test_documented_metrics_are_registered():
    families = {family.name: family for family in StreamMeter(60, NOW).registry.collect()}
    assert len(families) == len(METRICS)
    for metric in METRICS:
        assert families[metric.name.removesuffix("_total")].documentation == metric.sentence
