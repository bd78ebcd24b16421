"""The closed loop in virtual time: demand over the key space, the job's own engine, and layouts that follow it."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.examples import EXAMPLES
from anabranch.cli.main import cli
from anabranch.local.sliced import LabDemand
from anabranch.simulation.topics.from_lake import lines_of_lake
from anabranch.simulation.topics.recorded import ConsumersLine, DemandError, RangeLine, RecordedDemand
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.shapes import SHAPES, ShapedDemand
from anabranch.simulation.topics.timeline import Timeline, Window
from anabranch.simulation.topics.window import WindowColumns
from decisions.autoscale.policy import PROFILES
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from schemas.settings.root import load_settings
from tests.engine.buckets import Bucket
from tests.engine.records import consumers, layout, of_life, outcome, stats, tick
from tests.engine.test_replay import NAMES, RecordedBucket
from tests.examples import examples
from tests.history.test_explain import written
from tests.simulation.step_by_step import StepByStep

NOW = 1_767_225_600_000
DEFAULT = ConfiguredPolicy("default", None)
ORDERS = "topic://acme/shop/orders"


def line(**fields):
    return json.dumps({"topic": ORDERS, "at": NOW, "msgRateIn": 0.0} | fields)


def consuming(count, at=NOW):
    return json.dumps({"topic": ORDERS, "at": at, "subscription": "billing", "type": "STREAM", "consumers": count})


def run(lines, policies=None):
    return simulate(RecordedDemand.read(lines), policies or {"default": DEFAULT})


def carried(source, step, topic, start, end):
    """The four rates of ranges of hashes at a step."""
    now = source.began_at + step * source.step_ms
    window = next(one for one in source.windows(range(len(source.topics))) if one.begin <= now < one.end)
    columns = WindowColumns(window, source.began_at, source.step_ms, [{} for _ in source.topics])
    topic = np.asarray(topic)
    at = columns.in_force(topic, np.full(len(topic), step))
    bounds = columns.locate(topic, np.asarray(start), np.asarray(end))
    return columns.carried(topic, columns.changes.which[at], bounds) * columns.changes.level[at][:, None]


@given(st.integers(0, 2**32 - 1))
@examples(8)
def test_tiling_segments_carry_all_demand(seed):
    random = np.random.default_rng(seed)
    slices = np.unique(np.r_[0, HASH_SPACE, random.integers(1, HASH_SPACE, 300)])
    rates = random.uniform(0, 100, (1, len(slices) - 1, 4))
    edges = np.unique(np.r_[0, HASH_SPACE, random.integers(1, HASH_SPACE, random.integers(20))])
    starts, ends = edges[:-1], edges[1:] - 1
    window = Window(0, 10, [Timeline(slices, rates, np.array([0]), np.array([0]))])
    columns = WindowColumns(window, 0, 10, [{}])
    topic = np.zeros(len(starts), np.int64)
    found = columns.carried(topic, topic, columns.locate(topic, starts, ends))
    # The same hash by hash.
    each = np.repeat(rates[0] / np.diff(slices)[:, None], np.diff(slices), axis=0)
    assert found == pytest.approx(np.add.reduceat(each, starts, axis=0))
    assert (found >= 0).all()
    assert found.sum(axis=0) == pytest.approx(rates.sum(axis=(0, 1)))


def test_simulation_decides_as_the_job():
    demand = RecordedDemand.read(
        [
            line(msgRateIn=9_000.0),
            line(at=NOW + 60_000, msgRateIn=26_000.0),
            line(at=NOW + 600_000, msgRateIn=300.0),
            line(at=NOW + 2_000_000, msgRateIn=300.0),
        ]
    )
    loop, bucket, known, wanted = StepByStep(demand, DEFAULT), Bucket(configured=DEFAULT), None, []
    simulated, decided, due = [], [], []
    for step in range(demand.steps):
        now = NOW + step * demand.step_ms
        loop.step(step)
        records = []
        if loop.layouts[0] is not known:
            known = loop.layouts[0]
            records.append(layout(known, "snapshot", at=now))
        records += [outcome(row["decision_id"], "applied", now) for row in wanted]
        active = {one.segment_id: one for one in known.active}
        rates = carried(
            demand,
            step,
            np.zeros(len(active), np.int64),
            [one.start for one in active.values()],
            [one.end for one in active.values()],
        )
        records.append(stats(dict(zip(active, rates[:, 0].tolist(), strict=True)), now))
        if now % 60_000 == 0:
            records.append(tick(now))
        records += [tick(now, name) for name, at in due if at <= now]
        output = bucket.batch(now, *records)
        due = [one for one in due if one[1] > now] + output.due
        wanted = output.decisions
        decided += wanted
        simulated += loop.decided
    columns = ("decision_id", "action", "arguments", "reason", "decided_at", "gates", "seq")
    assert [[row[name] for name in columns] for row in simulated] == [
        [row[name] for name in columns] for row in decided
    ]
    assert {row["action"] for row in decided} == {"split", "merge"}
    # And the simulation does it too.
    told = simulate(demand, {"default": DEFAULT})["default"].actions
    assert told.at.tolist() == [row["decided_at"] for row in decided]


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_constant_demand_settles_below_limits(profile):
    hours = 2 * 3_600_000
    demand = [line(msgRateIn=35_000.0, bytesRateIn=1e6), line(at=NOW + hours, msgRateIn=35_000.0, bytesRateIn=1e6)]
    score = run(demand, {"it": ConfiguredPolicy(profile, None)})["it"]
    assert (score.splits.tolist(), score.merges.tolist(), score.most_segments.tolist()) == ([3], [0], [4])
    assert score.series[-1][1:] == (4, 0)
    assert score.over_ms[0] < 10 * 60_000


def test_range_demand_splits_then_merges():
    low = {"start": 0, "end": 0x1FFF}
    score = run(
        [
            line(msgRateIn=10.0),
            line(msgRateIn=18_000.0, **low),
            line(at=NOW + 3_600_000, msgRateIn=10.0, **low),
            line(at=NOW + 3 * 3_600_000, msgRateIn=10.0),
        ]
    )["default"]
    told = score.to_json()
    assert told["splits"] == told["merges"] > 2
    assert told["sealedSegments"] == told["splits"] + 2 * told["merges"]
    assert score.series[-1][1] == 1


def test_consumers_wait_for_their_segments():
    score = run([line(), consuming(4), line(at=NOW + 3_600_000)])["default"]
    # Three splits, the last two at once; each applied with the next sample.
    assert score.splits.tolist() == [3]
    assert score.waiting_ms[0] < 60_000
    assert score.series[-1][1] == 4
    slow = ConfiguredPolicy("pip-483", None)
    one_by_one = run([line(), consuming(4), line(at=NOW + 3_600_000)], {"pip-483": slow})["pip-483"]
    # A cooldown of a minute between two of them, and a pair that is merged in between.
    assert one_by_one.splits[0] > 3
    assert one_by_one.waiting_ms[0] > 2 * 60_000


def test_quick_return_is_a_reversal():
    """A larger cap makes another policy."""
    flapping = [
        line(at=NOW + minute * 60_000, msgRateIn=12_000.0 if minute // 12 % 2 else 100.0) for minute in range(72)
    ]
    pip = ConfiguredPolicy("pip-483", None)
    mine = ConfiguredPolicy("pip-483", '{"mergeWindowSeconds":3600}')
    scores = run(flapping, {"pip-483": pip, "patient": mine, "default": DEFAULT})
    assert scores["pip-483"].reversals[0] > 0
    assert scores["patient"].reversals[0] == scores["default"].reversals[0] == 0
    assert scores["patient"].segment_ms[0] > scores["pip-483"].segment_ms[0]


def test_recorded_lake_gives_demand_of_any_layout(tmp_path):
    bucket = RecordedBucket()
    made = SegmentLayout.create(2, NOW)
    bucket.batch(NOW, layout(made, topic=ORDERS), consumers(2, topic=ORDERS))
    bucket.batch(NOW + 10_000, stats({0: 3_000.0, 1: 1_000.0}, NOW, ORDERS))
    bucket.batch(NOW + 60_000, layout(made.split_segment(0, NOW + 60_000), "split", topic=ORDERS))
    bucket.batch(NOW + 70_000, stats({2: 2_000.0, 3: 1_000.0}, NOW + 70_000, ORDERS))
    lake = written(bucket, tmp_path / "lake")
    demand = RecordedDemand(*lines_of_lake(lake))
    assert (demand.topics, len(demand.layouts(range(1))[0].active), demand.steps) == ([ORDERS], 2, 8)
    halves = np.zeros(4, np.int64), np.arange(4) * 0x4000, np.arange(1, 5) * 0x4000 - 1
    assert carried(demand, 1, *halves)[:, 0] == pytest.approx([1_500.0, 1_500.0, 500.0, 500.0])
    assert carried(demand, 7, *halves)[:, 0] == pytest.approx([2_000.0, 1_000.0, 500.0, 500.0])
    later, initial = lines_of_lake(lake, since=datetime.fromtimestamp(NOW / 1000 + 65, timezone.utc))
    assert (initial, {line.at for line in later}) == ({ORDERS: 3}, {NOW + 65_000, NOW + 70_000})
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{lake}"\n')
    run = CliRunner().invoke(
        cli, ["-c", str(tmp_path / "s.toml"), "simulate", "--demand", "lake", "--policy", "default"]
    )
    assert run.output.startswith("lake: 1 topic, ")
    with pytest.raises(DemandError, match=r"the loads and events on record in .* end at .* UTC, before --since"):
        lines_of_lake(lake, since=datetime.fromtimestamp(NOW / 1000 + 71, timezone.utc))


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_repeatable_and_nonnegative(shape):
    told = []
    for _ in range(2):
        demand = ShapedDemand(shape, 3, 1.0, began_at=NOW)
        for step in (0, 100, 359):
            rates = carried(demand, step, np.arange(3), np.zeros(3, np.int64), np.full(3, HASH_SPACE - 1))
            told.append(rates.tolist())
            assert (rates >= 0).all()
    assert told[:3] == told[3:]


def test_local_run_demand_matches_its_brokers():
    traffic = load_settings([], None).traffic
    demand = LabDemand(traffic, 0.1, NOW)
    whole = carried(
        demand,
        7,
        np.arange(len(demand.topics)),
        np.zeros(len(demand.topics), np.int64),
        np.full(len(demand.topics), HASH_SPACE - 1),
    )
    told = [one.rates((NOW + 70_000) / 1000, [0], [HASH_SPACE - 1])[0] for one in demand._demands]
    assert whole == pytest.approx(np.array(told), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("is_from_start", [True, False])
def test_local_run_demand_counts_from_start(is_from_start):
    traffic = load_settings([], None).traffic.model_copy(update={"from_start": is_from_start})
    places = np.arange(traffic.topics)
    told = [
        carried(LabDemand(traffic, 0.1, began_at), 7, places, 0 * places, 0 * places + HASH_SPACE - 1)
        for began_at in (NOW, NOW + 7_777_000)
    ]
    assert np.allclose(*told) is is_from_start


def test_deleted_topic_of_the_lake_wants_nothing(tmp_path):
    bucket, one = RecordedBucket(), SegmentLayout.create(1, NOW)
    bucket.batch(NOW, layout(one, topic=NAMES[0]), consumers(2, topic=NAMES[0]))
    bucket.batch(NOW + 60_000, stats({0: 50.0}, NOW + 60_000, NAMES[0]))
    bucket.batch(NOW + 120_000, layout(one, "deleted", at=NOW + 120_000, topic=NAMES[0]))
    again = SegmentLayout.create(1, NOW + 180_000)
    bucket.batch(NOW + 180_000, layout(again, at=NOW + 180_000, topic=NAMES[0]))
    bucket.batch(NOW + 240_000, stats({0: 70.0}, NOW + 240_000, NAMES[0]))
    lines, _ = lines_of_lake(written(bucket, tmp_path / "lake"))
    rates = [(one.at - NOW, one.msg_rate_in) for one in lines if isinstance(one, RangeLine)]
    assert rates == [(60_000, 50.0), (120_000, 0.0), (240_000, 70.0)]
    sessions = [(one.at - NOW, one.consumers) for one in lines if isinstance(one, ConsumersLine)]
    assert sessions == [(0, 2), (120_000, 0)]


@pytest.mark.parametrize("is_said", [True, False], ids=["said", "silent"])
def test_ended_life_repeated_late_wants_nothing(tmp_path, is_said):
    def of(created, announced):
        return of_life(created, announced) if is_said else announced

    bucket, one = RecordedBucket(), SegmentLayout.create(1, NOW)
    deleted = layout(one, "deleted", at=NOW + 120_000, topic=NAMES[0])
    bucket.batch(NOW, of(NOW, layout(one, at=NOW, topic=NAMES[0])), of(NOW, consumers(2, NOW, topic=NAMES[0])))
    bucket.batch(NOW + 120_000, of(NOW, deleted))
    began = NOW + 180_000
    bucket.batch(began, of(began, layout(SegmentLayout.create(1, began), at=began, topic=NAMES[0])))
    bucket.batch(began + 60_000, stats({0: 70.0}, began + 60_000, NAMES[0]))
    late = layout(one.split_segment(0, NOW + 1), "snapshot", at=NOW + 1, topic=NAMES[0])
    bucket.batch(began + 90_000, *(of(NOW, said) for said in (late, deleted, consumers(9, NOW + 1, topic=NAMES[0]))))
    lines, _ = lines_of_lake(written(bucket, tmp_path / "lake"))
    rates = [(one.at - NOW, one.msg_rate_in) for one in lines if isinstance(one, RangeLine)]
    assert rates == [(120_000, 0.0), (240_000, 70.0)]
    sessions = [(one.at - NOW, one.consumers) for one in lines if isinstance(one, ConsumersLine)]
    assert sessions == [(0, 2), (120_000, 0)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["{}"], "line 1: topic: Field required"),
        (["", "nonsense"], "line 2: no JSON object"),
        ([line(start=9, end=3)], "line 1: line: Value error, start has to be at or before end"),
        ([line(msgRateIn=-1.0)], "line 1: msgRateIn: Input should be greater than or equal to 0"),
        ([consuming(3)], "there is no line with a rate in it"),
        (["[1]"], "line 1: line: Input should be an object"),
    ],
)
def test_a_file_that_is_no_demand_is_told_by_its_line(lines, expected):
    with pytest.raises(DemandError, match=expected.replace("[", r"\[")):
        RecordedDemand.read(lines)


def test_command_compares_policies_in_all_formats(tmp_path):
    (tmp_path / "small.toml").write_text("maxSegments = 2\n")
    (tmp_path / "demand.jsonl").write_text("\n".join([line(msgRateIn=90_000.0), line(at=NOW + 1_800_000)]))
    policies = ["--policy", "default", "--policy", str(tmp_path / "small.toml")]

    def simulated(*arguments):
        return CliRunner().invoke(cli, ["simulate", *policies, *arguments], catch_exceptions=False)

    text = simulated("--demand", str(tmp_path / "demand.jsonl"))
    assert text.exit_code == 0, text.output
    assert [one.split()[0] for one in text.output.splitlines()[1:]] == ["policy", "default", "small"]
    told = json.loads(simulated("--demand", str(tmp_path / "demand.jsonl"), "--output", "json").output)["policies"]
    assert (told["small"]["mostSegments"], told["default"]["mostSegments"] > 8) == (2, True)
    assert told["default"]["topics"][0]["topic"] == ORDERS
    file = tmp_path / "out.html"
    page = simulated("--demand", "step", "--topics", "2", "--hours", "0.2", "--output", "html", "--file", str(file))
    assert page.exit_code == 0
    assert "Plotly.newPlot" in file.read_text()
    assert simulated("--demand", "nowhere").exit_code == 2
    assert "no shape (flat, day, step, burst, drift, lab, lake)" in simulated("--demand", "nowhere").output


def test_duplicate_or_unusable_policies_refused(tmp_path):
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.toml").write_text("maxSegments = 2\n")
    (tmp_path / "picture.toml").write_bytes(b"\x94\xff\x00")

    def simulated(*policies):
        given = [part for one in policies for part in ("--policy", str(tmp_path / one))]
        return CliRunner().invoke(cli, ["simulate", "--demand", "flat", "--hours", "0.1", *given])

    twice = simulated("old/mine.toml", "new/mine.toml")
    assert (twice.exit_code, "two policies are named mine: rename a file" in " ".join(twice.output.split())) == (
        2,
        True,
    )
    told = simulated("picture.toml")
    assert (told.exit_code, "picture.toml is no TOML file: it is not text in UTF-8" in told.output) == (1, True)
    (tmp_path / "torn.toml").write_text("maxSegments = 1\nminSegments = 5\n")
    told = simulated("torn.toml")
    assert (told.exit_code, "maxSegments (1) must not be less than minSegments (5)" in told.output) == (1, True)


def test_unwritable_report_refused_with_path(tmp_path):
    """A page needs a file."""
    arguments = ["simulate", "--demand", "flat", "--policy", "default", "--topics", "1", "--hours", "0.1"]
    run = CliRunner().invoke(cli, [*arguments, "--file", str(tmp_path / "no" / "out.txt")])
    assert (run.exit_code, "out.txt: No such file or directory" in run.output) == (1, True)
    run = CliRunner().invoke(cli, [*arguments, "--output", "html"])
    assert (run.exit_code, "--output html needs --file" in run.output) == (2, True)
    run = CliRunner().invoke(cli, [*arguments, "--output", "json", "--file", str(tmp_path / "out.json")])
    told = json.loads((tmp_path / "out.json").read_text())
    assert (run.exit_code, told["complete"], told["policies"]["default"]["topicHours"]) == (0, True, 0.1)


def test_summary_counts_one_and_parts_of_an_hour():
    arguments = ["--demand", "flat", "--policy", "default", "--topics", "1"]
    part = CliRunner().invoke(cli, ["whatif", "simulate", *arguments, "--hours", "0.1"])
    whole = CliRunner().invoke(cli, ["whatif", "simulate", *arguments, "--hours", "1"])
    assert part.output.startswith("flat: 1 topic, 0.1 hours, 1 policy: 0.1 topic-hours in "), part.output
    assert whole.output.startswith("flat: 1 topic, 1 hour, 1 policy: 1 topic-hour in "), whole.output


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ((), "--demand day --policy default"),
        (("--policy", "default"), "--demand day --policy default"),
        (("--hours", "24"), "--demand day --policy default"),
        (("--family", "bundles"), "--family bundles --policy 4.x"),
    ],
)
def test_missing_demand_or_policy_answered_with_a_command(arguments, command):
    run = CliRunner().invoke(cli, ["whatif", "simulate", *arguments])
    said = " ".join(run.output.split())
    assert (run.exit_code, f"anabranch whatif simulate {command}" in said) == (2, True), said


def test_example_of_the_help_runs():
    run = CliRunner().invoke(cli, EXAMPLES["whatif simulate"][0].split())
    assert run.exit_code == 0, run.output
