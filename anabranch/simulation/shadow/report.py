"""Comparison of both sides in numbers, as plain JSON; every rate and share has its count beside it.

Stage: over `record` and `sides`; `picture` draws the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from anabranch.query.wording import instant
from anabranch.simulation.shadow.record import ShadowRecord
from anabranch.simulation.shadow.sides import SAME, Done, Sides, WantedAction, of_done, of_wanted, reversals

REVERSAL_MINUTES = 30
"""An action that is undone within this time counts as a reversal."""


def compare(
    recorded: ShadowRecord, since: int | None, until: int, reversal_minutes: float = REVERSAL_MINUTES
) -> dict[str, Any]:
    """Compare the actions from `since` to `until`, milliseconds since 1970; None: the start of the record.

    Keys: `period`, `topics`; `theirs` and `ours` (actions by kind, reversals, minutes over a split threshold before a
    split by load); `agreement` (of their actions: decided by us before, the same at that moment, otherwise, by the gate
    that held us); `leadSeconds` (our lead where we were earlier, and our lag where not); `onlyTheirs`; `onlyOurs` by
    ending; `actions`, one by one; `notes`; `doubts`.
    """
    notes = []
    if since is not None and since < recorded.began_at:
        notes.append(f"the record begins at {instant(recorded.began_at)}: what was before is not in this report")
    since = recorded.began_at if since is None else max(since, recorded.began_at)
    sides = recorded.sides.within(since, until)
    done, wanted = sides.all_done(), sides.all_wanted()
    soon = int(reversal_minutes * 60_000)
    same = [action for action in sides.theirs if action.answer == SAME]
    agreed = len(sides.both) + len(same)
    lags = [action.looked_at - action.at for action in same if action.looked_at is not None]
    return {
        "period": {"from": since, "to": until},
        "topics": recorded.topics,
        "theirs": {
            **_counted(done),
            "reversals": reversals(of_done(done), sides.parents, soon),
            "minutesOverThreshold": _minutes(
                (action.at, action.hot_since) for action in done if action.action == "split"
            ),
        },
        "ours": {
            **_counted(wanted),
            "reversals": reversals(of_wanted(wanted), sides.parents, soon),
            "minutesOverThreshold": _minutes(
                (action.at, action.hot_since) for action in wanted if action.action == "split"
            ),
        },
        "agreement": {
            "share": agreed / len(done) if done else None,
            "decidedBefore": len(sides.both),
            "sameAtThatMoment": len(same),
            "otherwise": dict(
                Counter(action.answer or "not known then" for action in sides.theirs if action.answer != SAME)
            ),
        },
        "leadSeconds": {
            "ahead": _spread(pair.lead_ms / 1000 for pair in sides.both),
            "behind": _spread(lag / 1000 for lag in lags),
        },
        "onlyOurs": dict(Counter(action.ending for action in sides.ours)),
        "onlyTheirs": len(sides.theirs) - len(same),
        "reversalMinutes": reversal_minutes,
        "actions": _listed(sides),
        "notes": notes,
        "doubts": list(recorded.doubts),
    }


def _counted(actions: Sequence[Done | WantedAction]) -> dict[str, int]:
    counts = Counter(act.action for act in actions)
    rebuckets = {"rebuckets": counts["rebucket"]} if counts["rebucket"] else {}
    return {"splits": counts["split"], "merges": counts["merge"], **rebuckets}


def _minutes(actions: Iterable[tuple[int, int | None]]) -> dict[str, Any]:
    return _spread((acted_at - hot) / 60_000 for acted_at, hot in actions if hot is not None)


def _spread(values: Iterable[float]) -> dict[str, Any]:
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "median": None, "max": None, "total": 0.0}
    return {
        "count": len(ordered),
        "median": round(median(ordered), 3),
        "max": round(ordered[-1], 3),
        "total": round(sum(ordered), 3),
    }


def _listed(sides: Sides) -> list[dict[str, Any]]:
    """Return every action with its instants, oldest first."""
    rows = [
        _row(
            done,
            theirs=done.at,
            verdict=_verdict(done.answer),
        )
        for done in sides.theirs
    ]
    rows += [
        _row(
            wanted,
            ours=wanted.at,
            reason=wanted.reason,
            verdict=f"only ours, {wanted.ending}",
        )
        for wanted in sides.ours
    ]
    rows += [
        _row(
            pair.done,
            theirs=pair.done.at,
            ours=pair.wanted.at,
            reason=pair.wanted.reason,
            verdict="both",
            lead=pair.lead_ms / 1000,
        )
        for pair in sides.both
    ]
    return sorted(
        rows, key=lambda row: (min(acted_at for acted_at in (row["theirsAt"], row["oursAt"]) if acted_at), row["topic"])
    )


def _verdict(answer: str | None) -> str:
    if answer == SAME:
        return "theirs first, ours the same"
    if answer is None:
        return "only theirs, not known to us then"
    return f"only theirs, we: {answer}"


def _row(
    action: Done | WantedAction,
    *,
    verdict: str,
    theirs: int | None = None,
    ours: int | None = None,
    reason: str | None = None,
    lead: float | None = None,
) -> dict[str, Any]:
    return {
        "topic": action.topic,
        "action": action.action,
        "segments": list(action.segments),
        "theirsAt": theirs,
        "oursAt": ours,
        "leadSeconds": lead,
        "reason": reason,
        "verdict": verdict,
    }
