"""Several controllers on one ZooKeeper under random work and random faults, and a checker for what clients saw.

`python -m lab.chaos --minutes 60` runs it. The parts: `history` (what was seen) and `checker` (what must be true of it,
pure), `nodes` (controllers as processes behind links that can be cut), `clients` (the work), `announced` (what the
controllers announce), `run` (faults, rounds, the end).
"""
