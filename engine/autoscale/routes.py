"""Routing of samples: the load-table row of each sample's segment, and the thresholds of its topic.

Stage: between parsing and filtering of samples. Samples of segments that no layout names yet are kept, because
layouts come from another source and may arrive later, but only up to a limit, since a reporter can name any topic.
The judgement on a segment is cached with its row until the layout, rows or policy of its topic change, so most
samples are routed in columns.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engine.autoscale.loads import LoadTable
from engine.autoscale.pairs import NO_ROW
from engine.autoscale.policies import Policies, ResolvedTopicPolicy
from engine.autoscale.samples import Samples
from engine.autoscale.topics import MAX_WAIT_FOR_LAYOUT_MS, BucketState, TopicState

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_Kind = TypeVar("_Kind", bound=np.generic)

MAX_AHEAD = 64
"""Limit on how far a segment's id may exceed the known layout's next id; more than many splits add."""
MAX_ROWS_WITHOUT_LAYOUT = 10_000
"""Limit per bucket on segments of topics without a layout, 100 bytes each."""
_MAX_POLICIES = 20_000
_UNKNOWN, _KEPT, _LEFT = 0, 1, 2
"""State of a row: not judged, samples kept, samples dropped."""


class Routed(NamedTuple):
    """Routes of the n samples that are kept."""

    places: Ints | None
    """Their positions among all samples; None if all are kept."""
    rows: Ints
    since: Ints
    """Start of the topic's incarnation; older measurements do not belong to it."""
    crossing_thresholds: Floats
    """Thresholds of each sample's topic, n x 12, or 1 x 12 for all, as in `ResolvedTopicPolicy`."""
    merge_thresholds: Floats
    """Thresholds of each sample's topic, n x 4, or 1 x 4 for all."""


class Routes:
    """Cached routes of a bucket's samples."""

    def __init__(self, state: BucketState, loads: LoadTable, policies: Policies) -> None:
        self._state, self._loads = state, loads
        self._seen = (-1, -1, -1)
        """Generations of layouts, rows and policies that the cache reflects."""
        self._of_row = np.zeros(0, np.int8)
        """`_UNKNOWN`, `_KEPT` or `_LEFT`."""
        self._since = np.zeros(0, np.int64)
        """Incarnation start by topic number, for topics with kept rows."""
        self._policies = _PoliciesByNumber(policies)
        self._strangers: dict[str, int] = {}
        """Topics without a layout, with their number of rows."""
        self._room = MAX_ROWS_WITHOUT_LAYOUT
        """Rows still available to them."""

    def of(self, samples: Samples, now: int) -> Routed:
        """Route samples; `now` is the batch's time. Segments that report for the first time get a row."""
        self._take_changes()
        if self._room < MAX_ROWS_WITHOUT_LAYOUT // 2:
            for name in self._strangers:
                self._loads.forget_before(name, now - MAX_WAIT_FOR_LAYOUT_MS)
            self._take_changes()
        index = self._loads.index
        # Many reporters name the same topics: look each up once.
        once = samples.topics.dictionary_encode()
        names: list[str] = once.dictionary.to_numpy(zero_copy_only=False).tolist()
        code_of = once.indices.to_numpy()
        rows = index.find(index.numbers_of(names)[code_of][samples.topic], samples.segment)
        verdicts = np.where(rows == NO_ROW, _UNKNOWN, self._of_row[rows]) if len(self._of_row) else np.zeros_like(rows)
        if len(unsure := np.flatnonzero(verdicts == _UNKNOWN)):
            codes = code_of[samples.topic[unsure]].tolist()
            rows[unsure], verdicts[unsure] = self._judge(samples, names, codes, unsure, rows[unsure].tolist(), now)
        # Rows that were given on the way move no others: what was found before still holds.
        self._seen = self._generations()
        is_kept = verdicts == _KEPT
        indexes = None if is_kept.all() else np.flatnonzero(is_kept)
        rows = rows if indexes is None else rows[indexes]
        number = index.topic[rows]
        return Routed(indexes, rows, self._since[number], *self._policies.thresholds(number))

    def _judge(
        self, samples: Samples, names: Sequence[str], codes: Sequence[int], unsure: Ints, rows: list[int], now: int
    ) -> tuple[list[int], list[int]]:
        """Return rows, added where missing, and verdicts of some samples.

        Works message by message and topic by topic. `codes` are the indexes of their topics in `names`.
        """
        index, state = self._loads.index, self._state
        segments, verdicts = samples.segment[unsure].tolist(), [_LEFT] * len(unsure)
        groups: dict[tuple[int, int], list[int]] = {}
        for sample, group in enumerate(zip(samples.message[unsure].tolist(), codes, strict=True)):
            groups.setdefault(group, []).append(sample)
        new: dict[tuple[int, int], int] = {}
        """Rows to add, by topic number and segment, in order."""
        left: list[int] = []
        topics: dict[int, TopicState] = {}
        for (_, code), indexes in groups.items():
            name = names[code]
            topic, number = state.topics.get(name), index.number_of(name)
            for sample in indexes if new else ():
                if rows[sample] == NO_ROW:
                    rows[sample] = new.get((number, segments[sample]), NO_ROW)
            if topic is not None and topic.known is not None:
                # With a layout: keep active segments, and ids slightly ahead of it, from a split not announced yet.
                active, newer = topic.active_ids, topic.known.next_segment_id
                accepted = [
                    sample for sample in indexes if (i := segments[sample]) in active or newer <= i < newer + MAX_AHEAD
                ]
                if len(accepted) < len(indexes):
                    left += [rows[sample] for sample in {*indexes}.difference(accepted) if rows[sample] != NO_ROW]
            elif topic is None and state.end_of(name, now) is not None:
                continue
            else:
                # Without a layout: keep segments that have a row, and further ones as long as there is room.
                accepted = [sample for sample in indexes if rows[sample] != NO_ROW]
                if len(indexes) - len(accepted) <= self._room:
                    self._host(name, len(indexes) - len(accepted))
                    accepted = indexes
            if not accepted:
                continue
            number = index.number_for(name)
            for sample in accepted:
                verdicts[sample] = _KEPT
                if rows[sample] == NO_ROW:
                    rows[sample] = new[number, segments[sample]] = index.count + len(new)
            topics[number] = topic or TopicState(name)
        if new:
            numbers, ids = zip(*new, strict=True)
            index.add_rows(np.array(numbers, np.int32), np.array(ids, np.int64))
            self._loads.fit()
        self._fit()
        self._of_row[[row for row, is_kept in zip(rows, verdicts, strict=True) if is_kept == _KEPT]] = _KEPT
        self._of_row[left] = _LEFT
        self._since[list(topics)] = [topic.since for topic in topics.values()]
        self._policies.put(state, topics)
        return rows, verdicts

    def _generations(self) -> tuple[int, int, int]:
        return self._state.layouts.newest, self._loads.index.generations.newest, self._state.policy_generation

    def _take_changes(self) -> None:
        """Drop cached results of topics whose layout, rows or policy have changed."""
        layouts_seen, rows_seen, policies_seen = self._seen
        self._seen = self._generations()
        index = self._loads.index
        layouts, rows = self._state.layouts.since(layouts_seen), index.generations.since(rows_seen)
        is_other = policies_seen != self._state.policy_generation or self._policies.is_full
        if layouts is None or rows is None or is_other:
            changed = set(index.topics())
            self._of_row[:] = _UNKNOWN
            self._strangers, self._room = {}, MAX_ROWS_WITHOUT_LAYOUT
            self._policies.forget()
        else:
            changed = {*layouts, *rows}
        self._fit()
        for name in changed:
            self._of_row[list(index.of_topic(name).values())] = _UNKNOWN
            self._room += self._strangers.pop(name, 0)
            topic = self._state.topics.get(name)
            if (topic is None or topic.known is None) and (size := index.rows_in(name)):
                self._host(name, size)

    def _host(self, name: str, rows: int) -> None:
        """Account for more rows of a topic without a layout."""
        self._strangers[name] = self._strangers.get(name, 0) + rows
        self._room -= rows

    def _fit(self) -> None:
        """Extend the columns to cover new rows and topics."""
        index = self._loads.index
        self._of_row = _extend_column(self._of_row, len(index.topic))
        self._since = _extend_column(self._since, len(index.names))


class _PoliciesByNumber:
    """Thresholds by topic number."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self.forget()

    def forget(self) -> None:
        """Clear the cache."""
        self._found: dict[int, tuple[int, ResolvedTopicPolicy]] = {}
        """By identity of the policy: its index and the policy itself."""
        self._of = np.zeros(0, np.int32)
        """Policy index by topic number."""
        self._crossing, self._merge = np.zeros((0, 12)), np.zeros((0, 4))

    @property
    def is_full(self) -> bool:
        """True if the cache should be cleared, because topics no longer use some of its policies."""
        return len(self._found) > _MAX_POLICIES

    def put(self, state: BucketState, topics: Mapping[int, TopicState]) -> None:
        """Cache the policies of some topics by their numbers."""
        before = len(self._found)
        codes = []
        for topic in topics.values():
            policy = self._policies.of(state, topic)
            codes.append(self._found.setdefault(id(policy), (len(self._found), policy))[0])
        self._of = _extend_column(self._of, max(topics, default=-1) + 1)
        self._of[list(topics)] = codes
        if len(self._found) > before:
            self._crossing = np.stack([policy.crossing_thresholds for _, policy in self._found.values()])
            self._merge = np.stack([policy.merge_thresholds for _, policy in self._found.values()])

    def thresholds(self, numbers: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
        """Return crossing and merge thresholds by topic number; one row if all topics have the same."""
        if len(self._found) == 1:
            return self._crossing, self._merge
        codes = self._of[numbers]
        return self._crossing[codes], self._merge[codes]


def _extend_column(column: npt.NDArray[_Kind], size: int) -> npt.NDArray[_Kind]:
    """Return the column extended to at least `size`, with zeros and spare room at the end."""
    if len(column) >= size:
        return column
    return np.concatenate([column, np.zeros(max(64, 2 * size) - len(column), column.dtype)])
