"""Brakes: may this decision be acted on now, and if not, until when?

What a brake holds is neither forgotten nor failed: it waits, and is judged by its subject again when it is released.
Under the kernel, which asks; nothing here knows of families, Kafka or calls.

- `windows`  pure: maintenance windows in the zones of people
- `rate`     pure: at most so many calls in any 60 seconds
- `rules`    pure: which brake holds a decision, if any
- `waiting`  those that wait, and who of them may go on
- `record`   rows of `waits`
"""
