"""Parts that every family of decisions shares; a family brings its own gates, actions and passes.

- `readings`     one gate as it was found: bounds, waits, and when time alone would open it
- `precedence`   which gate binds, as a table of situations
- `answers`      what an evaluation answers: an action, or a hold
- `quantities`   durations, sizes and rates as people write them

`tests/decisions/test_kernel.py` shows a whole family in a few lines.
"""
