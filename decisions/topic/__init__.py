"""The scalable topic of PIP-468: names, hashing, segments, their lineage and the layout of a topic."""
