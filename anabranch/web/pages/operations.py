"""`/operations`: executors and safeguards, health of the job, rejected messages, current alerts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltalake.exceptions import DeltaError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from anabranch.alerts.record import standing_alerts
from anabranch.auth.callers import Caller
from anabranch.history.picture import LakeView
from anabranch.safeguards.commands import UnknownScope, pause, read_reason, resume, scope_words
from anabranch.web.asking import PageNotFound, actor, turn
from anabranch.web.fleet import WatchedFleet
from anabranch.web.guard import CALLER, BadForm, allows, demand, read_form
from anabranch.web.templating import render
from lake.brakes import ALL, ActRefused, SafeguardAct
from lake.tables import LakeError, open_table
from lake.tail import StoredRow, newest_rows
from schemas.ids import topic_parts
from schemas.printable import printable
from schemas.tables.rows import ALERTS, DEAD_LETTERS, Table

MAX_LETTERS: Final = 30
MAX_ALERTS: Final = 400
"""Rows that are looked through."""
MAX_SHOWN_BYTES: Final = 1_000
LENGTHS: Final = {
    "": "until it is resumed",
    "900": "15 minutes",
    "3600": "an hour",
    "21600": "6 hours",
    "86400": "a day",
}


def show(request: Request) -> Response:
    """The page."""
    return _page(request)


def health(request: Request) -> Response:
    """The newest batches, as columns for a plot; JSON."""
    demand(request, "read")
    fleet: WatchedFleet = request.app.state.fleet
    batches = fleet.batches()
    return JSONResponse(
        {
            "at": [row["committed_at"].timestamp() for row in batches],
            "series": [
                {
                    "label": "ms to the commit",
                    "values": [(row["committed_at"] - row["batch_at"]).total_seconds() * 1000 for row in batches],
                },
                {"label": "samples", "values": [row["samples"] for row in batches]},
            ],
        }
    )


async def post(request: Request) -> Response:
    """Pause or resume, by a form of this page."""
    return await run_in_threadpool(act, request, await read_form(request))


def act(request: Request, form: Mapping[str, str]) -> Response:
    """Pause or resume with these form fields."""
    kind, scope, length = form.get("kind", ""), form.get("scope", "").strip(), form.get("for", "")
    if kind not in ("pause", "resume") or length not in LENGTHS:
        raise BadForm("pause or resume, for one of the lengths of the form")
    lake: str = request.app.state.lake
    try:
        scope = read_scope(scope)
        demand(request, "operate", **place_of(scope))
        reason = read_reason(form.get("reason", ""))
        if kind == "pause":
            pause(lake, scope, float(length) if length else None, reason, actor(request), "force" in form)
        else:
            resume(lake, scope, reason, actor(request))
    except UnknownScope as error:
        return _page(request, _unknown(request, scope, error.near))
    except (ValueError, ActRefused) as error:
        return _page(request, str(error))
    except (DeltaError, OSError, LakeError) as error:
        return _page(request, f"The lake cannot be written now: {str(error).partition(chr(10))[0]}")
    return RedirectResponse("/operations", 303)


def _unknown(request: Request, scope: str, near: Sequence[str]) -> str:
    """Of the nearest names those that the caller may see."""
    seen = [name for name in near if allows(request, "read", **place_of(name))]
    hint = f" The nearest names are {', '.join(seen)}." if seen else ""
    return (
        f"Nothing named {scope} is on record: a pause would hold nothing.{hint} Tick the box to pause it all the same."
    )


def read_scope(text: str) -> str:
    """Return a pause's scope: `all`, a namespace (`tenant/namespace`), a topic. Raises `ValueError`."""
    if text in ("all", ALL):
        return ALL
    if text.count("/") == 1 and all(text.split("/")):
        return text
    name = text if "://" in text else f"topic://{text}"
    topic_parts(name)
    return name


def place_of(scope: str) -> dict[str, str]:
    """Return the argument of `allows` and `demand` for what a pause names; a cluster has none."""
    if "://" in scope:
        return {"topic": scope}
    return {"namespace": scope} if scope.count("/") == 1 else {}


def shown_bytes(raw: bytes | None) -> str:
    """Bytes from outside as text on one line, whatever they are."""
    if raw is None:
        return ""
    cut = raw[:MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return printable(cut) + (f" … {len(raw)} bytes" if len(raw) > MAX_SHOWN_BYTES else "")


def _page(request: Request, problem: str | None = None) -> Response:
    fleet: WatchedFleet = request.app.state.fleet
    caller: Caller = request.scope[CALLER]
    whole = fleet.whole()
    everywhere = allows(request, "read")
    letters: list[dict[str, Any]] = []
    alerts: list[StoredRow] = []
    unread: str | None = None
    if everywhere:
        try:
            with turn():
                lake = request.app.state.lake
                letters = [_letter(row) for row in reversed(_newest(lake, DEAD_LETTERS, MAX_LETTERS))]
                alerts = standing_alerts(_newest(lake, ALERTS, MAX_ALERTS))
        except (DeltaError, OSError, PageNotFound) as error:
            unread = str(error).partition("\n")[0]
    return render(
        request,
        "operations.html",
        409 if problem else 200,
        problem=problem,
        whole=whole,
        letters=letters,
        alerts=alerts,
        unread=unread,
        everywhere=everywhere,
        waiting=_waiting(whole, caller, request),
        pauses=_pauses(whole, request),
        lengths=LENGTHS,
        can_act=(everywhere and allows(request, "operate")) or (bool(caller.scope) and caller.role != "read"),
    )


def _pauses(whole: LakeView, request: Request) -> list[tuple[SafeguardAct, str, str, bool]]:
    """Those that the caller may see: in words, as a form has it, and whether the caller may end it."""
    pauses = []
    for act in whole.brakes.pauses:
        target = place_of(act.subject)
        if allows(request, "read", **target):
            may_end = allows(request, "operate", **target)
            pauses.append((act, scope_words(act.subject), "all" if act.subject == ALL else act.subject, may_end))
    return pauses


def _waiting(whole: LakeView, caller: Caller, request: Request) -> list[Any]:
    return [decision for decision in whole.decisions if decision.brake and allows(request, "read", decision.topic)][:50]


def _letter(row: StoredRow) -> dict[str, Any]:
    return {**row, "raw": shown_bytes(row["raw"]), "key": shown_bytes(row["key"])}


def _newest(lake: str, table: Table, limit: int) -> list[StoredRow]:
    opened = open_table(lake, table)
    return [] if opened is None else newest_rows(opened, limit)
