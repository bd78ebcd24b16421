"""Results of a balancer on a fleet.

Stage: filled by `run`, compared by `compare` and `backtest`.
"""

from dataclasses import asdict, dataclass, field

OVER, IDLE, BACK_WITHIN = 0.85, 0.25, 30
"""Usage that is too much; the share of the mean below which a broker is idle; minutes until a return is none."""


@dataclass(slots=True)
class BalancingOutcome:
    """Columns of the table; lower is better in all."""

    minutes: int
    deviations: list[float] = field(default_factory=list)
    """Population standard deviation of the brokers' usage, of each minute."""
    ratios: list[float] = field(default_factory=list)
    """Highest usage by the mean, of each minute."""
    over: int = 0
    """Broker-minutes above 85 %."""
    idle: int = 0
    """Broker-minutes below a quarter of the mean."""
    unserved: float = 0.0
    """Seconds without an owner, of all bundles together."""
    moves: list[tuple[int, str, str, str]] = field(default_factory=list)
    """Minute, bundle, from, to: the balancer's."""
    used_after: dict[str, int | None] = field(default_factory=dict)
    """By broker that joined later: minutes until it had half the mean usage; None: never."""

    @property
    def ping_pongs(self) -> int:
        """Count the moves of a bundle back to the broker that it left within 30 minutes."""
        left, count = dict[tuple[str, str], int](), 0
        for minute, bundle, source, destination in self.moves:
            count += minute - left.get((bundle, destination), -BACK_WITHIN - 1) <= BACK_WITHIN
            left[bundle, source] = minute
        return count

    def summary(self) -> dict[str, float | int | dict[str, int | None]]:
        """Return the columns."""
        fields = asdict(self)
        return {
            "deviation": sum(self.deviations) / self.minutes,
            "highestByMean": sum(self.ratios) / self.minutes,
            "unloads": len(self.moves),
            "pingPongs": self.ping_pongs,
            "secondsUnserved": self.unserved,
            "minutesOver": self.over,
            "minutesIdle": self.idle,
            "usedAfter": fields["used_after"],
        }
