"""Comparison of balancers: each on the same fleets, over shapes and seeds.

Stage: over `run`, which simulates one balancer; `page` draws the result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from statistics import median
from typing import Any

from anabranch.simulation.bundles.outcome import BalancingOutcome
from anabranch.simulation.bundles.run import balancer, check_simulated, simulate
from anabranch.simulation.bundles.shapes import SHAPES
from decisions.bundles.configuration import PROFILES, SHEDDERS, Configuration, ConfigurationError

COLUMNS = (
    ("deviation", "deviation"),
    ("highestByMean", "highest / mean"),
    ("unloads", "unloads"),
    ("pingPongs", "ping-pongs"),
    ("secondsUnserved", "seconds unserved"),
    ("minutesOver", "minutes over"),
    ("minutesIdle", "minutes idle"),
    ("usedAfter", "minutes until used"),
)
"""Key and heading; lower is better in all."""


@dataclass(frozen=True)
class Compared:
    """Outcomes of one balancer on one shape, one for each seed."""

    shape: str
    balancer: str
    outcomes: tuple[BalancingOutcome, ...]

    def values(self, column: str) -> list[float]:
        """Return a column by seed; `usedAfter` is that of the broker that waited longest, or infinite."""
        numbers = [outcome.summary()[column] for outcome in self.outcomes]
        return [_longest(value) if isinstance(value, dict) else float(value) for value in numbers]

    def typical(self) -> dict[str, float]:
        """Return the median of each column."""
        return {column: median(self.values(column)) for column, _ in COLUMNS}

    def worst(self) -> dict[str, float]:
        """Return the highest value of each column."""
        return {column: max(self.values(column)) for column, _ in COLUMNS}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of the command; null stands for never."""
        return {
            "shape": self.shape,
            "balancer": self.balancer,
            "median": _finite(self.typical()),
            "worst": _finite(self.worst()),
            "seeds": [outcome.summary() for outcome in self.outcomes],
        }


def read(text: str, settings: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return profile and settings of a balancer; a profile's name stands for all of its defaults.

    Raises `ConfigurationError` for text that cannot be read, is no setting, or is not simulated.
    """
    names = text.partition(",")[0]
    if names not in PROFILES and "=" not in names and names.partition("+")[0].rpartition(".")[2] not in SHEDDERS:
        raise ConfigurationError(
            f"{text[:80]!r} is no profile ({', '.join(PROFILES)}), and does not begin with a shedder "
            f"({', '.join(SHEDDERS)})"
        )
    try:
        profile, changed = balancer(f"profile={text}" if names in PROFILES else text)
        configuration = {**settings, **changed}
        seen = Configuration(configuration, profile)
    except KeyError as error:
        raise ConfigurationError(f"{text[:80]!r}: {error} is no profile") from None
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    check_simulated(configuration)
    if seen.ignored:
        raise ConfigurationError(f"{text[:80]!r}: {seen.ignored[0][:80]!r} is no setting of the balancer")
    return profile, configuration


def compare(
    shapes: Sequence[str],
    balancers: Sequence[str],
    settings: Mapping[str, str],
    seeds: Iterable[int],
    progress: Callable[[int, int], object] = lambda *_: None,
) -> list[Compared]:
    """Run every balancer on every shape and seed. Raises `ConfigurationError` before the first run."""
    configurations = {text: read(text, settings) for text in balancers}
    drawn, compared = list(seeds), list[Compared]()
    for shape in shapes:
        for text, (profile, configuration) in configurations.items():
            outcomes = tuple(simulate(SHAPES[shape](seed), configuration, profile) for seed in drawn)
            compared.append(Compared(shape, text, outcomes))
            progress(len(compared), len(shapes) * len(configurations))
    return compared


def rows_of(compared: Sequence[Compared]) -> list[list[str]]:
    """Return the cells of a table, a row for each; with several seeds the median, then the worst."""
    rows = []
    for result in compared:
        typical, worst = result.typical(), result.worst()
        cells = [
            number(typical[column]) + (f" ({number(worst[column])})" if len(result.outcomes) > 1 else "")
            for column, _ in COLUMNS
        ]
        rows.append([result.shape, result.balancer, *cells])
    return rows


def number(value: float) -> str:
    """Return a cell: `never` for infinite, three digits after the point unless whole."""
    if isinf(value):
        return "never"
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.3f}"


def _longest(used_after: Mapping[str, int | None]) -> float:
    return max((inf if minutes is None else float(minutes) for minutes in used_after.values()), default=0.0)


def _finite(columns: Mapping[str, float]) -> dict[str, float | None]:
    return {column: None if isinf(value) else value for column, value in columns.items()}
