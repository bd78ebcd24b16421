"""No valid snapshot makes a decision raise, and every answer can be shown and written."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from anabranch.query.wording import explained
from decisions.autoscale.answers import answer_to_json
from decisions.autoscale.decide import Hold, Split, consumers_ask_nothing, decide, next_due
from decisions.autoscale.fleet import ASK, GATES, HOLD, REASONS, SPLIT, decide_fleet
from decisions.autoscale.gates import Gate
from decisions.autoscale.snapshot import snapshot_from_wire, snapshot_to_wire
from decisions.topic.layout import SegmentLayout
from schemas.metadata import AutoScalePolicyOverride, SegmentInfo
from schemas.snapshot import ANSWER, HotKeyRecord, InFlight, LoadRecord, SegmentPast, Snapshot, SubscriptionCount
from tests.decisions.packing import pack_snapshots
from tests.examples import examples

INSTANT = st.one_of(
    st.sampled_from([-(2**53), -1, 0, 1, 2**53, 1_763_660_000_000, 1_763_660_060_000]), st.integers(-(2**53), 2**53)
)
RATE = st.one_of(
    st.sampled_from([0.0, -0.0, 5e-324, 2.2e-308, 1.0, 999.9, 1e4, 50e6, 1.7976931348623157e308]),
    st.floats(0, 1.7976931348623157e308),
)
NUMBER = st.one_of(st.sampled_from([0, 1, -1, 60, 2**31, 2**63 - 1, 2**63, 10**400, -(10**400)]), st.integers(0, 500))


def built(model, **fields):
    """`st.builds` by field names: given a model, that would also draw the same fields by their wire names."""
    return st.fixed_dictionaries(fields).map(lambda values: model(**values))


def _values(kind):
    text = str(kind)
    if "bool" in text:
        return st.booleans()
    if "float" in text:
        return st.one_of(RATE, st.floats(allow_nan=False, allow_infinity=False))
    return NUMBER


overrides = st.fixed_dictionaries(
    {}, optional={name: _values(field.annotation) for name, field in AutoScalePolicyOverride.model_fields.items()}
).map(lambda values: AutoScalePolicyOverride(**values))
mild = st.fixed_dictionaries(
    {},
    optional={
        "max_segments": st.integers(1, 9),
        "split_cooldown_seconds": st.integers(0, 99),
        "max_dag_depth": st.integers(0, 3),
        "merge_window_seconds": st.sampled_from([0, 300, 2**63 - 1]),
        "merge_keeps_consumers": st.booleans(),
        "merge_cooldown_seconds": st.sampled_from([0, 300, 2**63 - 1]),
        "skip_unsplittable": st.booleans(),
        "max_load_age_seconds": st.sampled_from([0, 180, 2**63 - 1]),
        "normalized_coldness": st.booleans(),
        "retry_backoff_seconds": st.sampled_from([0, 30, 2**63 - 1]),
        "parallel_actions": st.booleans(),
        "settle_seconds": st.sampled_from([0, 1800, 2**63 - 1]),
        "hot_key_splits": st.sampled_from([0, 1, 16]),
        "returns_within_seconds": st.sampled_from([0, 3600]),
        "merge_headroom": st.sampled_from([0.0, 0.9]),
        "urgent_overload": st.sampled_from([0.0, 1.0, 1e308]),
    },
).map(lambda values: AutoScalePolicyOverride(**values))
loads = built(
    LoadRecord,
    msg_rate_in=RATE,
    bytes_rate_in=RATE,
    msg_rate_out=RATE,
    bytes_rate_out=RATE,
    modified_at=INSTANT,
    seen_at=st.none() | INSTANT,
    cold_since=st.none() | INSTANT,
    returned_after=st.sampled_from([None, 0, 2**31 - 1]),
)
cold_loads = built(
    LoadRecord,
    msg_rate_in=st.just(1.0),
    bytes_rate_in=st.just(0.0),
    msg_rate_out=st.just(0.0),
    bytes_rate_out=st.just(5e-324),
    modified_at=INSTANT,
    seen_at=st.none() | INSTANT,
    cold_since=st.none() | INSTANT,
)
counts = built(
    SubscriptionCount,
    type=st.sampled_from(["STREAM", "CHECKPOINT", "QUEUE"]),
    count=st.sampled_from([0, 1, 2, 3, 2**31 - 1]),
)


@st.composite
def layouts(draw):
    metadata = SegmentLayout.create(draw(st.integers(1, 5)), 0).to_metadata()
    strange = {
        number: SegmentInfo.model_validate(
            segment.model_dump()
            | {
                "parent_ids": draw(st.lists(st.sampled_from([0, 1, 2, 3, 2**63 - 1]), max_size=4)),
                "created_at_ms": draw(INSTANT),
                "sealed_at_epoch": draw(NUMBER),
            }
        )
        for number, segment in metadata.segments.items()
    }
    return metadata.model_copy(update={"segments": strange, "epoch": draw(st.integers(0, 2**63 - 1))})


pasts = built(
    SegmentPast, at=INSTANT, made=st.sampled_from(["split", "merge"]), regrets=st.sampled_from([0, 1, 6, 2**31 - 1])
)
hashes = st.sampled_from([0, 1, 2**15 - 1, 2**15, 2**16 - 1])
hot_keys = built(
    HotKeyRecord,
    start=hashes,
    end=hashes,
    within_start=hashes,
    within_end=hashes,
    overload=st.sampled_from([0.0, 1.0, 5.0, 1.7e308]),
    found_at=INSTANT,
    tries=st.sampled_from([0, 1, 2**31 - 1]),
)
snapshots = built(
    Snapshot,
    topic=st.just("topic://a/b/c"),
    now=INSTANT,
    trigger=st.sampled_from(["tick", "tick", "consumer"]),
    layout=layouts(),
    loads=st.dictionaries(st.integers(0, 6), loads | cold_loads, max_size=6),
    consumers=st.dictionaries(st.sampled_from("abc"), counts, max_size=2),
    policy=overrides | mild | mild,
    last_split_at=st.none() | INSTANT,
    last_merge_at=st.none() | INSTANT,
    in_flight=st.none()
    | built(InFlight, decision_id=st.just("d"), since=INSTANT, action=st.sampled_from([None, "merge"])),
    failures=st.sampled_from([0, 1, 2**31 - 1]),
    failed_at=st.none() | INSTANT,
    failed_action=st.sampled_from([None, "split", "merge"]),
    merge_depths=st.none() | st.dictionaries(st.integers(0, 6), st.integers(0, 2**31 - 1), max_size=3),
    pasts=st.none() | st.dictionaries(st.integers(0, 6), pasts, max_size=6),
    hot_keys=st.none() | st.lists(hot_keys, min_size=1, max_size=2),
)


@given(snapshots, st.sampled_from(["default", "pip-483"]))
@examples(40)
def test_every_valid_snapshot_decided_repeatably(wire, profile):
    """Decided, shown, written and decided again with the same answer."""
    one = snapshot_from_wire(wire, profile)
    answer = decide(one)
    line = answer_to_json(answer)
    assert ANSWER.validate_json(line).to_json() == line.decode()
    numbers = [value for one in answer.gates for value in (one.measured, one.limit, one.margin)]
    assert all(value is None or math.isfinite(value) for value in numbers)
    assert explained(one, answer).startswith("topic://a/b/c at ")
    due = next_due(answer)
    assert due is None or due > one.now
    assert decide(snapshot_from_wire(Snapshot.model_validate_json(snapshot_to_wire(one).to_json()), profile)) == answer
    by_fleet = _by_fleet(one)
    assert by_fleet is None or by_fleet == _plainly(answer)
    if one.trigger == "consumer":
        seen = (one.policy, one.required_segments, len(one.layout.active), one.in_flight is not None)
        assert consumers_ask_nothing(*seen) == (_plainly(answer) is Gate.CONSUMER_DEMAND)


def _plainly(answer):
    if isinstance(answer, Hold):
        return answer.gate
    segments = (answer.segment, -1) if isinstance(answer, Split) else answer.segments
    return (type(answer) is Split, *segments, answer.reason)


def _by_fleet(one):
    answers = decide_fleet(pack_snapshots([one])[0])
    if answers.action[0] == ASK:
        assert one.policy.parallel_actions or one.policy.hot_key_splits
        return None
    if answers.action[0] == HOLD:
        return GATES[answers.gate[0]]
    return (answers.action[0] == SPLIT, answers.segment[0], answers.other[0], REASONS[answers.reason[0]])
