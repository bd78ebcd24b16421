"""Limits on one client's use of a node: turns, sessions, waiting bytes; and on anonymous connections."""
