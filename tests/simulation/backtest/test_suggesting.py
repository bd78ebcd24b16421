"""The search among policies: what beats what, and that it is the same every time."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.commands.suggest import _advice
from anabranch.cli.main import cli
from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.running import resolved
from anabranch.simulation.backtest.suggesting import (
    FINALISTS,
    LOOKING_BACK,
    Suggestion,
    anywhere,
    beats,
    finalists,
    frontier,
    neighbour,
    split_in_time,
    suggest,
)
from anabranch.simulation.backtest.trying import (
    SAMPLE,
    Share,
    TopicStrain,
    TrialResult,
    Trials,
    drawn_sample,
    open_trials,
)
from engine.autoscale.topics import ConfiguredPolicy
from tests.simulation.backtest.really import MINUTE, Seeded, really_run

NONE = ConfiguredPolicy("default", None)


def tried(hours, over, reversals=0, name="p"):
    return TrialResult(name, NONE, 0, 0, reversals, hours, over, 0.0, 1.0)


policies = st.lists(st.builds(tried, st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=20)


@given(policies)
def test_frontier_is_unbeaten_and_beats_the_others(some):
    found = frontier(some)
    assert not any(beats(one, other) for one in some for other in found)
    points = {(one.segment_hours, one.minutes_over) for one in found}
    for one in some:
        assert (one.segment_hours, one.minutes_over) in points or any(beats(other, one) for other in found)
    assert len(points) == len(found)


@given(policies, st.integers(0, 3))
def test_suggestion_allowed_and_beats_current(some, most):
    found = Suggestion(some[0], some, most)
    best = found.best
    if best is not None:
        assert best.reversals <= most
        assert some[0].reversals > most or beats(best, some[0])
    elif some[0].reversals <= most:
        assert not any(beats(one, some[0]) for one in some if one.reversals <= most)


def test_cap_that_no_policy_meets_is_named():
    today = tried(1, 1, 9, "today")
    assert "at most 2 reversals, nor has today's" in _advice(Suggestion(today, [today], 2), "")
    assert _advice(Suggestion(today, [today], 9), "").startswith("Keep today's policy")


@pytest.mark.parametrize(
    ("hours", "over", "is_confirmed"),
    [(4, 1, True), (4, 2, True), (5, 2, True), (6, 1, False), (4, 3, False), (None, None, None)],
)
def test_best_has_to_be_no_worse_in_unseen_time(hours, over, is_confirmed):
    today, best = tried(9, 9, name="today"), tried(3, 3, name="s1")
    validation = {} if hours is None else {"today": tried(5, 2, name="today"), "s1": tried(hours, over, name="s1")}
    assert Suggestion(today, [today, best], 0, validation).is_confirmed is is_confirmed


def test_unseen_time_is_the_last_third_in_whole_steps(lake, tmp_path):
    whole = open_history(lake, tmp_path, None, None, None, NONE)
    searched, unseen = split_in_time(whole)
    assert (searched.began_at, searched.ends_at, unseen.ends_at) == (whole.began_at, unseen.began_at, whole.ends_at)
    assert abs((unseen.ends_at - unseen.began_at) / (whole.ends_at - whole.began_at) - 1 / 3) < 0.01
    assert (unseen.began_at - whole.phase_ms) % whole.step_ms == 0
    for one in (*searched.part(0), *unseen.part(0)):
        assert one.loads.at[-1] < one.ends_at
    seen = searched.part(0)[0]
    assert max(change.at for change in seen.consumers) < searched.ends_at
    assert split_in_time(whole.between(whole.began_at, whole.began_at + 80 * MINUTE)) is None


def test_suggestion_failing_later_is_withdrawn(lake, tmp_path, monkeypatch):
    """A search whose judge always finds today's policy better."""
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{lake}"\n')
    monkeypatch.setattr(Suggestion, "is_confirmed", False)
    found = CliRunner().invoke(cli, ["-c", str(tmp_path / "s.toml"), "suggest", "--budget", "16"])
    assert found.exit_code == 0, found.output
    assert "is not on the last third" in found.output
    assert "---" not in found.output
    told = CliRunner().invoke(cli, ["-c", str(tmp_path / "s.toml"), "suggest", "--budget", "16", "--output", "json"])
    assert (json.loads(told.output)["suggested"], json.loads(told.output)["diff"]) == (None, "")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Of a policy that keeps many segments for long, without need."""
    folder = tmp_path_factory.mktemp("lake")
    wasteful = ConfiguredPolicy("default", json.dumps({"minSegments": 8, "splitMsgRateInThreshold": 40_000.0}))
    return really_run(Seeded(2, 3), wasteful, 1.6, folder / "lake", step_ms=30_000)


def test_suggestion_repeatable_and_not_applied(lake, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("minSegments = 8\nsplitMsgRateInThreshold = 40000\n")
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{lake}"\n[policy]\ncluster = "{policy}"\n')
    given = ["-c", str(tmp_path / "s.toml"), "suggest", "--budget", "16", "--max-reversals", "50"]
    runs = [CliRunner().invoke(cli, [*given, "--output", "json"]) for _ in range(2)]
    assert runs[0].exit_code == 0, runs[0].output
    assert runs[0].output == runs[1].output
    told = json.loads(runs[0].output)
    best, today = told["suggested"], told["today"]
    assert best["segmentHours"] < today["segmentHours"]
    assert best["minutesOverThreshold"] <= today["minutesOverThreshold"]
    validation = {one["policy"]: one for one in told["judged"]}
    assert told["confirmed"] is True
    assert validation.keys() == {one["policy"] for one in told["frontier"]} | {"today"}
    assert validation[best["policy"]]["segmentHours"] <= validation["today"]["segmentHours"]
    # The search had the first two thirds of it, the judge the last.
    assert validation["today"]["segmentHours"] == pytest.approx(today["segmentHours"] / 2, rel=0.15)
    for one in (today, best, *told["frontier"], *told["judged"]):
        assert 0 <= one["confidence"] <= 1
    assert today["confidence"] > best["confidence"]
    assert "minSegments" in best["set"]
    assert "-minSegments = 8" in told["diff"].splitlines()
    assert policy.read_text() == "minSegments = 8\nsplitMsgRateInThreshold = 40000\n"
    file = tmp_path / "out.html"
    page = CliRunner().invoke(cli, [*given, "--output", "html", "--file", str(file)])
    assert page.exit_code == 0
    assert "Plotly.newPlot" in file.read_text()
    assert file.read_text().count("<th>confidence</th>") == 2
    text = CliRunner().invoke(cli, given).output
    assert text.count(f"* {best['policy']}") == 2
    assert text.count("confidence") == 2
    rows = [line for line in text.splitlines() if line.startswith(f"* {best['policy']}")]
    told = (best["confidence"], validation[best["policy"]]["confidence"])
    assert [row.split()[-1] for row in rows] == [f"{confidence:.0%}" for confidence in told]
    assert "The same policies on the last third, which was not searched:" in text
    assert "nothing was applied" in text


@given(policies, st.integers(0, 3), st.integers(0, 4))
def test_finalists_are_allowed_and_include_the_best(some, most, reversals):
    today = tried(5, 5, reversals, "today")
    search = Suggestion(
        today, [today, *(replace(policy, name=f"s{number}") for number, policy in enumerate(some))], most
    )
    chosen = finalists(search)
    assert len(chosen) == min(FINALISTS, sum(policy.reversals <= most for policy in some))
    assert all(policy.reversals <= most for policy in chosen)
    if search.best is not None:
        assert chosen[0] == search.best


def test_best_of_a_sample_are_tried_on_all_topics(lake, tmp_path, monkeypatch):
    whole = open_history(lake, tmp_path, None, None, None, NONE)
    assert whole.topics == 2
    with open_trials(whole, None) as trials:
        everything = suggest(trials, 4, 50, 1, validate=False)
    monkeypatch.setattr("anabranch.simulation.backtest.trying.SAMPLE", 1)
    with open_trials(whole, None) as trials:
        sampled = suggest(trials, 4, 50, 1, validate=False)
        (part,) = trials.run("sample", {"today": whole.ran})
    assert (everything.sampled, sampled.sampled, everything.policies, sampled.policies) == (0, 1, 5, 5)
    assert sampled.today == everything.today
    # The one topic of the sample stands for both.
    assert 0 < part.segment_hours / 2 < sampled.today.segment_hours
    # The first round is drawn before anything was tried, so both searches draw the same policies.
    results = {policy.name: policy for policy in everything.tried}
    assert all(policy == results[policy.name] for policy in sampled.tried)


FLEET = {f"t{number:03}": TopicStrain(0.0, number % 3) for number in range(200)}


@given(st.integers(0, 2**32 - 1), st.sets(st.sampled_from(sorted(FLEET)), min_size=12, max_size=12))
def test_sample_has_the_topics_in_most_trouble(seed, names):
    over, acting = sorted(names)[:6], sorted(names)[6:]
    strains = FLEET | {name: TopicStrain(60.0, 0) for name in over} | {name: TopicStrain(0.5, 90) for name in acting}
    sample = drawn_sample(strains, seed)
    assert len(sample) == SAMPLE
    assert {name for name, number in sample.items() if number == 1} == names
    # Each of the other twelve stands for sixteen of the 188 topics that are in no trouble, or more.
    assert sorted(sample.values()) == [1] * 12 + [16] * 12
    assert sample == drawn_sample(dict(reversed(strains.items())), seed)


def test_sample_is_drawn_by_seed():
    assert len({tuple(drawn_sample(FLEET, seed)) for seed in range(20)}) == 20
    assert drawn_sample({"t": TopicStrain(0.0, 0)}, 1) == {"t": 1}


def test_topic_of_a_sample_counts_for_those_it_stands_for(lake, tmp_path):
    whole = open_history(lake, tmp_path, None, None, None, NONE)
    share = Share(whole, None, [(0, name) for name in whole.parts[0]])
    strains = share.strains()
    assert strains.keys() == set(whole.parts[0])
    assert all(strain.sealed > 0 for strain in strains.values())
    first, second = (
        [share.count("sample", {"today": whole.ran}, {name: number})["today"] for number in (1, 3)]
        for name in whole.parts[0]
    )
    for alone, three in (first, second):
        assert 0 < 3 * alone.segment_ms == three.segment_ms
    both = share.count("sample", {"today": whole.ran}, dict.fromkeys(whole.parts[0], 1))["today"]
    assert both.segment_ms == first[0].segment_ms + second[0].segment_ms


def test_sample_counts_a_topic_that_ends_within_a_tick(lake, tmp_path, monkeypatch):
    """As one does that was deleted soon after the beginning of a search with time recorded before it."""
    monkeypatch.setattr("anabranch.simulation.backtest.trying.SAMPLE", 1)
    whole = open_history(lake, tmp_path, None, None, None, NONE)
    begin = whole.began_at + 30 * MINUTE
    with open_trials(whole.between(begin, begin + 2 * whole.step_ms), None) as trials:
        results = [trials.run(scope, {"today": whole.ran})[0] for scope in ("sample", "searched")]
    assert 0 < results[1].segment_hours <= results[0].segment_hours


@pytest.mark.process
def test_processes_share_topics_and_try_as_one_does(lake, tmp_path):
    whole = open_history(lake, tmp_path, None, None, None, NONE)
    results = []
    for processes in (1, 2):
        with open_trials(whole, None, processes) as trials:
            results.append((trials.has_buckets(), trials.run("searched", {"today": whole.ran})))
    assert results[0] == results[1]
    assert results[0][1][0].segment_hours > 0


@pytest.mark.process
def test_suggest_ends_when_a_worker_is_killed(lake, tmp_path, monkeypatch):
    def kill_one_and_run(trials, *arguments):
        os.kill(trials._shares[1].pid, signal.SIGKILL)
        return run(trials, *arguments)

    run = Trials.run
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{lake}"\n')
    monkeypatch.setattr("anabranch.cli.commands.suggest.MUCH", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(Trials, "run", kill_one_and_run)
    result = CliRunner().invoke(cli, ["-c", str(tmp_path / "s.toml"), "suggest", "--budget", "2"])
    assert result.exit_code == 1
    assert "was killed by signal 9 before its answer" in result.output
    assert "--most-topics" in result.output


@given(st.integers(0, 2**32 - 1))
def test_guards_searched_where_policy_has_them(seed):
    chance = Random(seed)
    for profile, guards in (("default", set(LOOKING_BACK)), ("pip-483", set())):
        today = ConfiguredPolicy(profile, None)
        drawn = anywhere(today, chance)
        near = neighbour(today, drawn, chance)
        for one in (drawn, near):
            settings = json.loads(one.override)
            assert settings.keys() & LOOKING_BACK.keys() == guards
            assert all(LOOKING_BACK[name][0] <= settings[name] <= LOOKING_BACK[name][1] for name in guards)
            assert resolved(one).broken is None
