"""A cluster's brokers over time, for a terminal and for scripts."""

from typing import Any

import numpy as np

from anabranch.history.bundles.history import ClusterHistory, bars, columns
from anabranch.query.wording import instant
from schemas.printable import printable

_NUMBERS = 14
"""Characters behind the bars."""


def as_text(history: ClusterHistory, width: int, limit: int) -> str:
    """A line for each broker, and the newest moves."""
    names = [printable(broker) for broker in history.brokers]
    most = max(map(len, names))
    means = columns(history.usage, max(width - most - _NUMBERS - 4, 10))
    lines = [f"{printable(history.cluster)} from {instant(history.since)} to {instant(history.until)}"]
    for index, name in enumerate(names):
        last, highest = history.usage[-1, index], float(np.nanmax(history.usage[:, index]))
        now = " away" if np.isnan(last) else f"{last:5.0%}"
        lines.append(f"  {name:<{most}}  {bars(means[:, index].tolist())} {now}, max {highest:.0%}")
    lines.append(f"{len(history.moves)} moves{f', the newest {limit}' if len(history.moves) > limit else ''}")
    for move in history.moves[-limit:]:
        lines.append(printable(f"  {instant(move.at)}  {move.bundle}  {move.source} -> {move.destination}"))
    return "\n".join(lines)


def as_json(history: ClusterHistory) -> dict[str, Any]:
    """All of it; null: the broker was not there."""
    usage = [[None if np.isnan(value) else round(value, 6) for value in row] for row in history.usage.T.tolist()]
    return {
        "cluster": history.cluster,
        "since": history.since,
        "until": history.until,
        "brokers": [{"name": name, "usage": values} for name, values in zip(history.brokers, usage, strict=True)],
        "moves": [
            {"at": move.at, "bundle": move.bundle, "source": move.source, "destination": move.destination}
            for move in history.moves
        ],
    }
