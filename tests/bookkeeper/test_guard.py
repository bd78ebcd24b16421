"""Checks in the moment of acting, and the order of a deletion, over metadata and ledgers in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anabranch.bookkeeper.guard import SwitchGuard, Unsafe
from anabranch.bookkeeper.metadata import MetadataChanged, MetadataRefused, ZnodeRecord, ZnodeWrite
from anabranch.bookkeeper.registry import Registry
from anabranch.bookkeeper.sidecar import DELETES_WITHIN_S, TOO_LATE, LedgerRefused, SeenLedger, Verified
from anabranch.bookkeeper.steps import Steps, TermLost
from schemas.bookie_answers import Step
from schemas.bookies import ClusterEntry, Directive, Routing
from tests.bookkeeper.simulated import locator

OLD, NEW = (ClusterEntry(name=name, metadata_service_uri=f"zk://{name}/ledgers") for name in ("old", "new"))
REGISTRY = Registry((OLD, NEW), None, Directive(source="old", target="new", epoch=1), 1)
WHOLE = SeenLedger(True, 0, 20, {}, (1, 1, 1))


class Metadata:
    """Pulsar's metadata with these brokers; every transaction takes a while."""

    def __init__(self, *brokers: str, seconds: float = 0) -> None:
        self.brokers, self.seconds, self.clock, self.writes = list(brokers), seconds, 1000.0, 0

    def children(self, path: str) -> list[str]:
        assert path == "/loadbalance/brokers"
        return self.brokers

    def read(self, path: str) -> None:
        return None

    def write(self, writes: list[ZnodeWrite]) -> None:
        self.clock += self.seconds
        self.writes += 1


class Sidecar:
    """Ledgers that are whole on both clusters; deletions are noted with their deadline."""

    def __init__(self) -> None:
        self.deleted: list[tuple[str, int, float]] = []
        self.sealed: list[int] = []

    def open(self, cluster: str, ledger: int) -> SeenLedger:
        return WHOLE

    def seal(self, cluster: str, ledger: int) -> SeenLedger:
        self.sealed.append(ledger)
        return WHOLE

    def verify(self, source: str, target: str, ledger: int) -> Verified:
        return Verified(True, (), 0, 20, "x")

    def delete(self, cluster: str, ledger: int, until: float) -> None:
        self.deleted.append((cluster, ledger, until))


class Ids:
    """Identity of the cluster behind an address."""

    def __init__(self, instance: str | None) -> None:
        self._instance = instance

    def instance(self) -> str:
        if self._instance is None:
            raise MetadataRefused("there is no INSTANCEID")
        return self._instance


def steps(metadata: Any, sidecar: Any, routing: Routing = "stopped", **instances: str | None) -> Steps:
    found = {"old": "i-old", "new": "i-new", **instances}
    guard = SwitchGuard(metadata, routing, lambda uri: Ids(found[uri.split("/")[2]]))  # type: ignore[arg-type, return-value]
    store: Any = type("Store", (), {"path": "/admin/bookie-clusters"})
    return Steps(store, metadata, sidecar, ZnodeWrite("/term", None, 1), guard, clock=lambda: metadata.clock)


def step(action: Any, **over: Any) -> Step:
    given = {"expectation": {"records": {}, "ledger": 9, "closed": True}, **over}
    return Step(
        epoch=1,
        phase="CLEANUP",
        kind="ledger",
        object="/managed-ledgers/t/n/persistent/t/c",
        action=action,
        ledger=9,
        source="old",
        target="new",
        reason="test",
        **given,
    )


@pytest.mark.parametrize("seconds", [0, 40])
def test_deadline_is_fixed_before_the_term_is_checked(seconds: float) -> None:
    metadata, sidecar = Metadata(seconds=seconds), Sidecar()
    assert steps(metadata, sidecar).carry_out(step("delete"), REGISTRY).status == "applied"
    # The first transaction is the check at the beginning of a step, the second the one that the deletion rests on.
    [(_, _, until)] = sidecar.deleted
    assert until == 1000.0 + seconds + DELETES_WITHIN_S


def test_deletion_that_is_too_late_is_superseded() -> None:
    class Late(Sidecar):
        def delete(self, cluster: str, ledger: int, until: float) -> None:
            raise LedgerRefused(TOO_LATE, "the deadline has passed")

    assert steps(Metadata(), Late()).carry_out(step("delete"), REGISTRY).status == "superseded"


ACTIONS = ["copy", "verify", "seal", "unload", "cas_attribution", "forward_owner", "delete", "flip_status"]


@pytest.mark.parametrize(
    ("action", "routing", "brokers"),
    [*((action, "stopped", ["b:8080"]) for action in ACTIONS), ("seal", "stock", []), ("seal", "stock", ["b:8080"])],
)
def test_blocking_brokers_prevent_every_step(action: str, routing: Routing, brokers: list[str]) -> None:
    metadata, sidecar = Metadata(*brokers), Sidecar()
    with pytest.raises(Unsafe, match="brokers"):
        steps(metadata, sidecar, routing).carry_out(step(action), REGISTRY)
    assert (metadata.writes, sidecar.deleted, sidecar.sealed) == (0, [], [])


def test_broker_that_starts_meanwhile_stops_a_seal() -> None:
    class Starting(Metadata):
        def write(self, writes: list[ZnodeWrite]) -> None:
            self.brokers = ["b:8080"]

    sidecar = Sidecar()
    for action in ("seal", "delete"):
        with pytest.raises(Unsafe, match="registered now, such as b:8080"):
            steps(Starting(), sidecar).carry_out(step(action), REGISTRY)
    assert (sidecar.sealed, sidecar.deleted) == ([], [])


@pytest.mark.parametrize(
    ("instances", "words"),
    [({"new": "i-old"}, "are one BookKeeper cluster"), ({"old": None}, "instance id of old cannot be read")],
)
@pytest.mark.parametrize("action", ["copy", "delete"])
def test_nothing_is_done_between_names_of_one_cluster(
    action: str, instances: dict[str, str | None], words: str
) -> None:
    sidecar = Sidecar()
    with pytest.raises(Unsafe, match=words):
        steps(Metadata(), sidecar, **instances).carry_out(step(action), REGISTRY)
    assert sidecar.deleted == []


def test_unregistered_cluster_refused() -> None:
    entry = OLD.model_copy(update={"instance": "i-before"})
    registry = Registry((entry, NEW), None, REGISTRY.directive, 1)
    with pytest.raises(Unsafe, match="was registered with i-before"):
        steps(Metadata(), Sidecar()).carry_out(step("delete"), registry)


@pytest.mark.parametrize("term", [1, 2])
def test_overtaken_orchestrator_deletes_nothing(term: int) -> None:
    """Its term ends before one of the two transactions of a deletion."""

    class Overtaken(Metadata):
        def write(self, writes: list[ZnodeWrite]) -> None:
            self.writes += 1
            if self.writes == term and any(change.path == "/term" for change in writes):
                raise MetadataChanged("/term", "BadVersionError")

    sidecar = Sidecar()
    with pytest.raises(TermLost, match="another orchestrator has taken over"):
        steps(Overtaken(), sidecar).carry_out(step("delete"), REGISTRY)
    assert sidecar.deleted == []


@pytest.mark.parametrize("copy", [None, replace(WHOLE, closed=False), replace(WHOLE, length=21)])
def test_attribution_needs_whole_copy(copy: SeenLedger | None) -> None:
    class Recorded(Metadata):
        def read(self, path: str) -> ZnodeRecord:  # type: ignore[override]
            return ZnodeRecord(path, 4, locator(9))

    class Copied(Sidecar):
        def open(self, cluster: str, ledger: int) -> SeenLedger:
            found = WHOLE if cluster == "old" else copy
            if found is None:
                raise LedgerRefused("NoSuchLedger", "it is gone")
            return found

    promotion = step("cas_attribution", stamps={"9": "new:9"}, expectation={"version": 4}).model_copy(
        update={"kind": "schema", "object": "/schemas/t/n/s"}
    )
    metadata = Recorded()
    assert steps(metadata, Copied()).carry_out(promotion, REGISTRY).status == "superseded"
    assert metadata.writes == 1, "the check at the beginning of a step"
    assert steps(Recorded(), Sidecar()).carry_out(promotion, REGISTRY).status == "applied"
