"""The family `autoscale` in the executor: splits and merges of a scalable topic's segments (PIP-483, PIP-468).

- `decision`   arguments and decided layout of a row of `decisions`
- `judge`      pure: decision and live layout in, verdict out
- `actor`      looks at layouts, splits and merges, through the admin REST interface
"""
