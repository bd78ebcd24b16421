"""Split and merge on real segments and layouts: stopped between any two changes and resumed, they end the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError

from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.operations.journal import STEPS_MERGE, STEPS_SPLIT, Operation, OperationStep
from anabranch.controller.operations.protocol import StoredLayout, plan, resume, run_step
from anabranch.controller.segments.base import SegmentNotFound
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.no_segments import NoSegments
from decisions.topic.layout import LayoutArgumentError, SegmentLayout
from decisions.topic.segment import segment_topic
from schemas.kafka.messages import LayoutEvent, parse_message
from schemas.metadata import AutoScalePolicyOverride, HashRange
from tests.controller.operations.operating import Deadly, FileJournal, RecordingLayouts, resume_until
from tests.controller.owned import OwnedStore
from tests.examples import only_first

ROOT = Path(__file__).resolve().parents[3]
NOW = 1_763_660_000_000
SUBSCRIPTIONS = ["audit", "billing"]
SPLIT_CHANGES = ["save", "create", "create", "save", "terminate", "save", "replace", "save", "notify", "save"]
MERGE_CHANGES = ["save", "create", "save", "terminate", "terminate", "save", "replace", "save", "notify", "save"]


REBUCKET_CHANGES = ["save", "create", "save", "terminate", "save", "replace", "save", "notify", "save"]
PARENTS = {"split": [0], "merge": [1, 0], "rebucket": [0]}
BUCKETS = {"split": None, "merge": 1024, "rebucket": 4}


def planned_for(kind: str, topic: str, layout: SegmentLayout, decision_id: str | None = None) -> Operation:
    return plan(kind, topic, layout, PARENTS[kind], "op", NOW, decision_id, BUCKETS[kind])[0]  # type: ignore[arg-type]


class Death(Exception):
    """The end of a process, as a test in the same process sees it."""


def die() -> None:
    raise Death


@dataclass
class Scene:
    """A topic with two active segments on Kafka, and an operation on it in the journal."""

    topic: str
    store: OwnedStore
    layouts: RecordingLayouts
    segments: KafkaSegments
    journal: FileJournal

    @property
    def stored(self) -> StoredLayout:
        found = self.layouts.read(self.topic)
        assert found is not None
        return found

    @property
    def layout(self) -> SegmentLayout:
        return self.stored.layout

    def change(self, change: Callable[[SegmentLayout], SegmentLayout]) -> None:
        """A change of the layout by another writer."""
        version, layout = self.stored
        with self.store.writing(self.topic) as transaction:
            assert transaction.replace_layout(self.topic, version, change(layout).to_metadata())

    def plan(self, kind: str) -> Operation:
        planned = planned_for(kind, self.topic, self.layout)
        self.journal.save(planned)
        return planned

    def run_until(self, step: OperationStep, operation: Operation) -> Operation:
        while operation.step != step:
            operation = run_step(operation, self.segments, self.layouts)
            self.journal.save(operation)
        return operation

    def resume(self) -> Operation:
        return resume(self.journal.read(), self.segments, self.layouts, self.journal.save)

    def exists(self, segment: str) -> bool:
        try:
            self.segments.subscriptions(segment)
        except SegmentNotFound:
            return False
        return True

    def check_order(self, operation: Operation) -> None:
        """What must hold at every moment, also right after a death."""
        published = set(operation.children) <= {segment.descriptor for segment in self.layout.active}
        sealed = [self.exists(one) and self.segments.is_terminated(one) for one in operation.parent_topics]
        if any(sealed):
            assert [self.segments.subscriptions(child) for child in operation.child_topics] == [SUBSCRIPTIONS] * len(
                operation.children
            )
        if published:
            assert all(sealed)
        assert not any(self.segments.is_terminated(child) for child in operation.child_topics if self.exists(child))
        self.layout.check()

    def check_end(self, operation: Operation, expected: SegmentLayout) -> None:
        """The one end that an operation has, however it came there."""
        assert operation == self.journal.read()
        assert operation.step == "done"
        assert self.layout == expected
        self.check_order(operation)
        for segment in self.layout.segments.values():
            assert self.segments.is_terminated(segment_topic(self.topic, segment)) != segment.is_active
        events = [parse_message(record.source, record.key.encode(), record.value) for record in self.store.announced()]
        changes = [event for event in events if isinstance(event, LayoutEvent) and event.topic == self.topic]
        assert [(event.cause, event.layout.epoch) for event in changes] == [(operation.kind, expected.epoch)]
        assert self.layouts.notified[-1:] == [expected.epoch]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OwnedStore]:
    """A database of its own."""
    one = OwnedStore(SqliteStore(tmp_path / "layouts.db"))
    yield one
    one.close()


@pytest.fixture(scope="session")
def segments(kafka_segments: KafkaSegments) -> KafkaSegments:
    return kafka_segments


@pytest.fixture
def scene(store: OwnedStore, segments: KafkaSegments, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    """A topic of its own for each test."""
    return set_scene(store, segments, tmp_path, str(request.node.name).replace("[", "-").replace("]", ""))


def set_scene(store: OwnedStore, segments: KafkaSegments, folder: Path, name: str) -> Scene:
    """Two segments; one subscription is registered, the other is on a parent only."""
    topic = f"topic://acme/protocol/{name}"
    layout = SegmentLayout.create(2, NOW - 1000)
    for segment, subscriptions in zip(layout.active, (["audit", "billing"], ["billing"]), strict=True):
        segments.create(topic, segment.segment_id, HashRange(start=segment.start, end=segment.end), subscriptions)
    with store.writing(topic) as transaction:
        transaction.insert_topic(topic, layout.to_metadata())
        transaction.insert_subscription(topic, "billing", "STREAM")
    return Scene(topic, store, RecordingLayouts(store), segments, FileJournal(folder))


def expected(kind: str, layout: SegmentLayout) -> SegmentLayout:
    if kind == "rebucket":
        return layout.rebucket_segment(0, 4, NOW)
    return layout.split_segment(0, NOW) if kind == "split" else layout.merge_segments(1, 0, NOW)


@pytest.mark.broker
@pytest.mark.parametrize(
    ("kind", "changes", "numbers"),
    only_first(
        3,
        [
            ("split", SPLIT_CHANGES, range(1, 11)),
            ("merge", MERGE_CHANGES, (2, 4, 5, 7)),
            ("rebucket", REBUCKET_CHANGES, (2, 4, 6)),
            ("merge", MERGE_CHANGES, (1, 3, 6, 8, 9, 10)),
            ("rebucket", REBUCKET_CHANGES, (1, 3, 5, 7, 8, 9)),
        ],
    ),
)
def test_operation_resumed_at_any_step_ends_same(
    kind: str, changes: list[str], numbers: Iterable[int], store: OwnedStore, segments: KafkaSegments, tmp_path: Path
) -> None:
    """In `make test` after every change of a split, and after those of the others that change segments or layout."""
    for number in numbers:
        scene = set_scene(store, segments, tmp_path, f"stopped-{kind}-{number}")
        before = scene.layout
        operation = scene.plan(kind)
        deadly = Deadly(number, die)
        with pytest.raises(Death):
            resume_until(deadly, scene.journal, segments, scene.layouts)
        assert deadly.made == changes[:number]
        scene.check_order(operation)
        scene.check_end(scene.resume(), expected(kind, before))


@pytest.mark.broker
def test_kill_after_layout_change_ends_the_same(kafka: str, segments: KafkaSegments, tmp_path: Path) -> None:
    number = SPLIT_CHANGES.index("replace") + 1
    store = OwnedStore(SqliteStore(tmp_path / "layouts.db"))
    scene = set_scene(store, segments, tmp_path, "killed")
    before, operation = scene.layout, scene.plan("split")
    store.close()
    command = [sys.executable, "-m", "tests.controller.operations.operating", kafka, str(tmp_path), str(number)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert died.returncode == -signal.SIGKILL, died.stderr
    scene.store = OwnedStore(SqliteStore(tmp_path / "layouts.db"))
    scene.layouts = RecordingLayouts(scene.store)
    scene.check_order(operation)
    scene.check_end(scene.resume(), expected("split", before))
    scene.store.close()


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["split", "merge", "rebucket"])
def test_every_step_done_twice_changes_nothing_more(kind: str, scene: Scene) -> None:
    before = scene.layout
    operation = scene.plan(kind)
    while not operation.has_ended:
        once = run_step(operation, scene.segments, scene.layouts)
        assert run_step(operation, scene.segments, scene.layouts) == once
        operation = once
    scene.journal.save(operation)
    scene.check_end(operation, expected(kind, before))


@pytest.mark.broker
def test_a_policy_that_changes_meanwhile_is_kept(scene: Scene) -> None:
    operation = scene.run_until("update-layout", scene.plan("split"))
    scene.change(lambda layout: layout.with_policy(AutoScalePolicyOverride(max_segments=7)))
    assert scene.resume().children == operation.children
    assert scene.layout.auto_scale_policy == AutoScalePolicyOverride(max_segments=7)
    assert len(scene.layout.active) == 3


@pytest.mark.broker
@pytest.mark.parametrize("step", ["terminate-parent", "update-layout"])
def test_children_with_used_ids_planned_again(step: OperationStep, scene: Scene) -> None:
    operation = scene.run_until(step, scene.plan("split"))
    scene.change(lambda layout: layout.split_segment(1, NOW))
    ended = scene.resume()
    assert ended.step == "done"
    assert ended.children == ("0000-3fff-4", "4000-7fff-5")
    assert not any(scene.exists(child) for child in operation.child_topics)
    assert [scene.segments.subscriptions(child) for child in ended.child_topics] == [SUBSCRIPTIONS] * 2
    assert [segment.segment_id for segment in scene.layout.active] == [4, 5, 2, 3]


@pytest.mark.broker
def test_foreign_replacement_supersedes_operation(scene: Scene) -> None:
    """Other parents supersede it before anything is terminated."""
    operation = scene.run_until("terminate-parents", scene.plan("merge"))
    scene.change(lambda layout: layout.split_segment(1, NOW))
    changed = scene.layout
    assert scene.resume().step == "superseded"
    assert scene.layout == changed
    assert not any(scene.segments.is_terminated(parent) for parent in operation.parent_topics)
    assert not any(scene.exists(child) for child in operation.child_topics)


@pytest.mark.broker
@pytest.mark.parametrize("step", ["terminate-parent", "update-layout", "notify-consumers"])
def test_a_topic_deleted_meanwhile_leaves_no_children(step: OperationStep, scene: Scene) -> None:
    operation = scene.run_until(step, scene.plan("split"))
    with scene.store.writing(scene.topic) as transaction:
        transaction.begin_deletion(scene.topic, scene.layout.to_metadata())
    for parent in operation.parent_topics:
        scene.segments.delete(parent)
    assert scene.resume().has_ended
    assert not any(scene.exists(segment) for segment in operation.child_topics + operation.parent_topics)


@pytest.mark.broker
def test_subscription_changes_reach_the_children(scene: Scene) -> None:
    operation = scene.run_until("terminate-parent", scene.plan("split"))
    with scene.store.writing(scene.topic) as transaction:
        transaction.insert_subscription(scene.topic, "late", "STREAM")
    scene.segments.delete_subscription(operation.parent_topics[0], "audit")
    scene.resume()
    assert [scene.segments.subscriptions(child) for child in operation.child_topics] == [["billing", "late"]] * 2


@pytest.mark.broker
def test_parent_without_topic_counts_as_empty(scene: Scene) -> None:
    parent = scene.plan("split").parent_topics[0]
    scene.segments.delete(parent)
    ended = scene.resume()
    assert scene.segments.is_terminated(parent)
    assert [scene.segments.subscriptions(child) for child in ended.child_topics] == [["billing"]] * 2


@pytest.mark.parametrize("kind", ["split", "merge", "rebucket"])
def test_without_segments_only_the_layout_changes(kind: str, store: OwnedStore, tmp_path: Path) -> None:
    topic, layouts, journal = "topic://acme/protocol/none", RecordingLayouts(store), FileJournal(tmp_path)
    layout = SegmentLayout.create(2, NOW - 1000)
    with store.writing(topic) as transaction:
        transaction.insert_topic(topic, layout.to_metadata())
    planned = planned_for(kind, topic, layout)
    assert resume(planned, NoSegments(), layouts, journal.save).step == "done"
    stored = layouts.read(topic)
    assert stored is not None
    assert stored.layout == expected(kind, layout)


def test_disallowed_change_not_planned() -> None:
    layout = SegmentLayout.create(3, NOW)
    with pytest.raises(LayoutArgumentError, match="not adjacent"):
        plan("merge", "topic://a/b/c", layout, [0, 2], "op", NOW)
    with pytest.raises(LayoutArgumentError, match="not found"):
        plan("split", "topic://a/b/c", layout, [3], "op", NOW)


@pytest.mark.parametrize(("kind", "steps"), [("split", STEPS_SPLIT), ("merge", STEPS_MERGE), ("rebucket", STEPS_SPLIT)])
def test_journal_restores_operation_with_its_steps(kind: str, steps: tuple[OperationStep, ...]) -> None:
    layout = SegmentLayout.create(2, NOW)
    planned = planned_for(kind, "topic://a/b/c", layout, "d1")
    for step in (*steps, "superseded"):
        one = planned.model_copy(update={"step": step, "subscriptions": ("é#/", "b")})
        assert Operation.model_validate_json(one.to_json()) == one
    for step in set(STEPS_SPLIT + STEPS_MERGE) - set(steps):
        with pytest.raises(ValidationError, match=f"a {kind} has no step {step}"):
            Operation.model_validate_json(planned.model_copy(update={"step": step}).to_json())
