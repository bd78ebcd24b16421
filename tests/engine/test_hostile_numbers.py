"""Numbers that no sane producer sends, in valid messages: the stream goes on, and its rows fit their tables."""

from __future__ import annotations

import json
import time

from hypothesis import example, given
from hypothesis import strategies as st

from schemas.metadata import AutoScalePolicyOverride
from schemas.tables.rows import TABLES
from streaming.operator.rows import rows_of
from tests.engine.buckets import Bucket
from tests.engine.records import consumers, layout, policy, record, stats, tick
from tests.engine.test_engine import NOW, SECOND, two_segments

FIELDS = sorted(str(field.alias) for field in AutoScalePolicyOverride.model_fields.values())
numbers = st.sampled_from([0, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30, 10**400, 10**4000, 1e308, 5e-324]).flatmap(
    lambda number: st.sampled_from([number, -number])
)
SEGMENT_FIELDS = ("createdAtEpoch", "sealedAtEpoch", "createdAtMs", "sealedAtMs", "unknown")


def goes_on(*announced):
    """Decides on what was announced, makes rows of the tables of it, and does so again after a restart."""
    bucket = Bucket()
    for number, records in enumerate(
        [announced, [stats({0: 5.0, 1: 1e7}, NOW + 9), consumers(5), tick(1)], [tick(2)]], 1
    ):
        output = bucket.batch(NOW + number * SECOND, *records)
        for kind, body in output.bodies().items():
            if kind in TABLES:
                rows_of(TABLES[kind], [body], NOW, 1)
        bucket.restart()


@given(st.sampled_from(FIELDS), numbers, st.sampled_from(["acme/shop", None, "topic"]))
@example("mergeBytesRateInThreshold", 10**400, None)
@example("splitBytesRateInThreshold", -(10**400), "topic")
def test_a_policy_of_any_numbers_stops_nothing(field, number, scope):
    override = {field: number}
    if scope == "topic":
        goes_on(layout(two_segments(), policy=override))
    else:
        goes_on(policy(override, scope), layout(two_segments()))


@given(st.sampled_from([*SEGMENT_FIELDS, "epoch", "nextSegmentId"]), numbers, st.sampled_from([(), (7,), (7, 8)]))
@example("createdAtMs", -(10**30), (7,))
@example("createdAtMs", -(2**63) - 1, (7, 8))
def test_a_layout_of_any_numbers_stops_nothing(field, number, parents):
    announced = layout(two_segments())
    body = json.loads(announced.value)
    for segment in body["layout"]["segments"].values():
        segment["parentIds"] = parents
    for part in body["layout"]["segments"].values() if field in SEGMENT_FIELDS else [body["layout"]]:
        part[field] = number
    goes_on(record(announced.source, announced.key.decode(), body))


def test_thousands_of_merges_counted_quickly():
    announced = layout(two_segments())
    body, first = json.loads(announced.value), 10
    sealed = {"hashRange": {"start": 0, "end": 1}, "state": "SEALED"}
    body["layout"]["segments"] |= {
        str(i): {"segmentId": i, **sealed, "parentIds": [i - 1, i - 2]} for i in range(first, 8_000)
    }
    body["layout"]["segments"]["0"]["parentIds"] = [7_999]
    began = time.process_time()
    goes_on(record(announced.source, announced.key.decode(), body))
    assert time.process_time() - began < 6
