"""What another scaler did beside what we wanted, out of a lake that the job's own engine has filled. No Spark."""

from __future__ import annotations

import json
import shlex
from datetime import datetime, timedelta, timezone

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.main import cli
from anabranch.history.recorded import RecordedHistory
from anabranch.simulation.shadow.record import NothingToCompare, read_sides
from anabranch.simulation.shadow.report import compare
from anabranch.simulation.shadow.sides import SAME, Done, actions_in, reversals
from decisions.topic.layout import SegmentLayout
from tests.docs.guides import blocks
from tests.engine.buckets import CONFIGURED
from tests.engine.records import consumers, layout, outcome, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.engine.test_replay import NAMES, RecordedBucket
from tests.history.test_explain import at, written

T0, T1, T2 = NAMES
WARM, HOT = 5_000.0, 40_000.0


class Shadowed(RecordedBucket):
    """A job beside another scaler: the executor only observes, and the other one's layouts are announced."""

    def __init__(self):
        super().__init__()
        self.layouts = {}

    def begin(self, topic, segments=2):
        self.layouts[topic] = SegmentLayout.create(segments, NOW - 60 * MINUTE)
        self.batch(NOW - MINUTE, layout(self.layouts[topic], topic=topic))

    def minute(self, minute, **loads):
        """Loads of a minute by topic, and its tick; what is decided is only observed. Answers what was decided."""
        now = NOW + minute * MINUTE
        records = [
            stats({one.segment_id: of.get(one.segment_id, WARM) for one in self.layouts[topic].active}, now, topic)
            for topic, of in zip(NAMES, loads.values(), strict=False)
        ]
        decisions = self.batch(now, *records, tick(now)).decisions
        for row in decisions:
            self.batch(now + SECOND, outcome(row["decision_id"], "observed", topic=row["subject"]))
        return decisions

    def they(self, topic, action, *segments, at):
        """The other scaler acts at an instant; it is announced a second later."""
        change = getattr(self.layouts[topic], f"{action}_segment{'s' if action == 'merge' else ''}")
        self.layouts[topic] = change(*segments, at)
        self.batch(at + SECOND, layout(self.layouts[topic], cause="snapshot", at=at + SECOND, topic=topic))


def found(bucket, tmp_path):
    return read(written(bucket, tmp_path / "lake"), tmp_path)


def read(lake, folder, chunk_bytes=1, **how):
    """Both sides of a lake, by default with a chunk for each batch."""
    record = RecordedHistory(lake, folder / "files", chunk_bytes, with_ticks=True, **how)
    return read_sides(lake, record, CONFIGURED)


def test_equal_split_is_pair_with_our_lead(tmp_path):
    bucket = Shadowed()
    bucket.begin(T0)
    bucket.minute(0, t0={})
    assert len(bucket.minute(1, t0={0: HOT})) == 1
    bucket.they(T0, "split", 0, at=NOW + MINUTE + 45 * SECOND)
    (pair,) = found(bucket, tmp_path).sides.both
    assert (pair.lead_ms, pair.wanted.reason, pair.done.segments) == (45 * SECOND, "msgRateIn", (0,))
    assert (pair.done.hot_since, pair.wanted.hot_since) == (NOW + MINUTE, NOW + MINUTE)


def test_earlier_foreign_action_has_our_view(tmp_path):
    """The row has our answer and the instant at which we would have evaluated."""
    bucket = Shadowed()
    bucket.begin(T0)
    bucket.begin(T1)
    bucket.minute(0, t0={}, t1={})
    # Hot between two ticks, and split before the second one; the other topic is split without any reason of ours.
    hot_at = NOW + 20 * SECOND
    bucket.batch(hot_at, stats({0: HOT, 1: WARM}, hot_at, T0))
    bucket.they(T0, "split", 0, at=NOW + 40 * SECOND)
    bucket.they(T1, "split", 1, at=NOW + 41 * SECOND)
    bucket.minute(1, t0={}, t1={})
    sides = found(bucket, tmp_path).sides
    assert [(one.topic, one.answer, one.looked_at) for one in sides.theirs] == [
        (T0, SAME, NOW + MINUTE),
        (T1, "merge-thresholds", NOW + MINUTE),
    ]
    assert (sides.both, sides.ours) == ([], [])


def test_decision_committed_later_is_not_ahead(tmp_path):
    bucket = Shadowed()
    bucket.begin(T0)
    bucket.minute(0, t0={})
    bucket.commit_ms = 35 * SECOND
    assert len(bucket.minute(1, t0={0: HOT})) == 1
    bucket.they(T0, "split", 0, at=NOW + MINUTE + 30 * SECOND)
    sides = found(bucket, tmp_path).sides
    assert [(one.answer, one.looked_at) for one in sides.theirs] == [(SAME, NOW + MINUTE + 35 * SECOND)]
    assert (sides.both, sides.ours) == ([], [])


def test_pruned_foreign_action_known_by_ranges(tmp_path):
    """Its parents were pruned before anybody saw them sealed."""
    bucket = Shadowed()
    bucket.begin(T0)
    bucket.minute(0, t0={})
    for minute, action, segments in ((1, "split", (0,)), (2, "merge", (1, 3))):
        change = getattr(bucket.layouts[T0], f"{action}_segment{'s' if action == 'merge' else ''}")
        acted = change(*segments, NOW + minute * MINUTE)
        bucket.layouts[T0] = pruned(acted)
        bucket.minute(minute, t0={})
        bucket.batch(NOW + minute * MINUTE + SECOND, layout(bucket.layouts[T0], cause="snapshot", topic=T0))
    assert [(one.what, one.at) for one in found(bucket, tmp_path).sides.theirs] == [
        (("split", (0,)), NOW + MINUTE),
        (("merge", (1, 3)), NOW + 2 * MINUTE),
    ]


def pruned(found):
    """The layout without what is sealed."""
    for segment in [one for one in found.segments.values() if not one.is_active]:
        found = found.prune_segment(segment.segment_id)
    return found


def test_unmatched_decision_is_ours_with_outcome(tmp_path):
    bucket = Shadowed()
    for topic in NAMES:
        bucket.begin(topic)
    bucket.minute(0, t0={}, t1={}, t2={})
    assert len(bucket.minute(1, t0={0: HOT}, t1={0: HOT}, t2={0: HOT})) == 3
    bucket.they(T0, "merge", 0, 1, at=NOW + 90 * SECOND)
    bucket.minute(2, t0={}, t1={0: WARM}, t2={0: HOT + 1})
    sides = found(bucket, tmp_path).sides
    assert [(one.topic, one.what, one.ending) for one in sides.ours] == [
        (T0, ("split", (0,)), "overtaken"),
        (T1, ("split", (0,)), "withdrawn"),
        (T2, ("split", (0,)), "open"),
    ]
    assert [(one.topic, one.what, one.answer) for one in sides.theirs] == [(T0, ("merge", (0, 1)), "other: split 0")]


def test_repeated_observation_counts_from_first_time(tmp_path):
    bucket = Shadowed()
    bucket.begin(T0)
    taken = [len(bucket.minute(minute, t0={0: HOT + minute})) for minute in range(40)]
    assert sum(taken) == 3
    bucket.they(T0, "split", 0, at=NOW + 40 * MINUTE)
    (pair,) = found(bucket, tmp_path).sides.both
    assert pair.lead_ms == 40 * MINUTE


def test_initial_and_own_actions_are_nobodys(tmp_path):
    bucket = Shadowed()
    bucket.layouts[T0] = SegmentLayout.create(2, NOW - 60 * MINUTE).split_segment(0, NOW - 30 * MINUTE)
    bucket.batch(NOW - MINUTE, layout(bucket.layouts[T0], topic=T0))
    (row,) = bucket.batch(NOW, stats({1: HOT, 2: WARM, 3: WARM}, NOW, T0), tick(NOW)).decisions
    bucket.batch(NOW + SECOND, outcome(row["decision_id"], "applied", topic=T0))
    bucket.they(T0, "split", 1, at=NOW + 2 * SECOND)
    sides = found(bucket, tmp_path).sides
    assert (sides.both, sides.theirs, sides.ours) == ([], [], [])


def test_recreated_topic_begins_anew(tmp_path):
    bucket = Shadowed()
    bucket.begin(T0)
    bucket.minute(0, t0={})
    bucket.they(T0, "split", 0, at=NOW + 10 * SECOND)
    bucket.batch(NOW + 20 * SECOND, layout(bucket.layouts[T0], cause="deleted", at=NOW + 20 * SECOND, topic=T0))
    bucket.layouts[T0] = SegmentLayout.create(2, NOW + 30 * SECOND)
    bucket.batch(NOW + 31 * SECOND, layout(bucket.layouts[T0], topic=T0, at=NOW + 31 * SECOND))
    bucket.they(T0, "split", 0, at=NOW + 40 * SECOND)
    assert [one.what for one in found(bucket, tmp_path).sides.theirs] == [("split", (0,))] * 2


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Two topics: one where both agree, one that the other scaler splits and merges again."""
    bucket = Shadowed()
    bucket.begin(T0)
    bucket.begin(T1)
    bucket.batch(NOW - MINUTE + 1, consumers(1, topic=T0))
    bucket.minute(0, t0={}, t1={})
    bucket.minute(1, t0={0: HOT}, t1={})
    bucket.they(T0, "split", 0, at=NOW + 2 * MINUTE)
    bucket.they(T1, "split", 0, at=NOW + 3 * MINUTE)
    bucket.they(T1, "merge", 2, 3, at=NOW + 10 * MINUTE)
    bucket.minute(11, t0={}, t1={})
    folder = tmp_path_factory.mktemp("shadow")
    written(bucket, folder / "lake")
    (folder / "settings.toml").write_text(f'[lake]\npath = "{folder / "lake"}"\n')
    return folder


def test_the_report_counts_both_sides(told):
    recorded = read(str(told / "lake"), told)
    report = compare(recorded, recorded.began_at, recorded.ended_at)
    assert report["theirs"] | {"minutesOverThreshold": None} == {
        "splits": 2,
        "merges": 1,
        "reversals": 1,
        "minutesOverThreshold": None,
    }
    assert report["theirs"]["minutesOverThreshold"] == {"count": 1, "median": 1.0, "max": 1.0, "total": 1.0}
    assert (report["ours"]["splits"], report["ours"]["merges"], report["ours"]["reversals"]) == (1, 0, 0)
    assert (report["agreement"]["share"], report["onlyTheirs"]) == (pytest.approx(1 / 3), 2)
    assert report["leadSeconds"]["ahead"] == {"count": 1, "median": 60.0, "max": 60.0, "total": 60.0}
    assert report["actions"][0]["verdict"] == "both"
    later = compare(recorded, NOW + 5 * MINUTE, recorded.ended_at)
    assert (later["theirs"]["splits"], later["theirs"]["merges"], later["ours"]["splits"]) == (0, 1, 0)


def run(told, *arguments):
    return CliRunner().invoke(cli, ["-c", str(told / "settings.toml"), "shadow", "report", *arguments])


def test_command_prints_text_json_or_page(told):
    text = run(told)
    assert (text.exit_code, "their actions that we agree with" in text.output) == (0, True), text.output
    assert f"split 0 of {T0}: both, we 60 s earlier" in text.output
    parsed = json.loads(run(told, "--output", "json").stdout)
    assert len(parsed["actions"]) == 3
    written_to = told / "shadow.html"
    html = run(told, "--output", "html", "--file", str(written_to))
    assert html.exit_code == 0, html.output
    page = written_to.read_text()
    assert page.startswith("<!doctype html>")
    assert "Plotly.newPlot" in page
    assert '<script src="http' not in page
    only = json.loads(run(told, "--namespace", "acme/shop", "--output", "json").stdout)
    assert only["topics"] == 2


def test_guide_of_pulsar_writes_the_report(told, monkeypatch):
    monkeypatch.chdir(told)
    [command] = [line for block in blocks("docs/pulsar.md") if "shadow" in block.run_by for line in block.commands]
    since = (datetime.fromtimestamp(NOW / 1000, timezone.utc) - timedelta(days=1)).isoformat()
    _, *arguments = shlex.split(command.replace("2026-11-22T08:00:00", since))
    done = CliRunner().invoke(cli, ["-c", "settings.toml", *arguments])
    assert done.exit_code == 0, done.output
    assert (told / "shadow.html").read_text().startswith("<!doctype html>")


def test_wrong_usage_and_an_empty_lake_are_one_line(told, tmp_path):
    assert run(told, "--output", "html").exit_code == 2
    assert "is no time" in run(told, "--since", "yesterday").output
    nobody = run(told, "--namespace", "acme/other")
    assert (nobody.exit_code, "does a collector announce them?" in nobody.output) == (1, True)
    with pytest.raises(NothingToCompare, match="is the job running"):
        read(str(tmp_path / "nothing"), tmp_path)
    early = run(told, "--until", at(NOW - 5 * MINUTE).isoformat())
    assert early.exit_code == 1


@st.composite
def walks(draw):
    """A layout that was split and merged at random, and what was done: kind, segments, when."""
    found, done = SegmentLayout.create(draw(st.integers(1, 3)), NOW), []
    for step in range(draw(st.integers(0, 12))):
        now = NOW + (step + 1) * MINUTE
        active = sorted(found.active, key=lambda segment: segment.start)
        place = draw(st.integers(0, len(active) - 1))
        if draw(st.booleans()) or place + 1 == len(active):
            done.append(("split", (active[place].segment_id,), now))
            found = found.split_segment(active[place].segment_id, now)
        else:
            pair = active[place].segment_id, active[place + 1].segment_id
            done.append(("merge", tuple(sorted(pair)), now))
            found = found.merge_segments(*pair, now)
    return found, done


@given(walks())
def test_a_layout_shows_every_action_that_led_to_it(walk):
    found, done = walk
    assert sorted((kind, segments, when) for kind, segments, _, when in actions_in(found)) == sorted(done)


@given(walks(), st.booleans(), st.integers(0, 1))
def test_next_action_known_from_previous_layout(walk, splits, parents_left):
    """The next action is known although its parents are pruned."""
    before, _ = walk
    now, active = NOW + 60 * MINUTE, before.active
    if splits or len(active) == 1:
        expected, after = ("split", (active[0].segment_id,)), before.split_segment(active[0].segment_id, now)
    else:
        pair = active[0].segment_id, active[1].segment_id
        expected, after = ("merge", tuple(sorted(pair))), before.merge_segments(*pair, now)
    for parent in expected[1][parents_left:]:
        after = after.prune_segment(parent)
    new = [one for one in actions_in(after, before) if one[3] == now]
    assert [(kind, segments) for kind, segments, _, _ in new] == [expected]


@given(walks(), st.integers(0, 10))
def test_only_quick_reversal_counts(walk, minutes):
    found, done = walk
    parents = {(T0, child): segments for _, segments, children, _ in actions_in(found) for child in children}
    when = {segments: now for _, segments, now in done}
    kinds = {segments: kind for kind, segments, _ in done}
    expected = 0
    for kind, segments, now in done:
        origins = {parents.get((T0, one), ()) for one in segments}
        expected += any(
            origin in kinds and kinds[origin] != kind and now - when[origin] <= minutes * MINUTE for origin in origins
        )
    assert reversals([Done(T0, *one, answer=None) for one in done], parents, minutes * MINUTE) == expected
