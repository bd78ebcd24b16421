"""Recorded cluster as a fleet: demand of each bundle by minute, and brokers fitted to their reports.

Stage: beside `shapes`, for backtests. Demand belongs to bundles, whichever broker owns them: a bundle's load in a
report holds until its broker's next report. A bundle that was split is represented by its parts from the beginning, its
load divided as theirs were at first. CPU cost per message and network capacity of a broker are fitted to its reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.simulation.bundles.events import Recorded, Report
from anabranch.simulation.bundles.fleet import Broker, Fleet, Floats

MINUTE_MS = 60_000
_HOLDS, _GAP = 16, 5
"""Minutes for which a report holds (the rule writes one after 15); and a load of a bundle that nobody reports."""
_FEW, _FIRST = 10, 10
"""Reports below which a broker is fitted with all others; readings of a part that say its share."""
_NOTHING_FILLS = 1e15


class NoRecord(LookupError):
    """No fleet can be built from the record; the message says why."""


@dataclass(frozen=True)
class RecordedFleet:
    """A fleet, and the recorded moves on it."""

    fleet: Fleet
    owners: NDArray[np.int32]
    """By minute and bundle: the place of its broker in the fleet; -1: nobody's yet."""
    whole: NDArray[np.int32]
    """By minute and bundle: which bundle it was, or was a part of, then."""
    began_at: int
    """Milliseconds."""
    cpu_error: float
    """Mean error of the CPU model against the reports, points of usage."""
    known: float
    """Share of the minutes of bundles in which a report held."""
    split: int
    """Bundles that were split meanwhile."""


@dataclass
class _Held:
    """Last report of a broker."""

    at: int
    places: NDArray[np.int32]
    whole: NDArray[np.int32]
    rates: NDArray[np.float32]


@dataclass
class _Parts:
    """Parts of the recorded bundles."""

    names: list[str]
    of: dict[str, list[int]]
    """Of each bundle on record, places of its parts."""
    shares: dict[str, Floats] = field(default_factory=dict)


def fleet_of(recorded: Recorded) -> RecordedFleet:
    """Return the fleet. Raises `NoRecord`."""
    if not (reports := sorted(recorded.reports, key=lambda report: (report.at, report.broker))):
        raise NoRecord("no report of a broker with all of its bundles is on record in that time")
    begin = reports[0].at // MINUTE_MS
    minutes = reports[-1].at // MINUTE_MS - begin + 1
    if minutes < 2:
        raise NoRecord("reports of one minute only are on record in that time")
    names = sorted({report.broker for report in reports})
    live = _living(recorded, names, begin, minutes)
    parts = _parts_of(reports)
    rates = np.zeros((minutes, len(parts.names), 4), np.float32)
    owners = np.full((minutes, len(parts.names)), -1, np.int32)
    whole = np.full((minutes, len(parts.names)), -1, np.int32)
    seen = np.full(len(parts.names), -_GAP - 1, np.int64)
    numbers = {name: number for number, name in enumerate(sorted(parts.of))}
    held, reported, following = dict[int, _Held](), 0, 0
    for minute in range(minutes):
        while following < len(reports) and reports[following].at // MINUTE_MS - begin <= minute:
            report = reports[following]
            held[names.index(report.broker)] = _held(report, parts, numbers)
            following += 1
        if minute:
            carried = seen >= minute - _GAP
            rates[minute, carried] = rates[minute - 1, carried]
            owners[minute], whole[minute] = owners[minute - 1], whole[minute - 1]
        is_known = np.zeros(len(parts.names), bool)
        for broker, its in sorted(held.items(), key=lambda entry: entry[1].at):
            if live[minute, broker] and its.at // MINUTE_MS - begin > minute - _HOLDS:
                rates[minute, its.places], owners[minute, its.places] = its.rates, broker
                whole[minute, its.places] = its.whole
                is_known[its.places] = True
        seen[is_known] = minute
        reported += int(is_known.sum())
    there = (owners >= 0).sum()
    brokers, error = _brokers(reports, names, live)
    first = [int(column[column >= 0][0]) if (column >= 0).any() else 0 for column in owners.T]
    fleet = Fleet(
        brokers,
        tuple(parts.names),
        tuple(names[index] for index in first),
        np.zeros((0, 0)),
        np.zeros(0),
        np.zeros(0),
        recorded=rates,
        rules=recorded.rules,
    )
    split = sum(len(parts_of_bundle) > 1 for parts_of_bundle in parts.of.values())
    return RecordedFleet(fleet, owners, whole, begin * MINUTE_MS, error, reported / max(int(there), 1), split)


def _held(report: Report, parts: _Parts, numbers: Mapping[str, int]) -> _Held:
    indices, whole, rates = list[int](), list[int](), list[Any]()
    for bundle, of_bundle in report.bundles.items():
        its = parts.of[bundle]
        indices += its
        whole += [numbers[bundle]] * len(its)
        rates += [of_bundle] if len(its) == 1 else (parts.shares[bundle][:, None] * np.array(of_bundle)).tolist()
    return _Held(
        report.at, np.array(indices, np.int32), np.array(whole, np.int32), np.array(rates, np.float32).reshape(-1, 4)
    )


def _living(recorded: Recorded, names: Sequence[str], begin: int, minutes: int) -> NDArray[np.bool_]:
    """Return the presence of brokers by minute: as last announced, else as long as their reports hold."""
    live = np.zeros((minutes, len(names)), bool)
    for report in recorded.reports:
        minute = report.at // MINUTE_MS - begin
        live[minute : minute + _HOLDS, names.index(report.broker)] = True
    listed = sorted(recorded.living)
    ends = [*(announced_at // MINUTE_MS - begin for announced_at, _ in listed[1:]), minutes]
    for (announced_at, there), end in zip(listed, ends[: len(listed)], strict=True):
        if end > (first := max(announced_at // MINUTE_MS - begin, 0)):
            live[first:end] = [name in there for name in names]
    for minute in range(1, minutes):
        if not live[minute].any():
            live[minute] = live[minute - 1]
    return live


def _parts_of(reports: Sequence[Report]) -> _Parts:
    """Return the smallest recorded bundles; one that contains others was split, and consists of those."""
    by_namespace: dict[str, list[tuple[int, int, str]]] = {}
    for bundle in {name for report in reports for name in report.bundles}:
        namespace, _, ends = bundle.rpartition("/")
        try:
            first, end = (int(bound, 16) for bound in ends.split("_"))
        except ValueError:
            first = end = -1
        by_namespace.setdefault(namespace, []).append((first, end, bundle))
    names: list[str] = []
    within: dict[str, list[str]] = {}
    for some in by_namespace.values():
        for first, end, bundle in some:
            inside = [part for part in some if first <= part[0] and part[1] <= end and part[:2] != (first, end)]
            smallest = [
                part[2]
                for part in inside
                if not any(other[:2] != part[:2] and part[0] <= other[0] and other[1] <= part[1] for other in inside)
            ]
            within[bundle] = sorted(smallest) or [bundle]
            names += [] if smallest else [bundle]
    names.sort()
    number_of_part = {name: number for number, name in enumerate(names)}
    parts = _Parts(
        names, {bundle: [number_of_part[part_name] for part_name in some] for bundle, some in within.items()}
    )
    seen: dict[str, list[float]] = {}
    for report in reports:
        for bundle, rates in report.bundles.items():
            if len(readings := seen.setdefault(bundle, [])) < _FIRST:
                readings.append(rates[2] + rates[3])
    for bundle, its in within.items():
        loads = np.array([float(np.mean(seen.get(part, [0.0]))) for part in its])
        parts.shares[bundle] = loads / loads.sum() if loads.sum() > 0 else np.full(len(its), 1 / len(its))
    return parts


def _brokers(
    reports: Sequence[Report], names: Sequence[str], live: NDArray[np.bool_]
) -> tuple[tuple[Broker, ...], float]:
    """Return the brokers with fitted capacities, and the mean error of their CPU in points."""
    of_all = [[sum(rates[0] + rates[1] for rates in report.bundles.values()), report.cpu] for report in reports]
    everyone = _line(np.array(of_all)) or (0.0, 1 / _NOTHING_FILLS)
    carried = [
        throughput / share
        for report in reports
        for throughput, share in (
            (sum(rates[2] for rates in report.bundles.values()), report.network_in),
            (sum(rates[3] for rates in report.bundles.values()), report.network_out),
        )
        if share > 0.005 and throughput > 0
    ]
    network = float(np.median(carried)) if carried else _NOTHING_FILLS
    brokers, errors = list[Broker](), list[float]()
    for number, name in enumerate(names):
        own = np.array([point for point, report in zip(of_all, reports, strict=True) if report.broker == name])
        idle, slope = (_line(own) if len(own) >= _FEW else None) or everyone
        errors += np.abs(idle + slope * own[:, 0] - own[:, 1]).tolist()
        there = np.flatnonzero(live[:, number])
        joins, last = int(there[0]), int(there[-1])
        absent = np.flatnonzero(~live[joins : last + 1, number]) + joins
        cuts = np.flatnonzero(np.diff(absent) > 1) + 1
        away = tuple((int(some[0]), int(some[-1]) + 1) for some in np.split(absent, cuts) if len(some))
        dies = None if last == len(live) - 1 else last + 1
        brokers.append(Broker(name, 1 / slope, network, idle, joins, dies, away))
    return tuple(brokers), float(np.mean(errors)) * 100


def _line(readings: Floats) -> tuple[float, float] | None:
    """Return idle CPU and CPU per message a second, as fractions; None: the readings do not tell."""
    rates, cpu = readings[:, 0], readings[:, 1]
    if float(np.ptp(rates)) > 0.05 * float(rates.max()):
        slope, idle = (float(coefficient) for coefficient in np.polyfit(rates, cpu, 1))
        if slope > 0:
            return min(max(idle, 0.0), 0.9), slope
    if rates.sum() > 0 and cpu.sum() > 0:
        return 0.0, float(cpu.sum() / rates.sum())
    return None
