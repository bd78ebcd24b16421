"""Steps of a switch as rows of `decisions` and `outcomes`, and the progress that they add up to.

Stage: between `schemas.bookie_answers.Step` and the lake. Subject is `CLUSTER/SOURCE-TARGET-EPOCH`; arguments are the
step itself. A step's id is a digest of all that it says, so one that was begun and never ended is known again by who
takes over; one that ended and is asked for once more gets a further number.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from lake.files import read_table
from lake.lease import LeasedTable
from lake.tables import open_table
from schemas.bookie_answers import Step
from schemas.bookies import BookieMetadata, BookieSnapshot, Copy, Directive, Failure, Progress, Promotion, StepTaken
from schemas.ids import canonical_json, digest
from schemas.snapshot import ENGINE_VERSION
from schemas.tables.rows import DECISIONS, OUTCOMES, DecisionRow, OutcomeRow

FAMILY = "bookies"
NO_BATCH = -1
"""`batch_id` of what no batch of the job has decided."""
_DECIDED = ("decision_id", "action", "arguments", "reason", "seq")
_ENDED = ("decision_id", "status", "at", "seen", "error", "executor")


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of a step."""

    status: Literal["applied", "superseded", "failed"]
    """`superseded`: something is not as the step expects; nothing was changed."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class RecordedStep:
    """A step on record."""

    decision_id: str
    step: Step
    attempt: int
    """Of the directive."""
    seq: int
    begun: bool = False
    """An intent is on record."""
    end: StepOutcome | None = None
    at: datetime | None = None
    """Of its end."""
    token: int = 0
    """Of the lease of who ended it."""


def subject_of(cluster: str, directive: Directive) -> str:
    """Return the subject of a switch's rows."""
    return f"{cluster}/{directive.source}-{directive.target}-{directive.epoch}"


def read_steps(lake: str, subject: str) -> list[RecordedStep]:
    """All steps of a switch on record, in order. Raises what Delta raises."""
    tables = []
    for table, columns in ((DECISIONS, _DECIDED), (OUTCOMES, _ENDED)):
        opened = open_table(lake, table)
        where = [("subject", "==", subject), ("family", "==", FAMILY)]
        tables.append([] if opened is None else read_table(opened, columns, where).to_pylist())
    return join_outcomes(*tables)


def join_outcomes(decided: Iterable[Mapping[str, Any]], outcomes: Iterable[Mapping[str, Any]]) -> list[RecordedStep]:
    """Rows of both tables as steps, in order."""
    begun, ends = set(), dict[str, Mapping[str, Any]]()
    for row in sorted(outcomes, key=lambda row: row["at"]):
        if row["status"] == "intent":
            begun.add(row["decision_id"])
        else:
            ends.setdefault(row["decision_id"], row)
    steps = []
    for row in sorted(decided, key=lambda row: row["seq"]):
        arguments, end = json.loads(row["arguments"]), ends.get(row["decision_id"])
        attempt = arguments.pop("attempt", 1)
        step = Step.model_validate({**arguments, "action": row["action"], "reason": row["reason"]})
        done = None if end is None else StepOutcome(end["status"], json.loads(end["seen"]), end["error"])
        ended_at, token = (None, 0) if end is None else (end["at"], _token(end["executor"]))
        steps.append(
            RecordedStep(
                row["decision_id"], step, attempt, row["seq"], row["decision_id"] in begun, done, ended_at, token
            )
        )
    return steps


def steps_taken(steps: Iterable[RecordedStep]) -> list[StepTaken]:
    """Return the steps that were applied, in the order of their ends, for the check of invariants."""
    ended = [
        taken_step
        for taken_step in steps
        if taken_step.end is not None and taken_step.end.status == "applied" and taken_step.at is not None
    ]
    return [
        StepTaken(
            epoch=taken_step.step.epoch,
            token=taken_step.token,
            kind=taken_step.step.kind,
            object=taken_step.step.object,
            action=taken_step.step.action,
            ledger=taken_step.step.ledger,
            cluster=taken_step.step.source,
            version=taken_step.end.seen.get("version") if taken_step.end else None,
        )
        for taken_step in sorted(ended, key=lambda taken_step: (taken_step.at, taken_step.seq))
    ]


def read_before(lake: str, subject: str) -> BookieMetadata | None:
    """Return each record as of its last promotion, and the bootstrap record as of the first.

    None: nothing was promoted. A step's inputs have the records that it was decided on. Raises Delta's errors.

    A step's inputs have the records that it was decided on. Raises what Delta raises.
    """
    opened = open_table(lake, DECISIONS)
    where = [("subject", "==", subject), ("family", "==", FAMILY), ("action", "in", list(_PROMOTES))]
    rows = [] if opened is None else read_table(opened, ("inputs", "seq"), where).to_pylist()
    inputs = [
        BookieSnapshot.model_validate_json(row["inputs"]) for row in sorted(rows, key=lambda row: int(row["seq"]))
    ]
    if not inputs:
        return None
    schemas = {record.path: record for snapshot in inputs for record in snapshot.schemas}
    cursors = {record.path: record for snapshot in inputs for record in snapshot.cursors}
    return BookieMetadata(
        clusters=inputs[0].clusters,
        bootstrap=inputs[0].bootstrap,
        schemas=list(schemas.values()),
        cursors=list(cursors.values()),
    )


def _token(executor: str) -> int:
    number = executor.rpartition("#")[2]
    return int(number) if number.isdecimal() else 0


def progress_of(directive: Directive, steps: Iterable[RecordedStep]) -> Progress:
    """Return the progress that the steps of a switch add up to."""
    begun, verified, failed = set[int](), dict[int, Copy](), list[Failure]()
    promoted, tries, promoted_at = list[Promotion](), Counter[str](), None
    deleting: dict[str, list[int]] = {}
    for taken_step in steps:
        step, end = taken_step.step, taken_step.end
        kind: Any = step.kind
        if taken_step.begun and step.action == "copy" and step.ledger is not None:
            begun.add(step.ledger)
        if end is None:
            if step.action == "delete" and step.ledger is not None:
                deleting.setdefault(str(step.source), []).append(step.ledger)
            continue
        is_now = taken_step.attempt == directive.attempt
        if is_now and (end.status == "superseded" or step.action == "unload"):
            tries[step.object] += 1
        if end.status == "failed" and step.ledger is not None and kind in ("schema", "cursor"):
            failed.append(
                Failure(
                    kind=kind,
                    object=step.object,
                    ledger=step.ledger,
                    reason=end.error or step.reason,
                    attempt=taken_step.attempt,
                )
            )
        if end.status != "applied":
            continue
        if step.action in ("copy", "verify") and step.ledger is not None:
            about = {name: end.seen.get(name) for name in ("last", "length", "sha256")}
            verified[step.ledger] = Copy(kind=kind, object=step.object, ledger=step.ledger, **about)  # type: ignore[arg-type]
        if step.action in _PROMOTES:
            ledgers = [int(ledger) for ledger in step.stamps or {}] or [step.ledger or 0]
            loaded = step.action == "forward_owner" or bool(end.seen.get("loaded"))
            promoted += [
                Promotion(kind=kind, object=step.object, ledger=ledger, by=_PROMOTES[step.action], loaded=loaded)
                for ledger in ledgers
            ]
            promoted_at = max(promoted_at or 0, _millis(taken_step.at))
    return Progress(
        epoch=directive.epoch,
        begun=sorted(begun),
        verified=list(verified.values()),
        failed=failed,
        promoted=promoted,
        tries=dict(tries),
        promoted_at=promoted_at,
        deleting=deleting,
    )


_PROMOTES: Mapping[str, Literal["compare-and-set", "owner", "rollover"]] = {
    "cas_attribution": "compare-and-set",
    "forward_owner": "owner",
    "rollover_fallback": "rollover",
}


class SwitchRecord:
    """The rows of one switch, which only the newest orchestrator of its cluster can write."""

    def __init__(self, lake: str, cluster: str, directive: Directive, orchestrator: str) -> None:
        """Take the lease on the rows. `orchestrator`: its name. Raises `LeaseLost`, and Delta's errors."""
        app, who, work = f"bookies/{cluster}", "orchestrator", "carries out a switch"
        self._decisions = LeasedTable(lake, DECISIONS, app, ("decision_id",), who, work)
        identity = ("decision_id", "status", "attempt", "executor")
        self._outcomes = LeasedTable(lake, OUTCOMES, app, identity, who, work)
        self.directive = directive
        self.subject, self._orchestrator = subject_of(cluster, directive), f"{orchestrator}#{self._outcomes.token}"
        self.steps = {taken_step.decision_id: taken_step for taken_step in read_steps(lake, self.subject)}
        self._seq = max((taken_step.seq for taken_step in self.steps.values()), default=0)

    def open(self) -> list[RecordedStep]:
        """Steps that were begun by somebody who has not ended them."""
        return [taken_step for taken_step in self.steps.values() if taken_step.end is None]

    def progress(self) -> Progress:
        """Return the progress on record."""
        return progress_of(self.directive, self.steps.values())

    def begin(
        self, steps: Sequence[tuple[Step, BookieSnapshot]], now: datetime, gates: str = "[]"
    ) -> list[RecordedStep]:
        """Steps with what each was decided on: on record, with an intent, when this returns."""
        begun, rows = [], []
        for step, inputs in steps:
            arguments = self._arguments(step)
            number, identity = 0, ""
            while not identity or (identity in self.steps and self.steps[identity].end is not None):
                number += 1
                identity = digest([self.subject, step.action, arguments, number])
            if (former := self.steps.get(identity)) is None:
                self._seq += 1
                rows.append(self._decision(identity, step, arguments, inputs, now, gates))
            taken_step = RecordedStep(identity, step, self.directive.attempt, former.seq if former else self._seq, True)
            self.steps[identity] = taken_step
            begun.append(taken_step)
        self._decisions.append(rows)
        self.intend(begun, now)
        return begun

    def intend(self, steps: Sequence[RecordedStep], now: datetime) -> None:
        """An intent for each, also one more for those of somebody else."""
        self._outcomes.append([self._outcome(taken_step, "intent", 0, now, {}, None) for taken_step in steps])

    def end(self, ends: Sequence[tuple[RecordedStep, StepOutcome]], now: datetime) -> None:
        """Steps with how they ended, in one commit."""
        self._outcomes.append(
            [self._outcome(taken_step, done.status, 1, now, done.seen, done.error) for taken_step, done in ends]
        )
        for taken_step, done in ends:
            self.steps[taken_step.decision_id] = RecordedStep(
                taken_step.decision_id, taken_step.step, taken_step.attempt, taken_step.seq, True, done, now
            )

    def _arguments(self, step: Step) -> str:
        arguments = step.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"action", "reason"})
        # A stamp that is taken away is null, which is not nothing.
        arguments |= {} if step.stamps is None else {"stamps": step.stamps}
        arguments["expectation"] = step.expectation
        return canonical_json({**arguments, "attempt": self.directive.attempt})

    def _decision(
        self, identity: str, step: Step, arguments: str, inputs: BookieSnapshot, now: datetime, gates: str
    ) -> DecisionRow:
        return DecisionRow(
            decision_id=identity,
            family=FAMILY,
            subject=self.subject,
            action=step.action,
            arguments=arguments,
            reason=step.reason,
            trigger="operator",
            layout_epoch=None,
            policy_digest=digest(inputs.settings.model_dump(mode="json")),
            decided_at=now,
            inputs=inputs.to_json(),
            gates=gates,
            engine_version=ENGINE_VERSION,
            batch_id=NO_BATCH,
            seq=self._seq,
            day=now.date(),
        )

    def _outcome(
        self,
        taken_step: RecordedStep,
        status: str,
        attempt: int,
        now: datetime,
        seen: Mapping[str, Any],
        error: str | None,
    ) -> OutcomeRow:
        return OutcomeRow(
            decision_id=taken_step.decision_id,
            family=FAMILY,
            subject=self.subject,
            status=status,
            attempt=attempt,
            at=now,
            layout_epoch=None,
            seen=canonical_json(dict(seen)),
            error=error,
            executor=self._orchestrator,
            mode="act",
            day=now.date(),
        )


def _millis(instant: datetime | None) -> int:
    return 0 if instant is None else round(instant.timestamp() * 1000)
