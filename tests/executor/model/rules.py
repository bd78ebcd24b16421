"""Which protections the protocol has, and what the world around it may do. Without changes: the protocol as it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """A protocol and its world."""

    faults: int = 3
    """How many faults there may be in one history: each crash, freeze, lost message, stale look, … is one."""
    evaluations: int = 1
    """How many times the job decides at most; each time it waits until it has heard of every end."""
    siblings: int = 1
    """Decisions of one evaluation, on disjoint parts."""
    bundles: bool = False
    """The subject is a cluster and a decision moves a bundle (family `bundles`), instead of splitting a segment."""

    fenced: bool = True
    """A commit of an executor that was overtaken fails, and a call is made only while the lease holds."""
    intents: bool = True
    """An intent is durable before the call."""
    lineage: bool = True
    """Effect is read off the layout; without: an executor believes its memory and the answer of the call."""
    margin: bool = True
    """A call is begun only if it ends within the lease, come what may."""
    waits: bool = True
    """Who takes over waits until the lease has run out."""
    apart: bool = True
    """A decision is judged by its own segments; without: by all active segments of its topic."""
    every_end: bool = True
    """Each end is announced until the job has heard it; without: the newest of each subject."""

    conditional: bool = False
    """The server carries a call out only on the layout that its caller has seen: our controller, not Pulsar."""

    frozen_in_between: bool = False
    """An executor may be frozen between the look at its lease and the first byte of the call."""
    late: bool = False
    """The server may carry out a call after the caller has given it up."""
    anew: bool = False
    """Somebody may delete the topic and make it anew between a look and the call, or a copy may lag over that."""
