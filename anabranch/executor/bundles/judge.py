"""Judge a decision by the current owner of its bundle. Pure: no I/O, no clock, no memory.

Stage: under `actor`, before and after every call. Only ownership and the namespace's bundles count: an unload may be
answered with success although the bundle went elsewhere. A bundle without an owner after a call is being moved; the
verdict waits until a broker serves it.
"""

from dataclasses import dataclass

from anabranch.executor.bundles.decision import BundleChange, Unload
from anabranch.executor.kernel.family import Applied, Gone, NoAnswer, StillNeeded, Superseded, Verdict


@dataclass(frozen=True)
class LiveBundle:
    """A bundle as the cluster reports it."""

    cluster: str
    """Name of the cluster that was asked."""
    ranges: tuple[str, ...] | None
    """All bundles of the namespace; None: the namespace is gone."""
    brokers: tuple[str, ...] = ()
    """Live brokers."""
    owner: str | None = None
    """Broker that serves it; None: none does."""
    balancing: str | None = None
    """Broker whose own balancer makes such changes; None: no broker's does."""


OWN_BALANCER = "own-balancer"
"""Gate of unloads and splits in a cluster whose own balancer makes such changes."""


def judge(decision: BundleChange, live: LiveBundle, may_have_called: bool, may_repeat: bool = False) -> Verdict:
    """Judge a decision. `may_have_called`: see `anabranch.executor.kernel.family.Actor`.

    `may_repeat`: an accepted unload that moved the bundle to another broker is repeated once. With the modular load
    manager one unload in ten ends so.
    """
    if live.cluster != decision.subject:
        return Superseded(f"the decision is about the cluster {decision.subject}, and this is {live.cluster}")
    if live.ranges is None:
        return Gone(f"the namespace {decision.namespace} is gone")
    is_there = decision.range in live.ranges
    if isinstance(decision, Unload):
        if not is_there:
            return Superseded(f"there is no bundle {decision.bundle} any more: it was split")
        return _judge_unload(decision, live, may_have_called, may_repeat)
    if is_there:
        return _refuse_beside(decision, live) or StillNeeded()
    children = [child for child in live.ranges if _is_inside(child, decision.range)]
    if may_have_called and len(children) > 1:
        return Applied()
    return Superseded(f"there is no bundle {decision.bundle} any more, but {', '.join(children[:4]) or 'others'}")


def still_moving(decision: BundleChange, live: LiveBundle) -> NoAnswer | None:
    """Return why an unload cannot be judged yet: no broker serves the bundle. None if it can."""
    if (
        not isinstance(decision, Unload)
        or live.owner is not None
        or not live.ranges
        or decision.range not in live.ranges
    ):
        return None
    return NoAnswer(f"no broker serves {decision.bundle} now")


def _judge_unload(decision: Unload, live: LiveBundle, may_have_called: bool, may_repeat: bool) -> Verdict:
    if live.owner == decision.destination:
        return Applied() if may_have_called else Superseded(f"{decision.destination} has it already")
    if live.owner != decision.source and not (may_repeat and live.owner is not None):
        return Superseded(f"{live.owner or 'nobody'} has it, and no longer {decision.source}")
    if decision.destination not in live.brokers:
        return Superseded(f"the destination {decision.destination} does not live")
    return _refuse_beside(decision, live) or StillNeeded()


def _refuse_beside(decision: BundleChange, live: LiveBundle) -> Superseded | None:
    if live.balancing is None:
        return None
    return Superseded(
        f"{OWN_BALANCER}: the cluster {live.cluster} balances itself, by {live.balancing}; set "
        f"{decision.own_switches[-1]}=false in its brokers, or run the executor with --mode observe"
    )


def _is_inside(child: str, parent: str) -> bool:
    (low, high), (first, last) = child.split("_"), parent.split("_")
    return first <= low and high <= last
