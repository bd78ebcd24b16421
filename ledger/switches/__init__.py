"""Recorded switches between BookKeeper clusters: each a timeline of phases (docs/bookies.md)."""
