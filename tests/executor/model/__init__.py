"""A model of the executor's protocol, explored exhaustively, and its traces run against the real executor.

- `state`     one instant of the small world: a topic, a lake, two executors, what is on its way
- `rules`     which protections the protocol has, and what the world may do; tests take protections away
- `steps`     pure: every step that can come next, and what of design "What must always hold" it breaks
- `scenarios` distinct orders of steps, out of the model, for the real executor
- `stage`     the real executor with a real lake, driven step by step along a scenario
- `explore`   breadth first over all interleavings; counterexamples, and the check that everything ends

`python -m tests.executor.model > tests/executor/model/PROTOCOL.md` explores larger bounds and prints the record.
"""
