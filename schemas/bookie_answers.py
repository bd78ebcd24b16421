"""Answers of the family `bookies` to a snapshot (`schemas.bookies`)."""

from typing import Any, Literal

from pydantic import Field

from schemas.base import Wire
from schemas.bookies import Bootstrap, ClusterEntry, Directive, Failure, Operation, Phase

StepAction = Literal[
    "copy",
    "verify",
    "unload",
    "seal",
    "skip_not_source",
    "fail",
    "cas_attribution",
    "forward_owner",
    "rollover_fallback",
    "delete",
    "keep_not_promoted",
    "flip_status",
    "write_registry",
    "remove_registry",
]


class Step(Wire):
    """A unit of work. It names its expectation, so that repeated or late execution changes nothing."""

    epoch: int
    phase: Phase
    kind: Literal["schema", "cursor", "topic", "ledger", "registry"]
    object: str
    action: StepAction
    ledger: int | None = None
    source: str | None = None
    target: str | None = None
    expectation: dict[str, Any] = Field(default_factory=dict)
    """Expectation of a compare-and-set: `version` of the znode, and its present `ledger` or `stamps`.

    Of a deletion: the cluster to which everything that names the ledger is attributed.
    """
    stamps: dict[str, str | None] | None = None
    """By ledger id: the attribution to write; null removes it."""
    reason: str


class Attribution(Wire):
    """Location of a recorded ledger."""

    kind: Literal["schema", "cursor", "data"]
    object: str
    ledger: int
    cluster: str | None
    """Null: unknown."""
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
    """The largest id in use or assigned; -1: none."""
    source_next_ledger_id: int | None = None
    target_next_ledger_id: int | None = None


class BookieReading(Wire):
    """A gate evaluated for a command or an object."""

    gate: str
    passed: bool
    object: str | None = None
    measured: float | None = None
    limit: float | None = None
    margin: float | None = None
    eligible_at: int | None = None
    """Time from which it opens by time alone, ms."""
    detail: str | None = None


class Violation(Wire):
    """A violated invariant."""

    invariant: str
    """`I1` to `I17`."""
    object: str
    detail: str


class Loss(Wire):
    """Data that a rollback would leave behind."""

    kind: str
    object: str
    ledger: int | None = None
    detail: str


class BookieAnswer(Wire):
    """Steps to take now, or the reason for taking none."""

    family: Literal["bookies"] = "bookies"
    cluster: str
    operation: Operation
    action: str
    """`hold`, `steps`, `done`, or the effect of the command.

    Effects are `register`, `switch`, `retry`, `rollback`, `cleanup`, …
    """
    code: Literal[200, 400, 404, 409] = 200
    """HTTP status of the proposal's REST interface."""
    gate: str | None = None
    """Binding gate of a hold."""
    reason: str | None = None
    """Reason in a sentence; of a refusal with what to do next."""
    phase: Phase
    epoch: int | None = None
    steps: list[Step] = Field(default_factory=list)
    registry: list[ClusterEntry] | None = None
    """New registry, when the command changes it; written in one transaction with the following fields."""
    directive: Directive | None = None
    """To be written."""
    bootstrap: Bootstrap | None = None
    """To be written, if there is none."""
    precheck: Precheck | None = None
    attributions: list[Attribution] = Field(default_factory=list)
    """`resolve`: of all ledgers; otherwise of those with unknown location."""
    failed_ledgers: list[Failure] = Field(default_factory=list)
    promoted_via_rollover_fallback: list[str] = Field(default_factory=list)
    not_promoted: list[str] = Field(default_factory=list)
    """Records whose compare-and-set always lost to others; requesting the switch again retries them."""
    losses: list[Loss] = Field(default_factory=list)
    violations: list[Violation] = Field(default_factory=list)
    unseen: dict[str, str] = Field(default_factory=dict)
    """Of `check`: invariants that the snapshot does not show, or only in part, with the reason."""
    counts: dict[str, int] = Field(default_factory=dict)
    readings: list[BookieReading] = Field(default_factory=list)
    retry: str | None = None
    """The command that retries what failed."""
