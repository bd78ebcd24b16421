"""Commands to the executor: approve, reject, pause and resume; rows of the table `brakes`.

Stage: under the command line and the page. Each act is made knowing all before it (`lake.brakes`).
"""

import getpass
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal

from anabranch.query.topics import nearest_subjects
from anabranch.safeguards.state import TrackedDecision, find_decisions, find_replacement
from lake.brakes import ALL, ActRefused, Acts, BrakeLog, SafeguardAct
from schemas.kafka.messages import EXPIRED

MAX_REASON = 500
"""Characters of a reason."""
DONE = {"approve": "approved", "reject": "rejected"}


@dataclass(frozen=True)
class Judged:
    """Result of some approvals or rejections."""

    written: Sequence[SafeguardAct]
    refused: dict[str, str]
    """By the id of the decision: why not."""


def read_reason(text: str) -> str:
    """Return a reason as one line. Raises `ValueError` if it is empty or too long."""
    words = " ".join(text.split())
    if not words or len(words) > MAX_REASON:
        raise ValueError(f"1 to {MAX_REASON} characters that say why")
    return words


def whoami() -> str:
    """Return `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def judge(
    lake: str, kind: Literal["approve", "reject"], ids: Sequence[str], reason: str, by: str, max_age_seconds: float
) -> Judged:
    """Approve or reject decisions in one commit. Raises what Delta raises, and `LakeError`.

    `max_age_seconds`: an older decision is not approved, because the executor lets it expire.
    """
    wanted = list(dict.fromkeys(ids))
    refused: dict[str, str] = {}
    # Read once, however many others brake at the same moment: what ends meanwhile is not acted on anyway.
    decisions = find_decisions(lake, wanted)

    def make(acts: Acts) -> list[SafeguardAct]:
        refused.clear()
        now, new_acts = utc_now(), []
        for identity in wanted:
            decision, before = decisions.get(identity), acts.verdict_on(identity)
            if decision is None:
                refused[identity] = f"no such decision in {lake}; those that wait: anabranch decisions waiting"
            elif decision.end is not None:
                refused[identity] = _ended(decision)
            elif before is not None:
                refused[identity] = f"it was {DONE[before.kind]} already, {before}"
            elif kind == "reject" and decision.begun_at is not None:
                refused[identity] = f"it has begun, at {instant(decision.begun_at)}: its call may be out"
            elif kind == "approve" and abs(age := (now - decision.decided_at).total_seconds()) > max_age_seconds:
                refused[identity] = (
                    f"it has expired: decided {age:.0f} s ago, no older than {max_age_seconds:g} s is applied"
                )
            else:
                new_acts.append(SafeguardAct(kind, decision.subject, reason, by, now, decision_id=identity))
        return new_acts

    written = BrakeLog(lake).write(make)
    for refused_id in refused.keys() & decisions.keys():
        if (decisions[refused_id].end or {}).get("status") != "applied" and (
            later := find_replacement(lake, decisions[refused_id])
        ):
            refused[refused_id] += f"; decided on {decisions[refused_id].subject} since then: {later}"
    return Judged(written, refused)


def _ended(decision: TrackedDecision) -> str:
    end = decision.end or {}
    error = str(end["error"] or "")
    if error.startswith(EXPIRED):
        return f"it has expired, at {instant(end['at'])}: {error.removeprefix(EXPIRED)}"
    return f"it has ended already: {end['status']} at {instant(end['at'])}" + (f": {error}" if error else "")


class UnknownScope(ActRefused):
    """No recorded name matches, so a pause would hold nothing."""

    def __init__(self, lake: str, scope: str, near: Sequence[str]) -> None:
        """`near`: the nearest recorded names."""
        hint = f"the nearest names are {', '.join(near)}" if near else "nothing of a similar name is"
        super().__init__(f"{scope} is not on record in {lake}; {hint}")
        self.near = near


def pause(
    lake: str, scope: str, seconds: float | None, reason: str, by: str, force: bool = False
) -> tuple[SafeguardAct, list[SafeguardAct]]:
    """Pause a topic, a namespace, a cluster or `ALL`; return the pause and those that it replaces.

    `seconds`: None: until it is resumed. Raises `UnknownScope` for a name that is not on record, unless `force`; what
    Delta raises, and `LakeError`.
    """
    near = None if force or scope == ALL else nearest_subjects(lake, scope)
    if near is not None:
        raise UnknownScope(lake, scope, near)
    replaced: list[SafeguardAct] = []

    def make(acts: Acts) -> list[SafeguardAct]:
        now = utc_now()
        replaced[:] = filter(None, [acts.pause_of([scope], now)])
        until = None if seconds is None else now + timedelta(seconds=seconds)
        return [SafeguardAct("pause", scope, reason, by, now, until=until)]

    [act] = BrakeLog(lake).write(make)
    return act, replaced


def resume(lake: str, scope: str, reason: str, by: str) -> list[SafeguardAct]:
    """End the pause of a topic, namespace, cluster or `ALL`; return the acts that it ended.

    For `ALL` this also ends a stop. Raises `ActRefused` when there is nothing to end, what Delta raises, and
    `LakeError`.
    """
    ended: list[SafeguardAct] = []

    def make(acts: Acts) -> list[SafeguardAct]:
        now = utc_now()
        ended[:] = filter(None, [acts.pause_of([scope], now), acts.stop if scope == ALL else None])
        if not ended:
            there = [scope_words(act.subject) for act in acts.paused(now)]
            there += ["everything, by a stop"] if acts.stop else []
            raise ActRefused(f"{scope_words(scope)} is not paused; paused: {', '.join(there) or 'nothing is'}")
        return [SafeguardAct("resume", scope, reason, by, now)]

    BrakeLog(lake).write(make)
    return ended


def scope_words(scope: str) -> str:
    """Return the scope of an act in words."""
    return "everything" if scope == ALL else scope


def utc_now() -> datetime:
    """Return the wall clock."""
    return datetime.now(timezone.utc)


def instant(time: datetime) -> str:
    """Return an instant in UTC, to the second."""
    return f"{time.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
