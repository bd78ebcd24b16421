"""The templates, and what they may call: everything from outside is escaped, and shown on one line."""

from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from anabranch.auth.callers import Caller
from anabranch.history.words import age, amount, hold_reason, span
from anabranch.query.wording import duration, number_words, reading_words
from anabranch.web import words
from anabranch.web.drawing.strip import LEVELS, level, strip
from anabranch.web.fleet import WatchedFleet
from anabranch.web.guard import CALLER, SESSION, VERSION, allows
from anabranch.web.processes import Process, processes
from anabranch.web.rows import PageFreshness
from anabranch.web.sessions import BrowserSessions
from decisions.autoscale.gates import DESCRIPTIONS

FOLDER = Path(__file__).parent


@cache
def environment() -> Environment:
    """The templates, compiled once per process; an unknown name in one is an error."""
    jinja = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(
        shown=words.shown,
        shortened=words.shortened,
        utc=words.utc,
        iso=words.iso,
        amount=amount,
        span=span,
        duration=duration,
        number=number_words,
    )
    jinja.globals.update(
        link=words.link,
        short_name=words.short_name,
        namespace_of=words.namespace_of,
        strip=strip,
        level=level,
        levels=LEVELS,
        age=age,
        hold_reason=hold_reason,
        reading_words=reading_words,
        gates={gate.value: description for gate, description in DESCRIPTIONS.items()},
    )
    return jinja


def render(request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
    """A page; `shown` are what its template names."""
    state = request.app.state
    fleet: WatchedFleet = state.fleet
    sessions: BrowserSessions = state.sessions
    caller: Caller | None = request.scope[CALLER]
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    now, freshness = datetime.now(timezone.utc), fleet.standing()
    text = state.templates.get_template(template).render(
        here=here,
        path=urlsplit(here).path,
        now=now,
        standing=freshness,
        processes=_processes(request, freshness, now) if caller is not None and allows(request, "read") else [],
        caller=caller,
        is_guarded=state.access.is_guarded,
        proof=sessions.proof(request.scope[SESSION]),
        version=request.scope[VERSION],
        **shown,
    )
    return HTMLResponse(text, status)


def _processes(request: Request, freshness: PageFreshness, now: datetime) -> list[Process]:
    fleet: WatchedFleet = request.app.state.fleet
    return processes(freshness, fleet.batches(), fleet.brakes(), request.app.state.probes, now)
