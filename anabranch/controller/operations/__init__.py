"""Splits, merges and pruning as repeatable steps (PIP-468 "Split Protocol", "Merge Protocol").

`protocol` plans an operation and carries out its steps, `journal` stores the progress of each operation, `runner` runs
and resumes them for the topics that this node leads, and `pruning` removes sealed segments that are read to the end.
"""
