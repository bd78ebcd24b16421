"""Random walks through the REST interface: after any calls in any order, the active segments tile the space."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from schemas.kafka.messages import LayoutEvent
from schemas.metadata import ScalableTopicMetadata
from tests.controller.conftest import RunningController, run_controller
from tests.controller.layout_strategies import assert_tiles
from tests.examples import examples
from tests.waiting import wait_until

pytestmark = pytest.mark.process

RETENTION_S = 60
numbers = itertools.count()


@pytest.fixture(scope="module")
def pruning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    database: Path = tmp_path_factory.mktemp("walk") / "layouts.db"
    with run_controller(database, retention_seconds=RETENTION_S) as running:
        yield running


def test_random_walk_keeps_layout_whole(pruning: RunningController) -> None:
    class Walk(RuleBasedStateMachine):
        @initialize(count=st.integers(1, 5))
        def create(self, count: int) -> None:
            self.topic = f"topic://acme/walk/t{next(numbers)}"
            self.path = f"/admin/v2/scalable/{self.topic.removeprefix('topic://')}"
            assert self.call("PUT", f"?numInitialSegments={count}") == 204
            self.policy: dict[str, int] | None = None
            self.look()

        def call(self, verb: str, path: str, **more: object) -> int:
            return pruning.client.request(verb, self.path + path, **more).status_code

        def look(self) -> None:
            self.layout = ScalableTopicMetadata.model_validate_json(pruning.client.get(self.path).content)

        def change(self, verb: str, path: str, allowed: bool) -> None:
            before = self.layout
            assert self.call(verb, path) == (204 if allowed else 412)
            self.look()
            assert self.layout.epoch == before.epoch + allowed

        @rule(pick=st.integers(0))
        def split(self, pick: int) -> None:
            segment = list(self.layout.segments.values())[pick % len(self.layout.segments)]
            wide = segment.hash_range.start < segment.hash_range.end
            self.change("POST", f"/split/{segment.segment_id}", wide and segment.state == "ACTIVE")

        @rule(pick=st.integers(0), other=st.integers(0), turned=st.booleans())
        def merge(self, pick: int, other: int, turned: bool) -> None:
            segments = list(self.layout.segments.values())
            pair = [segments[pick % len(segments)], segments[other % len(segments)]]
            low, high = sorted(pair, key=lambda segment: segment.hash_range.start)
            active = low.state == high.state == "ACTIVE"
            adjacent = low.hash_range.end + 1 == high.hash_range.start
            first, second = reversed(pair) if turned else pair
            self.change("POST", f"/merge/{first.segment_id}/{second.segment_id}", active and adjacent)

        @precondition(lambda self: sum(s.state == "ACTIVE" for s in self.layout.segments.values()) > 1)
        @rule(pick=st.integers(0))
        def merge_neighbours(self, pick: int) -> None:
            active = sorted(
                (segment for segment in self.layout.segments.values() if segment.state == "ACTIVE"),
                key=lambda segment: segment.hash_range.start,
            )
            at = pick % (len(active) - 1)
            self.change("POST", f"/merge/{active[at].segment_id}/{active[at + 1].segment_id}", True)

        @rule(seconds=st.integers(1, 2 * RETENTION_S))
        def prune(self, seconds: int) -> None:
            pruning.clock.now += seconds * 1000
            old = {
                segment.segment_id
                for segment in self.layout.segments.values()
                if segment.state == "SEALED" and segment.sealed_at_ms <= pruning.clock.now - RETENTION_S * 1000
            }
            before = self.layout
            pruning.node.pruning.prune()
            self.look()
            assert set(self.layout.segments) == set(before.segments) - old
            assert self.layout.epoch == before.epoch + len(old)

        @rule(most=st.none() | st.integers(1, 64))
        def set_policy(self, most: int | None) -> None:
            self.policy = None if most is None else {"maxSegments": most}
            assert self.call("POST", "/autoScalePolicy", json=self.policy) == 204
            self.look()

        @invariant()
        def is_whole(self) -> None:
            if not hasattr(self, "layout"):
                return
            assert_tiles(self.layout)
            policy = self.layout.auto_scale_policy
            assert (policy and {"maxSegments": policy.max_segments}) == self.policy

        def teardown(self) -> None:
            if not hasattr(self, "layout"):
                return
            events = [event for event in pruning.announced(self.topic) if isinstance(event, LayoutEvent)]
            for event in events:
                assert_tiles(event.layout)
            epochs = [event.layout.epoch for event in events if event.cause in ("created", "split", "merge", "prune")]
            assert epochs == sorted(set(epochs))
            assert events[-1].layout == self.layout

    run_state_machine_as_test(
        Walk, settings=examples(5, stateful_step_count=40, suppress_health_check=list(HealthCheck))
    )


def test_pruning_is_off_with_a_negative_retention(controller: RunningController, namespace: str) -> None:
    controller.client.put(f"/admin/v2/scalable/{namespace}/t")
    controller.client.post(f"/admin/v2/scalable/{namespace}/t/split/0")
    controller.clock.now += 10**12
    assert controller.node.pruning.prune() == 0
    assert len(controller.client.get(f"/admin/v2/scalable/{namespace}/t").json()["segments"]) == 3


def test_expired_sealed_segments_pruned_together(pruning: RunningController) -> None:
    path = "/admin/v2/scalable/acme/prune/t"
    pruning.client.put(path)
    for segment in (0, 1, 2):
        pruning.client.post(f"{path}/split/{segment}", headers={"X-Anabranch-Decision": "d"})
    pruning.clock.now += RETENTION_S * 1000 - 1
    pruning.node.pruning.prune()
    assert pruning.client.get(f"{path}/stats").json()["sealedSegments"] == 3
    pruning.clock.now += 1
    assert pruning.node.pruning.prune() >= 3
    stats = pruning.client.get(f"{path}/stats").json()
    assert (stats["sealedSegments"], stats["activeSegments"], stats["epoch"]) == (0, 4, 6)
    last = pruning.announced("topic://acme/prune/t")[-1]
    assert isinstance(last, LayoutEvent)
    assert (last.cause, last.layout.epoch, last.decision_id) == ("prune", 6, None)
    assert all(segment.parent_ids == [] for segment in last.layout.segments.values())


def test_pruning_goes_on_by_itself(tmp_path: Path) -> None:
    path = "/admin/v2/scalable/acme/prune/t"
    with run_controller(tmp_path / "layouts.db", retention_seconds=RETENTION_S, prune_seconds=0.02) as running:
        running.client.put(path)
        for segment in (0, 1):
            running.client.post(f"{path}/split/{segment}")
            running.clock.now += RETENTION_S * 1000
            wait_until(lambda: running.client.get(f"{path}/stats").json()["sealedSegments"] == 0)
        assert running.client.get(path).json()["epoch"] == 4
