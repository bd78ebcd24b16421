"""What a person may do to the executor: approve and reject decisions, pause and resume; rows of the table `brakes`.

Stage: under the commands that brake and the page. Each act is made knowing all before it (`lake.brakes`).
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal

from lake.brakes import ALL, Act, ActRefused, Acts, BrakeLog
from ledger.brakes import known_decisions

MAX_REASON = 500
"""Characters of a reason."""
DONE = {"approve": "approved", "reject": "rejected"}


@dataclass(frozen=True)
class Judged:
    """What became of some approvals or rejections."""

    written: Sequence[Act]
    refused: dict[str, str]
    """By the id of the decision: why not."""


def read_reason(text: str) -> str:
    """A reason in one line. Raises `ValueError` for none, and one that is too long."""
    words = " ".join(text.split())
    if not words or len(words) > MAX_REASON:
        raise ValueError(f"1 to {MAX_REASON} characters that say why")
    return words


def whoami() -> str:
    """`user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def judge(lake: str, kind: Literal["approve", "reject"], ids: Sequence[str], reason: str, by: str) -> Judged:
    """Approves or rejects decisions, all in one commit. Raises what Delta raises, and `LakeError`."""
    wanted = list(dict.fromkeys(ids))
    refused: dict[str, str] = {}

    def make(acts: Acts) -> list[Act]:
        refused.clear()
        known = known_decisions(lake, wanted)
        made = []
        for one in wanted:
            decision, before = known.get(one), acts.verdict_on(one)
            if decision is None:
                refused[one] = f"no such decision in {lake}; those that wait: anabranch executor status"
            elif decision.end is not None:
                refused[one] = f"it has ended already: {decision.end['status']} at {instant(decision.end['at'])}"
            elif before is not None:
                refused[one] = f"it was {DONE[before.kind]} already, {before}"
            elif kind == "reject" and decision.begun_at is not None:
                refused[one] = f"it has begun, at {instant(decision.begun_at)}: its call may be out"
            else:
                made.append(Act(kind, decision.subject, reason, by, utc_now(), decision_id=one))
        return made

    return Judged(BrakeLog(lake).write(make), refused)


def pause(lake: str, scope: str, seconds: float | None, reason: str, by: str) -> tuple[Act, list[Act]]:
    """Pauses a topic, a namespace or `ALL`, for a time or (None) until it is resumed; answers the pause, and the one
    that it replaces. Raises what Delta raises, and `LakeError`."""
    replaced: list[Act] = []

    def make(acts: Acts) -> list[Act]:
        now = utc_now()
        replaced[:] = filter(None, [acts.pause_of([scope], now)])
        until = None if seconds is None else now + timedelta(seconds=seconds)
        return [Act("pause", scope, reason, by, now, until=until)]

    [act] = BrakeLog(lake).write(make)
    return act, replaced


def resume(lake: str, scope: str, reason: str, by: str) -> list[Act]:
    """Ends the pause of a topic, a namespace or `ALL`, of `ALL` also a stop; answers what it ended.

    Raises `ActRefused` when there is none, what Delta raises, and `LakeError`.
    """
    ended: list[Act] = []

    def make(acts: Acts) -> list[Act]:
        now = utc_now()
        ended[:] = filter(None, [acts.pause_of([scope], now), acts.stop if scope == ALL else None])
        if not ended:
            there = [scope_words(act.subject) for act in acts.paused(now)]
            there += ["everything, by a stop"] if acts.stop else []
            raise ActRefused(f"{scope_words(scope)} is not paused; paused: {', '.join(there) or 'nothing is'}")
        return [Act("resume", scope, reason, by, now)]

    BrakeLog(lake).write(make)
    return ended


def scope_words(scope: str) -> str:
    """What an act is about."""
    return "everything" if scope == ALL else scope


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(timezone.utc)


def instant(at: datetime) -> str:
    """For people: in UTC, to the second."""
    return f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
