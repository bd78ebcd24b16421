"""The family `bundles` in the executor: bundles of a Pulsar cluster that are unloaded to another broker, or split.

- `decision`   arguments of a row of `decisions`
- `judge`      pure: decision, and who owns what, in; verdict out
- `actor`      looks at bundles and owners, unloads and splits, through the admin REST interface
"""
