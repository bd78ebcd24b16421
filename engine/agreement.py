"""Comparison of recorded decisions and holds with a replayed state.

Stage: under `engine.replay`. A decision carries its whole snapshot, which is compared field by field. A hold is
evaluated again and must produce the same gate, measured value, limit, margin and eligible time. No table records
when a load was last seen if its samples were suppressed, so a load that looks too old in the replay may have been
fresh.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any

from decisions.autoscale.decide import decide
from decisions.autoscale.gates import Gate
from decisions.autoscale.snapshot import Load, TopicSnapshot, snapshot_from_wire, snapshot_to_wire
from decisions.kernel.answers import Hold
from schemas.snapshot import Snapshot

_MAX_UNCERTAIN = 6
"""Largest number of possibly fresh loads for which every combination is tried."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Difference = tuple[str, object, object]
"""Field, recorded value, replayed value."""


def snapshot_on_record(row: Mapping[str, Any]) -> TopicSnapshot | None:
    """Return the snapshot of a row, if any. Raises `ValidationError` or `LayoutStateError` if unreadable."""
    if row["inputs"] is None:
        return None
    # The recorded policy is complete; a guard that it does not name did not exist yet.
    return snapshot_from_wire(Snapshot.model_validate_json(row["inputs"]), "pip-483")


def inputs_differ(inputs: str, replayed: TopicSnapshot, same_policy: bool) -> list[Difference]:
    """Return the fields in which a recorded snapshot (JSON) differs from the replayed one."""
    saw = _compared_fields(Snapshot.model_validate_json(inputs), same_policy)
    has = _compared_fields(snapshot_to_wire(replayed), same_policy)
    return [(field, saw[field], has[field]) for field in saw if saw[field] != has[field]]


def hold_differs(row: Mapping[str, Any], replayed: TopicSnapshot, layout_digest: str) -> list[Difference]:
    """Return the fields of a row of `holds` that differ from the replay, whose layout has `layout_digest`."""
    if row["layout_epoch"] != replayed.layout.epoch:
        return [("layout_epoch", row["layout_epoch"], replayed.layout.epoch)]
    if row["layout_digest"] != layout_digest:
        return [("layout_digest", row["layout_digest"], layout_digest)]
    recorded = _recorded_answer(row)
    snapshots, are_all = may_have_been(replayed)
    answers = [_answer_again(snapshot) for snapshot in snapshots]
    if not are_all or any(_is_same_answer(recorded, answer) for answer in answers):
        return []
    return [(field, recorded[field], answers[0][field]) for field in recorded if recorded[field] != answers[0][field]]


def may_have_been(replayed: TopicSnapshot) -> tuple[list[TopicSnapshot], bool]:
    """Return the snapshots that the job may have evaluated, and whether the list is complete.

    Each snapshot treats some of the loads that look too old as fresh; the first treats all of them so. The list is
    incomplete when there are too many such loads.
    """
    oldest, loads = replayed.now - replayed.policy.max_load_age_ms, replayed.loads
    is_judged = replayed.policy.max_load_age_ms > 0
    uncertain = [number for number, load in loads.items() if is_judged and load.last_seen_at < oldest]
    are_all = len(uncertain) <= _MAX_UNCERTAIN
    cases: Iterable[Sequence[bool]] = product((True, False), repeat=len(uncertain))
    if not are_all:
        cases = ([is_fresh] * len(uncertain) for is_fresh in (True, False))
    candidates = []
    for are_fresh in cases:
        fresh: dict[int, Load] = {
            number: replace(loads[number], seen_at=replayed.now)
            for number, is_fresh in zip(uncertain, are_fresh, strict=True)
            if is_fresh
        }
        candidates.append(replace(replayed, loads={**loads, **fresh}) if fresh else replayed)
    return candidates, are_all


def seen_as_recorded(replayed: TopicSnapshot, recorded: TopicSnapshot) -> TopicSnapshot:
    """Return the replayed snapshot with the times at which the recorded one last saw each load."""
    seen_at = {number: load.seen_at for number, load in recorded.loads.items()}
    loads = {n: replace(load, seen_at=seen_at.get(n, load.seen_at)) for n, load in replayed.loads.items()}
    return replace(replayed, loads=loads)


def _recorded_answer(row: Mapping[str, Any]) -> dict[str, object]:
    eligible_at = row["eligible_at"]
    eligible_ms = None if eligible_at is None else (eligible_at - _EPOCH) // timedelta(milliseconds=1)
    return {**{name: row[name] for name in ("gate", "measured", "limit", "margin")}, "eligible_at": eligible_ms}


def _answer_again(snapshot: TopicSnapshot) -> dict[str, object]:
    answer = decide(snapshot)
    if not isinstance(answer, Hold):
        return {"gate": answer.action, **dict.fromkeys(("measured", "limit", "margin", "eligible_at"))}
    bound = answer.binding
    return {
        "gate": bound.gate.value,
        "measured": bound.measured,
        "limit": bound.limit,
        "margin": bound.margin,
        "eligible_at": bound.eligible_at,
    }


def _is_same_answer(recorded: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    if recorded["gate"] == answer["gate"] == Gate.LOAD_STALE.value:
        return bool(recorded["limit"] == answer["limit"] < recorded["measured"] <= answer["measured"])
    return recorded == answer


def _compared_fields(snapshot: Snapshot, same_policy: bool) -> dict[str, Any]:
    """Return the fields that must agree: not the policy, which settings may have changed."""
    fields = snapshot.model_dump(exclude={"policy"}, by_alias=True)
    for load in fields["loads"].values():
        del load["seenAt"]
        if not same_policy:
            del load["coldSince"]
    if not same_policy:
        del fields["mergeDepths"]
    return fields
