"""`/decision`: one decision, from what it saw to what became of it; and the two buttons of a person."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from anabranch.history.explain.changes import answer_words, segments_of
from anabranch.query.wording import decision_segments, headline
from anabranch.safeguards.commands import judge, read_reason
from anabranch.web.asking import MAX_POLICY, PageNotFound, actor, turn
from anabranch.web.guard import BadForm, allows, demand, read_form
from anabranch.web.templating import render
from anabranch.web.words import link, observed
from decisions.autoscale.answers import Answer
from decisions.autoscale.decide import decide
from decisions.autoscale.policy import PolicyError, read_policy
from decisions.autoscale.rates import segment_overload
from decisions.autoscale.snapshot import snapshot_from_wire
from decisions.topic.layout import LayoutError
from lake.brakes import BrakeReader, SafeguardAct
from lake.tables import LakeError, stream_columns
from lake.tail import StoredRow
from schemas.snapshot import Snapshot
from schemas.tables.rows import DECISIONS, EVENTS, OUTCOMES, WAITS, Table


@dataclass(frozen=True)
class DecisionStep:
    """One step on the way of a decision."""

    at: datetime
    what: str
    detail: str
    kind: str
    """`good`, `warn`, `bad` or empty, as the style sheet has them."""


def show(request: Request) -> Response:
    """The decision that the address names."""
    return _page(request, request.query_params.get("id", ""))


def act(request: Request, form: dict[str, str]) -> Response:
    """Approve or reject the decision, by the form's buttons."""
    identity, kind = form.get("id", ""), form.get("kind", "")
    if kind not in ("approve", "reject"):
        raise BadForm("approve or reject")
    demand(request, "operate", _row(request, identity)["subject"])
    try:
        reason = read_reason(form.get("reason", ""))
        oldest = request.app.state.waiting_max_age_seconds
        judged = judge(request.app.state.lake, kind, [identity], reason, actor(request), oldest)  # type: ignore[arg-type]
    except ValueError as error:
        return _page(request, identity, f"Say why: {error}")
    except (DeltaError, OSError, LakeError) as error:
        return _page(request, identity, f"The lake cannot be written now: {str(error).partition(chr(10))[0]}")
    if judged.refused:
        return _page(request, identity, judged.refused[identity])
    return RedirectResponse(link("/decision", id=identity), 303)


async def post(request: Request) -> Response:
    """Approve or reject, by a form that this page has made."""
    from starlette.concurrency import run_in_threadpool

    return await run_in_threadpool(act, request, await read_form(request))


def _page(request: Request, identity: str, problem: str | None = None) -> Response:
    """Render the decision, with status 409 if there is a problem.

    A lake that cannot be read after the decision itself is such a problem. Raises as `_row`.
    """
    row = _row(request, identity)
    lake = request.app.state.lake
    try:
        with turn():
            steps, verdict, is_over, has_begun = _steps(lake, row)
    except (DeltaError, OSError) as error:
        steps, verdict, is_over, has_begun = [], None, True, True
        problem = problem or f"the lake cannot be read now: {str(error).partition(chr(10))[0]}"
    return render(
        request,
        "decision.html",
        409 if problem else 200,
        row=row,
        steps=steps,
        verdict=verdict,
        is_over=is_over,
        has_begun=has_begun,
        problem=problem,
        may_judge=allows(request, "operate", row["subject"]),
        segments=decision_segments(row),
        target=_target(row),
        **_saw(request, row),
    )


def _target(row: StoredRow) -> str:
    """Return what a decision without segments is about: `t/n/0x0_0x8 from broker-1:8080 to broker-2:8080`."""
    arguments = json.loads(row["arguments"])
    words = {"bundle": "", "sourceBroker": "from ", "destinationBroker": "to "}
    names = [*(name for name in words if name in arguments), *sorted(arguments.keys() - words.keys() - {"segments"})]
    return " ".join(f"{words.get(name, f'{name} ')}{arguments[name]}" for name in names if arguments[name] is not None)


def _saw(request: Request, row: StoredRow) -> dict[str, Any]:
    """Return what the decision saw, decided again by this release, and by the policy in the address."""
    tried = request.query_params.get("policy", "")[:MAX_POLICY]
    context: dict[str, Any] = {
        "snapshot": None,
        "answer": None,
        "headline": "",
        "binding": None,
        "loads": (),
        "agrees": None,
        "tried": tried,
        "other": None,
        "other_problem": None,
        "inputs": row["inputs"],
    }
    if row["family"] != "autoscale":
        return context
    try:
        wire = Snapshot.model_validate_json(row["inputs"])
        snapshot = snapshot_from_wire(wire, "pip-483")
    except (ValidationError, LayoutError):
        return context
    answer = decide(snapshot)
    context |= {
        "snapshot": snapshot,
        "answer": answer,
        "headline": headline(answer),
        "binding": getattr(answer, "binding", None),
        "agrees": _does(answer, row),
        "overload": lambda load: segment_overload(load.rates, snapshot.policy)[0],
        "loads": [(segment, snapshot.loads.get(segment.segment_id)) for segment in snapshot.layout.active[:100]],
        "chosen": segments_of(answer),
    }
    if tried.strip():
        try:
            other = decide(snapshot_from_wire(wire, "pip-483", read_policy(tried)))
            context["other"] = other, answer_words(other), headline(other), getattr(other, "binding", None)
        except (PolicyError, ValidationError) as error:
            context["other_problem"] = str(error)
    return context


def _does(answer: Answer, row: StoredRow) -> bool:
    """Return True if the decision is the answer, or one of its actions."""
    actions = [action for action in (answer, *getattr(answer, "also", ())) if hasattr(action, "ids")]
    segments = sorted(decision_segments(row))
    return any(action.action == row["action"] and sorted(action.ids) == segments for action in actions)


def _row(request: Request, identity: str) -> StoredRow:
    """The decision, which the caller may see. Raises `PageNotFound`, `NotAllowed`."""
    lake, is_it = request.app.state.lake, pc.field("decision_id") == identity
    try:
        with turn():
            # What a decision saw is kilobytes: only where it stands are all columns read.
            matches = _rows(lake, DECISIONS, is_it, "decided_at")
            rows = []
            if matches:
                decided_at = matches[0]["decided_at"]
                there = (pc.field("day") == pa.scalar(decided_at.date())) & (
                    pc.field("decided_at") == pa.scalar(decided_at)
                )
                rows = _rows(lake, DECISIONS, there & is_it, *DECISIONS.row.model_fields)
    except (DeltaError, OSError) as error:
        raise PageNotFound(f"the lake cannot be read now: {str(error).partition(chr(10))[0]}") from error
    if not rows:
        demand(request, "read")
        raise PageNotFound(f"no decision {identity[:64]} is on record")
    demand(request, "read", rows[0]["subject"])
    return rows[0]


def _steps(lake: str, row: StoredRow) -> tuple[list[DecisionStep], SafeguardAct | None, bool, bool]:
    """Return the decision's timeline, the verdict of a person, and flags: it is over, it has begun."""
    identity = row["decision_id"]
    # By any clock: nothing of it is on record a day before it.
    since = (pc.field("decision_id") == identity) & (
        pc.field("day") >= pa.scalar(row["decided_at"].date() - timedelta(days=1))
    )
    steps = [DecisionStep(row["decided_at"], "decided", f"by {row['trigger']}, because of {row['reason']}", "")]
    for wait in _rows(lake, WAITS, since, "brake", "reason", "at"):
        steps.append(DecisionStep(wait["at"], f"waits for: {wait['brake']}", wait["reason"], "warn"))
    reader = BrakeReader(lake)
    reader.read()
    if (verdict := reader.acts.verdict_on(identity)) is not None:
        done = "approved" if verdict.kind == "approve" else "rejected"
        kind = "good" if verdict.kind == "approve" else "bad"
        steps.append(DecisionStep(verdict.at, done, f"by {verdict.actor}: {verdict.reason}", kind))
    outcomes = _rows(
        lake, OUTCOMES, since, "status", "attempt", "at", "executor", "mode", "error", "seen", "layout_epoch"
    )
    for outcome in outcomes:
        kind = {"applied": "good", "failed": "bad", "rejected": "bad", "intent": ""}.get(outcome["status"], "warn")
        call = "" if not outcome["attempt"] else f", call {outcome['attempt']}"
        why = f": {outcome['error']}" if outcome["error"] else ""
        saw = observed(outcome["seen"])
        steps.append(
            DecisionStep(
                outcome["at"],
                outcome["status"],
                f"{outcome['executor']}, mode {outcome['mode']}{call}{why}{saw and f'; saw {saw}'}",
                kind,
            )
        )
    begun, day = row["decided_at"], timedelta(days=1)
    of_topic = (
        (pc.field("subject") == row["subject"])
        & (pc.field("type") == "layout")
        & (pc.field("accepted_at") >= pa.scalar(begun - day))
        & (pc.field("accepted_at") <= pa.scalar(begun + day))
    )
    for event in _rows(lake, EVENTS, of_topic, "at", "epoch", "decision_id"):
        if event["decision_id"] == identity:
            steps.append(
                DecisionStep(event["at"], f"layout of epoch {event['epoch']}", "announced by the controller", "good")
            )
    steps.sort(key=lambda step: step.at)
    return steps, verdict, any(outcome["status"] != "intent" for outcome in outcomes), bool(outcomes)


def _rows(lake: str, table: Table, where: pc.Expression, *columns: str) -> list[StoredRow]:
    return [row for rows in stream_columns(lake, table, columns, 4_096, where) for row in rows.to_pylist()]
