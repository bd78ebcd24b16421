"""A cluster whose load never rests and whose decisions are carried out: splits, merges and garbage throughout."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from decisions.topic.layout import SegmentLayout
from schemas.metadata import AutoScalePolicyOverride
from schemas.settings.root import Settings
from schemas.tables.rows import DECISIONS
from tests.engine.records import consumers, layout, outcome, record, stats, tick
from tests.streaming.jobs import TOPICS, Feed, now_ms, rows

RESTLESS = AutoScalePolicyOverride(
    max_segments=6,
    split_cooldown_seconds=0,
    merge_cooldown_seconds=0,
    merge_window_seconds=0,
    max_dag_depth=10_000,
    merge_keeps_consumers=False,
    settle_seconds=0,
    returns_within_seconds=0,
    regret_window_seconds=0,
)
"""A topic of this policy is split or merged whenever its load says so."""


class Cluster:
    """Brokers, a controller and an executor in one: it reports load, and does what is decided."""

    def __init__(self, feed: Feed, settings: Settings) -> None:
        self._feed, self._settings = feed, settings
        self._layouts = {topic: SegmentLayout.create(2, now_ms()).with_policy(RESTLESS) for topic in TOPICS}
        self._answered: set[str] = set()
        self._rounds = count()

    def announce(self) -> None:
        """The layouts, as a controller tells them at its start."""
        self._feed.send(*[layout(one, topic=topic) for topic, one in self._layouts.items()])

    def one_round(self) -> None:
        """Carries out what was decided, then reports loads (hot, then cold), consumers, garbage and a tick."""
        self._carry_out()
        number, at = next(self._rounds), now_ms()
        for place, (topic, one) in enumerate(self._layouts.items()):
            rate = 20_000.0 if (number + 4 * place) % 16 < 8 else 1.0
            self._feed.send(stats({s.segment_id: rate + 1000 * (number % 3) for s in one.active}, at, topic))
        self._feed.send(
            consumers(number % 5, topic=TOPICS[number % 4]), record("consumer-events", TOPICS[0], b"no JSON"), tick(at)
        )

    def _carry_out(self) -> None:
        for row in rows(self._settings, DECISIONS):
            if row["decision_id"] in self._answered:
                continue
            self._answered.add(row["decision_id"])
            topic, segments = row["subject"], json.loads(row["arguments"])["segments"]
            one = self._layouts[topic]
            if all(number in one.segments and one.segments[number].is_active for number in segments):
                act = one.split_segment if row["action"] == "split" else one.merge_segments
                self._layouts[topic] = act(*segments, now_ms())
            self._feed.send(
                layout(self._layouts[topic], row["action"], now_ms(), topic),
                outcome(row["decision_id"], "applied", now_ms(), topic),
            )


@contextmanager
def restless_cluster(feed: Feed, settings: Settings) -> Iterator[None]:
    """While it is open, two rounds a second."""
    cluster, stop = Cluster(feed, settings), threading.Event()
    failures: list[BaseException] = []
    cluster.announce()

    def keep_going() -> None:
        try:
            while not stop.wait(0.5):
                cluster.one_round()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=keep_going)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        assert not failures, failures
