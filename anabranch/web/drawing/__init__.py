"""SVG pictures for a page. They use classes only: the style sheet has the light and dark colours.

- `strip`  the key space of a topic as it stands, its load as one of a few levels
- `river`  the key space of a topic over time
"""
