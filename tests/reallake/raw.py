"""The facts of a recorded run, worked out of the raw rows in plain Python: nothing of the product computes here."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from deltalake import DeltaTable

Row = dict[str, Any]
FINAL = {"applied", "superseded", "rejected", "failed", "observed"}
HASHES = 0x10000


@dataclass(frozen=True)
class Layout:
    """One layout of a topic, from the batch that took it in to the next one."""

    topic: str
    life: int
    epoch: int
    cause: str
    decision_id: str | None
    segments: dict[int, Row]
    begins: datetime
    ends: datetime | None = None

    @property
    def active(self) -> dict[int, tuple[int, int]]:
        """Inclusive hash ranges of the active segments."""
        return {
            segment["segmentId"]: (segment["hashRange"]["start"], segment["hashRange"]["end"])
            for segment in self.segments.values()
            if segment["state"] == "ACTIVE"
        }


class Raw:
    """The tables of a lake, and what they say."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._tables: dict[str, list[Row]] = {}

    def rows(self, table: str) -> list[Row]:
        if table not in self._tables:
            self._tables[table] = DeltaTable(f"{self._lake}/{table}").to_pyarrow_table().to_pylist()
        return self._tables[table]

    def events(self, kind: str) -> list[Row]:
        """Events of a type in the order of batches and, in a batch, of Kafka."""
        found = [row for row in self.rows("events") if row["type"] == kind]
        return sorted(found, key=lambda row: (row["accepted_at"], row["kafka_partition"], row["kafka_offset"]))

    @property
    def last_batch(self) -> datetime:
        return max(row["batch_at"] for row in self.rows("batches"))

    @cached_property
    def ends(self) -> dict[str, list[Row]]:
        """Final steps by decision id."""
        found = defaultdict(list)
        for row in self.rows("outcomes"):
            if row["status"] in FINAL:
                found[row["decision_id"]].append(row)
        return dict(found)

    @cached_property
    def begun(self) -> set[str]:
        """Ids of the open decisions with an intent: the executor was told to stop before it made the call."""
        return {row["decision_id"] for row in self.rows("outcomes")} - self.ends.keys()

    def statuses(self) -> Counter[str]:
        """Number of decisions by how they ended; `open` without an end."""
        return Counter(
            self.ends[row["decision_id"]][0]["status"] if row["decision_id"] in self.ends else "open"
            for row in self.rows("decisions")
        )

    @cached_property
    def layouts(self) -> dict[str, list[Layout]]:
        """The layouts of each topic in their order; the last one ends if its topic was deleted."""
        found: dict[str, list[Layout]] = defaultdict(list)
        for row in self.events("layout"):
            topic, known = row["subject"], found[row["subject"]]
            if row["cause"] == "deleted":
                known[-1] = Layout(**{**vars(known[-1]), "ends": row["accepted_at"]})
                continue
            layout = json.loads(row["body"])["layout"]
            newest = known[-1] if known else None
            if newest is not None and (row["life"], layout["epoch"]) <= (newest.life, newest.epoch):
                continue
            if newest is not None and newest.ends is None:
                known[-1] = Layout(**{**vars(newest), "ends": row["accepted_at"]})
            known.append(
                Layout(
                    topic,
                    row["life"],
                    layout["epoch"],
                    row["cause"],
                    row["decision_id"],
                    layout["segments"],
                    row["accepted_at"],
                )
            )
        return dict(found)

    def every_layout(self) -> Iterator[Layout]:
        for of_topic in self.layouts.values():
            yield from of_topic

    def present(self) -> dict[str, Layout]:
        """The layout that each topic has at the end of the record."""
        return {topic: of_topic[-1] for topic, of_topic in self.layouts.items() if of_topic[-1].ends is None}

    def segment_hours(self) -> dict[str, float]:
        """Active segments times hours by topic, up to the last batch."""
        return {
            topic: sum(
                len(one.active) * ((one.ends or self.last_batch) - one.begins).total_seconds() / 3600
                for one in of_topic
            )
            for topic, of_topic in self.layouts.items()
        }

    def holds_now(self) -> dict[str, str]:
        """The gate of the newest hold of each topic, if nothing was decided since and the topic is still there."""
        newest: dict[str, tuple[datetime, str | None]] = {}
        changes = [(row["since"], row["subject"], row["gate"]) for row in self.rows("holds")]
        changes += [(row["decided_at"], row["subject"], None) for row in self.rows("decisions")]
        # A topic that a batch deletes and creates again may be held in the same batch.
        layouts = {(row["accepted_at"], row["subject"]): row["cause"] for row in self.events("layout")}
        changes += [(*place, None) for place, cause in layouts.items() if cause == "deleted"]
        for at, subject, gate in sorted(changes, key=lambda change: (change[0], change[2] is None)):
            newest[subject] = (at, gate)
        return {subject: gate for subject, (_, gate) in newest.items() if gate is not None}

    def consumers(self) -> dict[str, dict[str, int]]:
        """Consumers of each subscription of the topics that are there at the end, those without any left out."""
        counts: dict[tuple[str, str], tuple[int, int]] = {}
        for row in self.events("consumer"):
            counts[row["subject"], row["subscription"]] = (row["life"], row["consumers"])
        return {
            topic: {
                subscription: count
                for (subject, subscription), (life, count) in counts.items()
                if subject == topic and life == layout.life and count
            }
            for topic, layout in self.present().items()
        }

    def loads(self, topic: str, until: datetime | None = None) -> dict[int, tuple[float, ...]]:
        """The newest four rates of each segment of a topic's present life."""
        life = self.present()[topic].life
        found = {}
        for row in sorted(self.rows("segment_load"), key=_arrival):
            is_of_life = row["accepted_at"].timestamp() * 1000 >= life
            if row["topic"] == topic and is_of_life and (until is None or row["accepted_at"] <= until):
                found[row["segment_id"]] = _rates(row)
        return found

    def over_threshold_minutes(self, thresholds: tuple[float, ...], unknown: bool) -> float:
        """Minutes, summed over topics, in which an active segment was over one of the split thresholds.

        `unknown`: whether segments without a load yet count as over because a parent was.
        """
        changes: dict[str, list[tuple[datetime, int, Row | Layout]]] = defaultdict(list)
        for row in sorted(self.rows("segment_load"), key=_arrival):
            changes[row["topic"]].append((row["accepted_at"], 1, row))
        for layout in self.every_layout():
            changes[layout.topic].append((layout.begins, 0, layout))
        seconds = 0.0
        for of_topic in changes.values():
            active: set[int] = set()
            over: dict[int, bool] = {}
            since, life = None, None
            for at, _, change in sorted(of_topic, key=lambda change: change[:2]):
                if isinstance(change, Layout):
                    active = set(change.active)
                    over, life = ({} if change.life != life else over), change.life
                    for segment in (one for one in change.segments.values() if one["segmentId"] in active):
                        was_over = any(over.get(parent, False) for parent in segment["parentIds"])
                        over.setdefault(segment["segmentId"], unknown and was_over)
                else:
                    rates = zip(_rates(change), thresholds, strict=True)
                    over[change["segment_id"]] = any(rate > limit for rate, limit in rates)
                is_over = any(over.get(segment, False) for segment in active)
                if is_over and since is None:
                    since = at
                elif not is_over and since is not None:
                    seconds, since = seconds + (at - since).total_seconds(), None
            seconds += (self.last_batch - since).total_seconds() if since else 0.0
        return seconds / 60


def untiled(active: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Return gaps and overlaps between inclusive hash ranges that have to tile the hash space, as (expected, found)."""
    expected, wrong = 0, []
    for start, end in sorted(active.values()):
        if start != expected:
            wrong.append((expected, start))
        expected = end + 1
    return wrong if expected == HASHES else [*wrong, (expected, HASHES)]


def _rates(row: Row) -> tuple[float, ...]:
    return row["msg_rate_in"], row["bytes_rate_in"], row["msg_rate_out"], row["bytes_rate_out"]


def _arrival(row: Row) -> tuple[datetime, int, int]:
    return row["accepted_at"], row["kafka_partition"], row["kafka_offset"]
