"""Report on both sides as plain JSON: every rate and share comes with its count.

Stage: over `record` and `sides`; `picture` draws the result.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from anabranch.query.wording import instant
from anabranch.simulation.shadow.record import ShadowRecord
from anabranch.simulation.shadow.sides import SAME, Done, Segments, Sides, WantedAction, reversals

REVERSAL_MINUTES = 30
"""Time within which an action has to be undone to count as a reversal."""


def compare(
    recorded: ShadowRecord, since: int | None, until: int, reversal_minutes: float = REVERSAL_MINUTES
) -> dict[str, Any]:
    """Compare the actions from `since` to `until`, milliseconds since 1970; None: the start of the record.

    Keys: `period`; `topics`; `theirs` and `ours` (actions by kind, reversals, minutes over a split threshold before a
    split by load); `agreement` (their actions: decided by us before, decided by us at that moment, or not, by our
    answer); `leadSeconds` (our lead or lag); `onlyTheirs`; `onlyOurs` by ending; `actions` in full; `notes`; `doubts`.
    """
    notes = []
    if since is not None and since < recorded.began_at:
        notes.append(f"the record begins at {instant(recorded.began_at)}: what was before is not in this report")
    since = recorded.began_at if since is None else max(since, recorded.began_at)
    sides = recorded.sides.within(since, until)
    done, wanted = sides.all_done(), sides.all_wanted()
    reversal_ms = int(reversal_minutes * 60_000)
    same = [action for action in sides.theirs if action.answer == SAME]
    agreed = len(sides.both) + len(same)
    lags = [action.looked_at - action.at for action in same if action.looked_at is not None]
    return {
        "period": {"from": since, "to": until},
        "topics": recorded.topics,
        "theirs": _side(done, sides.parents, reversal_ms),
        "ours": _side(wanted, sides.parents, reversal_ms),
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


def _side(
    actions: Sequence[Done | WantedAction], parents: Mapping[tuple[str, int], Segments], reversal_ms: int
) -> dict[str, Any]:
    counts = Counter(action.action for action in actions)
    splits = [action for action in actions if action.action == "split"]
    return {
        "splits": counts["split"],
        "merges": counts["merge"],
        **({"rebuckets": counts["rebucket"]} if counts["rebucket"] else {}),
        "reversals": reversals(actions, parents, reversal_ms),
        "minutesOverThreshold": _spread(
            (split.at - split.hot_since) / 60_000 for split in splits if split.hot_since is not None
        ),
    }


def _spread(values: Iterable[float]) -> dict[str, Any]:
    if not (ordered := sorted(values)):
        return {"count": 0, "median": None, "max": None, "total": 0.0}
    return {
        "count": len(ordered),
        "median": round(median(ordered), 3),
        "max": round(ordered[-1], 3),
        "total": round(sum(ordered), 3),
    }


def _listed(sides: Sides) -> list[dict[str, Any]]:
    """Return a row for every action, oldest first."""
    rows = [
        *(_row(_verdict(done.answer), done=done) for done in sides.theirs),
        *(_row(f"only ours, {wanted.ending}", wanted=wanted) for wanted in sides.ours),
        *(_row("both", pair.done, pair.wanted, pair.lead_ms / 1000) for pair in sides.both),
    ]
    return sorted(rows, key=lambda row: (min(filter(None, (row["theirsAt"], row["oursAt"]))), row["topic"]))


def _verdict(answer: str | None) -> str:
    if answer == SAME:
        return "theirs first, ours the same"
    return "only theirs, not known to us then" if answer is None else f"only theirs, we: {answer}"


def _row(
    verdict: str, done: Done | None = None, wanted: WantedAction | None = None, lead_seconds: float | None = None
) -> dict[str, Any]:
    action = done or wanted
    assert action is not None
    return {
        "topic": action.topic,
        "action": action.action,
        "segments": list(action.segments),
        "theirsAt": None if done is None else done.at,
        "oursAt": None if wanted is None else wanted.at,
        "leadSeconds": lead_seconds,
        "reason": None if wanted is None else wanted.reason,
        "verdict": verdict,
    }
