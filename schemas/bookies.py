"""A switch between BookKeeper clusters as one JSON object: what `anabranch decide` reads for the family `bookies`.

`decisions.bookies` decides; docs/bookies.md shows how to fill it in. Words are those of PIP-477. Instants are
milliseconds since 1970, lengths bytes. What an answer says is in `schemas.bookie_answers`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Millis, Name, Wire

ClusterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
LedgerId = Annotated[int, Field(ge=0, le=2**63 - 1)]
NextId = Annotated[int, Field(ge=0, le=2**63)]
Version = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Of a znode."""
Path = Annotated[str, Field(min_length=1, max_length=4096)]

Status = Literal["ACTIVE", "STANDBY", "DEPRECATED"]
Kind = Literal["schema", "cursor"]
Routing = Literal["attribution", "stock", "stopped"]
Operation = Literal[
    "next", "status", "register", "unregister", "precheck", "switch", "cleanup", "rollback", "resolve", "check"
]
Phase = Literal[
    "NOT_REGISTERED", "REGISTERED", "SWITCH_TRIGGERED", "LIVE_DUAL_READ", "BUILD", "PROMOTE", "CLEANUP", "DONE",
    "DONE_WITH_FAILURES", "ROLLED_BACK",
]  # fmt: skip


class ClusterEntry(Wire):
    """A BookKeeper cluster of the registry."""

    name: ClusterName
    metadata_service_uri: Name
    """`zk+hierarchical://host:port/ledgers`."""
    status: Status = "STANDBY"
    instance: Name | None = None
    """INSTANCEID of the cluster when it was registered. Absent: it was registered without."""
    version: Version = 0


class Bootstrap(Wire):
    """Where ledgers without a stamp are that were made before it was recorded. Written once (I17)."""

    bootstrap_cluster_name: ClusterName
    recorded_at: Millis


class Directive(Wire):
    """What an operator has asked for last."""

    kind: Literal["switch", "rollback"] = "switch"
    source: ClusterName
    target: ClusterName
    """Of a rollback: the cluster that everything goes back to."""
    epoch: Annotated[int, Field(ge=1, le=2**53)] = 1
    attempt: Annotated[int, Field(ge=1, le=2**31)] = 1
    """Goes up when the same switch is asked for again: what failed is then tried again."""
    ts: Millis = 0
    origin: str = ""
    """Who asked."""
    target_ids_from: NextId | None = None
    """The first id that the target could give when this was asked; the source must stay below."""
    version: Version = 0


class Generators(Wire):
    """Ledger ids and identity of a BookKeeper cluster, if it can be reached at all."""

    short: NextId = 0
    """The next id of 31 bits; 0: none was given yet."""
    long: NextId | None = None
    """The next long id; absent: there is no long generator yet, ids are short."""
    largest: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    """The largest id in use. Absent: that of `ledgers`, where they are listed."""
    instance: Name | None = None
    """INSTANCEID in the cluster's metadata. Absent: it was not looked at."""
    reachable: bool = True
    """False: nothing else that is said here counts."""
    error: str | None = None


class LedgerSeen(Wire):
    """A ledger of one cluster, as a look without recovery shows it."""

    id: LedgerId
    closed: bool = True
    last: Annotated[int, Field(ge=-1)] = -1
    """Number of the last entry; -1: empty."""
    length: Annotated[int, Field(ge=0)] = 0
    readable: bool = True
    """False: an entry of it, or its metadata, could not be read."""
    error: str | None = None
    sha256: str | None = None
    """Of all contents, when they were read."""
    custom: dict[str, str] | None = None
    quorums: list[int] | None = None
    """Ensemble, write and ack quorum."""
    created_at: Millis | None = None


class Position(Wire):
    """Where one version of a schema is."""

    version: int = 0
    """Of the schema."""
    ledger: LedgerId
    entry: Annotated[int, Field(ge=0)] = 0
    stamp: str | None = None
    """`NAME` or `NAME:LEDGER`, under `_pulsar.bookieClusterName`."""
    created_at: Millis | None = None
    """Absent: that of the ledger itself."""
    hash: str | None = None


class SchemaRecord(Wire):
    """A schema's locator."""

    path: Path
    version: Version = 0
    positions: list[Position] = Field(default_factory=list)
    error: str | None = None
    """Why it could not be read."""


class CursorRecord(Wire):
    """A subscription's znode."""

    path: Path
    """`/managed-ledgers/tenant/namespace/persistent/topic/subscription`."""
    version: Version = 0
    ledger: Annotated[int, Field(ge=-1, le=2**63 - 1)]
    """-1: the position is in the znode, and there is nothing to copy."""
    stamp: str | None = None
    created_at: Millis | None = None
    owner: str | None = None
    """The broker that has its topic loaded; absent: none."""
    mark_delete: list[int] | None = None
    individually_deleted: str | None = None
    """The holes and batch indexes in the znode, as a digest."""
    properties: dict[str, str] = Field(default_factory=dict)
    """The cursor properties, without the stamp."""
    error: str | None = None


class DataLedger(Wire):
    """A ledger of a topic's messages. Never copied."""

    id: LedgerId
    stamp: str | None = None
    created_at: Millis | None = None


class TopicRecord(Wire):
    """A topic's znode."""

    path: Path
    version: Version = 0
    ledgers: list[DataLedger] = Field(default_factory=list)
    error: str | None = None


class Copy(Wire):
    """A ledger that was copied and whose contents were compared, in the order of the record."""

    kind: Kind
    object: Path
    ledger: LedgerId
    last: Annotated[int, Field(ge=-1)] = -1
    length: Annotated[int, Field(ge=0)] = 0
    sha256: str | None = None


class Failure(Wire):
    """A ledger that could not be copied."""

    kind: Kind
    object: Path
    ledger: LedgerId
    reason: str
    attempt: Annotated[int, Field(ge=1, le=2**31)] = 1


class Promotion(Wire):
    """An attribution that was changed by this switch."""

    kind: Kind
    object: Path
    ledger: LedgerId
    by: Literal["compare-and-set", "owner", "rollover"] = "compare-and-set"
    loaded: bool = False
    """Whether a broker had the topic loaded then."""


class Progress(Wire):
    """What the directive's steps have come to, from the table `outcomes`; of another epoch it is not looked at."""

    epoch: Annotated[int, Field(ge=1, le=2**53)] = 1
    begun: list[LedgerId] = Field(default_factory=list)
    """Ledgers whose copy was begun: what is there under the id may be half of it."""
    verified: list[Copy] = Field(default_factory=list)
    failed: list[Failure] = Field(default_factory=list)
    promoted: list[Promotion] = Field(default_factory=list)
    tries: dict[Path, Count] = Field(default_factory=dict)
    """By object: how often a step on its record was lost to others in this attempt."""
    in_flight: list[Path] = Field(default_factory=list)
    """Objects that are worked on now."""
    deleting: dict[ClusterName, list[LedgerId]] = Field(default_factory=dict)
    """By cluster: ledgers whose deletion was begun and has not ended, so a cleanup was killed."""
    promoted_at: Millis | None = None
    """Of the last promotion: the windows begin here."""


class StepTaken(Wire):
    """A step that was carried out, in its order; for the check of invariants."""

    epoch: Annotated[int, Field(ge=1, le=2**53)]
    token: Annotated[int, Field(ge=0)]
    """Of the orchestrator's lease: the later one has the larger."""
    kind: str
    object: Path
    action: str
    ledger: LedgerId | None = None
    cluster: ClusterName | None = None
    version: Version | None = None
    """Of the record's znode after it."""


class Orchestrator(Wire):
    """Who carries a switch out."""

    holder: Name
    token: Annotated[int, Field(ge=0)] = 0
    until: Millis
    """The end of its lease."""


class BrokerSeen(Wire):
    """A broker that routes by attribution, as it reports itself."""

    name: Name
    epoch: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Of the last directive that it has taken up."""
    active: ClusterName | None = None
    """Where it makes new ledgers."""
    target_client: bool = True
    """False: its client of the target does not start."""
    error: str | None = None


class Handle(Wire):
    """A ledger that a broker has open."""

    broker: Name
    ledger: LedgerId
    opened_on: ClusterName
    reads_from: ClusterName
    client_closed: bool = False


class SwitchSettings(Wire):
    """`bookieClusterSwitch.*` of PIP-477."""

    dual_read_timeout_days: Annotated[float, Field(ge=0, le=36_500)] = 15
    rollback_window_hours: Annotated[float, Field(ge=0, le=876_000)] = 24
    migration_concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    skip_idgen_precheck: bool = False
    """For laboratories: a target whose ids are not beyond the source's is taken."""
    max_tries: Annotated[int, Field(ge=1, le=1000)] = 5


class Request(Wire):
    """What an operator asks for, by the operation."""

    name: ClusterName | None = None
    """`register`, `unregister`."""
    metadata_service_uri: Name | None = None
    """`register`."""
    status: Status | None = None
    """`register`. Absent: ACTIVE for the first cluster, else STANDBY, or what it is."""
    target: ClusterName | None = None
    """`precheck`, `switch`."""
    origin: str = ""
    dry_run: bool = True
    """`cleanup`, `rollback`: say only what would be done."""
    src_cluster_filter: ClusterName | None = None
    """`cleanup`: delete from this cluster. Absent: from the directive's source."""
    max_deletions: Annotated[int, Field(ge=0)] = 0
    """`cleanup`: 0 is all."""
    force: bool = False
    """`cleanup`, `rollback`: whatever the window. What a record names is never deleted."""
    accept_loss: bool = False
    """`rollback`: although something stays behind."""


class BookieMetadata(Wire):
    """What a snapshot, and the earlier state beside it for `check`, both have."""

    clusters: list[ClusterEntry] = Field(default_factory=list)
    bootstrap: Bootstrap | None = None
    schemas: list[SchemaRecord] = Field(default_factory=list)
    cursors: list[CursorRecord] = Field(default_factory=list)
    topics: list[TopicRecord] = Field(default_factory=list)


class BookieSnapshot(BookieMetadata):
    """Everything that one evaluation of a switch sees."""

    family: Literal["bookies"] = "bookies"
    cluster: Name = "standalone"
    """The Pulsar cluster."""
    now: Millis
    operation: Operation = "next"
    """`next`: the orchestrator's next steps. `status`: the same, without steps. `register` to `rollback`: what the
    command of that name would do with `request`. `resolve`: where each ledger is. `check`: the invariants I1 to I17."""
    request: Request = Request()
    directive: Directive | None = None
    progress: Progress = Progress()
    generators: dict[ClusterName, Generators] = Field(default_factory=dict)
    ledgers: dict[ClusterName, list[LedgerSeen]] = Field(default_factory=dict)
    """By cluster: all of its ledgers. A cluster that is not in it was not listed: nothing is said of its ledgers."""
    data_ledgers: dict[ClusterName, Count] = Field(default_factory=dict)
    """By cluster: topics' data ledgers beside those in `topics`, attributed to it and there."""
    orchestrator: Orchestrator | None = None
    self_name: Annotated[Name | None, Field(alias="self")] = None
    """Who asks. With `orchestrator`: steps are only for who holds the lease."""
    routing: Routing = "attribution"
    """What brokers do: go by attributions (PIP-477), know one cluster only (all releases so far), or are stopped."""
    registered_brokers: list[Name] | None = None
    """Brokers that are registered in Pulsar's metadata now, so they run. Absent: this was not looked at."""
    brokers: list[BrokerSeen] = Field(default_factory=list)
    settings: SwitchSettings = SwitchSettings()
    before: BookieMetadata | None = None
    """For `check`: the same metadata at an earlier instant."""
    handles: list[Handle] = Field(default_factory=list)
    """For `check`."""
    steps: list[StepTaken] = Field(default_factory=list)
    """For `check`."""
