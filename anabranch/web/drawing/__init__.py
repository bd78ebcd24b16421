"""SVG pictures for a page. They use classes only: the style sheet has the light and dark colours.

- `heat`   load as one of a few levels
- `strip`  the key space of a topic as it stands
- `river`  the key space of a topic over time
"""
