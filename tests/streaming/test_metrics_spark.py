"""What a running job tells those who watch it: a scrape of its metrics, the Spark UI, a log of JSON lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.local.broker import free_ports
from decisions.topic.layout import SegmentLayout
from tests.engine.records import layout, record, tick
from tests.streaming.jobs import TOPICS, Feed, load_round, now_ms
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def get(port: int, path: str) -> str:
    """The answer, or nothing while there is no server."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.read().decode()
    except URLError:
        return ""


def scraped(port: int) -> dict[tuple, float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(get(port, "/metrics"))
        for sample in family.samples
    }


RESULTS = ("accepted", "suppressed", "dead_letter")


@pytest.mark.soak
def test_a_running_job_says_what_it_does(start_process, job_settings, own_broker, tmp_path):
    metrics_port, ui_port = free_ports(2)
    spark_conf = (ROOT / "conf" / "spark.conf").read_text()
    (tmp_path / "spark.conf").write_text(f"{spark_conf}\nspark.ui.enabled true\nspark.ui.port {ui_port}\n")
    # The job's own tick would be one more: at midnight, instead of at each full hour.
    text = job_settings.read_text().replace("tick_seconds = 3600", "tick_seconds = 86400")
    text += f'metrics_port = {metrics_port}\nspark_conf = "{tmp_path}/spark.conf"\n[log]\nformat = "json"\n'
    job_settings.write_text(text)
    feed = Feed(own_broker.bootstrap)
    job = start_process()
    layouts = [layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS]
    feed.send(*layouts, record("segment-stats", TOPICS[0], b"\x00"), *load_round(6), tick(now_ms()))
    wait_until(lambda: scraped(metrics_port).get(("anabranch_stream_evaluations_total",)) == len(TOPICS), 180, 0.2)
    feed.send(tick(now_ms()))
    batches = ("anabranch_stream_batch_seconds_count", "triggerExecution")
    of_tick = ("anabranch_stream_events_total", "tick")

    def told() -> dict[tuple, float] | None:
        # Spark says how a batch went some time after the sink has counted what was in it.
        values = scraped(metrics_port)
        counted = values.get(("anabranch_stream_batches_total",), 0)
        is_told = values.get(of_tick) == 2 and values.get(batches, 0) >= counted >= 2
        results = [values.get(("anabranch_stream_messages_total", result), 0) for result in RESULTS]
        return values if is_told and sum(results) == feed.end_offsets() else None

    values = wait_until(told, 120, 0.2)
    assert sum(values["anabranch_stream_events_total", kind] for kind in ("layout", "tick")) == len(TOPICS) + 2
    assert values["anabranch_stream_dead_letters_total", "not-json"] == 1
    assert values["anabranch_stream_decisions_total", "split", "msgRateIn", "tick"] == len(TOPICS)
    assert values["anabranch_stream_holds_total", "in-flight"] == len(TOPICS)
    assert values["anabranch_stream_state_bytes", "memory"] > 0
    assert {values["pulsar_scalable_topic_active_segments", topic] for topic in TOPICS} == {2}
    assert [values["anabranch_stream_lag_records", name] for name in ("segment-stats", "control-events")] == [0, 0]
    assert values["anabranch_stream_evaluation_outage",] == 0

    (application,) = json.loads(get(ui_port, "/api/v1/applications"))
    jobs = json.loads(get(ui_port, f"/api/v1/applications/{application['id']}/jobs"))
    shown = {one["description"] for one in jobs}
    assert {f"anabranch, batch {number}: read Kafka, evaluate" for number in (0, 1)} <= shown

    assert job.stop() == 0
    lines = [line for line in (tmp_path / "job.log").read_text().splitlines() if line.startswith("{")]
    assert [json.loads(line)["part"] for line in lines if "reading" in json.loads(line)["message"]] == ["stream"]


def test_lost_broker_is_an_outage_until_back(start, job_settings, own_broker, caplog):
    (port,) = free_ports(1)
    text = job_settings.read_text().replace("tick_seconds = 3600", "tick_seconds = 1")
    job_settings.write_text(f"{text}metrics_port = {port}\n")
    outage, lag = ("anabranch_stream_evaluation_outage",), ("anabranch_stream_tick_lag_seconds",)
    job = start()
    wait_until(lambda: (now := scraped(port)).get(outage) == 0 and now.get(lag, 0) > 0, 180, 0.2)
    own_broker.stop()
    wait_until(lambda: scraped(port)[outage] == 1, 30, 0.2)
    own_broker.start()
    wait_until(lambda: scraped(port)[outage] == 0, 120, 0.2)
    job.stop()
    said = [(one.levelno, one.message) for one in caplog.records if one.name == "streaming.job.watchdog"]
    assert said[-2][0] == logging.ERROR
    assert "no evaluation for" in said[-2][1]
    assert said[-1] == (logging.WARNING, "topics are evaluated again")
