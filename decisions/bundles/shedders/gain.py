"""GainShedder, of profile `default`: makes the move that most empties the fuller of two brokers.

Bundle and destination are chosen together, on usage as it will be once the moves under way are done. The gain of a move
is by how many points of usage the fuller of the two brokers gets emptier. A move that gains less than
`gainShedderMinGainPercentage` is not made: so each makes the cluster better by that much, and under constant load there
are finitely many. Serves both load managers.
"""

from decisions.bundles import candidates
from decisions.bundles.cluster import ClusterView, never_moved
from decisions.bundles.configuration import GAIN
from decisions.bundles.gates import BundleGate
from decisions.bundles.numbers import INT_MAX
from decisions.bundles.projected import Load, ProjectedBroker
from decisions.bundles.projection import move_bundle, project_loads
from decisions.bundles.shedders import transfer
from schemas.bundles import BundleDecision


def shed_for_gain(cluster: ClusterView) -> list[BundleDecision]:
    """The moves of one cycle, each with its destination."""
    brokers = project_loads(cluster)
    if not cluster.account.measured(BundleGate.BROKERS, len(brokers), ">", 1):
        cluster.memory.gain_hits = 0
        return []
    givers, until = _giving_brokers(cluster, brokers)
    return _best_moves(cluster, brokers, givers, until) if givers else []


def _giving_brokers(cluster: ClusterView, brokers: dict[str, ProjectedBroker]) -> tuple[set[str], float]:
    """Return the brokers that give, and the usage down to which they give.

    These are the brokers far enough above the emptiest, once it has been so for enough cycles in a row; before that,
    the overloaded ones, until they are overloaded no more.
    """
    conf, account, memory = cluster.configuration, cluster.account, cluster.memory
    ordered = sorted(brokers.values(), key=lambda broker: (broker.usage, broker.name))
    emptiest, fullest = ordered[0], ordered[-1]
    least = conf.number("gainShedderSpreadPercentage") / 100
    detail = f"above {emptiest.name}"
    givers = {
        broker.name
        for broker in ordered
        if account.measured(BundleGate.SPREAD, broker.usage - emptiest.usage, ">=", least, broker.name, detail=detail)
    }
    if not givers:
        memory.gain_hits = 0
        return givers, 0.0
    memory.gain_hits = min(INT_MAX, memory.gain_hits + 1)
    idle = conf.number("gainShedderIdlePercentage") / 100 * sum(broker.usage for broker in ordered) / len(ordered)
    if emptiest.usage < idle:
        account.measured(BundleGate.IDLE, emptiest.usage, "<", idle, emptiest.name, detail="filled at once")
        return givers, 0.0
    full = conf.number("loadBalancerBrokerOverloadedThresholdPercentage") / 100
    overloaded = {
        broker
        for broker in sorted(givers)
        if account.measured(BundleGate.OVERLOADED, brokers[broker].usage, ">", full, broker)
    }
    hits = conf.whole("gainShedderHitCount")
    enough = [
        account.measured(BundleGate.HIT_COUNT, memory.gain_hits, ">=", hits, broker.name, detail="cycles in a row")
        for broker in (emptiest, fullest)
    ]
    return (givers, 0.0) if all(enough) else (overloaded, full)


def _best_moves(
    cluster: ClusterView, brokers: dict[str, ProjectedBroker], givers: set[str], until: float
) -> list[BundleDecision]:
    """The best move of the fullest broker that has one, again and again."""
    conf, account = cluster.configuration, cluster.account
    most, target = conf.whole("gainShedderMaxMovesPerCycle"), conf.number("gainShedderRestPercentage") / 100
    movable = {name: _movable_bundles(cluster, brokers[name]) for name in sorted(givers)}
    decisions = list[BundleDecision]()
    while givers:
        ordered = sorted(brokers.values(), key=lambda broker: (broker.usage, broker.name))
        source = next(broker for broker in reversed(ordered) if broker.name in givers)
        if not account.measured(BundleGate.STILL_NEEDED, source.usage - ordered[0].usage, ">", target, source.name):
            break
        if until and not account.measured(BundleGate.OVERLOADED, source.usage, ">", until, source.name):
            break
        if not account.measured(BundleGate.MOVES_PER_CYCLE, len(decisions), "<", most, source.name):
            break
        if (best := _best_move(cluster, source, ordered, movable[source.name])) is None:
            givers.discard(source.name)
            continue
        bundle, destination = best
        move_bundle(cluster, bundle, source.name, destination.name, movable[source.name].pop(bundle))
        cluster.memory.unloaded_bundles[bundle] = cluster.now
        decisions.append(
            BundleDecision(
                action="unload",
                bundle=bundle,
                source_broker=source.name,
                destination_broker=destination.name,
                reason=GAIN,
            )
        )
    return decisions


def _movable_bundles(cluster: ClusterView, source: ProjectedBroker) -> dict[str, Load]:
    """The bundles of a broker that may leave it."""
    account, movable = cluster.account, dict[str, Load]()
    if not account.measured(BundleGate.SOLE_BUNDLE, source.count, ">", 1, source.name):
        return movable
    excluded = cluster.configuration.names("loadBalancerSheddingExcludedNamespaces")
    for bundle, load in source.bundles.items():
        if never_moved(bundle):
            account.held(BundleGate.EXCLUDED, source.name, bundle, "heartbeat or monitor of a broker")
        elif candidates.namespace_of(bundle) in excluded:
            account.held(BundleGate.EXCLUDED, source.name, bundle)
        elif bundle in cluster.memory.unloaded_bundles:
            account.held(BundleGate.RECENTLY_UNLOADED, source.name, bundle)
        elif bundle in cluster.memory.gain_moves:
            account.held(BundleGate.RECENTLY_UNLOADED, source.name, bundle, "no report shows its last move yet")
        elif candidates.stays_isolated(cluster, bundle, source.name):
            continue
        elif not any(load):
            account.measured(BundleGate.HAS_TRAFFIC, 0.0, ">", 0.0, source.name, bundle)
        else:
            movable[bundle] = load
    return movable


def _best_move(
    cluster: ClusterView, source: ProjectedBroker, ordered: list[ProjectedBroker], movable: dict[str, Load]
) -> tuple[str, ProjectedBroker] | None:
    """The permitted bundle and destination with the highest gain; None: each bundle's reason is noted."""
    least = cluster.configuration.number("gainShedderMinGainPercentage") / 100
    usage, best = source.usage, least
    chosen: tuple[str, ProjectedBroker] | None = None
    levels = [(entry.usage, entry) for entry in ordered if entry is not source]
    for bundle, load in sorted(movable.items()):
        without, permitted = source.with_load(load, -1), cluster.cache.permitted.get(bundle)
        if usage - without < best:
            continue
        for level, destination in levels:
            if usage - level <= best:
                break
            if permitted is not None and destination.name not in permitted:
                continue
            gain = usage - max(without, destination.with_load(load))
            if gain < best or (gain == best and chosen is not None):
                continue
            if permitted is None:
                permitted = _permitted_brokers(cluster, bundle, source.name)
            if destination.name in permitted:
                best, chosen = gain, (bundle, destination)
    account = cluster.account
    if chosen is not None:
        account.measured(BundleGate.GAIN, best, ">=", least, source.name, chosen[0], f"to {chosen[1].name}")
        return chosen
    emptiest = ordered[0]
    gains = {
        bundle: (usage - max(source.with_load(load, -1), emptiest.with_load(load)), emptiest.name)
        for bundle, load in sorted(movable.items())
    }
    for bundle, (gain, name) in gains.items():
        if account.measured(BundleGate.GAIN, gain, ">=", least, source.name, bundle, f"to {name}"):
            account.held(BundleGate.TRANSFERABLE, source.name, bundle)
    if gains:
        bundle, (gain, name) = max(gains.items(), key=lambda entry: entry[1][0])
        account.measured(BundleGate.GAIN, gain, ">=", least, source.name, detail=f"{bundle} to {name}")
    return None


def _permitted_brokers(cluster: ClusterView, bundle: str, source: str) -> set[str]:
    """Return the brokers that policies and filters leave for a bundle of `source`, the same all cycle."""
    cache = cluster.cache.permitted
    if bundle not in cache:
        cache[bundle] = _find_permitted(cluster, bundle, source)
    return cache[bundle]


def _find_permitted(cluster: ClusterView, bundle: str, source: str) -> set[str]:
    account = cluster.account
    if (forced := cluster.snapshot.affinity.get(bundle)) is not None:
        return {forced}
    if cluster.configuration.extensible:
        brokers = transfer.filter_brokers(cluster, bundle)
        live: list[str] = transfer.live_brokers(cluster)
    else:
        live = candidates.isolated_brokers(cluster, bundle, cluster.reports)
        brokers = candidates.allowed_by_filters(cluster, bundle, live)
    if candidates.has_policies(cluster, bundle):
        in_group = candidates.namespace_of(bundle) in cluster.snapshot.anti_affinity_groups
        if in_group and (source in brokers or not candidates.unload_spreads(cluster, bundle, source, live)):
            account.held(BundleGate.ANTI_AFFINITY, source, bundle)
            return set()
    return set(brokers)
