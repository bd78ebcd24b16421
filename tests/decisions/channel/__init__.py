"""The ownership channel, explored exhaustively; its pure rules, and channels read back.

- `world`    one instant of a small cluster, its rules and bounds
- `steps`    pure: every step that can come next, and what it breaks
- `explore`  breadth first over all orders of steps; counterexamples, and the check that every run comes to rest

`python -m tests.decisions.channel > tests/decisions/channel/explored.md` explores and prints the record.
"""
