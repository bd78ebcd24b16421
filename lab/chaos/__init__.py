"""Several controllers on one ZooKeeper under random work and random faults, and a checker over what was seen.

`python -m lab.chaos --minutes 60` runs it. The parts: `history` (what was seen) and `checker` (what must be true of it,
pure), `nodes` (controllers as processes behind links that can be cut), `clients` (who works), `announced` (what comes
out), `run` (faults, rounds, the end).
"""
