"""How a collector is doing is said in words, by the doctor and to Prometheus, and the page lists every metric."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from anabranch.cli.main import cli
from anabranch.collectors.metrics import OF_BROKERS, OF_COLLECTOR, CollectorMeter
from anabranch.collectors.status import (
    STATUS_FILE,
    BrokerStatus,
    CollectorStatus,
    describe_status,
    read_status,
    write_status,
)
from anabranch.local.doctor import examine
from tests.local.settings import home_with

HOME = Path(__file__).resolve().parents[2]


def status(**other):
    well = BrokerStatus(
        broker="b1:8080", answers=True, segments=3, refresh_seconds=60, load_age_seconds=4, lag_seconds=1.2
    )
    silent = BrokerStatus(broker="b2:8080", answers=False, trouble="no connection", refresh_seconds=60)
    given = {
        "url": "http://b1:8080",
        "at": time.time_ns() // 1_000_000,
        "stale_after_seconds": 20.0,
        "brokers": [well, silent],
        "topics": 2,
        "topics_listed": 2,
        "segments_known": 4,
        "segments_seen": 3,
        "unseen": ["topic://a/b/c/7"],
        "consumers_age_seconds": 1.5,
        "layouts_age_seconds": 9.0,
        "samples": 30,
        "events": 5,
        "waiting": 0,
        "lost": 0,
        "calls": 40,
        "failed_calls": 3,
        "troubles": ["the load is not known"],
    }
    return CollectorStatus(**{**given, **other})


def test_status_names_gaps_and_silent_broker():
    said = describe_status(status())
    assert "3 of 4 segments seen (75.0%)" in said
    assert "broker b2:8080: no connection" in said
    assert "topic://a/b/c/7" in said
    assert not status().is_complete


def test_status_counts_what_was_never_read():
    found = status(brokers=[], topics=1, topics_listed=1_000, topics_unread=999, segments_known=1, segments_seen=1)
    assert found.coverage == 1 / 1_000
    assert "1 of 1,000 topics, 1 of 1 segments seen (0.1%)" in describe_status(found)
    assert "not read yet: the layouts of 999 topics" in describe_status(found)


@pytest.mark.parametrize("unread", ["topics_unread", "namespaces_unlisted", "consumers_unread"])
def test_status_is_complete_when_all_was_read(unread):
    answering = [one for one in status().brokers if one.answers]
    whole = {"brokers": answering, "troubles": []}
    assert status(**whole).is_complete
    assert not status(**whole, **{unread: 1}).is_complete
    assert "not read yet" in describe_status(status(**whole, **{unread: 1}))


@pytest.mark.parametrize(("records", "code"), [({}, 0), ({"waiting": 1}, 1), ({"lost": 1}, 1)], ids=str)
def test_once_fails_unless_kafka_has_everything(monkeypatch, records, code):
    answering = [one for one in status().brokers if one.answers]
    found = status(brokers=answering, troubles=[], **records)
    monkeypatch.setattr("anabranch.collectors.pulsar.process.collect_pulsar", lambda *_, **__: found)
    done = CliRunner().invoke(cli, ["serve", "collector", "pulsar", "--once"])
    assert (done.exit_code, "1 record did not reach Kafka" in done.stderr) == (code, bool(records))


def test_almost_all_segments_are_not_all():
    assert "(99.9%)" in describe_status(status(segments_known=100_000, segments_seen=99_999))


def test_status_survives_and_half_file_ignored(tmp_path):
    file = tmp_path / "new" / STATUS_FILE
    found = status()
    write_status(file, found)
    assert read_status(file) == found
    file.write_bytes(file.read_bytes()[:50])
    assert read_status(file) is None


def test_prometheus_gets_every_metric_of_the_page():
    meter = CollectorMeter()
    meter.observe(status())
    text = generate_latest(meter.registry).decode()
    assert "anabranch_collect_segments_seen 3.0" in text
    assert 'anabranch_collect_broker_up{broker="b2:8080"} 0.0' in text
    page = (HOME / "docs/pulsar.md").read_text()
    assert all(f"| `{metric.name}` |" in page and metric.name in text for metric in (*OF_BROKERS, *OF_COLLECTOR))


@pytest.mark.process
def test_doctor_reports_collector_gaps_or_absence(tmp_path, monkeypatch):
    # It hashes all jars, for half a second.
    monkeypatch.setattr("anabranch.local.doctor._jars", lambda _: ())
    file, status_file = home_with(tmp_path), tmp_path / "collect" / STATUS_FILE

    def found():
        findings = {one.check: one for one in examine(HOME, [file])}
        assert findings["settings"].ok
        return {name: one for name, one in findings.items() if name.startswith("collector")}

    assert found() == {}
    write_status(status_file, status())
    told = found()
    assert told["collector"].ok
    assert "topic://a/b/c/7" in told["collector's coverage"].found
    assert "b2:8080: no connection" in told["collector's view"].found
    assert not told["collector's view"].ok
    assert not told["collector's coverage"].ok
    answering = [one for one in status().brokers if one.answers]
    write_status(status_file, status(brokers=answering, troubles=[]))
    assert all(one.ok for one in found().values())
    write_status(status_file, status(brokers=answering, troubles=[], topics_unread=998, consumers_unread=999))
    assert not found()["collector's coverage"].ok
    told = "not read yet: the layouts of 998 topics, the consumers of 999 topics"
    assert told in found()["collector's coverage"].found
    write_status(status_file, status(at=0))
    assert "has not been heard of" in found()["collector"].found
