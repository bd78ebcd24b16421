"""Rejection of the family's messages beyond their models: dated ahead, or with meaningless numbers.

Stage: the first of a message, after `engine.kernel.parsing`; looks at one message only. Unusable policies are not
rejected: they are the newest message about their cluster and hold it (`engine.bundles.cycle`).
"""

from engine.kernel.family import Reading, read_unchanged
from schemas.kafka.broker_messages import (
    BalancerPolicies,
    BrokerLoadReport,
    BundleOwnership,
    LiveBrokers,
    LocalBrokerReport,
    Report,
)
from schemas.kafka.messages import MAX_CLOCK_AHEAD_MS, OutcomeEvent, Rejected, RejectReason

MAX_SHARE = 1000.0
"""Largest plausible ratio of a resource's usage to its limit."""


def read_report(report: Report, now: int) -> Report | Rejected:
    """Return a report, or reject it if dated ahead of `now` or with implausible usage.

    `now` is the later of Kafka's time and the batch's. A report dated ahead would block later ones until then.
    """
    if (refused := _refuse_future(report.last_update, now, "its lastUpdate")) is not None:
        return refused
    data = report.data
    for name in ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out"):
        resource = getattr(data, name)
        if resource.limit > 0 and resource.usage / resource.limit > MAX_SHARE:
            return Rejected(RejectReason.INVALID, f"data.{name}: {resource.usage:g} of {resource.limit:g} is used")
    return report


def read_policies(policies: BalancerPolicies, now: int) -> BalancerPolicies | Rejected:
    """Return policies, or reject them if dated ahead; unreadable ones hold the cluster in its cycle."""
    return _refuse_future(policies.at, now, "at") or policies


def read_circumstance(message: BundleOwnership | LiveBrokers, now: int) -> BundleOwnership | LiveBrokers | Rejected:
    """Return another message about a cluster, or reject it if dated ahead."""
    return _refuse_future(message.at, now, "at") or message


def _refuse_future(instant: int, now: int, subject: str) -> Rejected | None:
    if instant <= now + MAX_CLOCK_AHEAD_MS:
        return None
    return Rejected(
        RejectReason.FROM_THE_FUTURE, f"{subject} is {(instant - now) // 1000} s ahead of Kafka's clock and ours"
    )


READINGS: dict[type, Reading] = {
    LocalBrokerReport: read_report,
    BrokerLoadReport: read_report,
    BundleOwnership: read_circumstance,
    LiveBrokers: read_circumstance,
    BalancerPolicies: read_policies,
    OutcomeEvent: read_unchanged,
}
"""Reader by message model."""
