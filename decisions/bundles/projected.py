"""ProjectedBroker state of a broker: usage by resource, cost of load, and bundles.

Stage: under `projection`, which makes one from each report; strategies of profile `default` try out moves on them.
"""

from dataclasses import dataclass, field

Load = tuple[float, float, float]
"""Load of a bundle, per second: messages in and out, bytes in, bytes out."""


@dataclass(slots=True)
class ProjectedBroker:
    """ProjectedBroker state of a broker; usage is a weighted fraction."""

    name: str
    signals: list[float]
    """CPU, network in, network out."""
    costs: Load
    """Usage of each signal per unit of load."""
    direct_memory: float
    """Usage of direct memory, which no move changes."""
    bundles: dict[str, Load] = field(default_factory=dict)
    """Bundles of known load, moved ones included."""
    count: int = 0
    """Number of all bundles."""

    @property
    def usage(self) -> float:
        """Usage of its fullest resource."""
        return max(*self.signals, self.direct_memory)

    def with_load(self, load: Load, sign: int = 1) -> float:
        """Return its usage with that load added, or removed if `sign` is -1."""
        # No loop: a search for the best move calls this a hundred thousand times.
        cpu, network_in, network_out = self.signals
        messages_cost, in_cost, out_cost = self.costs
        messages, bytes_in, bytes_out = load
        return max(
            cpu + sign * messages_cost * messages,
            network_in + sign * in_cost * bytes_in,
            network_out + sign * out_cost * bytes_out,
            self.direct_memory,
            0.0,
        )

    def add_bundle(self, bundle: str, load: Load) -> None:
        """Add a bundle with its load."""
        self.bundles[bundle] = load
        self._change(load, 1)

    def remove_bundle(self, bundle: str) -> None:
        """Remove a bundle of known load."""
        self._change(self.bundles.pop(bundle), -1)

    def _change(self, load: Load, sign: int) -> None:
        self.count += sign
        for index, (unit, part) in enumerate(zip(self.costs, load, strict=True)):
            self.signals[index] = max(0.0, self.signals[index] + sign * unit * part)
