"""The routes of the page, and what all of them share.

Stage: above the pages, under `anabranch.web.server`. `create_app` is all that a test needs: it opens no port.
"""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from anabranch.admin.topics import ScalableTopics
from anabranch.auth.callers import Access, Caller
from anabranch.web.asking import PageNotFound
from anabranch.web.fleet import WatchedFleet
from anabranch.web.guard import (
    CALLER,
    COOKIE,
    SECURE_COOKIE,
    SESSION,
    BrowserGuard,
    NotAllowed,
    demand,
    is_signed_in,
    read_form,
    unproved_form,
)
from anabranch.web.pages import bundles, consumers, decision, operations, switches, topic
from anabranch.web.pages import fleet as fleet_page
from anabranch.web.pages import reports as report_pages
from anabranch.web.processes import NO_PROBES, Probes
from anabranch.web.replays import REPLAYS
from anabranch.web.sessions import BrowserSessions
from anabranch.web.templating import FOLDER, environment, render
from engine.autoscale.topics import ConfiguredPolicy
from runtime.listener.names import NodeNames

MAX_LIVE = 200
"""Streams of changes at the same time: one for each open page."""
MAX_LIVE_PER_TOKEN = 50
"""The same of one token."""
COALESCE_SECONDS = 0.5
"""Between two changes that one page is told of, unless it asks for more: `every`."""


def create_app(
    lake: str,
    access: Access,
    names: NodeNames,
    configured: Callable[[], ConfiguredPolicy],
    is_secure: bool = False,
    reports: Path = Path("var/reports"),
    topics: ScalableTopics | None = None,
    waiting_max_age_seconds: float = math.inf,
    stuck_seconds: float = math.inf,
    max_head_bytes: int = 16_384,
    probes: Probes = NO_PROBES,
) -> Starlette:
    """Create the page over a lake.

    `configured` returns the job's current policy. `is_secure`: the page is served by https. `reports` is the folder of
    HTML reports. `topics` is the controller's interface, for what is in no table. Decisions older than
    `waiting_max_age_seconds` are not approved; open decisions older than `stuck_seconds` are shown as stuck. `probes`
    ask other processes.
    """
    sessions, fleet = BrowserSessions(), WatchedFleet(lake, stuck_seconds)

    @asynccontextmanager
    async def lifespan(_app: ASGIApp) -> AsyncIterator[None]:
        follower = threading.Thread(target=fleet.run, name="fleet", daemon=True)
        follower.start()
        probes.start()
        try:
            yield
        finally:
            fleet.stop()
            probes.stop()
            REPLAYS.stop()
            await asyncio.to_thread(follower.join, 5)

    app = Starlette(
        routes=[
            Route("/", fleet_page.show),
            Route("/fleet/trend", fleet_page.trend),
            Route("/topic", topic.show),
            Route("/topic/river", topic.river),
            Route("/topic/why", topic.why),
            Route("/topic/loads", topic.loads),
            Route("/topic/consumers", consumers.show),
            Route("/decision", decision.show),
            Route("/decision", decision.post, methods=["POST"]),
            Route("/operations", operations.show),
            Route("/operations", operations.post, methods=["POST"]),
            Route("/operations/health", operations.health),
            Route("/bundles", bundles.show),
            Route("/switches", switches.show),
            Route("/reports", report_pages.show),
            Route("/reports/read", report_pages.read),
            Route("/live", _live),
            Route("/standing", _standing),
            Route("/sign-in", _sign_in, methods=["GET", "POST"]),
            Route("/sign-out", _sign_out, methods=["POST"]),
            Route("/healthz", _health),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
        ],
        middleware=[Middleware(BrowserGuard, access, names, sessions, is_secure, max_head_bytes)],
        exception_handlers={NotAllowed: _not_allowed, PageNotFound: _nothing, 404: _not_found},  # type: ignore[dict-item]
        lifespan=lifespan,
    )
    app.state.lake, app.state.access, app.state.sessions, app.state.fleet = lake, access, sessions, fleet
    app.state.configured, app.state.is_secure, app.state.reports = configured, is_secure, reports
    app.state.templates = environment()
    app.state.live, app.state.topics, app.state.probes = Counter[str](), topics, probes
    app.state.waiting_max_age_seconds = waiting_max_age_seconds
    return app


async def _live(request: Request) -> Response:
    """Send server-sent events: `changed` with the version, soon after each commit that affects the page.

    The query's `since` is the version that the page was made of. A page made by an earlier start of this process gets
    an event at once. Ends soon after the caller's session or token.
    """
    state, topic = request.app.state, request.query_params.get("topic")
    caller: Caller = request.scope[CALLER]
    if topic:
        demand(request, "read", topic)
    alone = MAX_LIVE_PER_TOKEN if state.access.is_guarded else MAX_LIVE
    if state.live.total() >= MAX_LIVE or state.live[caller.name] >= alone:
        return PlainTextResponse("too many pages are open", 503)
    fleet: WatchedFleet = state.fleet
    asked = request.query_params.get("every", "")
    every = min(60.0, float(asked)) if asked.isascii() and asked.isdigit() else COALESCE_SECONDS

    async def events() -> AsyncIterator[str]:
        state.live[caller.name] += 1
        try:
            since = request.query_params.get("since", "")
            last_version = int(since) if since.isascii() and since.isdigit() and len(since) < 20 else fleet.version
            last_version = last_version if last_version <= fleet.version else -1
            yield ": here\n\n"
            while not fleet.is_stopped and is_signed_in(request):
                newest = await fleet.after(last_version, topic, caller.scope)
                yield f"event: changed\ndata: {newest}\n\n" if newest > last_version else ": here\n\n"
                last_version = max(last_version, newest)
                await asyncio.sleep(every)
        finally:
            state.live[caller.name] -= 1

    return StreamingResponse(events(), media_type="text/event-stream")


def _standing(request: Request) -> Response:
    """The top of every page, which asks for it again and again."""
    return render(request, "standing.html")


async def _sign_in(request: Request) -> Response:
    state = request.app.state
    asked = request.query_params.get("next", "/")
    # Only to this page: neither //host nor a scheme.
    onward = asked if asked.startswith("/") and not asked.startswith(("//", "/\\")) and asked.isprintable() else "/"
    if request.method == "GET":
        return render(request, "sign_in.html", onward=onward, wrong=False)
    form = await unproved_form(request)
    if (caller := state.access.caller(b"Bearer " + form.get("token", "").strip().encode())) is None:
        return render(request, "sign_in.html", 401, onward=onward, wrong=True)
    answer = RedirectResponse(onward, 303)
    # Lax: with a link that a colleague sends, a browser that is signed in stays so.
    name = SECURE_COOKIE if state.is_secure else COOKIE
    number = state.sessions.begin(caller)
    answer.set_cookie(name, number, httponly=True, samesite="lax", secure=state.is_secure, path="/")
    return answer


async def _sign_out(request: Request) -> Response:
    await read_form(request)
    request.app.state.sessions.end(request.scope[SESSION])
    answer = RedirectResponse("/sign-in", 303)
    is_secure: bool = request.app.state.is_secure
    answer.delete_cookie(SECURE_COOKIE if is_secure else COOKIE, path="/", secure=is_secure)
    return answer


async def _health(request: Request) -> Response:
    access: Access = request.app.state.access
    access.follow_file()
    return PlainTextResponse("ok\n") if access.failure is None else PlainTextResponse("failing\n", 503)


async def _not_allowed(request: Request, error: NotAllowed) -> Response:
    return render(request, "problem.html", error.status, problem=str(error))


async def _nothing(request: Request, error: PageNotFound) -> Response:
    return render(request, "problem.html", 404, problem=str(error))


async def _not_found(request: Request, _error: Exception) -> Response:
    return render(request, "problem.html", 404, problem="There is no such page.")
