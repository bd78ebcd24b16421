"""A broker as it will be: usage by resource, what load costs it, and its bundles.

Stage: under `projection`, which makes one of each report; strategies of profile `default` move bundles about on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Load = tuple[float, float, float]
"""Of a bundle: messages a second in and out; bytes a second in; bytes a second out."""


@dataclass(slots=True)
class Projected:
    """A broker. Usage is a fraction, after weights."""

    name: str
    signals: list[float]
    """CPU, network in, network out."""
    costs: Load
    """Usage of each signal for one unit of load."""
    floor: float
    """Direct memory, which no move changes."""
    bundles: dict[str, Load] = field(default_factory=dict)
    """Those of which something is known, with what was moved here."""
    count: int = 0
    """All its bundles."""

    @property
    def usage(self) -> float:
        """Its fullest resource."""
        return max(*self.signals, self.floor)

    def with_load(self, load: Load, sign: int = 1) -> float:
        """Its usage with that load more; with `sign` -1, less."""
        # Spelled out: a search for the best move asks this a hundred thousand times.
        cpu, coming, going = self.signals
        messages_cost, in_cost, out_cost = self.costs
        messages, bytes_in, bytes_out = load
        return max(
            cpu + sign * messages_cost * messages,
            coming + sign * in_cost * bytes_in,
            going + sign * out_cost * bytes_out,
            self.floor,
            0.0,
        )

    def take(self, bundle: str, load: Load) -> None:
        """Gets a bundle."""
        self.bundles[bundle] = load
        self._change(load, 1)

    def give(self, bundle: str) -> None:
        """Loses a bundle."""
        self._change(self.bundles.pop(bundle), -1)

    def _change(self, load: Load, sign: int) -> None:
        self.count += sign
        for index, (unit, part) in enumerate(zip(self.costs, load, strict=True)):
            self.signals[index] = max(0.0, self.signals[index] + sign * unit * part)
