"""A balancer's run put on record, and found again by a backtest of that record."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.simulation.bundles import run
from anabranch.simulation.bundles.backtest import ON_RECORD, RAN, backtest, of_text
from anabranch.simulation.bundles.events import Recorded, Report, clusters_on_record, read
from anabranch.simulation.bundles.recorded import NoRecord, fleet_of
from anabranch.simulation.bundles.reports import usage
from anabranch.simulation.bundles.shapes import SHAPES
from decisions.bundles.configuration import ConfigurationError
from schemas.kafka.broker_messages import BalancerPolicies
from tests.engine.balancers import MINUTE, NOW, bundle, live, policies, report
from tests.engine.records import tick
from tests.engine.test_cluster_replay import recorded as recorded_bucket
from tests.examples import only_first
from tests.streaming.test_state_snapshots import in_a_lake


def put_on_record(shape, configuration, profile="4.x", seed=1, **more):
    """All that the brokers of a made-up fleet report, while a balancer runs it; and what came of it."""
    found, fleet = Recorded(), SHAPES[shape](seed)
    told = BalancerPolicies(v=1, type="policies", cluster="c", profile=profile, configuration=configuration, at=1)
    found.policies = told

    class Watched(run._Run):
        def _measure(self, minute, live, own):
            super()._measure(minute, live, own)
            at = run.START + minute * 60_000
            found.living.append((at, frozenset(live)))
            for name, broker in live.items():
                cpu, coming, going = usage(broker, own[name])
                bundles = {
                    bundle: (one.msg_rate_in, one.msg_rate_out, one.msg_throughput_in, one.msg_throughput_out)
                    for bundle, one in own[name].items()
                }
                found.reports.append(Report(at, name, cpu, coming, going, bundles))

    return found, Watched(fleet, configuration, profile).run()


@pytest.mark.parametrize("shape", only_first(2, ["join", "death", "flat", "unequal", "fan_out"]))
def test_recorded_balancer_equals_its_backtest(shape):
    configuration = {"loadBalancerLoadSheddingStrategy": "ThresholdShedder"}
    recorded, then = put_on_record(shape, configuration)
    found = backtest("c", recorded, [], {})
    on_record, ran = (row.outcomes[0] for row in found.rows)
    assert [row.balancer for row in found.rows] == [ON_RECORD, RAN]
    # What is moved in a minute shows in the next one's reports; what is moved in the last in none.
    assert sorted((minute - 1, *rest) for minute, _, *rest in on_record.moves) == sorted(
        (minute, *rest) for minute, _, *rest in then.moves if minute < then.minutes - 1
    )
    assert on_record.deviations == pytest.approx(then.deviations, abs=2e-3)
    assert (on_record.over, on_record.idle, on_record.used_after) == (then.over, then.idle, then.used_after)
    assert found.recorded.cpu_error < 0.1
    assert found.recorded.known > 0.97
    assert found.matched >= 0.9 * found.moved
    assert sum(ran.deviations) == pytest.approx(sum(then.deviations), rel=0.05)


def test_other_balancer_judged_on_same_demand():
    recorded, _ = put_on_record("join", {})
    found = backtest("c", recorded, ["default"], {})
    on_record, ours = found.rows[0].outcomes[0], found.rows[2].outcomes[0]
    assert on_record.used_after == {"new": None}
    assert ours.used_after["new"] <= 5
    assert sum(ours.deviations) < 0.6 * sum(on_record.deviations)
    assert json.loads(json.dumps(found.to_json()))["results"][2]["balancer"] == "default"


def test_split_bundle_equals_its_parts():
    whole, left, right = "a/b/0x00000000_0x00000010", "a/b/0x00000000_0x00000004", "a/b/0x00000004_0x00000010"
    found = Recorded()
    for minute in range(6):
        at = NOW + minute * MINUTE
        one = {whole: (40.0, 0.0, 400.0, 0.0)} if minute < 3 else {left: (10.0, 0.0, 100.0, 0.0)}
        other = {} if minute < 3 else {right: (30.0, 0.0, 300.0, 0.0)}
        found.reports += [Report(at, "b-1", 0.4, 0, 0, one), Report(at, "b-2", 0.1, 0, 0, other)]
    known = fleet_of(found)
    assert known.fleet.bundles == (left, right)
    assert known.split == 1
    assert known.fleet.recorded[:, :, 0].tolist() == [[10.0, 30.0]] * 6
    assert known.owners.tolist() == [[0, 0]] * 3 + [[0, 1]] * 3


def test_unreported_load_holds_for_limited_time():
    """A load for five minutes, a report for sixteen."""
    found = Recorded()
    for minute in range(30):
        at = NOW + minute * MINUTE
        found.living.append((at, frozenset({"b-1", "b-2"})))
        found.reports.append(Report(at, "b-2", 0.1, 0, 0, {"a/b/0x00000002_0x00000003": (5.0, 0, 0, 0)}))
    found.reports.append(Report(NOW, "b-1", 0.1, 0, 0, {"a/b/0x00000000_0x00000001": (7.0, 0, 0, 0)}))
    rates = fleet_of(found).fleet.recorded[:, 0, 0].tolist()
    assert rates == [7.0] * (16 + 5) + [0.0] * 9


def test_brokers_present_only_while_recorded():
    found = Recorded()
    there = {"b-1": range(20), "b-2": range(5, 20), "b-3": (*range(4), *range(9, 20)), "b-4": range(7)}
    for minute in range(20):
        at = NOW + minute * MINUTE
        names = [name for name, minutes in there.items() if minute in minutes]
        found.living.append((at, frozenset(names)))
        found.reports += [Report(at, name, 0.1, 0, 0, {bundle(int(name[-1])): (1.0, 0, 0, 0)}) for name in names]
    for broker in fleet_of(found).fleet.brokers:
        assert [minute for minute in range(20) if broker.lives(minute)] == [*there[broker.name]]


def test_nothing_and_a_single_minute_are_no_record():
    with pytest.raises(NoRecord, match="no report"):
        fleet_of(Recorded())
    with pytest.raises(NoRecord, match="one minute only"):
        fleet_of(Recorded([Report(NOW, "b-1", 0.1, 0, 0, {})]))


def test_brokers_without_cpu_report_never_full():
    found = Recorded([Report(NOW + minute * MINUTE, "b-1", 0, 0, 0, {bundle(1): (9.0, 0, 0, 0)}) for minute in (0, 1)])
    done = backtest("c", found, ["default"], {})
    assert [row.outcomes[0].over for row in done.rows] == [0, 0, 0]


def test_version_has_defaults_and_settings_overlay():
    ran = {"loadBalancerBrokerThresholdShedderPercentage": 7}
    assert of_text("5.0", "4.x", ran, {}) == ("5.0", {})
    name = "loadBalancerLoadSheddingStrategy"
    assert of_text("OverloadShedder", "3.0", ran, {}) == ("3.0", {**ran, name: "OverloadShedder"})
    assert of_text("OverloadShedder,profile=4.x", "3.0", ran, {})[0] == "4.x"
    with pytest.raises(ConfigurationError, match="is no profile"):
        of_text("Nothing", "3.0", ran, {})


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "lake"
    bucket = recorded_bucket()
    for minute in range(12):
        at = NOW + minute * MINUTE
        hot = {bundle(number): 40.0 for number in range(4)}
        cold = {bundle(9): 1.0 + minute % 3}
        told = [policies(at, {"loadBalancerLoadSheddingStrategy": "OverloadShedder"})] if not minute else []
        bucket.batch(
            at,
            *told,
            live(at, "broker-1:8080", "broker-2:8080"),
            report("broker-1:8080", hot, at, cpu=90),
            report("broker-2:8080", cold, at, cpu=5),
            tick(at),
        )
    in_a_lake(bucket, folder)
    return str(folder)


def asked(lake, tmp_path, *words):
    own = tmp_path / "own.toml"
    own.write_text(f'[lake]\npath = "{lake}"\n')
    return CliRunner().invoke(cli, ["--home", str(tmp_path), "--config", str(own), "backtest", *words])


def test_command_compares_record_and_alternatives(lake, tmp_path):
    assert clusters_on_record(lake) == ["west"]
    assert len(read(lake, "west").reports) == 24
    done = asked(lake, tmp_path, "--family", "bundles", "--policy", "default")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("west: 2 brokers, 5 bundles, 2025-11-20T17:33:00Z and 12 minutes from there")
    assert [line.split("  ")[1].strip() for line in lines[2:5]] == ["on record", "policy that ran", "default"]
    assert "nothing was moved on record" in done.stdout
    whole = json.loads(asked(lake, tmp_path, "--family", "bundles", "--output", "json").stdout)
    assert (whole["brokers"], whole["minutes"], len(whole["results"])) == (2, 12, 2)
    page = asked(lake, tmp_path, "--family", "bundles", "--output", "html", "--file", str(tmp_path / "page.html"))
    assert page.exit_code == 0, page.output
    assert "policy that ran" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["--family", "bundles", "--cluster", "north"],
            1,
            "no report of a broker with all of its bundles is on record",
        ),
        (["--family", "bundles", "--topics", "a"], 2, "--topics is not for --family bundles"),
        (["--cluster", "west"], 2, "--cluster is not for --family autoscale"),
        (["--family", "bundles", "--policy", "Nothing"], 2, "is no profile"),
        (["--family", "bundles", "--set", "x"], 2, "NAME=VALUE is wanted"),
        (["--family", "bundles", "--since", "2025-11-21T00:00Z"], 1, "no report"),
    ],
)
def test_what_cannot_be_answered_is_said(lake, tmp_path, words, code, said):
    done = asked(lake, tmp_path, *words)
    assert (done.exit_code, said in done.output) == (code, True), done.output
