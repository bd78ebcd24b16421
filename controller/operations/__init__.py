"""Splits, merges and pruning, each as steps that can be repeated (PIP-468 "Split Protocol", "Merge Protocol").

`protocol` plans an operation and carries out its steps, `journal` stores how far each operation is, `runner` runs and
resumes them for the topics that this node leads, and `pruning` removes sealed segments that are read to the end.
"""
