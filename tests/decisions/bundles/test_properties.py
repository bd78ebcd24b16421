"""What holds for any cluster: bounds, conservation, equal answers, state through JSON."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from decisions.bundles.averages import add_sample
from decisions.bundles.boundaries import ALGORITHMS, bundle_range, split_boundaries
from decisions.bundles.configuration import DEFAULTS, PLACEMENTS, PROFILES, SHEDDERS, Configuration, ConfigurationError
from decisions.bundles.fixes import FIXES
from decisions.bundles.numbers import java_int, to_float32, wrapped_sum
from schemas.bundles import BundleAnswer, HashedTopicLoad, TimeAverageMessageData, TopicLoad
from tests.decisions.bundles.clusters import answer, broker, cluster, snapshots
from tests.examples import examples

CLOSE_PAIR = cluster({"a": broker(0, [9.0], cpu=50), "b": broker(5, [1.0], cpu=30)}, "AvgShedder")
FULL = "t/n/0x00000000_0xffffffff"
OPERATIONS = st.sampled_from(["shed", "assign", "split", "average", "findBundlesForUnloading", "selectBroker"])


def decided(snapshot):
    try:
        return answer(snapshot)
    except ConfigurationError:
        return None


@given(OPERATIONS.flatmap(snapshots))
def test_answer_deterministic_and_json_round_trips(snapshot):
    """Its state is accepted as the next input."""
    found = decided(snapshot)
    text = found.model_dump_json(by_alias=True, exclude_none=True)
    read = BundleAnswer.model_validate_json(text)
    assert decided(snapshot).model_dump_json(by_alias=True, exclude_none=True) == text
    assert read.model_dump_json(by_alias=True, exclude_none=True) == text
    assert decided(snapshot | {"state": read.state}) is not None
    for one in found.readings:
        if one.margin is not None:
            assert (one.margin >= 0) if one.passed else (one.margin <= 0)


NUMBERS = st.sampled_from([0, 1, -1, 2, 100, 1e-9, 0.5, 1e12, -1e12, 2**31, 2.0**-1074]) | st.floats(-1e12, 1e12)


def values_of(name):
    """Any value that a setting is read with."""
    default = {**DEFAULTS, **dict.fromkeys(FIXES, True)}[name]
    if name == "loadBalancerLoadSheddingStrategy":
        return st.sampled_from(SHEDDERS)
    if name == "loadBalancerLoadPlacementStrategy":
        return st.sampled_from(PLACEMENTS)
    if name == "loadManagerClassName":
        return st.sampled_from(["ModularLoadManagerImpl", "org.apache.pulsar.ExtensibleLoadManagerImpl", ""])
    if name == "defaultNamespaceBundleSplitAlgorithm":
        return st.sampled_from([*ALGORITHMS, "other"])
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, tuple):
        return st.sampled_from(["", "t/n", "t/n,t/m"])
    return NUMBERS.map(int) if isinstance(default, int) else NUMBERS


SETTINGS = st.lists(st.sampled_from([*DEFAULTS, *FIXES]), max_size=12, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: values_of(name) for name in names})
)


@examples(60)
@given(OPERATIONS.flatmap(snapshots), SETTINGS, st.sampled_from([*PROFILES]))
@example(CLOSE_PAIR, {"loadBalancerAvgShedderHitCountHighThreshold": 0}, "5.0")
def test_settings_of_any_value_raise_no_other_error(snapshot, chosen, profile):
    configuration = snapshot["configuration"] | chosen
    found = decided(snapshot | {"configuration": configuration, "profile": profile})
    if found is not None:
        BundleAnswer.model_validate_json(found.model_dump_json(by_alias=True, exclude_none=True))


@given(snapshots())
def test_bundle_moves_once_and_kept_ones_have_reasons(snapshot):
    found = decided(snapshot)
    owner = {one: name for name, broker in snapshot["brokers"].items() for one in broker["lastStats"]}
    moved = [one.bundle for one in found.decisions]
    assert len(moved) == len(set(moved))
    for one in found.decisions:
        assert owner[one.bundle] == one.source_broker
        assert one.destination_broker in {*snapshot["brokers"], None} - {one.source_broker}
        assert one.bundle in found.state.recently_unloaded_bundles
    assert {*moved} <= {one for bundles in found.selected.values() for one in bundles}
    explained = {one.bundle for one in found.readings if not one.passed}
    for source in found.selected:
        if found.strategy in ("OverloadShedder", "ThresholdShedder", "AvgShedder"):
            assert set(snapshot["brokers"][source]["lastStats"]) - {*moved} <= explained


@given(st.lists(st.floats(0, 1e15), min_size=1, max_size=30), st.integers(1, 8))
def test_an_average_stays_within_its_samples(samples, cap):
    average = TimeAverageMessageData(max_samples=cap)
    for sample in samples:
        average = add_sample(average, TopicLoad(msg_rate_in=sample), 10)
    assert min(samples) <= average.msg_rate_in <= max(samples)
    assert average.num_samples == min(cap, len(samples))


def test_a_short_average_is_a_mean_and_then_forgets():
    average, seen = TimeAverageMessageData(max_samples=3), []
    for sample in range(1, 6):
        average = add_sample(average, TopicLoad(msg_rate_in=float(sample)), 10)
        seen.append(round(average.msg_rate_in, 4))
    assert seen == [1, 1.5, 2, 2.6667, 3.4444]


@given(
    st.dictionaries(st.integers(1, 2**32 - 2), st.floats(0, 1000), max_size=12),
    st.sampled_from(["range_equally_divide", "topic_count_equally_divide", "flow_or_qps_equally_divide"]),
    st.integers(1, 3000),
)
def test_boundaries_rise_strictly_inside_the_bundle(hashes, algorithm, most):
    topics = {str(at): HashedTopicLoad(hash=at, msg_rate_in=rate) for at, rate in hashes.items()}
    conf = Configuration({"loadBalancerNamespaceBundleMaxMsgRate": most})
    found = split_boundaries(FULL, algorithm, topics, (), conf) or []
    lower, upper = bundle_range(FULL)
    assert [lower, *found, upper] == sorted({lower, *found, upper})


@given(st.floats(-1e300, 1e300))
def test_numbers_stay_in_javas_ranges(value):
    assert -(2**31) <= java_int(value) < 2**31
    assert to_float32(to_float32(value)) == to_float32(value)
    assert -(2**31) <= wrapped_sum(java_int(value) + 1000) < 2**31
