"""`/topic`: one topic. Its head comes at once from memory; the picture and the gates on request.

`/topic/river`, `/topic/why` and `/topic/loads` are parts of it, and pages of their own in browsers without scripts.
"""

import math
from datetime import datetime, timezone
from typing import Any

from deltalake.exceptions import DeltaError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from anabranch.history.explain.changes import segments_of
from anabranch.history.explain.checkpoints import NotOnRecord
from anabranch.history.explain.slowness import slowness_words
from anabranch.history.lineage.record import NothingOnRecord, read_river
from anabranch.query.topics import UnknownTopic, find_topic
from anabranch.query.wording import headline, millis
from anabranch.web.asking import MAX_POLICY, PageNotFound, turn
from anabranch.web.curves import MAX_CURVES, NO_CURVES, load_columns
from anabranch.web.drawing.river import MAX_ENDED, river_picture
from anabranch.web.fleet import WatchedFleet
from anabranch.web.guard import demand
from anabranch.web.pages.windows import DEFAULT, LENGTHS, TimeWindow, WindowError, read_instant, read_window
from anabranch.web.past import Sample, read_decisions, read_holds, read_loads, read_silences
from anabranch.web.replays import REPLAYS, ReplayBusy
from anabranch.web.templating import render
from anabranch.web.words import iso, link
from decisions.autoscale.decide import decide
from decisions.autoscale.policy import POLICY_FIELDS, PolicyError, policy_override, read_policy
from decisions.autoscale.rates import segment_overload
from decisions.autoscale.snapshot import MANAGED, snapshot_from_wire, snapshot_to_wire
from engine.kernel.packed import StateError


def show(request: Request) -> Response:
    """The topic as it stands."""
    fleet: WatchedFleet = request.app.state.fleet
    name = asked_topic(request)
    views = fleet.views([name])
    resolved, row = fleet.policy(name), fleet.row(name)
    fields: list[tuple[str, Any, str]] = []
    if resolved is not None:
        effective = policy_override(resolved.policy)
        fields = [
            (wire, getattr(effective, field.attribute), resolved.origins[wire]) for wire, field in POLICY_FIELDS.items()
        ]
    window, wrong = _window(request, fleet)
    query = request.query_params
    return render(
        request,
        "topic.html",
        name=name,
        view=views[0] if views else None,
        fields=fields,
        is_stuck=row is not None and row.is_stuck(datetime.now(timezone.utc)),
        broken=resolved.broken if resolved else None,
        lengths=LENGTHS,
        window=window,
        wrong=wrong,
        managed=MANAGED,
        max_curves=MAX_CURVES,
        times=_times(request),
        at=query.get("at", ""),
        segment=query.get("segment", ""),
        policy=query.get("policy", ""),
        profile=max((origin for _, _, origin in fields if origin.startswith("profile ")), default=""),
    )


def river(request: Request) -> Response:
    """The river, and what it shows as a table."""
    fleet: WatchedFleet = request.app.state.fleet
    lake, name = request.app.state.lake, asked_topic(request)
    window, wrong = _window(request, fleet)
    shown: dict[str, Any] = {"name": name, "window": window, "problem": wrong, "picture": None}
    if wrong is None:
        try:
            with turn():
                whole = read_river(lake, name, window.since, window.until)
                drawn = whole.newest(MAX_ENDED)
                since = max(window.since, datetime.fromtimestamp(drawn.since / 1000, timezone.utc))
                decided = read_decisions(lake, name, since, window.until)
                loads = read_loads(lake, name, since, window.until)
                held = read_holds(lake, name, since, window.until, decided)
        except (NothingOnRecord, PageNotFound) as error:
            shown["problem"] = str(error)
        except (DeltaError, OSError) as error:
            shown["problem"] = f"the lake cannot be read now: {str(error).partition(chr(10))[0]}"
        else:
            policy = fleet.policy(name)
            times = _times(request)

            def why(instant: int, segment: int | None) -> str:
                return link("/topic", name=name, **times, at=iso(instant), segment=segment) + "#why"

            shown |= {
                "picture": river_picture(
                    drawn,
                    loads,
                    policy.policy if policy else None,
                    decided,
                    held,
                    why,
                    lambda identity: link("/decision", id=identity),
                ),
                "river": drawn,
                "most": None if drawn is whole else MAX_ENDED,
                "held": held[-200:],
                "loads": loads,
                "decided": [decision for decision in decided if decision.at >= millis(window.since)][-200:],
                "why": why,
            }
    return part(request, "river.html", **shown)


def why(request: Request) -> Response:
    """Show the reasons for acting or holding at an instant, gate by gate, and what would change it."""
    state, name, query = request.app.state, asked_topic(request), request.query_params
    fleet: WatchedFleet = state.fleet
    shown: dict[str, Any] = {"name": name, "found": None, "problem": None, "segment": None}
    try:
        instant = read_instant(query["at"], _ends(fleet)) if query.get("at") else None
        number = query.get("segment", "")
        segment = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None
        explanation, changed = REPLAYS.explain(state.lake, name, instant, segment, state.configured())
    except (NotOnRecord, WindowError, ReplayBusy, StateError) as error:
        shown["problem"] = str(error)
    except OSError as error:
        shown["problem"] = f"the lake cannot be read now: {str(error).partition(chr(10))[0]}"
    else:
        snapshot = explanation.snapshot
        shown |= {
            "found": explanation,
            "segment": segment,
            "headline": headline(explanation.answer),
            "tried": "",
            "also": getattr(explanation.answer, "also", ()),
            "binding": getattr(explanation.answer, "binding", None),
            "chosen": segments_of(explanation.answer),
            "changed": changed[:20],
            "more": max(0, len(changed) - 20),
            "loads": [(active, snapshot.loads.get(active.segment_id)) for active in snapshot.layout.active[:100]],
            "overload": lambda load: segment_overload(load.rates, snapshot.policy)[0],
            "slowness": slowness_words(explanation.slowness),
        }
        tried = query.get("policy", "")[:MAX_POLICY]
        try:
            if tried.strip():
                other = snapshot_from_wire(snapshot_to_wire(snapshot), "pip-483", read_policy(tried))
                shown |= {"tried": tried, "other": headline(decide(other))}
        except (PolicyError, ValidationError) as error:
            shown["problem"] = str(error)
    return part(request, "why.html", **shown)


def loads(request: Request) -> Response:
    """Load over time of the fullest segments, and the number of segments, as columns for plots; JSON.

    A segment's newest load counts until the next one; null: it was not there, or the job was not at work.
    """
    fleet: WatchedFleet = request.app.state.fleet
    lake, name = request.app.state.lake, asked_topic(request)
    window, wrong = _window(request, fleet)
    resolved = fleet.policy(name)
    if wrong is not None:
        return JSONResponse(NO_CURVES)
    try:
        with turn():
            river = read_river(lake, name, window.since, window.until)
            # Without a policy there is no threshold to measure a load against.
            by_segment = read_loads(lake, name, window.since, window.until) if resolved else {}
            silences = read_silences(lake, window.since, window.until)
    except (DeltaError, NothingOnRecord, OSError, PageNotFound):
        return JSONResponse(NO_CURVES)

    def load_of(sample: Sample) -> float:
        return segment_overload(sample.rates, resolved.policy)[0] if resolved else math.nan

    return JSONResponse(load_columns(river, by_segment, silences, load_of))


def part(request: Request, template: str, **shown: Any) -> Response:
    """A part of the page of a topic, or a page of its own."""
    return render(request, template, base="bare.html" if "hx-request" in request.headers else "base.html", **shown)


def asked_topic(request: Request) -> str:
    """The topic that the address names, which the caller may see. Raises `PageNotFound`, `NotAllowed`."""
    fleet: WatchedFleet = request.app.state.fleet
    asked = request.query_params.get("name", "")
    name = asked
    if fleet.row(asked) is None:
        try:
            name = find_topic([row.name for row in fleet.rows()], asked, hints=False)
        except UnknownTopic:
            # One that was deleted has a past.
            if "://" not in asked:
                demand(request, "read")
                raise PageNotFound(_nearest(fleet, asked)) from None
    demand(request, "read", name)
    return name


def _nearest(fleet: WatchedFleet, asked: str) -> str:
    try:
        with turn():
            find_topic([row.name for row in fleet.rows()], asked)
    except UnknownTopic as error:
        return str(error)
    return "it is on record now: load the page again"


def _times(request: Request) -> dict[str, str]:
    return {key: request.query_params[key] for key in ("from", "to", "last") if request.query_params.get(key)}


def _ends(fleet: WatchedFleet) -> datetime:
    return fleet.standing().batch_at or datetime.now(timezone.utc)


def _window(request: Request, fleet: WatchedFleet) -> tuple[TimeWindow, str | None]:
    """The window that the address asks for, and what is wrong with it if it is the default one instead."""
    ends = _ends(fleet)
    try:
        return read_window(request.query_params, ends), None
    except WindowError as error:
        return read_window({"last": DEFAULT}, ends), str(error)
