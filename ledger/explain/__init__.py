"""Why a topic acts or holds at an instant, and what would change that.

- `record`   what is on record of the topic, replayed up to that instant, and decided again
- `application`  what became of a decision
- `changes`  the smallest change of each single input that leads to another answer
- `inputs`   the inputs that a change may touch, and how a snapshot looks with it
- `search`   the smallest step that leads somewhere else
"""
