"""An answer as a table for people, for the commands (`ledger.explain.words`)."""

from ledger.explain.words import duration, explained, headline, instant

__all__ = ["duration", "explained", "headline", "instant"]
