"""Executor side of the family `autoscale`: splits and merges of segments (PIP-483, PIP-468).

- `decision`   arguments and decided layout of a row of `decisions`
- `judge`      pure: decision and live layout in, verdict out
- `actor`      looks at layouts, splits and merges, through the admin REST interface
"""
