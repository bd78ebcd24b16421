"""Only differences are said, everything is said now and then, and a listener who believes it knows what was read."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from anabranch.collectors import resync as repeats
from anabranch.collectors.announced import AnnouncedState, Consumers, cause_of, compare_incarnations
from anabranch.collectors.resync import Repeats
from decisions.topic.layout import SegmentLayout
from schemas.codecs.known_layouts import FULL_EVERY
from schemas.codecs.plain_events import read_plain
from schemas.metadata import AutoScalePolicyOverride
from tests.collectors.outlets import Listed, parsed
from tests.examples import examples

T = "topic://acme/shop/orders"
NOW = 1_763_660_000_000
BEFORE = SegmentLayout.create(2, NOW - 1000)
SPLIT = BEFORE.split_segment(0, NOW)
LATER = SegmentLayout.create(1, NOW + 5000)


def test_the_same_layout_is_said_once():
    said = AnnouncedState(7)
    assert [parsed(r).cause for r in said.layout(T, BEFORE.to_metadata(), NOW)] == ["snapshot"]
    assert said.layout(T, BEFORE.to_metadata(), NOW + 1) == []


def test_restarted_collector_keeps_known_topic():
    """The topic that a previous one announced is deleted only when it was made anew."""
    causes = []
    for layout in (BEFORE, SPLIT, LATER):
        said = AnnouncedState(7, before={T: BEFORE.to_metadata()})
        causes.append([parsed(record).cause for record in said.layout(T, layout.to_metadata(), NOW)])
    assert causes == [["snapshot"], ["snapshot"], ["deleted", "snapshot"]]


def test_a_change_is_said_with_its_cause():
    merged = SPLIT.merge_segments(2, 3, NOW + 1)
    pruned = merged.prune_segment(0)
    capped = pruned.with_policy(AutoScalePolicyOverride(max_segments=3))
    steps = [one.to_metadata() for one in (BEFORE, SPLIT, merged, pruned, capped)]
    assert [cause_of(before, after) for before, after in zip([None, *steps], steps, strict=False)] == [
        "snapshot",
        "split",
        "merge",
        "prune",
        "policy",
    ]


def test_server_with_stale_memory_not_trusted():
    said = AnnouncedState(7)
    said.layout(T, SPLIT.to_metadata(), NOW)
    assert said.layout(T, BEFORE.to_metadata(), NOW + 1) == []
    said.layout(T, LATER.to_metadata(), NOW + 2)
    assert said.layout(T, SPLIT.to_metadata(), NOW + 3) == []


def test_recreated_topic_retracted_first():
    said = AnnouncedState(7)
    said.layout(T, SPLIT.to_metadata(), NOW)
    said.consumers(T, {"s": Consumers("STREAM", 2)}, NOW)
    told = [parsed(record) for record in said.layout(T, LATER.to_metadata(), NOW + 6000)]
    assert [(one.cause, one.at) for one in told] == [("deleted", NOW + 6000), ("snapshot", NOW + 6001)]
    assert [parsed(r).consumers for r in said.consumers(T, {"s": Consumers("STREAM", 2)}, NOW + 6002)] == [2]


def test_segment_instants_separate_incarnations():
    assert compare_incarnations(BEFORE.to_metadata(), SPLIT.to_metadata()) == 0
    assert compare_incarnations(SPLIT.to_metadata(), LATER.to_metadata()) == 1
    assert compare_incarnations(LATER.to_metadata(), SPLIT.to_metadata()) == -1


def test_announcements_take_the_short_way_of_the_job():
    said = AnnouncedState(7)
    records = [
        *said.layout(T, SPLIT.to_metadata(), NOW),
        *said.consumers(T, {"s": Consumers("STREAM", 2)}, NOW),
        *said.repeats(T, NOW),
    ]
    for record in records:
        plain = read_plain(record.source, record.key.encode(), record.value, len(record.value))
        assert plain is not None
        assert plain.sender == 7


def test_consumers_wait_for_announced_layout():
    said = AnnouncedState(7)
    assert said.consumers(T, {"s": Consumers("STREAM", 2)}, NOW) == []


def test_oversized_layout_sent_without_sealed():
    wide = SegmentLayout.create(5_000, NOW).to_metadata()
    halves = {id: one.model_copy(update={"state": "SEALED"} if id % 2 else {}) for id, one in wide.segments.items()}
    said = AnnouncedState(7)
    (record,) = said.layout(T, wide.model_copy(update={"segments": halves}), NOW)
    told = parsed(record)
    assert {segment.state for segment in told.layout.segments.values()} == {"ACTIVE"}
    assert len(told.layout.segments) == 2_500


def test_unsendable_layout_noted_and_end_announced():
    said = AnnouncedState(7)
    said.layout(T, BEFORE.to_metadata(), NOW)
    huge = SegmentLayout.create(8_000, NOW + 9).to_metadata()
    assert [parsed(r).cause for r in said.layout(T, huge, NOW + 10)] == ["deleted"]
    assert said.too_large == {T}


COUNTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 5), max_size=3)
STEPS = st.lists(
    st.tuples(st.sampled_from(["t1", "t2"]), st.sampled_from(["layout", "split", "gone", "lost", "repeat"]), COUNTS)
    | st.tuples(st.just("ns"), st.just("policy"), COUNTS),
    max_size=25,
)


@examples(15)
@given(STEPS)
def test_listener_learns_state_despite_losses(steps):
    """Also when records are lost on the way: what was lost is said again at the next reading."""
    said, listener, now = AnnouncedState(7), Listed(), NOW
    layouts: dict[str, SegmentLayout] = {}
    counts: dict[str, dict[str, int]] = {}
    policies: dict[str, AutoScalePolicyOverride | None] = {}

    def read(topic):
        records = []
        if topic in layouts:
            records += said.layout(topic, layouts[topic].to_metadata(), now)
            records += said.consumers(topic, {s: Consumers("STREAM", n) for s, n in counts[topic].items()}, now)
        else:
            records += said.gone(topic, now)
        return records

    for name, what, numbers in steps:
        now += 10
        topic = f"topic://acme/shop/{name}"
        if what == "policy":
            policies["acme/shop"] = AutoScalePolicyOverride(max_segments=sum(numbers.values())) if numbers else None
            for record in said.policy("acme/shop", policies["acme/shop"], now):
                listener.announce(record)
            continue
        if what == "gone":
            layouts.pop(topic, None)
        elif topic not in layouts:
            layouts[topic] = SegmentLayout.create(1 + sum(numbers.values()), now)
        elif what == "split":
            layouts[topic] = layouts[topic].split_segment(layouts[topic].active[-1].segment_id, now)
        counts[topic] = numbers
        records = read(topic)
        for record in records:
            if what == "lost":
                said.retract(record)
            else:
                listener.announce(record)
        if what == "repeat" and topic in said.topics:
            for record in said.repeats(topic, now):
                listener.announce(record)
        again, said.again = said.again, []
        for record in again:
            listener.announce(record)
    for topic in counts:
        for record in read(topic):
            listener.announce(record)
    assert {t: e.layout for t, e in listener.layouts.items()} == {t: one.to_metadata() for t, one in layouts.items()}
    assert {t: listener.consumers.get(t, {}) for t in layouts} == {t: counts[t] for t in layouts}
    assert listener.policies == policies
    for topic in counts:
        assert read(topic) == []


def test_layout_repeated_by_digest_then_in_full(monkeypatch):
    said, listener, clock = AnnouncedState(7), Listed(), [NOW]
    monkeypatch.setattr(repeats, "time", SimpleNamespace(time_ns=lambda: clock[0] * 1_000_000))
    again = Repeats(said, 10, lambda records: [listener.announce(record) for record in records])
    layouts = {T: SPLIT, "topic://acme/shop/clicks": BEFORE}
    for topic, layout in layouts.items():
        for record in said.layout(topic, layout.to_metadata(), NOW):
            listener.announce(record)
        again.add(topic)
    full, digests = [], []
    for step in range(1, 2 * FULL_EVERY + 1):
        clock[0] = NOW + step * 10_000
        before = len(listener.causes), len(listener.repeated)
        again.say(step * 10.0, lambda: True)
        full.append(len(listener.causes) - before[0])
        digests.append(len(listener.repeated) - before[1])
    assert full == ([0] * (FULL_EVERY - 1) + [2]) * 2
    assert digests == [2 - number for number in full]


def test_undelivered_layout_not_repeated_by_digest():
    said = AnnouncedState(7)
    (record,) = said.layout(T, SPLIT.to_metadata(), NOW)
    assert said.known(T, NOW, 1_000) is not None
    said.retract(record)
    assert said.known(T, NOW, 1_000) is None
