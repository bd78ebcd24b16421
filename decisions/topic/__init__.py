"""The scalable topic of PIP-468: names, hashing, the layout of its segments, their lineage."""
