"""Load reports as brokers publish them to one another, in place of what each says of itself by REST.

Stage: under `bundles`, with `[bundles] load_reports = "published"`. The modular load manager writes its reports and its
leader's averages into the metadata store; the extensible one sends its load data to two topics. Both have asked
Pulsar's own rule before they published, so these reports count however little they have changed. What cannot be read
is unknown: nothing is put in its place, and the cluster is held (`BundleRounds.read`).
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from pydantic import ValidationError

from anabranch.admin.load_data import NoLoadData
from schemas.base import Wire
from schemas.bundles import BrokerLoadData, BundleData, LocalBrokerData, TopBundlesLoadData
from schemas.kafka.broker_messages import BrokerLoadReport, LocalBrokerReport, Report

WireT = TypeVar("WireT", bound=Wire)

REPORTS, AVERAGES = "/loadbalance/brokers", "/loadbalance/bundle-data"
"""Below: `HOST:PORT` of a broker; `TENANT/NAMESPACE/RANGE` of a bundle."""


class UnknownLoad(Exception):
    """A broker's load cannot be read; the message says why."""


class Newest(Protocol):
    """A topic of load data."""

    def newest(self, key: str) -> bytes:
        """Return the newest value of a broker. Raises `NoLoadData`."""
        ...


class PublishedLoads:
    """Reader of the loads that brokers publish; for several threads at once."""

    def __init__(self, read_nodes: Callable[[Iterable[str]], list[bytes | None]], loads: Newest, tops: Newest) -> None:
        """`read_nodes` answers the contents of znodes, None where there is none, and raises `UnknownLoad`."""
        self._read_nodes, self._loads, self._tops = read_nodes, loads, tops

    def read_local(self, cluster: str, broker: str, now: int) -> LocalBrokerReport:
        """Return the report that the modular manager's leader sees, with its averages of the bundles."""
        [stored] = self._read_nodes([f"{REPORTS}/{broker}"])
        if stored is None:
            raise UnknownLoad(f"there is no {REPORTS}/{broker} in the metadata store")
        data = _parse_report(LocalBrokerData, stored, f"{REPORTS}/{broker}")
        names = sorted(data.last_stats)
        contents = self._read_nodes([f"{AVERAGES}/{name}" for name in names])
        averages = {
            name: _parse_report(BundleData, content, f"{AVERAGES}/{name}")
            for name, content in zip(names, contents, strict=True)
            if content is not None
        }
        return LocalBrokerReport(
            v=1,
            type="local-broker-data",
            cluster=cluster,
            broker=broker,
            data=data,
            forced=True,
            at=now,
            averages=averages or None,
        )

    def read_load_data(self, cluster: str, broker: str, now: int) -> Report:
        """Return the load data that the leader of the extensible load manager sees."""
        try:
            load, top = self._loads.newest(broker), self._tops.newest(broker)
        except NoLoadData as error:
            raise UnknownLoad(str(error)) from None
        return BrokerLoadReport(
            v=1,
            type="broker-load-data",
            cluster=cluster,
            broker=broker,
            at=now,
            forced=True,
            data=_parse_report(BrokerLoadData, load, f"load data of {broker}"),
            top_bundles=_parse_report(TopBundlesLoadData, top, f"top bundles of {broker}"),
        )


def _parse_report(model: type[WireT], content: bytes, name: str) -> WireT:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UnknownLoad(f"{name} cannot be read: {where}{': ' if where else ''}{first['msg']}"[:500]) from None
