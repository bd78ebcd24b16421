"""`/`: every topic a row, the fullest first."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from anabranch.auth.callers import Caller
from anabranch.auth.scopes import covers
from anabranch.web.fleet import WatchedFleet
from anabranch.web.guard import CALLER, allows
from anabranch.web.pages.choosing import FILTERS, ORDERS, Choice, choose, is_paused
from anabranch.web.pages.operations import place_of
from anabranch.web.templating import render
from anabranch.web.words import namespace_of

LATELY = 4
"""Newest decisions above the topics."""


def show(request: Request) -> Response:
    """The fleet as the address says."""
    fleet: WatchedFleet = request.app.state.fleet
    caller: Caller = request.scope[CALLER]
    whole, rows = fleet.whole(), fleet.rows()
    choice = Choice.read(request.query_params)
    paused = {act.subject for act in whole.brakes.pauses}
    chosen = choose(rows, choice, paused, whole.now, lambda namespace: covers(caller.scope, namespace))
    views = {view.name: view for view in fleet.views(row.name for row in chosen.rows)}
    lately = [decision for decision in whole.decisions if covers(caller.scope, namespace_of(decision.topic))][:LATELY]
    return render(
        request,
        "fleet.html",
        choice=choice,
        chosen=chosen,
        whole=whole,
        filters=FILTERS,
        orders=ORDERS,
        lately=lately,
        stuck=sum(row.is_stuck(whole.now) and covers(caller.scope, row.namespace) for row in rows),
        stop=whole.brakes.stop if allows(request, "read") else None,
        pauses=sum(allows(request, "read", **place_of(act.subject)) for act in whole.brakes.pauses),
        topics=[(row, views[row.name], is_paused(row, paused)) for row in chosen.rows if row.name in views],
    )
