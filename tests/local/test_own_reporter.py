"""The producer of docs/operations.md says what its reader expects of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas.codecs.columns import split_columns
from schemas.kafka.messages import SegmentStatsColumns, parse_message
from tests.local.test_traffic import read_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


@pytest.mark.process
def test_documented_reporter_sends_valid_columns(kafka):
    (example,) = re.findall(r"## A reporter of your own\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert "localhost:9092" in example
    exec(example.replace("localhost:9092", kafka), {})
    ((key, value),) = read_all(kafka, "segment-stats")
    message = parse_message("segment-stats", key, value)
    assert isinstance(message, SegmentStatsColumns)
    good, refused = split_columns(message)
    assert refused == []
    assert good.segments.topics == ["topic://acme/shop/orders", "topic://acme/shop/clicks"]
    assert (good.segments.counts.tolist(), good.segments.ids.tolist()) == ([2, 1], [3, 5, 0])
    assert good.rates[:, 1].tolist() == [80, 9e4, 320, 3.6e5]
