"""Memory of the balancer between cycles: from a snapshot's state, through the rules, into the answer.

Stage: under `decide` and `cluster`; `engine.bundles.clusters` keeps it between cycles.
"""

from dataclasses import dataclass, field

from schemas.bundles import BalancerState, BundleData, GainCost, GainMemory, GainMove, HitCounts


@dataclass(slots=True)
class BalancerMemory:
    """Memory of the balancer between cycles, open to changes."""

    unloaded_bundles: dict[str, int] = field(default_factory=dict)
    unloaded_brokers: dict[str, int] = field(default_factory=dict)
    threshold_usage: dict[str, float] = field(default_factory=dict)
    placement_usage: dict[str, float] = field(default_factory=dict)
    hits_low: dict[str, int] = field(default_factory=dict)
    hits_high: dict[str, int] = field(default_factory=dict)
    plan: dict[str, str] = field(default_factory=dict)
    transfer_hits: int = 0
    preallocated: dict[str, dict[str, BundleData]] = field(default_factory=dict)
    round_robin: list[str] = field(default_factory=list)
    round_robin_count: int = 0
    split_hits: dict[str, int] = field(default_factory=dict)
    averages: dict[str, BundleData] = field(default_factory=dict)
    gain_hits: int = 0
    gain_costs: dict[str, GainCost] = field(default_factory=dict)
    gain_moves: dict[str, GainMove] = field(default_factory=dict)


def load_memory(state: BalancerState) -> BalancerMemory:
    """The state of a snapshot, copied."""
    gain = state.gain_shedder or GainMemory()
    return BalancerMemory(
        dict(state.recently_unloaded_bundles),
        dict(state.recently_unloaded_brokers),
        dict(state.broker_avg_resource_usage),
        dict(state.broker_avg_resource_usage_with_weight),
        dict(state.avg_shedder.broker_hit_count_for_low),
        dict(state.avg_shedder.broker_hit_count_for_high),
        dict(state.avg_shedder.bundle_broker_map),
        state.unload_condition_hit_count,
        {broker: dict(bundles) for broker, bundles in state.preallocated_bundle_data.items()},
        list(state.round_robin_brokers),
        state.round_robin_count,
        dict(state.bundle_split_hit_counts),
        gain_hits=gain.hits,
        gain_costs=dict(gain.costs),
        gain_moves=dict(gain.moves),
    )


def save_memory(memory: BalancerMemory) -> BalancerState:
    """The state for an answer."""
    gain = GainMemory.model_construct(hits=memory.gain_hits, costs=memory.gain_costs, moves=memory.gain_moves)
    return BalancerState.model_construct(
        recently_unloaded_bundles=memory.unloaded_bundles,
        recently_unloaded_brokers=memory.unloaded_brokers,
        broker_avg_resource_usage=memory.threshold_usage,
        broker_avg_resource_usage_with_weight=memory.placement_usage,
        avg_shedder=HitCounts.model_construct(
            broker_hit_count_for_low=memory.hits_low,
            broker_hit_count_for_high=memory.hits_high,
            bundle_broker_map=memory.plan,
        ),
        unload_condition_hit_count=memory.transfer_hits,
        preallocated_bundle_data=memory.preallocated,
        round_robin_brokers=memory.round_robin,
        round_robin_count=memory.round_robin_count,
        bundle_split_hit_counts=memory.split_hits,
        bundles=memory.averages,
        gain_shedder=gain if memory.gain_hits or memory.gain_moves or memory.gain_costs else None,
    )
