"""Account of one cycle: each gate of each broker and bundle, in order, and each random choice.

Stage: filled through `cluster`; `gates` lists the gates.
"""

from collections.abc import Sequence
from typing import Literal

from decisions.bundles.gates import BundleGate
from decisions.bundles.numbers import choose_seeded
from schemas.base import build_model
from schemas.bundles import BundleReading, TieSet

Comparison = Literal[">", ">=", "<", "<="]
Note = tuple[str, bool, str | None, str | None, float | None, float | None, float | None, str | None]
"""The fields of a `BundleReading`, in their order: a cycle of thousands of bundles has tens of thousands of them."""
_FIELDS = tuple(BundleReading.model_fields)


class BundleAccount:
    """List of all that a cycle looked at."""

    def __init__(self, seed: int) -> None:
        self.notes: list[Note] = []
        self.ties: list[TieSet] = []
        self._seed = seed

    def readings(self) -> list[BundleReading]:
        """All that was noted, in order."""
        return [build_model(BundleReading, dict(zip(_FIELDS, note, strict=True))) for note in self.notes]

    def last_failing(self) -> str | None:
        """The last gate that did not pass."""
        return next((gate for gate, passed, *_ in reversed(self.notes) if not passed), None)

    def measured(
        self,
        gate: BundleGate,
        measured: float,
        comparison: Comparison,
        limit: float,
        broker: str | None = None,
        bundle: str | None = None,
        detail: str | None = None,
    ) -> bool:
        """Notes a comparison with a limit, and says whether it passed."""
        above = comparison[0] == ">"
        margin = float(measured - limit if above else limit - measured)
        passed = margin > 0 or (margin == 0 and comparison.endswith("="))
        if measured == limit:
            passed = comparison.endswith("=")
        elif margin == 0:
            passed = (measured > limit) is above
        self.notes.append((gate._value_, passed, broker, bundle, float(measured), float(limit), margin, detail))
        return passed

    def held(
        self, gate: BundleGate, broker: str | None = None, bundle: str | None = None, detail: str | None = None
    ) -> None:
        """Notes a gate without a number that did not pass."""
        self.passes(gate, False, broker, bundle, detail)

    def passes(
        self,
        gate: BundleGate,
        passed: bool,
        broker: str | None = None,
        bundle: str | None = None,
        detail: str | None = None,
    ) -> bool:
        """Notes a gate without a number, and says whether it passed."""
        self.notes.append((gate._value_, passed, broker, bundle, None, None, None, detail))
        return passed

    def choice(self, bundle: str, brokers: Sequence[str]) -> str:
        """One of several brokers that are equally good, by the seed; noted with all of them."""
        ordered = sorted(brokers)
        chosen = choose_seeded(ordered, self._seed, f"{bundle}/{len(self.ties)}")
        self.ties.append(TieSet(bundle=bundle, brokers=ordered, chosen=chosen))
        return chosen
