"""The segment topics behind scalable topics (PIP-468 "Segment Topic Management via Admin API")."""
