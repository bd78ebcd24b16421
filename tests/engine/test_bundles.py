"""The family `bundles`: cycles over time are the same whatever order, number and batches their messages come in.

Long, as it goes through everything that can happen to a cluster.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.bundles.decide import decide
from engine.bundles import clusters as limits
from engine.bundles import cycle
from engine.bundles.codec import unpack
from engine.bundles.cycle import run_cycle
from engine.bundles.family import PART
from engine.kernel.bucket import BucketEngine
from engine.kernel.packed import StateError, StoredPart
from tests.engine.balancers import (
    BOTH,
    EVENLY,
    MINUTE,
    NOW,
    balancing,
    bundle,
    bundle_rows,
    clusters_of,
    ended,
    extensible,
    live,
    ownership,
    policies,
    report,
    skewed,
)
from tests.engine.buckets import SETTINGS, run, stored
from tests.engine.records import record, tick
from tests.examples import examples

HOUR = 60 * MINUTE


def test_hot_broker_gives_bundle_with_reason():
    output = balancing().batch(NOW, *skewed(NOW), tick(NOW))
    (row,) = output.decisions
    assert (row["family"], row["subject"], row["action"], row["seq"]) == ("bundles", "west", "unload", 1)
    arguments = json.loads(row["arguments"])
    assert (arguments["sourceBroker"], arguments["destinationBroker"]) == ("broker-1:8080", "broker-2:8080")
    gates = json.loads(row["gates"])
    assert {"above-average", "still-needed", "destination"} <= {gate["gate"] for gate in gates}
    assert {gate.get("bundle", arguments["bundle"]) for gate in gates} == {arguments["bundle"]}
    inputs = json.loads(row["inputs"])
    assert inputs["usage"]["broker-1:8080"]["maxUsage"] == pytest.approx(0.8)
    assert len(row["inputs"]) + len(row["gates"]) < 20_000
    assert output.counts.decisions == 1


def test_without_a_tick_nothing_is_decided():
    output = balancing().batch(NOW, *skewed(NOW))
    assert not bundle_rows(output)
    assert output.counts.events == output.counts.messages == 3


def test_broker_hold_recorded_once_per_reason():
    """Each broker is held by its own reason; only a new reason is a row."""
    bucket = balancing()
    alike = [report(f"broker-{number}:8080", {bundle(number): 10.0}, NOW, cpu=30) for number in (1, 2, 3)]
    first = bucket.batch(NOW, policies(NOW, {"loadBalancerHistoryResourcePercentage": 0}), *alike, tick(NOW))
    held = {row["subject"]: row["gate"] for row in first.holds}
    assert held.keys() == {"west", *(f"west/broker-{number}:8080" for number in (1, 2, 3))}
    assert set(held.values()) == {"above-average"}
    assert not bundle_rows(bucket.batch(NOW + MINUTE, tick(NOW + MINUTE)))
    later = bucket.batch(NOW + 2 * MINUTE, report("broker-1:8080", {bundle(1): 10.0}, NOW + MINUTE, cpu=70), tick(3))
    assert {row["subject"]: (row["gate"], row["seq"]) for row in later.holds} == {
        "west/broker-1:8080": ("min-throughput", 2)
    }


def test_large_bundle_split_at_position_once():
    """It is not split again before that split has ended."""
    bucket = balancing()
    big = report("broker-1:8080", {bundle(0): 200.0}, NOW), report("broker-2:8080", {bundle(1): 1.0}, NOW)
    bucket.batch(NOW, policies(NOW))
    (row,) = bucket.batch(NOW, *big, tick(NOW)).decisions
    assert row["action"] == "split"
    assert json.loads(row["arguments"]) == {
        "bundle": bundle(0),
        "sourceBroker": "broker-1:8080",
        "positions": ["0x00000008"],
    }
    assert row["reason"] == "Bandwidth"
    assert not bucket.batch(NOW + MINUTE, tick(2)).decisions
    assert not bucket.batch(NOW + 2 * MINUTE, ended(row | {"decision_id": "another"}), tick(3)).decisions
    (again,) = bucket.batch(NOW + 3 * MINUTE, ended(row), tick(4)).decisions
    assert (again["action"], again["seq"]) == ("split", 2)
    assert again["decision_id"] != row["decision_id"]


@pytest.mark.parametrize("status", [None, "failed", "rejected", "superseded", "observed"])
def test_unapplied_decision_repeated_after_its_wait(status):
    bucket, wait = balancing(), 5 * MINUTE if status == "superseded" else 30 * MINUTE
    bucket.batch(NOW, policies(NOW))
    big = [report(f"broker-{number}:8080", {bundle(number): 200.0 / number}, NOW + HOUR) for number in (1, 9)]
    (row,) = bucket.batch(NOW + HOUR, *big, tick(1)).decisions
    told = [] if status is None else [ended(row, status)]
    assert not bucket.batch(NOW + HOUR + MINUTE, *told, tick(2)).decisions
    at = NOW + HOUR + wait
    assert not bucket.batch(at, tick(2)).decisions
    fresh = [report(f"broker-{number}:8080", {bundle(number): 200.0 / number}, at) for number in (1, 9)]
    assert len(bucket.batch(at + 1, *fresh, tick(3)).decisions) == 1


def test_repeated_refusal_does_not_shorten_the_wait():
    """Executors repeat ends, and the clock of this one is an hour behind."""
    bucket = balancing()
    bucket.batch(NOW, policies(NOW))
    big = [report(f"broker-{number}:8080", {bundle(number): 200.0 / number}, NOW + HOUR) for number in (1, 9)]
    (row,) = bucket.batch(NOW + HOUR, *big, tick(1)).decisions
    for minute in range(1, 6):
        at = NOW + HOUR + minute * MINUTE
        assert not bucket.batch(at, ended(row, "superseded"), tick(minute + 1)).decisions
    assert len(bucket.batch(at + 1, ended(row, "superseded"), tick(7)).decisions) == 1


def test_an_expired_decision_is_decided_again_at_once():
    bucket = balancing()
    bucket.batch(NOW, policies(NOW))
    big = [report(f"broker-{number}:8080", {bundle(number): 200.0 / number}, NOW + HOUR) for number in (1, 9)]
    (row,) = bucket.batch(NOW + HOUR, *big, tick(1)).decisions
    end = json.loads(ended(row, "superseded").value) | {"error": "expired: decided 412 s ago"}
    told = record("control-events", row["subject"], end)
    (again,) = bucket.batch(NOW + HOUR + MINUTE, told, tick(2)).decisions
    assert again["decision_id"] != row["decision_id"]


def test_repeated_or_late_report_suppressed():
    """It moves no average."""
    bucket = balancing()
    messages = skewed(NOW)
    bucket.batch(NOW, *messages, tick(1))
    before = clusters_of(bucket.packed)["west"].averages
    late = report("broker-1:8080", {bundle(0): 999.0}, NOW - MINUTE)
    output = bucket.batch(NOW + MINUTE, *messages, late, tick(2))
    assert output.counts.messages_suppressed == 4
    assert [row["type"] for row in output.events] == ["tick"]
    assert clusters_of(bucket.packed)["west"].averages == before
    assert before[bundle(0)].short_term_data.num_samples == 1


def test_insignificant_report_ignored_unless_forced():
    """A report that is due also counts."""
    bucket = balancing()
    bucket.batch(NOW, report("broker-1:8080", {bundle(0): 100.0}, NOW), tick(1))

    def samples():
        return clusters_of(bucket.packed)["west"].averages[bundle(0)].long_term_data.num_samples

    bucket.batch(NOW + MINUTE, report("broker-1:8080", {bundle(0): 105.0}, NOW + MINUTE), tick(2))
    assert samples() == 1
    bucket.batch(NOW + 2 * MINUTE, report("broker-1:8080", {bundle(0): 105.0}, NOW + 2 * MINUTE, forced=True), tick(3))
    assert samples() == 2
    bucket.batch(NOW + 18 * MINUTE, report("broker-1:8080", {bundle(0): 105.0}, NOW + 18 * MINUTE), tick(4))
    assert samples() == 3


def test_absent_broker_neither_gives_nor_gets():
    bucket = balancing()
    output = bucket.batch(NOW, *skewed(NOW), live(NOW, "broker-1:8080"), tick(1))
    assert not output.decisions
    assert {row["subject"]: row["gate"] for row in output.holds} == {"west": "enough-brokers"}
    (row,) = bucket.batch(NOW + MINUTE, live(NOW + 1, "broker-1:8080", "broker-2:8080"), tick(2)).decisions
    assert json.loads(row["arguments"])["destinationBroker"] == "broker-2:8080"


def test_extensible_brokers_balanced_after_three_cycles():
    """The transfer shedder acts after three cycles in a row."""
    bucket = balancing()
    hot = {bundle(number): 20.0 for number in range(5)}
    owners = dict.fromkeys(hot, "broker-1:8080") | {bundle(8): "broker-2:8080", bundle(9): "broker-2:8080"}
    told = live(NOW, "broker-1:8080", "broker-2:8080"), ownership(NOW, owners)
    bucket.batch(NOW, *told, policies(NOW, loadManager="extensible"))
    seen = []
    for number in range(6):
        at = NOW + number * MINUTE
        reports = [
            extensible("broker-1:8080", hot, at, usage=0.9),
            extensible("broker-2:8080", {bundle(8): 1.0, bundle(9): 1.0}, at, usage=0.05),
        ]
        seen.append([json.loads(row["arguments"]) for row in bucket.batch(at, *reports, tick(number)).decisions])
    moves = [move for moved in seen for move in moved]
    assert not any(seen[:3])
    assert moves
    assert {move["destinationBroker"] for move in moves} == {"broker-2:8080"}


def test_clusters_do_not_touch_one_another():
    alone, beside = balancing(), balancing()
    one = alone.batch(NOW, *skewed(NOW), tick(1))
    other = beside.batch(NOW, *skewed(NOW), *skewed(NOW, "east"), tick(1))
    assert [row for row in bundle_rows(other) if row["subject"].startswith("west")] == bundle_rows(one)
    assert {row["subject"] for row in other.decisions} == {"west", "east"}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (report("b", {}, NOW + 2 * HOUR), "from-the-future"),
        (live(NOW + 2 * HOUR, "b"), "from-the-future"),
        (report("b", {}, NOW, data={"lastUpdate": NOW, "cpu": {"usage": 1e15, "limit": 1e-9}}), "invalid"),
        (record("broker-load", "west", b"{"), "not-json"),
    ],
)
def test_unusable_report_is_dead_letter_in_cycle(message, reason):
    output = balancing().batch(NOW, *skewed(NOW), message, tick(1))
    assert [row["reason"] for row in output.dead_letters] == [reason]
    assert len(output.decisions) == 1


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*a){20}b", ".*.*.*.*.*.*.*.*b"])
def test_catastrophic_pattern_matched_at_once(pattern):
    """Other engines would backtrack forever."""
    named = "a" * 60 + "/" + "a" * 180
    policy = {"p": {"namespaces": [pattern], "primary": [pattern]}}
    hot = {bundle(number, named): 10.0 for number in range(5)}
    output = balancing().batch(
        NOW,
        policies(NOW, {EVENLY: False}, isolationPolicies=policy),
        report("a" * 200, hot, NOW, cpu=80),
        report("a" * 199 + "c", {}, NOW),
        tick(1),
    )
    assert (len(output.dead_letters), len(output.decisions) > 0) == (0, True)


def test_default_profile_moves_survive_restart():
    """Profile default fills an idle broker and remembers its moves."""
    ours = policies(NOW, profile="default")
    hot = {bundle(number): 10.0 for number in range(6)}
    reports = [report("broker-1:8080", hot, NOW, cpu=60), report("broker-2:8080", {}, NOW)]
    bucket = balancing()
    output = bucket.batch(NOW, ours, *reports, tick(1))
    assert {json.loads(row["arguments"])["destinationBroker"] for row in output.decisions} == {"broker-2:8080"}
    (known,) = clusters_of(bucket.packed).values()
    moves = known.memory.gain_shedder.moves
    assert len(moves) == len(output.decisions) == 3
    bucket.restart()
    later = bucket.batch(NOW + MINUTE, tick(2))
    assert later.decisions == []
    assert {row["gate"] for row in bundle_rows(later)} == {"spread"}


@pytest.mark.parametrize(
    ("told", "detail"),
    [
        ([], "no policies of the cluster"),
        ([policies(NOW + 1, {"loadBalancerLoadSheddingStrategy": "Nonsense"})], "loadBalancerLoadSheddingStrategy"),
        ([policies(NOW + 1, {"loadBalancerCPUResourceWeight": 1e300})], "loadBalancerCPUResourceWeight"),
        ([policies(NOW + 1, isolationPolicies={"gold": {"namespaces": 5}})], "isolationPolicies.gold.namespaces"),
        ([policies(NOW + 1, profile="9")], "profile"),
    ],
)
def test_unknown_policies_hold_the_cluster(told, detail):
    bucket = balancing()
    known, *reports = skewed(NOW)
    output = bucket.batch(NOW, *([known, *told] if told else []), *reports, tick(1))
    assert output.decisions == []
    assert [(row["subject"], row["gate"]) for row in output.holds] == [("west", "settings")]
    (state,) = clusters_of(bucket.packed).values()
    assert detail in run_cycle(state, NOW + 2).shedding.readings[-1].detail
    assert bucket.batch(NOW + MINUTE, policies(NOW + MINUTE, {EVENLY: False}), tick(2)).decisions


@pytest.mark.parametrize(
    ("profile", "policy"),
    [
        ("4.x", {"namespaces": ["["]}),
        ("default", {"namespaces": ["acme/(?!test).*"], "primary": ["gold-.*"]}),
        ("default", {"namespaces": ["acme/.*"], "primary": ["(gold)-\\1"]}),
        ("default", {"namespaces": ["acme/.*"], "primary": ["a" * 1025]}),
        ("default", {"namespaces": ["acme/.*"], "auto_failover_policy": {"parameters": {"min_limit": "x"}}}),
        ("default", {"namespaces": ["["]}),
    ],
)
def test_bundles_of_an_unreadable_policy_stay(profile, policy):
    told = policies(NOW, {EVENLY: False}, isolationPolicies={"gold": policy}, profile=profile)
    _, *reports = skewed(NOW)
    output = balancing().batch(NOW, told, *reports, tick(1))
    assert output.dead_letters == output.decisions == []


def test_unreadable_policy_spares_the_others():
    several = {
        "gold": {"namespaces": ["bank/(?!test).*"], "primary": ["gold-.*"]},
        "shop": {"namespaces": ["acme/shop"], "primary": ["broker-[13]:8080"]},
    }
    told = policies(NOW, {EVENLY: False}, isolationPolicies=several)
    _, *reports = skewed(NOW)
    output = balancing().batch(NOW, told, *reports, report("broker-3:8080", {}, NOW), tick(1))
    moves = [json.loads(row["arguments"]) for row in output.decisions]
    assert {move["destinationBroker"] for move in moves} == {"broker-3:8080"}


def test_a_failing_evaluation_holds_its_cluster_alone(monkeypatch):
    def failing(snapshot):
        if snapshot.cluster == "west" and snapshot.operation == operation:
            raise KeyError("a fault of ours")
        return decide(snapshot)

    monkeypatch.setattr(cycle, "decide", failing)
    for operation in ("shed", "split", "average"):
        bucket = balancing()
        output = bucket.batch(NOW, *skewed(NOW), *skewed(NOW, "east"), tick(1))
        assert {row["subject"] for row in output.decisions} == {"east"}
        assert [(row["subject"], row["gate"]) for row in output.holds if "west" in row["subject"]] == [
            ("west", "internal-error")
        ]
        ((family, subject, fault),) = output.faults
        assert (family, subject) == ("bundles", "west")
        assert "a fault of ours" in fault
        failed, operation = operation, None
        if failed != "average":
            assert {row["subject"] for row in bucket.batch(NOW + MINUTE, tick(2)).decisions} >= {"west"}


def test_no_more_is_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BROKERS", 2)
    monkeypatch.setattr(limits, "MAX_NAMESPACES", 1)
    output = balancing().batch(
        NOW,
        *skewed(NOW),
        report("broker-3:8080", {}, NOW),
        ownership(NOW, {bundle(1): "b"}),
        ownership(NOW, {bundle(1, "acme/other"): "b"}, "acme/other"),
        tick(1),
    )
    assert [row["reason"] for row in output.dead_letters] == ["too-many", "too-many"]
    assert output.counts.decisions == 1


def test_namespaces_without_owners_are_forgotten():
    bucket = balancing()
    named = {
        "acme/gone": {},
        "acme/unowned": {bundle(1, "acme/unowned"): None},
        "acme/owned": {bundle(1): "broker-1:8080"},
    }
    bucket.batch(NOW, *skewed(NOW), *(ownership(NOW, owners, name) for name, owners in named.items()), tick(1))

    def known_after(later):
        at = NOW + later
        bucket.batch(at, live(at, "broker-1:8080", "broker-2:8080"), tick(2))
        (state,) = clusters_of(bucket.packed).values()
        return set(state.ownership)

    assert known_after(59 * MINUTE) == set(named)
    assert known_after(61 * MINUTE) == {"acme/owned"}
    bucket.restart()
    assert known_after(25 * HOUR) == set()


def test_memory_of_absent_brokers_is_bounded():
    bucket = balancing()
    conf = {EVENLY: False, "loadBalancerLoadPlacementStrategy": "LeastResourceUsageWithWeight"}
    bucket.batch(NOW, policies(NOW, conf))
    for number in range(60):
        at = NOW + number * 10 * MINUTE
        pods = [f"pod-{number}-{one}:8080" for one in range(3)]
        loads = [{bundle(number * 10 + one): 40.0 - 10 * one for one in range(3)}, {}, {}]
        reports = [report(pod, load, at, cpu=len(load) * 30) for pod, load in zip(pods, loads, strict=True)]
        bucket.batch(at, live(at, *pods), *reports, tick(number))
    (state,) = clusters_of(bucket.packed).values()
    memory, few = state.memory, set(state.reports)
    assert len(few) <= 15
    assert memory.broker_avg_resource_usage.keys() <= few
    assert memory.broker_avg_resource_usage_with_weight.keys() <= few
    assert memory.recently_unloaded_brokers.keys() <= few


def test_silent_cluster_is_forgotten():
    bucket = balancing()
    bucket.batch(NOW, *skewed(NOW), tick(1))
    bucket.batch(NOW + 25 * HOUR, tick(2))
    assert clusters_of(bucket.packed) == {}
    assert len(bucket.batch(NOW + 26 * HOUR, *skewed(NOW + 26 * HOUR), tick(3)).decisions) == 1


@pytest.mark.parametrize("entry", [b"", b"\0" * 8, b"\0" * 7 + b"\5hello", b"{}"])
def test_state_that_is_damaged_is_said_to_be(entry):
    bucket = balancing()
    bucket.batch(NOW, *skewed(NOW), tick(1))
    with pytest.raises(StateError):
        unpack(StoredPart(bucket.packed.parts[PART].base, [*bucket.packed.parts[PART].log, entry]))


# Any cluster over some minutes.

_LOADS = st.dictionaries(st.integers(0, 7).map(bundle), st.sampled_from([0.0, 1.0, 20.0, 50.0, 150.0]), max_size=6)
_BROKERS = st.sampled_from(["b-1:8080", "b-2:8080", "b-3:8080"])
_SHEDDERS = st.sampled_from(["ThresholdShedder", "OverloadShedder", "UniformLoadShedder", "AvgShedder"])


@st.composite
def minute_of_messages(draw, minute):
    """Messages of one minute, in no order."""
    at = NOW + minute * MINUTE
    instants = st.integers(0, MINUTE - 1).map(lambda more: at + more)
    found = []
    for broker in draw(st.lists(_BROKERS, max_size=4)):
        if draw(st.booleans()) or draw(st.booleans()):
            cpu = draw(st.sampled_from([5, 30, 60, 95]))
            found.append(report(broker, draw(_LOADS), draw(instants), cpu=cpu, forced=draw(st.booleans())))
        else:
            found.append(extensible(broker, draw(_LOADS), draw(instants), usage=draw(st.sampled_from([0.1, 0.5, 0.9]))))
    if draw(st.booleans()):
        shedder = draw(_SHEDDERS)
        same = "AvgShedder" if shedder == "AvgShedder" else "LeastResourceUsageWithWeight"
        configuration = {"loadBalancerLoadSheddingStrategy": shedder, "loadBalancerLoadPlacementStrategy": same}
        found.append(policies(draw(instants), configuration))
    if draw(st.booleans()):
        found.append(live(draw(instants), *draw(st.sets(_BROKERS, min_size=1))))
    if draw(st.booleans()):
        found.append(ownership(draw(instants), draw(st.dictionaries(st.integers(0, 7).map(bundle), _BROKERS))))
    return found


MINUTES = st.integers(1, 5).flatmap(lambda count: st.tuples(*(minute_of_messages(number) for number in range(count))))


def said(bucket, minutes, order=lambda messages: [messages], restarts=lambda: False):
    """What a bucket says at each tick; `order` lays a minute's messages out in batches."""
    rows = []
    for number, messages in enumerate(minutes):
        at = NOW + (number + 1) * MINUTE
        for batch in order(messages):
            if restarts():
                bucket.restart()
            assert not bundle_rows(bucket.batch(at - 1, *batch))
        rows.append(bundle_rows(bucket.batch(at, tick(at))))
    return rows


@examples(6)
@given(MINUTES, st.data())
def test_order_repetition_and_restart_change_nothing(minutes, data):
    """Any order, repetition, batching or restart gives the same answers."""

    def order(messages):
        several = data.draw(
            st.permutations(
                [*messages, *data.draw(st.lists(st.sampled_from(messages), max_size=3))] if messages else []
            )
        )
        renumbered = [one._replace(offset=place) for place, one in enumerate(several)]
        cuts = sorted(data.draw(st.lists(st.integers(0, len(several)), max_size=2)))
        return [renumbered[start:end] for start, end in zip([0, *cuts], [*cuts, len(several)], strict=True)]

    one, other = balancing(), balancing()
    expected = said(one, minutes)
    assert said(other, minutes, order, lambda: data.draw(st.booleans())) == expected
    known, found = (clusters_of(bucket.packed) for bucket in (one, other))
    for name, state in known.items():
        assert (state.averages, state.memory, state.open, state.held) == (
            found[name].averages,
            found[name].memory,
            found[name].open,
            found[name].held,
        )


@examples(6)
@given(MINUTES)
def test_restart_from_stored_parts_writes_same_bytes(minutes):
    steady, restarted = balancing(), balancing()
    for number, messages in enumerate(minutes):
        at = NOW + (number + 1) * MINUTE
        restarted.restart()
        for bucket in (steady, restarted):
            bucket.batch(at, *messages, tick(at))
        assert steady.packed == restarted.packed


@examples(6)
@given(
    MINUTES, st.lists(st.tuples(st.sampled_from(["broker-load", "broker-events"]), st.binary(max_size=40)), max_size=5)
)
def test_repeated_batch_after_crash_answers_equally(minutes, garbage):
    bucket = balancing()
    bad = [record(source, "west", body) for source, body in garbage]
    for number, messages in enumerate(minutes):
        at = NOW + (number + 1) * MINUTE
        attempts = [run(BucketEngine(SETTINGS, BOTH), bucket.packed, [*messages, *bad, tick(at)], at) for _ in "12"]
        (one, first), (other, second) = attempts
        assert (one, bundle_rows(first)) == (other, bundle_rows(second))
        assert len(first.dead_letters) == len(bad)
        bucket.packed = stored(bucket.packed, one)
