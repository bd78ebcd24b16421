"""The alert rules, evaluated by promtool: each fires on its fault and is silent before it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from deploy.dashboards import FLEET
from deploy.generate import CHART
from tests.deploy.prometheus import ensure_prometheus

RULES = CHART / "files" / "prometheus-rules.json"
JOB = 'job="anabranch-stream",instance="job:9464"'
STAGE = f'anabranch_stream_batch_seconds_bucket{{{JOB},stage="triggerExecution"'
FAULTS = {
    "AnabranchStreamDown": {f"up{{{JOB}}}": "1x10 0x80"},
    "AnabranchNoEvaluation": {f"anabranch_stream_evaluation_outage{{{JOB}}}": "0x12 1x80"},
    "AnabranchLagGrowing": {f'anabranch_stream_lag_records{{{JOB},source="segment-stats"}}': "0x10 5+5x80"},
    "AnabranchDeadLetters": {f'anabranch_stream_dead_letters_total{{{JOB},reason="not-json"}}': "0x12 1x80"},
    "AnabranchInternalError": {f'anabranch_stream_holds_total{{{JOB},gate="internal-error"}}': "0x12 1x80"},
    "AnabranchBatchNearTick": {
        f'{STAGE},le="1"}}': "0+5x10 50x80",
        f'{STAGE},le="30"}}': "0+5x90",
        f'{STAGE},le="+Inf"}}': "0+5x90",
        f"anabranch_stream_tick_interval_seconds{{{JOB}}}": "10x90",
    },
    "AnabranchDecisionsFail": {
        f'anabranch_stream_outcomes_total{{{JOB},status="failed"}}': "0x12 2x80",
        f'anabranch_stream_outcomes_total{{{JOB},status="rejected"}}': "0x12 1x80",
    },
}
"""Values every 30 s; the fault begins in the sixth minute."""
LASTING = {"AnabranchLagGrowing", "AnabranchBatchNearTick"}
"""Alerts that look at many minutes and wait for ten more."""

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def promtool() -> str:
    """The program."""
    return str(ensure_prometheus() / "promtool")


def test_every_rule_has_a_fault():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == set(FAULTS)


@pytest.mark.parametrize("alert", FAULTS)
def test_alert_fires_on_its_fault_only(promtool, tmp_path, alert):
    moments = {5: False, 30 if alert in LASTING else 9: True}
    check_query(promtool, tmp_path, firing(alert), FAULTS[alert], moments)


def test_absent_job_is_down(promtool, tmp_path):
    check_query(promtool, tmp_path, firing("AnabranchStreamDown"), {}, {1: False, 3: True})


def test_panel_shows_first_hold_at_segment_limit(promtool, tmp_path):
    (query,) = (query for panel in FLEET.panels for query, _ in panel.queries if "suppressed" in query)
    series = {f'pulsar_scalable_topic_split_suppressed_max_segments_total{{{JOB},topic="t"}}': "_x20 1x200"}
    check_query(promtool, tmp_path, query, series, {5: False, 15: True, 100: False})


def firing(alert: str) -> str:
    return f'ALERTS{{alertname="{alert}",alertstate="firing"}}'


def check_query(
    promtool: str, folder: Path, query: str, series: Mapping[str, str], answers: Mapping[int, bool]
) -> None:
    """Have promtool evaluate the rules; `answers`: minute to whether the query has one series then, or none."""
    test = {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count({query})",
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if has_series else [],
            }
            for minute, has_series in answers.items()
        ],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
