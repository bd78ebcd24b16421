"""Several controllers on one ZooKeeper under random work and random faults, and a checker over what was seen.

`python -m lab.chaos --minutes 10` runs it. The parts: `history` (what was seen, and the pure checker), `nodes`
(controllers as processes behind links that can be cut), `clients` (who works), `run` (faults, rounds, the end).
"""
