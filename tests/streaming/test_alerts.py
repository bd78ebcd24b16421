"""The alert rules: well-formed, and about metrics and labels that the job has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from streaming.job.metrics import METRICS

RULES = Path(__file__).parents[2] / "conf" / "prometheus-alerts.yml"
_NAME = re.compile(r"\b(?:anabranch|pulsar)_\w+")
_SELECTOR = re.compile(r"\b(\w+)\{(\w+)=~?\"")
_GROUPING = re.compile(r"\b(?:by|on) \(([\w, ]+)\)")


def rules() -> list[dict]:
    lines = [line for line in RULES.read_text().splitlines() if not line.startswith("#")]
    (group,) = json.loads("\n".join(lines))["groups"]
    return group["rules"]


def metric_of(name: str) -> str:
    return name.removesuffix("_bucket")


def test_rules_have_name_wait_severity_and_advice():
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 6
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+m", rule["for"]), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_rules_use_existing_metrics_and_labels():
    labels = {metric.name: metric.labels for metric in METRICS}
    named = set()
    for rule in rules():
        names = {metric_of(name) for name in _NAME.findall(rule["expr"])}
        assert names <= set(labels), rule["alert"]
        named |= names
        for name, label in _SELECTOR.findall(rule["expr"]):
            assert label in ("job", *labels.get(metric_of(name), ())), rule["alert"]
        for group in _GROUPING.findall(rule["expr"]):
            of_metrics = {label for name in names for label in labels[name]}
            assert set(group.split(", ")) <= {"instance", "le", *of_metrics}, rule["alert"]
    assert "anabranch_stream_evaluation_outage" in named
