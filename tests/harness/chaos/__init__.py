"""Chaos test: several controllers on three ZooKeepers under random work and faults, with a checker.

The checker judges what clients saw.

`python -m tests.harness.chaos --minutes 30 --kafka` runs it. The parts: `history` (what was seen) and, pure, what must
be true of it: `checker`, `topic_rules` (one topic through its lives), `ownership` (one owner at all times); `nodes`
(controllers as processes behind links that can be cut) and `faults`; the work: `clients` (calls, watch sessions),
`consumers`, `traffic` (messages), `announced` (what the controllers announce); `run` (rounds, rest, the end).
"""
