"""The family `bundles`: its rows, its verdicts, and what it makes of answers that a Pulsar 5.0.0-M1 has given."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.admin.answers import NotConnected, Response
from anabranch.executor.bundles.actor import BundlesActor
from anabranch.executor.bundles.decision import SplitBundle, Unload, read_bundle_decision
from anabranch.executor.bundles.judge import OWN_BALANCER, LiveBundle, judge
from anabranch.executor.kernel.attempt import AttemptProgress, DecisionEnded, TryAgain, observe_once, try_once
from anabranch.executor.kernel.family import (
    Applied,
    CallAccepted,
    CallRefused,
    Gone,
    MalformedDecision,
    NoAnswer,
    StillNeeded,
    Superseded,
)
from tests.executor import bundle_orders

A, B, C = "127.0.0.1:18081", "127.0.0.1:18082", "127.0.0.1:18083"
FIRST, SECOND = "0x00000000_0x80000000", "0x80000000_0xffffffff"
BUNDLE = f"load/ns/{FIRST}"
MOVE = Unload("move-1", "bundles", "test", BUNDLE, A, B)
SPLIT = SplitBundle("split-1", "bundles", "test", BUNDLE, (0x40000000,))
HERE = LiveBundle("test", (FIRST, SECOND), (A, B), A)
HALVES = ("0x00000000_0x40000000", "0x40000000_0x80000000", SECOND)


def read(row):
    return read_bundle_decision(row.model_dump())


def test_a_row_of_the_job_is_an_unload_or_a_split():
    assert read(bundle_orders.unload("move-1", BUNDLE, A, B)) == MOVE
    assert read(bundle_orders.split("split-1", BUNDLE, ["0x40000000"])) == SPLIT
    assert read(bundle_orders.split("split-1", BUNDLE, None)) == replace(SPLIT, positions=())


@pytest.mark.parametrize(
    "row",
    [
        bundle_orders.unload("x", BUNDLE, A, None),
        bundle_orders.unload("x", BUNDLE, A, A),
        bundle_orders.unload("x", BUNDLE, A, "../../x"),
        bundle_orders.unload("x", "load/ns", A, B),
        bundle_orders.unload("x", "load/ns/LARGEST", A, B),
        bundle_orders.unload("x", BUNDLE, A, B, cluster="a/b"),
        bundle_orders.split("x", BUNDLE, ["0x80000000"]),
        bundle_orders.split("x", BUNDLE, ["half"]),
    ],
    ids=lambda row: f"{row.subject} {row.arguments}",
)
def test_a_row_that_could_not_be_judged_is_malformed(row):
    with pytest.raises(MalformedDecision):
        read(row)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_arguments_raise_anything_else(text):
    row = bundle_orders.unload("x", BUNDLE, A, B).model_dump() | {"arguments": text}
    with pytest.raises(MalformedDecision):
        read_bundle_decision(row)


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(
    ("decision", "live", "before", "after"),
    [
        (MOVE, HERE, StillNeeded, StillNeeded),
        (MOVE, replace(HERE, owner=B), Superseded, Applied),
        (MOVE, replace(HERE, owner=C), Superseded, Superseded),
        (MOVE, replace(HERE, brokers=(A,)), Superseded, Superseded),
        (MOVE, replace(HERE, ranges=HALVES), Superseded, Superseded),
        (MOVE, replace(HERE, ranges=None), Gone, Gone),
        (MOVE, replace(HERE, cluster="other"), Superseded, Superseded),
        (MOVE, replace(HERE, balancing=A), Superseded, Superseded),
        (MOVE, replace(HERE, balancing=A, owner=B), Superseded, Applied),
        (SPLIT, HERE, StillNeeded, StillNeeded),
        (SPLIT, replace(HERE, balancing=A), Superseded, Superseded),
        (SPLIT, replace(HERE, balancing=A, ranges=HALVES), Superseded, Applied),
        (SPLIT, replace(HERE, ranges=HALVES), Superseded, Applied),
        (SPLIT, replace(HERE, ranges=("0x00000000_0xffffffff",)), Superseded, Superseded),
    ],
)
def test_only_what_brokers_own_decides(decision, live, before, after, called):
    assert isinstance(judge(decision, live, called), after if called else before)


owners, ranges = st.sampled_from([None, A, B, C]), st.sampled_from([None, (FIRST, SECOND), HALVES])


@given(
    st.sampled_from([MOVE, SPLIT]), ranges, st.sets(st.sampled_from([A, B, C])), owners, st.booleans(), st.booleans()
)
@example(MOVE, (FIRST, SECOND), {A, B}, None, True, True)
def test_decision_applied_and_call_claimed(decision, found, brokers, owner, called, again):
    verdict = judge(decision, LiveBundle("test", found, tuple(brokers), owner), called, again)
    if isinstance(verdict, StillNeeded):
        assert found == (FIRST, SECOND)
        assert decision is SPLIT or (B in brokers and (owner == A or (again and owner == C)))
    assert called or not isinstance(verdict, Applied)


CONFIGURATION = "/admin/v2/brokers/configuration/runtime"


class Recorded:
    """Answers as a cluster of two brokers has given them, by path; what is changed is given."""

    def __init__(self, settings=None, **changed) -> None:
        self.settings = settings or {}
        """Answers about the settings of single brokers, where they differ."""
        owned = "/admin/v2/brokers/test/{}/ownedNamespaces"
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        self.answers = {
            CONFIGURATION: (200, {"clusterName": "test", "loadBalancerSheddingEnabled": "false"}),
            "/admin/v2/namespaces/load/ns/bundles": (200, {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"]}),
            "/admin/v2/brokers": (200, [A, B]),
            owned.format(A): (200, {BUNDLE: status}),
            owned.format(B): (200, {f"sla-monitor/{B}/0x00000000_0xffffffff": status}),
        } | {path.format(a=owned.format(A)): answer for path, answer in changed.items()}
        self.calls: list = []

    def beside(self, broker):
        other = copy(self)
        other.answers = self.answers | ({CONFIGURATION: self.settings[broker]} if broker in self.settings else {})
        return other

    def exchange(self, method, path, query=None, body=None, headers=None):
        if method == "PUT":
            self.calls.append((path, query, body))
        found = self.answers.get(path, (204, None))
        if not isinstance(found, tuple):
            return found
        return Response(found[0], "", b"" if found[1] is None else json.dumps(found[1]).encode(), path)


def test_poll_asks_bundle_owner_without_assigning():
    assert BundlesActor(Recorded()).look(MOVE) == HERE


SHEDS, SPLITS = "loadBalancerSheddingEnabled", "loadBalancerAutoBundleSplitEnabled"


@pytest.mark.parametrize(
    ("decision", "settings", "balances"),
    [
        (MOVE, {SHEDS: "true", SPLITS: "false"}, True),
        (MOVE, {SHEDS: False, SPLITS: "true"}, False),
        (SPLIT, {SHEDS: "true", SPLITS: "false"}, False),
        (SPLIT, {SHEDS: "false", SPLITS: "true"}, True),
        (SPLIT, {SHEDS: "false"}, True),
        (MOVE, {"loadBalancerEnabled": "false"}, False),
        (SPLIT, {"loadBalancerEnabled": "false"}, True),
        *((decision, {}, True) for decision in (MOVE, SPLIT)),
    ],
)
def test_a_cluster_that_balances_itself_is_left_alone(decision, settings, balances):
    recorded = Recorded(**{CONFIGURATION: (200, {"clusterName": "test"} | settings)})
    actor = BundlesActor(recorded)
    result, _ = try_once(decision, AttemptProgress(), actor, lambda: True, lambda: True)
    assert bool(recorded.calls) is not balances
    if balances:
        assert (result.status, result.error.partition(":")[0]) == ("superseded", OWN_BALANCER)
        assert f"set {decision.own_switches[-1]}=false" in result.error
    observed, _ = observe_once(decision, AttemptProgress(), BundlesActor(recorded, observes=True))
    assert observed.would == str(decision)


ON, OFF = ((200, {SHEDS: switch, SPLITS: switch}) for switch in ("true", "false"))
UNKNOWN = NotConnected("GET", "refused")


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({A: OFF, B: ON}, "superseded"),
        ({A: UNKNOWN, B: ON}, "superseded"),
        ({A: OFF, B: UNKNOWN}, None),
        ({A: OFF, B: (401, None)}, None),
        ({A: OFF, B: OFF}, "applied"),
    ],
)
def test_no_unload_unless_every_broker_sheds_nothing(settings, status):
    recorded = Wandering(B, settings=settings)
    actor, result, progress = BundlesActor(recorded), None, AttemptProgress()
    for _ in range(2):
        if not isinstance(result, DecisionEnded):
            result, progress = try_once(MOVE, progress, actor, lambda: True, lambda: True)
    assert getattr(result, "status", None) == status
    assert len(recorded.calls) == (status == "applied")


@pytest.mark.parametrize("decision", [MOVE, SPLIT])
@pytest.mark.parametrize(
    ("fault", "is_outage"), [(UNKNOWN, True), ((503, None), True), ((401, None), False), ((404, None), False)]
)
def test_broker_that_does_not_answer_is_an_outage(decision, fault, is_outage):
    recorded = Recorded(settings={A: OFF, B: fault})
    for called in (False, True):
        result, _ = try_once(
            decision, AttemptProgress(calls=called), BundlesActor(recorded), lambda: True, lambda: True
        )
        assert (type(result), result.is_outage) == (TryAgain, is_outage and not called)
        assert result.reason.startswith(OWN_BALANCER)
    assert recorded.calls == []


@pytest.mark.parametrize("fault", [UNKNOWN, (503, None)])
@pytest.mark.parametrize("path", [CONFIGURATION, "/admin/v2/brokers", "/admin/v2/namespaces/load/ns/bundles"])
def test_silence_of_controller_url_is_an_outage(path, fault):
    recorded = Recorded(**{path: fault})
    for tried in (
        try_once(MOVE, AttemptProgress(), BundlesActor(recorded), lambda: True, lambda: True),
        observe_once(MOVE, AttemptProgress(), BundlesActor(recorded, observes=True)),
    ):
        assert (type(tried[0]), tried[0].is_outage) == (TryAgain, True)
    assert recorded.calls == []


def test_move_that_arrived_needs_no_settings():
    arrived = Wandering(B, settings={A: UNKNOWN})
    arrived.calls.append("PUT")
    assert BundlesActor(arrived).look(MOVE) == replace(HERE, brokers=(A, B, C), owner=B)


class Wandering(Recorded):
    """A bundle that an unload brings to one broker after the other."""

    def __init__(self, *owners, settings=None):
        super().__init__(settings, **{"/admin/v2/brokers": (200, [A, B, C])})
        self._owners = [A, *owners]

    def exchange(self, method, path, query=None, body=None, headers=None):
        if path.endswith("/ownedNamespaces"):
            here = f"/{self._owners[len(self.calls)]}/" in path
            return Response(200, "", json.dumps({BUNDLE: {"is_active": True}} if here else {}).encode(), path)
        return super().exchange(method, path, query, body, headers)


@pytest.mark.parametrize(
    ("owners", "status", "calls"), [((B,), "applied", 1), ((C, B), "applied", 2), ((C, C), "superseded", 2)]
)
def test_misplaced_unload_repeated_once(owners, status, calls):
    recorded, standing, result = Wandering(*owners), AttemptProgress(), None
    actor = BundlesActor(recorded)
    while not isinstance(result, DecisionEnded):
        result, standing = try_once(MOVE, standing, actor, lambda: True, lambda: True)
    assert (result.status, len(recorded.calls)) == (status, calls)


def test_bundle_being_moved_is_inconclusive():
    leaving = {BUNDLE: {"broker_assignment": "shared", "is_controlled": False, "is_active": False}}
    for changed in (leaving, {}):
        found = BundlesActor(Recorded(**{"{a}": (200, changed)})).look(MOVE)
        assert found == NoAnswer(f"no broker serves {BUNDLE} now")


def test_a_source_that_cannot_be_asked_tells_nothing():
    found = BundlesActor(Recorded(**{"{a}": NotConnected("GET", "refused")})).look(MOVE)
    assert isinstance(found, NoAnswer)


def test_a_namespace_that_is_gone_is_gone():
    gone = (404, {"reason": "Namespace does not exist"})
    found = BundlesActor(Recorded(**{"/admin/v2/namespaces/load/ns/bundles": gone})).look(MOVE)
    assert found == LiveBundle("test", None)


def test_a_decision_is_one_call():
    recorded = Recorded()
    actor = BundlesActor(recorded)
    assert actor.call(MOVE, HERE, lambda: True) == actor.call(SPLIT, HERE, lambda: True) == CallAccepted()
    path = f"/admin/v2/namespaces/load/ns/{FIRST}"
    assert recorded.calls == [
        (f"{path}/unload", {"destinationBroker": B}, None),
        (f"{path}/split", {"unload": "false", "splitAlgorithmName": "specified_positions_divide"}, "[1073741824]"),
    ]


def test_unknown_destination_is_a_refusal():
    reason = "Not allowed unload namespace bundle to inactive destination broker"
    recorded = Recorded(**{f"/admin/v2/namespaces/load/ns/{FIRST}/unload": (409, {"reason": reason})})
    answer = BundlesActor(recorded).call(MOVE, HERE, lambda: True)
    assert isinstance(answer, CallRefused)
    assert reason in answer.reason
