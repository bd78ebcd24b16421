"""Plan of [retention] for a day: which rows of which tables go, in which order.

Stage: under `anabranch lake retain`; `retention` removes the rows.
"""

from dataclasses import dataclass
from datetime import date, timedelta

from schemas.settings.retention import RetentionSettings
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, WAITS, Table

TABLES: dict[str, tuple[Table, ...]] = {
    "dead_letters": (DEAD_LETTERS,),
    "segment_load": (SEGMENT_LOAD,),
    "events": (EVENTS,),
    "holds": (HOLDS,),
    "decisions": (DECISIONS, OUTCOMES, WAITS),
    "batches": (BATCHES,),
}
"""Tables that are thinned together, in order."""
OF_TOPICS = ("segment_load", "events", "holds", "decisions")
"""Names whose rows are about topics, and so about namespaces."""


@dataclass(frozen=True)
class Cut:
    """Rows to remove: of the days before a date, of all namespaces or of some."""

    name: str
    """A key of `TABLES`."""
    before: date
    namespaces: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The rows in words, to follow the name of a table."""
        return f" of {', '.join(self.namespaces)}" if self.namespaces else ""


def first_kept(today: date, days: int) -> date:
    """Return the first day that is kept: `days` before today."""
    return today - timedelta(days=days)


def plan_cuts(settings: RetentionSettings, today: date) -> list[Cut]:
    """Return a day's cuts (UTC): later dates first, whose horizon serves earlier ones; batches last."""
    cuts = [
        Cut(name, first_kept(today, days)) for name in (*OF_TOPICS, "dead_letters") if (days := getattr(settings, name))
    ]
    by_days: dict[tuple[str, int], list[str]] = {}
    for namespace, chosen in sorted(settings.namespaces.items()):
        for name, days in chosen.model_dump(exclude_none=True).items():
            by_days.setdefault((name, days), []).append(namespace)
    cuts += [Cut(name, first_kept(today, days), tuple(names)) for (name, days), names in by_days.items()]
    cuts.sort(key=lambda cut: cut.before, reverse=True)
    return [*cuts, Cut("batches", first_kept(today, settings.batches))] if settings.batches else cuts
