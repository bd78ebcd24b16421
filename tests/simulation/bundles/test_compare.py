"""`anabranch whatif simulate --family bundles`: balancers over shapes and seeds, the extensible manager among them."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import median

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.main import cli
from anabranch.simulation.bundles.compare import COLUMNS, Compared, compare, read
from anabranch.simulation.bundles.outcome import BalancingOutcome
from anabranch.simulation.bundles.reports import averaged
from anabranch.simulation.bundles.run import balancer, simulate
from anabranch.simulation.bundles.shapes import SHAPES
from decisions.bundles.configuration import ConfigurationError
from tests.examples import examples, only_first

AVG = "AvgShedder+AvgShedder"


def simulated(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", "--family", "bundles", *arguments])


def test_table_row_per_shape_and_balancer():
    """Each row has the median and the worst of the seeds."""
    wanted = ["--shape", "join", "--policy", "4.x", "--policy", AVG, "--seeds", "2"]
    shown = simulated(*wanted)
    assert shown.exit_code == 0, shown.output
    about, head, threshold, avg = shown.output.splitlines()
    assert about.startswith("join: 2 balancers, 2 seeds from 1 on")
    assert head.split()[:2] == ["shape", "balancer"]
    assert threshold.split()[:2] == ["join", "4.x"]
    assert threshold.rstrip().endswith("never (never)")
    found = json.loads(simulated(*wanted, "--output", "json").output)
    assert [(one["shape"], one["balancer"]) for one in found["results"]] == [("join", "4.x"), ("join", AVG)]
    alone = [simulate(SHAPES["join"](seed), balancer(AVG)[1]).summary() for seed in (1, 2)]
    assert found["results"][1]["seeds"] == alone
    assert found["results"][1]["median"]["unloads"] == median(one["unloads"] for one in alone)
    assert found["results"][1]["worst"]["deviation"] == max(one["deviation"] for one in alone)
    assert found["results"][0]["median"]["usedAfter"] is None
    assert avg.split()[2] == f"{found['results'][1]['median']['deviation']:.3f}"


def test_page_needs_file_and_escapes_request(tmp_path):
    page = tmp_path / "page.html"
    text = "ThresholdShedder,loadBalancerSheddingExcludedNamespaces=<b>"
    arguments = ["--shape", "join", "--policy", text, "--output", "html"]
    assert simulated(*arguments).exit_code == 2
    assert simulated(*arguments, "--file", str(page)).exit_code == 0
    written = page.read_text()
    assert "Namespaces=&lt;b&gt;</td>" in written
    assert "<b>" not in written.split("<script", 1)[0]
    assert "<td>never</td>" in written


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "4.x", "--shape", "round"], "round is none of flat"),
        (["--policy", "6.0"], "'6.0' is no profile (2.10, 3.0, 4.x, 5.0, default)"),
        (["--policy", "ThresholdShedder,profile=6.0"], "'6.0' is no profile"),
        (["--policy", "AvgShedder+LeastLongTermMessageRate"], "has to be both"),
        (["--policy", "4.x,loadBalancerShedding=1"], "'loadBalancerShedding' is no setting"),
        (["--policy", "4.x", "--set", "minUnloadMessage"], "NAME=VALUE is wanted"),
        (["--policy", "4.x", "--set", "minUnloadMessage=few"], "a whole number is wanted"),
        (["--policy", "DeviationShedder"], "DeviationShedder is not simulated"),
        (["--policy", "4.x", "--demand", "day"], "--demand is not for --family bundles"),
        (["--policy", "4.x", "--hours", "24"], "--hours is not for --family bundles"),
    ],
)
def test_impossible_simulation_refused_with_reason(arguments, says):
    refused = simulated(*arguments)
    assert refused.exit_code == 2, refused.output
    assert says in " ".join(refused.output.split()).replace("│", "")


def test_bundle_options_refused_for_topics():
    """A demand is still needed."""
    for arguments, says in ((["--shape", "join"], "--shape is not for"), ([], "on which demand?")):
        refused = CliRunner().invoke(cli, ["simulate", "--policy", "default", *arguments])
        assert (refused.exit_code, says in refused.output) == (2, True)


def test_settings_for_all_give_way_to_a_balancers_own():
    given = {"maxUnloadPercentage": "0.3", "minUnloadMessage": "5"}
    assert read("UniformLoadShedder,minUnloadMessage=7", given)[1]["minUnloadMessage"] == "7"
    assert read("5.0,fix21025=false", given) == ("5.0", given | {"fix21025": "false"})
    with pytest.raises(ConfigurationError, match="NAME=VALUE"):
        read("4.x,fast", {})


def test_unreadable_balancer_prevents_all_runs():
    done = []
    with pytest.raises(ConfigurationError):
        compare(["join"], [AVG, "DeviationShedder"], {}, [1], lambda *one: done.append(one))
    assert done == []


def test_unused_broker_is_infinite_none_joined_zero():
    """Column `usedAfter`: the last of the new brokers counts."""
    outcomes = (
        BalancingOutcome(1, used_after={"a": 3, "b": 7}),
        BalancingOutcome(1, used_after={"a": 3, "b": None}),
        BalancingOutcome(1),
    )
    assert Compared("join", AVG, outcomes).values("usedAfter") == [7.0, float("inf"), 0.0]
    assert Compared("join", AVG, outcomes).to_json()["worst"]["usedAfter"] is None
    assert set(Compared("join", AVG, outcomes).typical()) == {column for column, _ in COLUMNS}


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 1))
def test_minute_average_equals_twelve_looks(before, now, history):
    expected = before
    for _ in range(12):
        expected = history * expected + (1 - history) * now
    assert averaged(before, now, history) == pytest.approx(expected)
    assert averaged(None, now, history) == now


@examples(2)
@given(st.sampled_from(sorted(SHAPES)), st.integers(0, 1000), st.booleans())
def test_transfer_shedder_limited_per_cycle_and_pause(shape, seed, transfer):
    """It gives from three brokers a cycle at most and waits three minutes between."""
    fleet = SHAPES[shape](seed)
    profile, configuration = balancer(f"TransferShedder,loadBalancerTransferEnabled={transfer}")
    found = simulate(fleet, configuration, profile)
    assert simulate(SHAPES[shape](seed), configuration, profile).summary() == found.summary()
    deaths = {one.name: one.dies for one in fleet.brokers if one.dies is not None}
    at = dict(zip(fleet.bundles, fleet.owners, strict=True))
    for minute, bundle, source, destination in found.moves:
        assert at[bundle] == source or deaths.get(at[bundle], minute + 1) <= minute
        assert deaths.get(destination, minute + 1) > minute
        at[bundle] = destination
    minutes = sorted({minute for minute, *_ in found.moves})
    assert all(later - earlier >= 3 for earlier, later in pairwise(minutes))
    assert all(len({source for when, _, source, _ in found.moves if when == minute}) <= 6 for minute in minutes)


@pytest.mark.parametrize("seed", only_first(1, [1, 2, 3]))
def test_transfer_shedder_uses_a_broker_that_joins(seed):
    found = simulate(SHAPES["join"](seed), {"loadBalancerLoadSheddingStrategy": "TransferShedder"})
    assert found.used_after["new"] is not None
    left = simulate(SHAPES["join"](seed), {"loadBalancerLoadSheddingStrategy": "ThresholdShedder"})
    assert found.idle < left.idle
