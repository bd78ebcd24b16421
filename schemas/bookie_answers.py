"""What the family `bookies` answers to a snapshot (`schemas.bookies`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from schemas.base import Wire
from schemas.bookies import Bootstrap, ClusterEntry, Directive, Failure, Operation, Phase

StepAction = Literal[
    "copy", "verify", "unload", "seal", "skip_not_source", "fail", "cas_attribution", "forward_owner",
    "rollover_fallback", "delete", "keep_not_promoted", "flip_status", "write_registry", "remove_registry",
]  # fmt: skip


class Step(Wire):
    """One row of work. It names what it expects: carried out again, or too late, it changes nothing."""

    epoch: int
    phase: Phase
    kind: Literal["schema", "cursor", "topic", "ledger", "registry"]
    object: str
    action: StepAction
    ledger: int | None = None
    source: str | None = None
    target: str | None = None
    expectation: dict[str, Any] = Field(default_factory=dict)
    """Of a compare-and-set: `version` of the znode, and `ledger` or `stamps`, what it has; of a deletion: the cluster
    that everything which names the ledger is attributed to."""
    stamps: dict[str, str | None] | None = None
    """By ledger id: the attribution to write; null takes one away."""
    reason: str


class Attribution(Wire):
    """Where a ledger on record is."""

    kind: Literal["schema", "cursor", "data"]
    object: str
    ledger: int
    cluster: str | None
    """Null: not known."""
    how: Literal["stamp", "bootstrap", "corruption", "in-znode"]
    reason: str | None = None


class Precheck(Wire):
    """The answer of PIP-477, with the exact ids beside the numbers of their upper 32 bits."""

    ready: bool
    idgen_advanced_beyond_source: bool
    source_cluster_name: str | None = None
    target_cluster_name: str | None = None
    source_max_high_order_bit: int | None = None
    target_max_high_order_bit: int | None = None
    source_max_ledger_id: int | None = None
    """The largest id that is in use or was given; -1: none."""
    source_next_ledger_id: int | None = None
    target_next_ledger_id: int | None = None


class BookieReading(Wire):
    """One gate that a command or an object came to."""

    gate: str
    passed: bool
    object: str | None = None
    measured: float | None = None
    limit: float | None = None
    margin: float | None = None
    eligible_at: int | None = None
    """When time alone opens it, ms."""
    detail: str | None = None


class Violation(Wire):
    """An invariant that does not hold."""

    invariant: str
    """`I1` to `I17`."""
    object: str
    detail: str


class Loss(Wire):
    """What a rollback would leave behind."""

    kind: str
    object: str
    ledger: int | None = None
    detail: str


class BookieAnswer(Wire):
    """What is to be done now, or why nothing is."""

    family: Literal["bookies"] = "bookies"
    cluster: str
    operation: Operation
    action: str
    """`hold`, `steps`, `done`, or what the command does: `register`, `switch`, `retry`, `rollback`, `cleanup`, …"""
    code: Literal[200, 400, 404, 409] = 200
    """As the REST interface of the proposal answers."""
    gate: str | None = None
    """Of a hold: the gate that binds."""
    reason: str | None = None
    """Why, in a sentence; of a refusal with what to do next."""
    phase: Phase
    epoch: int | None = None
    steps: list[Step] = Field(default_factory=list)
    registry: list[ClusterEntry] | None = None
    """As it will be, when the command changes it: written in one transaction with what follows."""
    directive: Directive | None = None
    """To be written."""
    bootstrap: Bootstrap | None = None
    """To be written, as there is none."""
    precheck: Precheck | None = None
    attributions: list[Attribution] = Field(default_factory=list)
    """`resolve`: of all ledgers; else of those that are not known."""
    failed_ledgers: list[Failure] = Field(default_factory=list)
    promoted_via_rollover_fallback: list[str] = Field(default_factory=list)
    not_promoted: list[str] = Field(default_factory=list)
    """Records whose compare-and-set others won every time; asking for the switch again tries again."""
    losses: list[Loss] = Field(default_factory=list)
    violations: list[Violation] = Field(default_factory=list)
    unseen: dict[str, str] = Field(default_factory=dict)
    """Of `check`: invariants that the snapshot does not show, or not all of, and why."""
    counts: dict[str, int] = Field(default_factory=dict)
    readings: list[BookieReading] = Field(default_factory=list)
    retry: str | None = None
    """The command that tries again what failed."""
