"""Registry of BookKeeper clusters: registering, unregistering, and the change of the ACTIVE one.

Stage: beside `switching`. That change is one transaction. Source: PIP-477 "Register", I12; DELETE refuses also for a
cluster that still owns ledgers.
"""

from decisions.bookkeeper.account import BAD, UNKNOWN, BookieAccount
from decisions.bookkeeper.gates import BookieGate
from decisions.bookkeeper.ids import require_distinct
from decisions.bookkeeper.seen import BookieView
from decisions.bookkeeper.uris import BadUri, read_uri, share_metadata
from schemas.bookie_answers import Step
from schemas.bookies import ClusterEntry, Phase, Status

RESERVED = frozenset({"switch-target", "bootstrap", "orchestrator"})
"""Names of what is beside the clusters in the metadata store (PIP-477 "Metadata nodes")."""


def flip_active(seen: BookieView, active: str, former: Status) -> list[ClusterEntry]:
    """The registry with one ACTIVE cluster; one that was is `former` now."""
    return [
        entry.model_copy(
            update={
                "status": "ACTIVE" if entry.name == active else former if entry.status == "ACTIVE" else entry.status
            }
        )
        for entry in seen.clusters.values()
    ]


def flip_step(seen: BookieView, after: list[ClusterEntry], epoch: int, phase: Phase, reason: str) -> Step:
    """All statuses that change, in one transaction: a reader sees one ACTIVE before it and one after it."""
    changed = {entry.name: entry.status for entry in after if seen.clusters[entry.name].status != entry.status}
    return Step(
        epoch=epoch,
        phase=phase,
        kind="registry",
        object=",".join(sorted(changed)),
        action="flip_status",
        expectation={
            "versions": {name: seen.clusters[name].version for name in sorted(changed)},
            "statuses": {name: changed[name] for name in sorted(changed)},
        },
        reason=reason,
    )


def register_cluster(seen: BookieView, account: BookieAccount) -> list[ClusterEntry] | None:
    """The registry with the cluster of the request, or None when a gate holds."""
    request = seen.snapshot.request
    name, uri = request.name, request.metadata_service_uri
    there = seen.clusters.get(name or "")
    if not account.require(
        BookieGate.REQUEST,
        name is not None and (uri is not None or there is not None),
        "register needs --name and --metadata-service-uri",
        BAD,
    ):
        return None
    assert name is not None
    if not account.require(
        BookieGate.REQUEST,
        name not in RESERVED,
        f"{name} is a name that the registry itself needs: give another one",
        BAD,
    ):
        return None
    if uri is None:
        assert there is not None
        uri = there.metadata_service_uri
    try:
        service = read_uri(uri)
    except BadUri as error:
        account.require(BookieGate.URI, False, str(error), BAD)
        return None
    account.require(BookieGate.URI, True)
    for other in seen.clusters.values():
        if other.name != name and not account.require(
            BookieGate.URI_FREE,
            not share_metadata(service, read_uri(other.metadata_service_uri)),
            f"{other.name} has {other.metadata_service_uri}: give {name} a root of its own on that ensemble",
            BAD,
        ):
            return None
    if there is not None and not account.require(
        BookieGate.URI_FIXED,
        read_uri(there.metadata_service_uri) == service,
        f"{name} is registered with {there.metadata_service_uri}: give the new one another name",
    ):
        return None
    if not _is_its_own(seen, account, name, is_new=there is None):
        return None
    status = request.status or (there.status if there else "STANDBY" if seen.clusters else "ACTIVE")
    if not _may_have(seen, account, name, status):
        return None
    entry = ClusterEntry(
        name=name,
        metadata_service_uri=uri,
        status=status,
        version=there.version if there else 0,
        instance=next(iter(sorted(seen.instances(name))), None),
    )
    remaining = [cluster for cluster in seen.clusters.values() if cluster.name != name]
    if status == "ACTIVE":
        remaining = [
            cluster.model_copy(update={"status": "DEPRECATED"}) if cluster.status == "ACTIVE" else cluster
            for cluster in remaining
        ]
    return [*remaining, entry]


def unregister_cluster(seen: BookieView, account: BookieAccount) -> list[ClusterEntry] | None:
    """The registry without the cluster of the request, or None when a gate holds."""
    name = seen.snapshot.request.name
    if not account.require(BookieGate.REQUEST, name is not None, "unregister needs --name", BAD):
        return None
    if (there := seen.clusters.get(name or "")) is None:
        account.require(BookieGate.REGISTERED, False, f"{name} is not registered", UNKNOWN)
        return None
    account.require(
        BookieGate.NOT_ACTIVE, there.status != "ACTIVE", f"{name} is ACTIVE: switch to another cluster first"
    )
    named = sum(1 for item in seen.items if item.cluster == name) + seen.snapshot.data_ledgers.get(there.name, 0)
    account.require(
        BookieGate.NOTHING_NAMES_IT,
        not named,
        f"{named} ledgers on record are attributed to {name}, data ledgers included: they could not be read any more",
        measured=float(named),
        limit=0.0,
    )
    foreign = seen.of_another_use(there.name)
    account.require(
        BookieGate.NOTHING_NAMES_IT,
        not foreign,
        f"{len(foreign)} ledgers on {name} are those of compacted topics, delayed messages or another use, such as "
        f"{foreign[0][1]} ({foreign[0][0]}): they are never copied, and could not be read any more"
        if foreign
        else None,
        measured=float(len(foreign)),
        limit=0.0,
    )
    account.require(
        BookieGate.LISTED,
        seen.listed(there.name) or not seen.beside(),
        f"the ledgers of {name} were not listed: it may have those of compacted topics or delayed messages",
    )
    unknown = seen.unknown()
    account.require(
        BookieGate.ATTRIBUTION,
        not unknown,
        f"nobody knows where {len(unknown)} ledgers are, such as {unknown[0].ledger} of {unknown[0].object}: they may "
        f"be on {name}"
        if unknown
        else None,
    )
    return None if account.binding else [entry for entry in seen.clusters.values() if entry.name != name]


def _is_its_own(seen: BookieView, account: BookieAccount, name: str, is_new: bool) -> bool:
    """Require, by instance ids, that no other name has this cluster; addresses may be aliases."""
    looked, other_names = seen.snapshot.generators, [cluster for cluster in seen.clusters if cluster != name]
    unknown = [
        cluster
        for cluster in (name, *other_names)
        if is_new and cluster in looked and not looked[cluster].reachable and not seen.instances(cluster)
    ]
    return account.require(
        BookieGate.INSTANCE,
        not unknown,
        f"the instance id of {unknown[0]} cannot be read, so nobody knows whether {name} is a cluster of its own: "
        f"{looked[unknown[0]].error}"
        if unknown
        else None,
    ) and all(require_distinct(seen, account, name, *pair) for pair in ((), *((cluster,) for cluster in other_names)))


def _may_have(seen: BookieView, account: BookieAccount, name: str, status: Status) -> bool:
    """Tell if exactly one cluster is ACTIVE afterwards; only `switch` changes which."""
    active = [cluster for cluster in seen.active if cluster != name]
    directive = seen.snapshot.directive
    if status != "ACTIVE":
        detail = (
            "the first cluster is ACTIVE"
            if not seen.clusters
            else f"{name} would leave no cluster ACTIVE: switch first"
        )
        return account.require(BookieGate.ONE_ACTIVE, len(active) >= 1, detail)
    # Reconciling is allowed: none or several are ACTIVE, or the last switch has this target.
    asked = directive is not None and directive.target == name
    repairs = len(seen.active) != 1 and (directive is None or asked)
    return account.require(
        BookieGate.ONE_ACTIVE,
        not active or asked or repairs,
        f"{', '.join(active)} is ACTIVE: 'anabranch bookies switch --target {name}' changes that, with its precheck",
    )
