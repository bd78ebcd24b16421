"""What every page says at its top about the processes behind it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.auth.callers import ANYBODY, Access
from anabranch.auth.tokens import add_token
from anabranch.collectors.metrics import OF_BROKERS, OF_COLLECTOR
from anabranch.history.picture import BrakesView, ExecutorView, late_seconds
from anabranch.web import telemetry
from anabranch.web.processes import START_SECONDS, Probe, Probes, processes
from anabranch.web.rows import PageFreshness
from anabranch.web.sessions import IDLE_SECONDS, BrowserSessions
from anabranch.web.telemetry import COLLECTOR, KAFKA, LAG, STREAM, MetricsProbe, read_figures
from runtime.telemetry.serving import metrics_app
from streaming.job.meter import StreamMeter
from streaming.job.metrics import ACTIVE_SEGMENTS
from tests.local.lake import ORDERS, START, at
from tests.web.pages import page

ACTING = ExecutorView("one", (0,), 1, False)
SILENT = ExecutorView("two", (1,), 2, True)


@pytest.mark.parametrize(
    ("pauses", "late"),
    [([], 60), ([1, 1], 60), ([1] * 10, 15), ([1] * 10 + [300], 15), ([60] * 10, 90), ([20, 20, 20, 8], 30)],
)
def test_job_is_late_by_its_own_pace(pauses, late):
    committed = [at(sum(pauses[:number])) for number in range(len(pauses) + 1)]
    assert late_seconds(committed) == late


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.floats(0.1, 100))
def test_job_that_keeps_its_pace_is_never_late(pauses, pause):
    # However it went before: five pauses alike are its pace.
    committed = [at(sum([*pauses, *[pause] * 20][:number])) for number in range(len(pauses) + 21)]
    assert late_seconds(committed) > pause


def states(batch_at=START, late=60.0, **changed):
    now, brakes = changed.get("now", at(2)), changed.get("brakes", BrakesView((ACTING,)))
    freshness = PageFreshness(now, batch_at, None, False, late, changed.get("unseen", 0.0))
    batches = [{"committed_at": at(second), "samples": second % 2} for second in range(-40, 1)]
    shown = processes(freshness, changed.get("batches", batches), brakes, changed.get("probes", Probes()), now)
    return {process.name: (process.state, process.words) for process in shown}


def test_processes_at_work_are_good():
    assert states() == {
        "job": ("good", "last batch 2 s ago"),
        "Kafka lag": ("quiet", "unknown: the job's metrics_port is 0"),
        "load": ("good", "samples 3 s ago"),
        "executor": ("good", "1 at work"),
        "collector": ("quiet", "not watched: [collect] metrics_port is 0"),
    }


def test_process_that_is_down_is_named():
    assert states(now=at(40), late=15.0)["job"] == ("bad", "silent for 40 s")
    assert states(batch_at=None)["job"] == ("quiet", "nothing on record")
    assert states(brakes=BrakesView())["executor"] == ("bad", "none is at work")
    assert states(brakes=BrakesView((SILENT,)))["executor"] == ("bad", "1 silent")
    assert states(brakes=BrakesView((ACTING, SILENT)))["executor"] == ("warn", "1 at work, 1 silent")


def test_time_before_the_next_look_is_no_silence():
    assert states(now=at(50), late=15.0, unseen=40.0)["job"] == ("good", "last batch 50 s ago")
    assert states(now=at(50), unseen=40.0)["load"] == ("good", "samples 51 s ago")
    assert states(now=at(50), late=15.0, unseen=1.0)["job"] == ("bad", "silent for 50 s")


def test_load_that_stops_arriving_is_named():
    assert states(now=at(29))["load"] == ("bad", "no samples for 30 s")
    assert states(batches=[{"committed_at": at(0), "samples": 0}])["load"] == ("quiet", "no samples on record lately")
    assert states(batches=[])["load"] == ("quiet", "unknown")


LAG_TEXT = """# TYPE anabranch_stream_lag_records gauge
anabranch_stream_lag_records{source="segment-stats"} 1200.0
anabranch_stream_lag_records{source="control } events"} 34.0
anabranch_stream_lag_records_else 9.0
"""


def test_kafka_lag_is_the_sum_with_its_age():
    answers = [LAG_TEXT, None]
    probe = MetricsProbe(lambda: answers.pop(0), (LAG,))
    now = datetime.now(timezone.utc)
    assert states(probes=Probes(stream=probe))["Kafka lag"][0] == "quiet"
    probe.ask()
    assert probe.reading is not None
    assert probe.reading.figures == {LAG: [1200.0, 34.0]}
    later = now + timedelta(seconds=7.4)
    state, words = states(now=later, probes=Probes(stream=probe))["Kafka lag"]
    assert (state, words) == ("good", "1,234 records, 7 s ago")
    probe.ask()
    state, words = states(now=later, probes=Probes(stream=probe))["Kafka lag"]
    assert (state, words.startswith("unknown for "), words.endswith(", 1,234 records before")) == ("bad", True, True)


def test_silence_counts_from_the_first_unanswered_question(monkeypatch):
    answers, seconds = [LAG_TEXT, None, None], [100.0]
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(time=lambda: seconds[0]))
    probe = MetricsProbe(lambda: answers.pop(0), (LAG,))
    for asked_at in (110.0, 120.0, 130.0):
        seconds[0] = asked_at
        probe.ask()
    assert probe.lost_since() == 120.0


def test_lag_that_metrics_do_not_say_is_unknown():
    probe = MetricsProbe(lambda: "anabranch_build_info 1.0\n", (LAG,))
    probe.ask()
    assert states(probes=Probes(stream=probe))["Kafka lag"] == ("quiet", "unknown: the job's metrics do not say it")


def test_collector_is_known_by_its_metrics():
    lines = [
        'anabranch_collect_broker_up{broker="a"} 1.0',
        'anabranch_collect_broker_up{broker="b"} 0.0',
        "anabranch_collect_segments_known 12.0",
        "anabranch_collect_segments_seen 8.0",
        "anabranch_collect_troubles 1.0",
    ]
    probe = MetricsProbe(lambda: "\n".join(lines), COLLECTOR)
    probe.ask()
    state, words = states(now=datetime.now(timezone.utc), probes=Probes(collector=probe))["collector"]
    assert (state, words) == ("warn", "1 of 2 brokers answer, 8 of 12 segments seen, 0 s ago")


@pytest.mark.parametrize(("up", "troubles", "state"), [(1, 0, "good"), (0, 0, "warn"), (1, 1, "warn")])
def test_collector_is_good_without_any_trouble(up, troubles, state):
    figures = f"broker_up {up}", "segments_known 1", "segments_seen 1", f"troubles {troubles}"
    probe = MetricsProbe(lambda: "\n".join(f"anabranch_collect_{figure}" for figure in figures), COLLECTOR)
    probe.ask()
    assert states(probes=Probes(collector=probe))["collector"][0] == state


def test_collector_metrics_have_the_names_asked_for():
    assert set(COLLECTOR) <= {metric.name for metric in (*OF_BROKERS, *OF_COLLECTOR)}


@pytest.mark.parametrize(
    ("status", "state"), [(200, "good"), (404, "good"), (503, "bad"), (None, "bad"), (OSError(), "bad")]
)
def test_controller_is_known_by_its_answer(status, state):
    def answer():
        if isinstance(status, Exception):
            raise status
        return status

    probe = Probe(answer)
    assert "controller" not in states(probes=Probes(probe))
    probe.ask()
    later = datetime.now(timezone.utc) + timedelta(seconds=START_SECONDS)
    assert states(probes=Probes(probe), now=later)["controller"][0] == state


def test_controller_that_starts_with_the_page_is_not_called_silent():
    now, answers = datetime.now(timezone.utc), [None, 200, None]
    probe = Probe(lambda: answers.pop(0))
    probe.ask()
    assert states(probes=Probes(probe), now=now)["controller"] == ("quiet", "no answer yet")
    late = states(probes=Probes(probe), now=now + timedelta(seconds=START_SECONDS + 1))
    assert late["controller"] == ("bad", "no answer for 11 s")
    probe.ask()
    assert states(probes=Probes(probe), now=now)["controller"] == ("good", "answers")
    probe.ask()
    assert states(probes=Probes(probe), now=now)["controller"][0] == "bad"


def test_silence_of_the_controller_is_told_from_its_beginning(monkeypatch):
    seconds, answers = [0], [200, None, None, None]
    monkeypatch.setattr("anabranch.web.processes.time", SimpleNamespace(time=lambda: at(seconds[0]).timestamp()))
    probe = Probe(lambda: answers.pop(0))
    for second in (0, 10, 20, 30):
        seconds[0] = second
        probe.ask()
    assert states(probes=Probes(probe), now=at(40))["controller"] == ("bad", "no answer for 30 s")


def test_every_page_has_them_at_its_top(lake):
    shown = page(lake)
    for path in ("/", f"/topic?name={ORDERS}", "/operations", "/reports", "/standing"):
        assert "none is at work" in shown.get(path).text, path


def test_token_of_a_tenant_is_told_of_no_process(lake, tmp_path):
    file = tmp_path / "tokens"
    token = add_token(file, "shop", "read", ["acme/shop"])
    told = page(lake, Access(file)).get("/standing", authorization=f"Bearer {token}")
    assert (told.status_code, "at work" in told.text) == (200, False)


def test_open_page_keeps_no_session_alive():
    now = [0.0]
    sessions = BrowserSessions(lambda: now[0])
    number = sessions.begin(ANYBODY)
    for _ in range(10):
        now[0] += IDLE_SECONDS / 5
        sessions.caller(number, is_use=False)
    assert sessions.caller(number) is None


def test_old_batch_is_a_warning(lake):
    assert "has written nothing for" in page(lake).get("/standing").text


def answering(*answers):
    """A probe that was given these answers, None for silence, and by which time."""
    left = list(answers)
    probe = MetricsProbe(lambda: left.pop(0), STREAM)
    for _ in answers:
        probe.ask()
    return probe, datetime.now(timezone.utc)


def test_job_without_an_answer_is_down_at_once():
    probe, now = answering(LAG_TEXT, None)
    state, words = states(START, now=now, late=1e9, batches=[], probes=Probes(stream=probe))["job"]
    assert (state, words.startswith("no answer for ")) == ("bad", True)
    later = now + timedelta(seconds=1)
    assert states(later, now=later, probes=Probes(stream=probe))["job"] == ("good", "last batch 0 s ago")
    back, now = answering(LAG_TEXT, None, LAG_TEXT)
    assert states(now, now=now, probes=Probes(stream=back))["job"][0] == "good"


def test_job_that_never_answered_is_known_by_its_batches():
    probe, now = answering(None)
    assert states(now, now=now, probes=Probes(stream=probe))["job"] == ("good", "last batch 0 s ago")


def test_executor_without_an_answer_is_down_at_once():
    probe, now = answering("", None)
    state, words = states(now=now, probes=Probes(executor=probe))["executor"]
    assert (state, words.startswith("1 at work, no answer for ")) == ("bad", True)
    two = BrakesView((ACTING, ExecutorView("three", (), 1, False)))
    assert states(now=now, brakes=two, probes=Probes(executor=probe))["executor"][0] == "warn"
    beating = BrakesView((replace(ACTING, beat_at=now + timedelta(hours=1)),))
    assert states(now=now, brakes=beating, probes=Probes(executor=probe))["executor"] == ("good", "1 at work")
    silenced = BrakesView((replace(ACTING, beat_at=now - timedelta(hours=1)),))
    assert states(now=now, brakes=silenced, probes=Probes(executor=probe))["executor"][0] == "bad"
    never, now = answering(None)
    assert states(now=now, probes=Probes(executor=never))["executor"] == ("good", "1 at work")


def test_kafka_that_does_not_answer_the_job_is_named():
    probe, now = answering(LAG_TEXT + "anabranch_stream_kafka_answers 0.0\n")
    shown = states(now=now, probes=Probes(stream=probe))["Kafka lag"]
    assert shown == ("bad", "Kafka does not answer the job, 1,234 records before")


def test_metrics_asked_for_are_the_only_ones_sent():
    meter = StreamMeter(60, 0)
    series = ((f"topic://acme/shop/{number}", 2.0) for number in range(1000))
    meter._topic_series[ACTIVE_SEGMENTS.name].set_all(series)

    async def ask() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(metrics_app(meter.registry))) as client:
            return (await client.get("http://127.0.0.1/metrics", params={"name[]": STREAM})).text

    sent = asyncio.run(ask())
    assert read_figures(sent, STREAM) == {KAFKA: [1.0]}
    assert len(sent) < 1000
