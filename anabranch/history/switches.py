"""History of switches between BookKeeper clusters by phase (views `bookie_switches`, `bookie_steps`)."""

from dataclasses import dataclass
from datetime import datetime

from anabranch.query.sql import LakeSql

MAX_FAILURES = 1_000
_PHASES = """
SELECT cluster, switch, attempt, phase, min(decided_at) AS since, max(coalesce(ended_at, decided_at)) AS until,
       count(*) AS steps, sum(CASE WHEN status = 'applied' THEN 1 ELSE 0 END) AS applied,
       sum(CASE WHEN status = 'failed' THEN 1 ELSE 0 END) AS failed,
       sum(CASE WHEN status = 'superseded' THEN 1 ELSE 0 END) AS superseded,
       sum(CASE WHEN status IN ('open', 'intent') THEN 1 ELSE 0 END) AS open
FROM bookie_steps GROUP BY cluster, switch, attempt, phase ORDER BY min(seq)
"""
_FAILED = """
SELECT s.cluster, s.switch, s.ledger, s.object, s.error, s.ended_at FROM bookie_steps s
JOIN bookie_switches w ON w.cluster = s.cluster AND w.switch = s.switch AND w.attempts = s.attempt
WHERE s.status = 'failed' AND s.ledger IS NOT NULL ORDER BY s.seq LIMIT {limit}
"""


@dataclass(frozen=True)
class PhaseSpan:
    """Phase of one attempt."""

    attempt: int
    phase: str
    since: datetime
    until: datetime
    steps: int
    applied: int
    failed: int
    superseded: int
    open: int

    @property
    def seconds(self) -> float:
        """Return the time from its first step to the end of its last."""
        return (self.until - self.since).total_seconds()


@dataclass(frozen=True)
class FailedLedger:
    """Ledger that failed in the newest attempt."""

    ledger: int
    object: str
    reason: str
    at: datetime


@dataclass(frozen=True)
class SwitchHistory:
    """One switch."""

    cluster: str
    name: str
    """Source, target and epoch, as `old-new-1`."""
    source: str
    target: str
    begun_at: datetime
    last_at: datetime
    counts: dict[str, int]
    """`attempts`, `copied`, `bytes`, `promoted`, `rolled_over`, `failed`, `superseded`, `deleted`, `open_steps`."""
    phases: tuple[PhaseSpan, ...]
    failures: tuple[FailedLedger, ...]


def switches(lake: str) -> list[SwitchHistory]:
    """Return all switches on record, newest first. Raises `SqlError`, and what Delta raises."""
    ask = LakeSql(lake).rows
    phases, failures = dict[tuple[str, str], list[PhaseSpan]](), dict[tuple[str, str], list[FailedLedger]]()
    for row in ask(_PHASES):
        key = row.pop("cluster"), row.pop("switch")
        phases.setdefault(key, []).append(PhaseSpan(**row))
    for row in ask(_FAILED.format(limit=MAX_FAILURES)):
        failed = FailedLedger(row["ledger"], row["object"], row["error"] or "", row["ended_at"])
        failures.setdefault((row["cluster"], row["switch"]), []).append(failed)
    history = []
    for row in ask("SELECT * FROM bookie_switches ORDER BY begun_at DESC"):
        key = row["cluster"], row["switch"]
        history.append(
            SwitchHistory(
                *key,
                row["source"],
                row["target"],
                row["begun_at"],
                row["last_at"],
                {name: row[name] for name in _COUNTS},
                tuple(phases.get(key, ())),
                tuple(failures.get(key, ())),
            )
        )
    return history


_COUNTS = ("attempts", "copied", "bytes", "promoted", "rolled_over", "failed", "superseded", "deleted", "open_steps")
