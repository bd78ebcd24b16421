"""`/`: the numbers of the fleet, its load over time, and every topic a row, the fullest first."""

from datetime import datetime, timezone

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from anabranch.auth.callers import Caller
from anabranch.auth.scopes import covers_resource
from anabranch.history.live import MAX_DECISIONS
from anabranch.history.picture import LakeView
from anabranch.web.fleet import WatchedFleet
from anabranch.web.guard import CALLER, allows, demand
from anabranch.web.pages.choosing import FILTERS, ORDERS, Choice, choose, is_paused
from anabranch.web.pages.operations import place_of
from anabranch.web.pages.summary import HOUR, LINKS, FleetSummary, needs_of_processes, summarize
from anabranch.web.pages.windows import DEFAULT, WindowError, read_window
from anabranch.web.templating import render
from anabranch.web.trend import FleetPoint
from anabranch.web.words import namespace_of

MAX_RECENT = 4
"""Newest decisions above the topics."""
TREND_LENGTHS = {"15m": "15 minutes", "1h": "an hour", "6h": "6 hours", "1d": "a day"}
"""Windows of the fleet over time, which is known for a day at most."""


def show(request: Request) -> Response:
    """The fleet as the address says."""
    fleet: WatchedFleet = request.app.state.fleet
    caller: Caller = request.scope[CALLER]
    whole, rows = fleet.whole(), fleet.rows()
    choice = Choice.read(request.query_params)
    paused = {act.subject for act in whole.brakes.pauses}
    chosen = choose(rows, choice, paused, whole.now, lambda namespace: covers_resource(caller.scope, namespace))
    views = {view.name: view for view in fleet.views(row.name for row in chosen.rows)}
    decisions = [
        decision for decision in whole.decisions if covers_resource(caller.scope, namespace_of(decision.topic))
    ]
    everywhere = allows(request, "read")
    last = request.query_params.get("last", DEFAULT)
    return render(
        request,
        "fleet.html",
        choice=choice,
        chosen=chosen,
        whole=whole,
        filters=FILTERS,
        orders=ORDERS,
        recent=decisions[:MAX_RECENT],
        summary=_summary(request, whole),
        links=LINKS,
        everywhere=everywhere,
        last=last if last in TREND_LENGTHS else DEFAULT,
        lengths=TREND_LENGTHS,
        trend_link=lambda code: choice.link(page=choice.page) if code == DEFAULT else _with_last(choice, code),
        stop=whole.brakes.stop if everywhere else None,
        pauses=sum(allows(request, "read", **place_of(act.subject)) for act in whole.brakes.pauses),
        topics=[(row, views[row.name], is_paused(row, paused)) for row in chosen.rows if row.name in views],
    )


def trend(request: Request) -> Response:
    """The whole fleet over time, as columns for a plot; JSON.

    A gap is an instant with nulls. `since`: when this process began to look, null: it has not.
    """
    demand(request, "read")
    fleet: WatchedFleet = request.app.state.fleet
    now = datetime.now(timezone.utc)
    try:
        since = read_window({"last": request.query_params.get("last", DEFAULT)}, now).since
    except WindowError:
        since = read_window({}, now).since
    points = fleet.trend.since(since)
    seen = [point if isinstance(point, FleetPoint) else None for point in points]
    # As long as the process has not looked for the whole window, the plot begins where it began to.
    begins = max(since, points[0].at) if len(points) > 1 and isinstance(points[0], FleetPoint) else since
    return JSONResponse(
        {
            "at": [(point.at if isinstance(point, FleetPoint) else point).timestamp() for point in points],
            "load": [point and round(point.load, 3) for point in seen],
            "segments": [point and point.segments for point in seen],
            "over": [point and point.over for point in seen],
            "actions": [point and point.actions for point in seen],
            "window": [begins.timestamp(), now.timestamp()],
        }
    )


def _with_last(choice: Choice, code: str) -> str:
    address = choice.link(page=choice.page)
    return f"{address}{'&' if '?' in address else '?'}last={code}"


def _summary(request: Request, whole: LakeView) -> FleetSummary:
    """The numbers of what the caller may see, whatever is searched for."""
    fleet: WatchedFleet = request.app.state.fleet
    caller: Caller = request.scope[CALLER]
    everywhere = allows(request, "read")
    rows = [row for row in fleet.rows() if everywhere or covers_resource(caller.scope, row.namespace)]
    decisions = [
        decision for decision in whole.decisions if covers_resource(caller.scope, namespace_of(decision.topic))
    ]
    reaches_back = len(whole.decisions) < MAX_DECISIONS or whole.now - whole.decisions[-1].decided_at > HOUR
    needs = needs_of_processes(fleet.standing(), whole.brakes, fleet.alerts()) if everywhere else []
    return summarize(rows, decisions, needs, whole.now, reaches_back)
