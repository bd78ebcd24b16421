"""Pictures as SVG text that a page holds: classes only, as its style sheet has the colours of light and dark.

- `heat`   load as one of a few levels
- `strip`  the key space of a topic as it stands
- `river`  the key space of a topic over time
"""
