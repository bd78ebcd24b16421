"""A decision about a bundle, and a cluster's cycle, as tables for an operator.

Stage: under `anabranch bundles explain`; `anabranch.history.bundles.record` finds the cycle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anabranch.cli.bundles.decisions import defaults_of, readings_table
from anabranch.cli.explain_text import became_text
from anabranch.query.wording import instant, number_words
from schemas.bundles import BundleReading
from schemas.printable import printable

if TYPE_CHECKING:
    from anabranch.history.explain.application import Became
    from engine.bundles.clusters import ClusterState
    from engine.bundles.cycle import Cycle

MAX_LINES = 200
"""Gates that are shown; JSON has all."""


class UnknownBroker(LookupError):
    """The cycle saw no such broker; the message says which there were."""


def decision_text(cluster: str, row: Mapping[str, Any], end: Became | None) -> str:
    """A row of `decisions`: what was done, on what, what became of it, and every gate on the way."""
    arguments, inputs = json.loads(row["arguments"]), json.loads(row["inputs"])
    where = f" from {arguments['sourceBroker']}" if arguments.get("sourceBroker") else ""
    if arguments.get("destinationBroker"):
        where += f" to {arguments['destinationBroker']}"
    if arguments.get("positions"):
        where += f" at {', '.join(arguments['positions'])}"
    lines = [
        printable(f"{cluster} at {row['decided_at']:%F %T} UTC, decision {row['seq']} ({row['decision_id']})"),
        printable(f"  {row['action']} {arguments['bundle']}{where}, because of {row['reason']}"),
        f"  what became of it: {became_text(end)}",
        *(_usage(broker, usage) for broker, usage in inputs["usage"].items()),
        *(
            printable(f"  among {', '.join(tie['brokers'])} the seed took {tie['chosen']}")
            for tie in inputs["ties"]
            if len(tie["brokers"]) > 1
        ),
        *readings_table([BundleReading.model_validate(gate) for gate in json.loads(row["gates"])]),
    ]
    return "\n".join([*lines, ""])


def cycle_text(state: ClusterState, cycle: Cycle, broker: str | None) -> str:
    """Return a cycle as text: its decisions and every gate.

    With `broker`, only the gates of that broker and of the cluster. Raises `UnknownBroker`.
    """
    answer = cycle.shedding
    lines = [
        printable(
            f"{state.name} at {instant(cycle.now)}: {len(cycle.live)} brokers, {answer.strategy}, "
            f"{defaults_of(answer.profile)}"
        )
    ]
    for decided in cycle.decided:
        decision = decided.decision
        if broker is None or broker in (decision.source_broker, decision.destination_broker):
            to = f" to {decision.destination_broker}" if decision.destination_broker else ""
            lines.append(printable(f"  {decision.action} {decision.bundle} from {decision.source_broker}{to}"))
    if not cycle.decided:
        lines.append("  nothing was decided")
    if broker is not None:
        lines += _compare_broker(state, cycle, broker)
    readings = [reading for reading in answer.readings if broker is None or _concerns_broker(reading, broker)]
    if len(readings) > MAX_LINES:
        lines.append(f"  of {len(readings):,} gates the last {MAX_LINES}; --output json has all")
    return "\n".join([*lines, *readings_table(readings[-MAX_LINES:]), ""])


def _compare_broker(state: ClusterState, cycle: Cycle, broker: str) -> list[str]:
    """Return lines that compare a broker with the others, and the condition for any move."""
    if broker not in cycle.live:
        near = ", ".join(cycle.live[:5]) + (" …" if len(cycle.live) > 5 else "")
        reported = state.reports.get(broker)
        if reported is not None and reported.in_effect is not None:
            raise UnknownBroker(f"{broker} has reported, but is not among the living brokers: {near}")
        raise UnknownBroker(f"no report of {broker} is on record up to then; there are {near}")
    answer = cycle.shedding
    lines = [_usage(broker, answer.usage.get(broker, {}))]
    usages = [usage["maxUsage"] for name, usage in answer.usage.items() if name != broker and "maxUsage" in usage]
    if usages:
        lines.append(f"  the others' maxUsage: {number_words(min(usages))} to {number_words(max(usages))}")
    if giving := [broker for broker, bundles in answer.selected.items() if bundles]:
        lines.append(printable(f"  brokers that were to give: {', '.join(giving)}"))
    else:
        lines.append("  it gets nothing by unloading, for no other broker was to give")
    return lines


def _concerns_broker(reading: BundleReading, broker: str) -> bool:
    return reading.broker == broker or reading.broker is None


def _usage(broker: str, usage: Mapping[str, float]) -> str:
    return printable(f"  {broker}: " + ", ".join(f"{name} {number_words(value)}" for name, value in usage.items()))
