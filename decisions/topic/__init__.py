"""The scalable topic of PIP-468: names and hashing, a segment, the lineage of segments, the layout of a topic."""
