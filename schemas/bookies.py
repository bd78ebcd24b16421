"""A switch between BookKeeper clusters as one JSON object: input of `decide` for the family `bookies`.

`decisions.bookkeeper` decides; docs/bookies.md shows how to fill it in. Terms are those of PIP-477. Instants are
milliseconds since 1970, lengths bytes. `schemas.bookie_answers` has the answers.
"""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Millis, Name, Wire

ClusterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
LedgerId = Annotated[int, Field(ge=0, le=2**63 - 1)]
NextId = Annotated[int, Field(ge=0, le=2**63)]
Version = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Version of a znode."""
Path = Annotated[str, Field(min_length=1, max_length=4096)]

Status = Literal["ACTIVE", "STANDBY", "DEPRECATED"]
Kind = Literal["schema", "cursor"]
Routing = Literal["attribution", "stock", "stopped"]
Operation = Literal[
    "next", "status", "register", "unregister", "precheck", "switch", "cleanup", "rollback", "resolve", "check"
]
Phase = Literal[
    "NOT_REGISTERED",
    "REGISTERED",
    "SWITCH_TRIGGERED",
    "LIVE_DUAL_READ",
    "BUILD",
    "PROMOTE",
    "CLEANUP",
    "DONE",
    "DONE_WITH_FAILURES",
    "ROLLED_BACK",
]


class ClusterEntry(Wire):
    """A registered BookKeeper cluster."""

    name: ClusterName
    metadata_service_uri: Name
    """`zk+hierarchical://host:port/ledgers`."""
    status: Status = "STANDBY"
    instance: Name | None = None
    """INSTANCEID of the cluster at its registration. Absent: registered without."""
    version: Version = 0


class Bootstrap(Wire):
    """Cluster of unstamped ledgers that are older than this record. Written once (I17)."""

    bootstrap_cluster_name: ClusterName
    recorded_at: Millis


class Directive(Wire):
    """The operator's latest request."""

    kind: Literal["switch", "rollback"] = "switch"
    source: ClusterName
    target: ClusterName
    """Target; of a rollback: the cluster to return to."""
    epoch: Annotated[int, Field(ge=1, le=2**53)] = 1
    attempt: Annotated[int, Field(ge=1, le=2**31)] = 1
    """Incremented when the same switch is requested again, which retries failures."""
    ts: Millis = 0
    origin: str = ""
    """Person who requested it."""
    target_ids_from: NextId | None = None
    """The target's next id at the time of the request; the source must stay below."""
    version: Version = 0


class Generators(Wire):
    """Ledger ids and identity of a BookKeeper cluster, if reachable."""

    short: NextId = 0
    """Next id of 31 bits; 0: none assigned yet."""
    long: NextId | None = None
    """Next long id; absent: there is no long generator yet, and ids are short."""
    largest: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    """Largest id in use. Absent: that of `ledgers`, where they are listed."""
    instance: Name | None = None
    """INSTANCEID in the cluster's metadata. Absent: not read."""
    reachable: bool = True
    """False: the other fields do not count."""
    error: str | None = None


class LedgerSeen(Wire):
    """A ledger of one cluster, read without recovery."""

    id: LedgerId
    closed: bool = True
    last: Annotated[int, Field(ge=-1)] = -1
    """Number of the last entry; -1: empty."""
    length: Annotated[int, Field(ge=0)] = 0
    readable: bool = True
    """False: an entry or the metadata could not be read."""
    error: str | None = None
    sha256: str | None = None
    """Digest of the whole contents, if they were read."""
    custom: dict[str, str] | None = None
    quorums: list[int] | None = None
    """Ensemble, write and ack quorum."""
    created_at: Millis | None = None


class Position(Wire):
    """Location of one version of a schema."""

    version: int = 0
    """Version of the schema."""
    ledger: LedgerId
    entry: Annotated[int, Field(ge=0)] = 0
    stamp: str | None = None
    """`NAME` or `NAME:LEDGER`, under `_pulsar.bookieClusterName`."""
    created_at: Millis | None = None
    """Absent: that of the ledger itself."""
    hash: str | None = None


class SchemaRecord(Wire):
    """Locator of a schema."""

    path: Path
    version: Version = 0
    positions: list[Position] = Field(default_factory=list)
    error: str | None = None
    """Reason for which it could not be read."""


class CursorRecord(Wire):
    """Znode of a subscription."""

    path: Path
    """`/managed-ledgers/tenant/namespace/persistent/topic/subscription`."""
    version: Version = 0
    ledger: Annotated[int, Field(ge=-1, le=2**63 - 1)]
    """-1: the position is in the znode, and there is nothing to copy."""
    stamp: str | None = None
    created_at: Millis | None = None
    owner: str | None = None
    """Broker that has its topic loaded; absent: none."""
    mark_delete: list[int] | None = None
    individually_deleted: str | None = None
    """Digest of the holes and batch indexes in the znode."""
    properties: dict[str, str] = Field(default_factory=dict)
    """Cursor properties, without the stamp."""
    error: str | None = None


class DataLedger(Wire):
    """A ledger of a topic's messages. Never copied."""

    id: LedgerId
    stamp: str | None = None
    created_at: Millis | None = None


class TopicRecord(Wire):
    """Znode of a topic."""

    path: Path
    version: Version = 0
    ledgers: list[DataLedger] = Field(default_factory=list)
    error: str | None = None


class Copy(Wire):
    """A copied ledger with verified contents, in record order."""

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
    """An attribution changed by this switch."""

    kind: Kind
    object: Path
    ledger: LedgerId
    by: Literal["compare-and-set", "owner", "rollover"] = "compare-and-set"
    loaded: bool = False
    """True if a broker had the topic loaded at the time."""


class Progress(Wire):
    """Progress of the directive's steps, from the table `outcomes`; ignored if of another epoch."""

    epoch: Annotated[int, Field(ge=1, le=2**53)] = 1
    begun: list[LedgerId] = Field(default_factory=list)
    """Ledgers whose copy was begun; it may be partial."""
    verified: list[Copy] = Field(default_factory=list)
    failed: list[Failure] = Field(default_factory=list)
    promoted: list[Promotion] = Field(default_factory=list)
    tries: dict[Path, Count] = Field(default_factory=dict)
    """By object: steps on its record lost to others in this attempt."""
    in_flight: list[Path] = Field(default_factory=list)
    """Objects with work in progress."""
    deleting: dict[ClusterName, list[LedgerId]] = Field(default_factory=dict)
    """By cluster: ledgers with an unfinished deletion, left by a killed cleanup."""
    promoted_at: Millis | None = None
    """Time of the last promotion, from which the windows count."""


class StepTaken(Wire):
    """An executed step, in order; for the check of invariants."""

    epoch: Annotated[int, Field(ge=1, le=2**53)]
    token: Annotated[int, Field(ge=0)]
    """Token of the orchestrator's lease; later ones are larger."""
    kind: str
    object: Path
    action: str
    ledger: LedgerId | None = None
    cluster: ClusterName | None = None
    version: Version | None = None
    """Version of the record's znode after the step."""


class Orchestrator(Wire):
    """Holder of a switch's execution."""

    holder: Name
    token: Annotated[int, Field(ge=0)] = 0
    until: Millis
    """End of its lease."""


class BrokerSeen(Wire):
    """A broker that routes by attribution, as it reports itself."""

    name: Name
    epoch: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Epoch of the last directive that it has adopted."""
    active: ClusterName | None = None
    """Cluster for its new ledgers."""
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
    """For experiments: accept a target whose ids are not beyond the source's."""
    max_tries: Annotated[int, Field(ge=1, le=1000)] = 5


class Request(Wire):
    """The operator's request, by operation."""

    name: ClusterName | None = None
    """`register`, `unregister`."""
    metadata_service_uri: Name | None = None
    """`register`."""
    status: Status | None = None
    """`register`. Absent: ACTIVE for the first cluster, otherwise STANDBY, or unchanged."""
    target: ClusterName | None = None
    """`precheck`, `switch`."""
    origin: str = ""
    dry_run: bool = True
    """`cleanup`, `rollback`: only report what would be done."""
    src_cluster_filter: ClusterName | None = None
    """`cleanup`: delete from this cluster. Absent: from the directive's source."""
    max_deletions: Annotated[int, Field(ge=0)] = 0
    """`cleanup`: 0 is all."""
    force: bool = False
    """`cleanup`, `rollback`: ignore the window. Ledgers that a record names are never deleted."""
    accept_loss: bool = False
    """`rollback`: even if data stays behind."""


class BookieMetadata(Wire):
    """Metadata common to a snapshot and to the earlier state for `check`."""

    clusters: list[ClusterEntry] = Field(default_factory=list)
    bootstrap: Bootstrap | None = None
    schemas: list[SchemaRecord] = Field(default_factory=list)
    cursors: list[CursorRecord] = Field(default_factory=list)
    topics: list[TopicRecord] = Field(default_factory=list)


class BookieSnapshot(BookieMetadata):
    """Full input of one evaluation of a switch."""

    family: Literal["bookies"] = "bookies"
    cluster: Name = "standalone"
    """The Pulsar cluster."""
    now: Millis
    operation: Operation = "next"
    """`next`: the orchestrator's next steps. `status`: the same, without steps.

    `register` to `rollback`: the effect of the command of that name with `request`. `resolve`: the location of each
    ledger. `check`: the invariants I1 to I17.
    """
    request: Request = Request()
    directive: Directive | None = None
    progress: Progress = Progress()
    generators: dict[ClusterName, Generators] = Field(default_factory=dict)
    ledgers: dict[ClusterName, list[LedgerSeen]] = Field(default_factory=dict)
    """By cluster: all of its ledgers. Clusters without an entry were not listed.

    Nothing is assumed about their ledgers.
    """
    data_ledgers: dict[ClusterName, Count] = Field(default_factory=dict)
    """By cluster: topics' data ledgers besides those in `topics`, attributed to it and present there."""
    orchestrator: Orchestrator | None = None
    self_name: Annotated[Name | None, Field(alias="self")] = None
    """The caller. With `orchestrator`, only the holder of the lease gets steps."""
    routing: Routing = "attribution"
    """Kind of brokers: by attribution (PIP-477), one cluster only (all releases so far), or stopped."""
    registered_brokers: list[Name] | None = None
    """Brokers registered in Pulsar's metadata, so running. Absent: not read."""
    brokers: list[BrokerSeen] = Field(default_factory=list)
    settings: SwitchSettings = SwitchSettings()
    before: BookieMetadata | None = None
    """For `check`: the same metadata at an earlier instant."""
    handles: list[Handle] = Field(default_factory=list)
    """For `check`."""
    steps: list[StepTaken] = Field(default_factory=list)
    """For `check`."""
