"""`/bundles`: clusters with bundles: usage and bundles of each broker over time, and the moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
from deltalake.exceptions import DeltaError
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from anabranch.history.bundles.history import BundleNow, ClusterHistory, history
from anabranch.history.bundles.picture import picture
from anabranch.simulation.bundles.events import clusters_on_record
from anabranch.simulation.bundles.recorded import NoRecord
from anabranch.web.asking import NotFound, turn
from anabranch.web.fleet import Fleet
from anabranch.web.guard import demand
from anabranch.web.pages.windows import LENGTHS, WindowError, read_window
from anabranch.web.templating import render
from anabranch.web.words import shown

MAX_BLOCKS = 2_000
"""Bundles that are drawn, the heaviest first."""
WIDTH, HEIGHT, LEAST = 1200, 420, 1.5


@dataclass(frozen=True)
class Column:
    """A broker as it stood last."""

    broker: str
    usage: float | None
    """Of its fullest resource; None: it was not there."""
    bundles: int


def show(request: Request) -> Response:
    """A cluster in a window; without a name the first one."""
    demand(request, "read")
    lake, query = request.app.state.lake, request.query_params
    fleet: Fleet = request.app.state.fleet
    ends = fleet.standing().batch_at or datetime.now(timezone.utc)
    problem, window, found = None, read_window({}, ends), None
    clusters: list[str] = []
    try:
        window = read_window(query, ends)
        with turn():
            clusters = clusters_on_record(lake)
            chosen = query.get("cluster") or (clusters[0] if clusters else "")
            found = history(lake, chosen, window.since, window.until) if chosen else None
    except (WindowError, NoRecord, NotFound) as error:
        problem = str(error)
    except (DeltaError, OSError) as error:
        problem = f"the lake cannot be read now: {str(error).partition(chr(10))[0]}"
    return render(
        request,
        "bundles.html",
        clusters=clusters,
        chosen=query.get("cluster") or (clusters[0] if clusters else ""),
        window=window,
        lengths=LENGTHS,
        problem=problem,
        found=found,
        # It is made by ours and escapes every name.
        picture=Markup(picture(found, is_alone=False)) if found else None,
        blocks=blocks(found) if found else None,
        columns=columns_of(found) if found else [],
    )


def columns_of(found: ClusterHistory) -> list[Column]:
    """The brokers as they stood last, in their order."""
    last, counts = found.usage[-1], Counter(one.broker for one in found.now)
    return [
        Column(broker, None if np.isnan(last[place]) else float(last[place]), counts[place])
        for place, broker in enumerate(found.brokers)
    ]


def blocks(found: ClusterHistory) -> Markup:
    """Brokers as columns, bundles as blocks as high as what they take of the fullest broker's load."""
    heaviest = sorted(found.now, key=lambda one: -one.load)[:MAX_BLOCKS]
    sums = np.zeros(max(len(found.brokers), 1))
    for one in heaviest:
        sums[one.broker] += one.load
    scale = (HEIGHT - 40) / max(float(sums.max()), 1e-9)
    wide = WIDTH / max(len(found.brokers), 1)
    tops = np.full(len(sums), HEIGHT - 24.0)
    said = f"{len(found.now)} bundles on {len(found.brokers)} brokers; the same as a table stands below"
    parts = [Markup('<svg class="brokers" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, said)]
    for number, one in enumerate(heaviest):
        high = max(one.load * scale, LEAST)
        tops[one.broker] -= high
        parts.append(
            Markup(
                '<rect class="block block{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
                "<title>{}</title></rect>"
            ).format(
                number % 2,
                one.broker * wide + 4,
                tops[one.broker],
                max(wide - 8, 1),
                max(high - 0.6, 0.6),
                _told(one, found),
            )
        )
    for place, broker in enumerate(found.brokers):
        parts.append(
            Markup('<text class="middle" x="{:.1f}" y="{}">{}</text>').format(
                (place + 0.5) * wide, HEIGHT - 8, shown(broker) if len(broker) * 7 < wide else place + 1
            )
        )
    return Markup("").join([*parts, Markup("</svg>")])


def _told(one: BundleNow, found: ClusterHistory) -> str:
    return shown(f"{one.bundle} on {found.brokers[one.broker]}: {one.load:.1%} of a broker")
