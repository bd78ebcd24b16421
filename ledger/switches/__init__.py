"""Switches between BookKeeper clusters as they are on record: each a timeline of phases (docs/bookies.md)."""
