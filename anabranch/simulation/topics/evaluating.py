"""Evaluate rows: decide on those that may act, and find the next tick at which one of them may.

Stage: in the kernel, after samples. `decisions.autoscale.next_due` says in columns who may act now and when others may,
so that idle ticks are skipped; `decisions.autoscale.fleet` decides, and `asking` where it has to be asked by topic.
"""

from collections.abc import Sequence

import numpy as np

from anabranch.simulation.topics.asking import Asked, TopicClocks, ask
from anabranch.simulation.topics.rows import NO_INSTANT, Bools, Event, FloatColumn, IntColumn, Open, Rows, kept_depths
from anabranch.simulation.topics.timeline import Ints
from anabranch.simulation.topics.window import NO_STEP
from decisions.autoscale.columns import ANY_ACTION, ASK, HOLD, MERGE, NEVER, ONLY_SPLIT, FleetAnswers, SnapshotColumns
from decisions.autoscale.fleet import decide_fleet
from decisions.autoscale.next_due import DueColumns, SegmentColumns, TopicColumns, next_due, settled_until, shallow_from
from decisions.autoscale.policy_columns import NOT_DUE, PolicyColumns


class RowEvaluator:
    """Evaluations of rows, by ticks and by events, as the job's."""

    def __init__(self, rows: Rows, tick_ms: int, delay_steps: int, outages: Sequence[tuple[int, int]]) -> None:
        """`outages`: intervals in which the job is down and decides nothing, ascending."""
        self._rows, self._tick_ms, self._delay_steps = rows, tick_ms, delay_steps
        self._outages = np.array(outages, np.int64).reshape(-1, 2)
        self._policy_starts = np.searchsorted(rows.policy, np.arange(len(rows.policies.policies)))

    def evaluate(self, rows: Ints, step: Ints, now: Ints, is_extra: Bools, by_event: Bools) -> None:
        """Decide on rows at a step; plan their next ticks.

        `is_extra`: the step is a tick of their own; `by_event`: their consumers or layouts have changed.
        """
        state, policies = self._rows, self._rows.policies
        segments, owner = state.segments_of(rows)
        ints, topics = state.ints.take(segments, axis=0), self._topics(rows, now)
        shown = _segment_columns(policies, topics.policy[owner], owner, ints)
        due = next_due(policies, topics, shown)
        is_up = self._is_up(now)
        is_tick = is_up & (now // self._tick_ms != (now - state.step_ms) // self._tick_ms)
        is_extra = is_up & is_extra
        by_tick = is_tick | is_extra
        by_consumers = by_event & is_up & ~by_tick & due.has_demand
        may_act = (by_tick & (due.may_split | due.may_merge)) | (by_consumers & due.may_split)
        was_idle = state.open[rows] == Open.IDLE
        may_act &= was_idle | (self._may_split_meanwhile(rows) & due.may_split)
        acts, asked_for = np.zeros(len(rows), np.bool_), np.full(len(rows), NOT_DUE)
        if may_act.any():
            is_chosen = may_act[owner]
            snapshots = self._snapshots(
                rows[may_act],
                by_tick[may_act],
                TopicColumns._make(column[may_act] for column in topics),
                SegmentColumns._make(column[is_chosen] for column in shown),
                segments[is_chosen],
            )
            acts[may_act], asked_for[may_act] = self._decide(
                rows[may_act], snapshots, step[may_act], due.may_split[may_act]
            )
        next_tick = (now // self._tick_ms + 1) * self._tick_ms
        extra = np.full(len(rows), NOT_DUE)
        with_merge = np.minimum(due.split_due, due.merge_due)
        for chosen, instant in (
            (is_tick & due.is_urgent & (due.opens_at < next_tick), with_merge),
            (is_extra & ~is_tick & due.is_urgent, with_merge),
            (by_consumers & due.is_urgent, due.split_due),
        ):
            extra = np.where(chosen, instant, extra)
        extra = np.where(asked_for < NOT_DUE, asked_for, np.where(acts | ~was_idle, NOT_DUE, extra))
        is_asked = (extra > now) & (extra < next_tick)
        state.next[Event.EXTRA, rows[is_asked]] = state.step_at(extra[is_asked])
        self._plan_tick(rows, step, now, due)

    def _topics(self, rows: Ints, now: Ints) -> TopicColumns:
        state = self._rows
        clocks = state.last_split, state.last_merge, state.failures, state.failed_at
        columns = (state.policy, state.count, state.required, *clocks)
        policy, *columns_of_rows = (column[rows] for column in columns)
        return TopicColumns(policy, now, *columns_of_rows)

    def _plan_tick(self, rows: Ints, step: Ints, now: Ints, due: DueColumns) -> None:
        """Set the next tick at which each row may act, or ask for a tick of its own."""
        state, following = self._rows, self._tick_from(step + 1)
        merges_at = np.where(due.merges_at < NOT_DUE, due.merges_at, now)
        merge_tick = np.maximum(self._tick_from(state.step_at(merges_at)), following)
        tick = np.where(
            due.is_urgent | due.may_split, following, np.where(due.merges_at < NOT_DUE, merge_tick, NO_STEP)
        )
        meanwhile = np.where(self._may_split_meanwhile(rows) & due.may_split, following, NO_STEP)
        state.next[Event.TICK, rows] = np.where(state.open[rows] == Open.IDLE, tick, meanwhile)

    def _tick_from(self, step: Ints) -> Ints:
        """Return the first step with a tick, at or after each step."""
        before = self._rows.began_at + (step - 1) * self._rows.step_ms
        return self._rows.step_at((before // self._tick_ms + 1) * self._tick_ms)

    def _is_up(self, now: Ints) -> Bools:
        """Return the rows for whose instant the job is not down."""
        begins, ends = self._outages.T
        is_up: Bools = np.searchsorted(begins, now, "left") == np.searchsorted(ends, now, "right")
        return is_up

    def _may_split_meanwhile(self, rows: Ints) -> Bools:
        """Return the rows in flight that `decide` has to see (`TopicSnapshot.may_split_meanwhile`)."""
        is_seen: Bools = (self._rows.open[rows] == Open.MERGES) & self._rows.policies.asks[self._rows.policy[rows]]
        return is_seen

    def _decide(self, rows: Ints, fleet: SnapshotColumns, step: Ints, wants_split: Bools) -> tuple[Bools, Ints]:
        """Decide for rows; return which of them act, and the instants of the extra ticks that they ask for."""
        state, answers, now, by_tick = self._rows, decide_fleet(fleet), fleet.now, ~fleet.by_consumer
        is_open = state.open[rows] == Open.MERGES
        # A split for load that is held may need a tick of its own, which only `decide` tells of these rows.
        waits = (answers.action == HOLD) & state.policies.asks[state.policy[rows]] & wants_split
        asks = (answers.action == ASK) | is_open | waits
        acts: Bools = (answers.action != HOLD) & ~asks
        self._schedule_answers(rows[acts], now[acts], np.flatnonzero(acts), answers)
        merges = answers.action == MERGE
        due = np.full(len(rows), NOT_DUE)
        for index in np.flatnonzero(asks).tolist():
            row, instant = int(rows[index]), int(now[index])
            asked = self._ask(row, instant, bool(by_tick[index]))
            if by_tick[index]:
                state.hot_keys[row] = asked.hot_keys
            acts[index] = bool(asked.actions)
            if asked.actions:
                decided = [(action, instant, *arguments) for action, *arguments in asked.actions]
                state.waiting[row] = [*state.waiting.get(row, []), *decided]
                merges[index] = all(action == MERGE for action, *_ in asked.actions)
            if asked.due is not None:
                due[index] = asked.due
        acting = rows[acts]
        state.open[acting] = np.where(merges[acts], Open.MERGES, Open.IN_FLIGHT)
        state.next[Event.APPLY, acting] = np.minimum(state.next[Event.APPLY, acting], step[acts] + self._delay_steps)
        return acts, due

    def _schedule_answers(self, rows: Ints, now: Ints, indices: Ints, answers: FleetAnswers) -> None:
        answered = (column[indices].tolist() for column in (answers.segment, answers.other, answers.reason))
        decided = zip(answers.action[indices].tolist(), now.tolist(), *answered, strict=True)
        for row, decision in zip(rows.tolist(), decided, strict=True):
            self._rows.waiting[row] = [decision]

    def _snapshots(
        self, rows: Ints, by_tick: Bools, topics: TopicColumns, shown: SegmentColumns, segments: Ints
    ) -> SnapshotColumns:
        """Return the snapshots of rows, as if no decision were open."""
        state, ints = self._rows, self._rows.ints[segments]
        msg_in, bytes_in, msg_out, bytes_out = np.ascontiguousarray(state.floats[segments, FloatColumn.LAST].T)
        now, never = np.repeat(topics.now, topics.active), np.full(len(rows), NEVER)
        keeps_depth = state.policies.keeps_depth[np.repeat(topics.policy, topics.active)]
        return SnapshotColumns(
            state.policies.policies,
            np.searchsorted(rows, self._policy_starts).tolist(),
            np.append(0, np.cumsum(topics.active)),
            topics.now,
            ~by_tick,
            topics.required,
            topics.last_split,
            topics.last_merge,
            never,
            never != NEVER,
            topics.failures,
            topics.failed_at,
            np.where(topics.failures > 0, ONLY_SPLIT, ANY_ACTION).astype(np.int8),
            ints[:, IntColumn.ID],
            shown.is_single,
            (msg_in, bytes_in, msg_out, bytes_out),
            now,
            shown.cold_since,
            np.where(keeps_depth, kept_depths(ints, now), ints[:, IntColumn.DEPTH]),
            shown.shallow_at,
            shown.settled_at,
            state.sharing[rows],
            state.unshared[rows],
            ints[:, IntColumn.BUCKETS],
        )

    def _ask(self, row: int, now: int, by_tick: bool) -> Asked:
        """Return the answer of `decide` for a row."""
        state, slots = self._rows, self._rows.slots_of(row)
        columns = (state.last_split, state.last_merge, state.last_rebucket, state.failures, state.failed_at)
        merges_opened = state.waiting[row][0][1] if state.open[row] == Open.MERGES else NEVER
        clocks = TopicClocks._make([*(int(column[row]) for column in columns), merges_opened])
        consumers = int(state.sharing[row]), int(state.unshared[row])
        return ask(
            list(zip(state.ints[slots].tolist(), state.floats[slots, FloatColumn.LAST].tolist(), strict=True)),
            state.policies.policies[state.policy[row]],
            now,
            by_tick,
            consumers,
            clocks,
            state.hot_keys.get(row, ()),
        )


def _segment_columns(policies: PolicyColumns, policy: Ints, owner: Ints, ints: Ints) -> SegmentColumns:
    """Return segments as `next_due` reads them; `policy` by segment."""
    regrets, cold_since = ints[:, IntColumn.REGRETS], ints[:, IntColumn.COLD]
    kept, shown, made_at = (ints[:, column] for column in (IntColumn.KEPT_DEPTH, IntColumn.DEPTH, IntColumn.MADE_AT))
    return SegmentColumns(
        owner,
        is_hot=ints[:, IntColumn.HOT] != 0,
        is_cold=cold_since != NO_INSTANT,
        is_single=ints[:, IntColumn.START] == ints[:, IntColumn.END],
        cold_since=policies.window_start(policy, cold_since, ints[:, IntColumn.MODIFIED]),
        shallow_at=shallow_from(policies.keeps_depth[policy], kept, shown, made_at, policies.max_depth[policy]),
        settled_at=settled_until(
            policies.rest_end(policy, ints[:, IntColumn.MADE], made_at, regrets),
            cold_since,
            policies.regret_window(policy, regrets, ints[:, IntColumn.END] - ints[:, IntColumn.START] + 1),
            (ints[:, IntColumn.RETURNED], ints[:, IntColumn.HANDED_ON]),
            policies.returns_within[policy],
        ),
    )
