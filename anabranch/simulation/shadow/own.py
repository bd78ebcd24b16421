"""Separation of our own actions from those of others, by decision and lineage; first pass.

Stage: above `sides`. A layout is often announced before the outcome of the decision that led to it, and an outcome may
be missing at the end of the record. So the whole record is searched before anything is attributed. An action is ours if
its decision ended `applied` (or has an intent and no end), or if the announcement of its layout names the decision.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anabranch.simulation.shadow.lives import LifeOf, NameLives, read_layout
from anabranch.simulation.shadow.sides import What, actions_in, parts_of
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import BucketState
from engine.replay import BucketReplay, RecordedBatch
from lake.tables import stream_columns
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import LayoutEvent, OutcomeEvent, TickEvent, parse_message
from schemas.tables.rows import OUTCOMES

_ROWS = 65_536
_ENDS = frozenset({"superseded", "rejected", "failed", "observed"})


class Lives:
    """Lives of all topics; segment ids identify an action within one only."""

    def __init__(self, state: BucketState) -> None:
        """`state`: the topics at the beginning of the record, with those that were deleted before."""
        self._numbers: Counter[str] = Counter()
        self._names: defaultdict[str, NameLives] = defaultdict(NameLives)
        for name, topic in state.topics.items():
            self._names[name].created_at = topic.created_at
            self._names[name].segments = {} if topic.layout is None else topic.layout.segments
        for name, end in state.ended.items():
            self._names[name].deleted_at, self._names[name].ended_created_at = end.at, end.created_at
        self.began_anew = False
        """True if the topic of the last event was deleted, or created again."""

    def follow(self, event: LayoutEvent, layout: SegmentLayout | None) -> bool:
        """Apply an announcement, in order; return False for a late or repeated one of an earlier life.

        `layout`: what it announces; None, for a deletion only: it cannot be read.
        """
        known, segments = self._names[event.topic], {} if layout is None else layout.segments
        if event.cause == "deleted":
            is_news = known.follow_deletion(segments, event.topic_created_at, event.at)
            self.began_anew = is_news
        else:
            life = known.follow_layout(segments, event.topic_created_at, event.at)
            is_news, self.began_anew = life is not LifeOf.EARLIER, life is LifeOf.LATER
        self._numbers[event.topic] += self.began_anew
        return is_news

    def of(self, topic: str) -> int:
        """Return the number of a topic's current life."""
        return self._numbers[topic]


@dataclass(frozen=True)
class Own:
    """Result of the first pass. Instants are milliseconds since 1970."""

    applied: frozenset[str]
    """Ids of the decisions that were carried out."""
    actions: frozenset[tuple[str, int, What]]
    """Own actions: topic, life, action."""
    instants_of_others: Sequence[tuple[int, str, What]]
    """All other actions, in order of time."""
    looks: Sequence[int]
    """Times of the ticks, ascending."""
    decided_at: frozenset[int]
    """Times of the batches with decisions."""

    def has(self, topic: str, life: int, act: What) -> bool:
        """Return True if the action is our own."""
        return (topic, life, act) in self.actions


def own_decisions(lake: str) -> set[str]:
    """Return ids of decisions that the executor applied, or may have: those with an intent and no end.

    Outcomes later than the record count too. Raises what Delta raises.
    """
    ids: dict[str, set[str]] = {"applied": set(), "intent": set(), "ended": set()}
    for rows in stream_columns(lake, OUTCOMES, ("decision_id", "status"), _ROWS):
        for decision, status in zip(rows["decision_id"].to_pylist(), rows["status"].to_pylist(), strict=True):
            ids["ended" if status in _ENDS else status].add(decision)
    return ids["applied"] | (ids["intent"] - ids["ended"])


def find_own(replay: BucketReplay, chunks: Iterable[Iterable[RecordedBatch]], own: Iterable[str]) -> Own:
    """Search the record from the current state of `replay`; `own`: ids of decisions known to be applied."""
    layouts = {name: topic.layout for name, topic in replay.state.topics.items() if topic.layout is not None}
    decided = {
        decision.decision_id: [(name, 0, act) for act in parts_of(decision.action, decision.segments)]
        for name, topic in replay.state.topics.items()
        for decision in topic.all_open
    }
    applied, lives = set(own), Lives(replay.state)
    actions: set[tuple[str, int, What]] = set()
    done: set[tuple[int, str, int, What]] = set()
    looks: list[int] = []
    decided_at: set[int] = set()
    for batch in (batch for chunk in chunks for batch in chunk):
        for event in batch.events:
            message = parse_message(event.source, event.key, event.value)
            if isinstance(message, OutcomeEvent) and message.status == "applied":
                applied.add(message.decision_id)
            elif isinstance(message, TickEvent) and event.key == EVERY_TOPIC.encode():
                looks.append(batch.now)
            elif isinstance(message, LayoutEvent):
                layout = read_layout(message)
                if not lives.follow(message, layout):
                    continue
                topic, life = message.topic, lives.of(message.topic)
                if lives.began_anew:
                    layouts.pop(topic, None)
                if message.cause == "deleted" or layout is None:
                    continue
                for action, segments, children, acted_at in actions_in(layout, layouts.get(topic)):
                    act = action, segments
                    done.add((acted_at or message.at, topic, life, act))
                    if message.decision_id and layout.segments[children[0]].created_at_epoch == layout.epoch:
                        actions.add((topic, life, act))
                layouts[topic] = layout
                if message.decision_id:
                    applied.add(message.decision_id)
        for row in batch.decisions:
            topic, parts = row["subject"], parts_of(row["action"], json.loads(row["arguments"])["segments"])
            decided[row["decision_id"]] = [(topic, lives.of(topic), act) for act in parts]
            decided_at.add(batch.now)
    actions.update(act for decision_id in applied for act in decided.get(decision_id, ()))
    theirs = sorted((acted_at, topic, act) for acted_at, topic, life, act in done if (topic, life, act) not in actions)
    return Own(frozenset(applied), frozenset(actions), theirs, sorted(looks), frozenset(decided_at))
