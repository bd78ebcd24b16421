"""`/bundles`: clusters with bundles: usage and bundles of each broker over time, and the moves."""

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
from anabranch.web.asking import PageNotFound, turn
from anabranch.web.fleet import WatchedFleet
from anabranch.web.guard import demand
from anabranch.web.pages.windows import LENGTHS, WindowError, read_window
from anabranch.web.templating import render
from anabranch.web.words import shown

MAX_BLOCKS = 2_000
"""Bundles that are drawn, the heaviest first."""
WIDTH, HEIGHT, LEAST = 1200, 420, 1.5


@dataclass(frozen=True)
class BrokerColumn:
    """A broker as it stood last."""

    broker: str
    usage: float | None
    """Of its fullest resource; None: it was not there."""
    bundles: int


def show(request: Request) -> Response:
    """A cluster in a window; without a name the first one."""
    demand(request, "read")
    lake, query = request.app.state.lake, request.query_params
    fleet: WatchedFleet = request.app.state.fleet
    ends = fleet.standing().batch_at or datetime.now(timezone.utc)
    problem, window, cluster_history = None, read_window({}, ends), None
    clusters: list[str] = []
    try:
        window = read_window(query, ends)
        with turn():
            clusters = clusters_on_record(lake)
            chosen = query.get("cluster") or (clusters[0] if clusters else "")
            cluster_history = history(lake, chosen, window.since, window.until) if chosen else None
    except (WindowError, NoRecord, PageNotFound) as error:
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
        found=cluster_history,
        # It is made by ours and escapes every name.
        picture=Markup(picture(cluster_history, is_alone=False)) if cluster_history else None,
        blocks=blocks(cluster_history) if cluster_history else None,
        columns=columns_of(cluster_history) if cluster_history else [],
    )


def columns_of(cluster: ClusterHistory) -> list[BrokerColumn]:
    """The brokers as they stood last, in their order."""
    last, counts = cluster.usage[-1], Counter(bundle.broker for bundle in cluster.now)
    return [
        BrokerColumn(broker, None if np.isnan(last[index]) else float(last[index]), counts[index])
        for index, broker in enumerate(cluster.brokers)
    ]


def blocks(cluster: ClusterHistory) -> Markup:
    """Brokers as columns, bundles as blocks as high as what they take of the fullest broker's load."""
    heaviest = sorted(cluster.now, key=lambda bundle: -bundle.load)[:MAX_BLOCKS]
    sums = np.zeros(max(len(cluster.brokers), 1))
    for bundle in heaviest:
        sums[bundle.broker] += bundle.load
    scale = (HEIGHT - 40) / max(float(sums.max()), 1e-9)
    wide = WIDTH / max(len(cluster.brokers), 1)
    tops = np.full(len(sums), HEIGHT - 24.0)
    label = f"{len(cluster.now)} bundles on {len(cluster.brokers)} brokers; the same as a table stands below"
    parts = [
        Markup('<svg class="brokers" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, label)
    ]
    for number, bundle in enumerate(heaviest):
        high = max(bundle.load * scale, LEAST)
        tops[bundle.broker] -= high
        parts.append(
            Markup(
                '<rect class="block block{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
                "<title>{}</title></rect>"
            ).format(
                number % 2,
                bundle.broker * wide + 4,
                tops[bundle.broker],
                max(wide - 8, 1),
                max(high - 0.6, 0.6),
                _told(bundle, cluster),
            )
        )
    for index, broker in enumerate(cluster.brokers):
        parts.append(
            Markup('<text class="middle" x="{:.1f}" y="{}">{}</text>').format(
                (index + 0.5) * wide, HEIGHT - 8, shown(broker) if len(broker) * 7 < wide else index + 1
            )
        )
    return Markup("").join([*parts, Markup("</svg>")])


def _told(bundle: BundleNow, cluster: ClusterHistory) -> str:
    return shown(f"{bundle.bundle} on {cluster.brokers[bundle.broker]}: {bundle.load:.1%} of a broker")
