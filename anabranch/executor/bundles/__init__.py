"""Executor side of the family `bundles`: unload bundles to another broker, or split them.

- `decision`   arguments of a row of `decisions`
- `judge`      pure: decision and current owners in, verdict out
- `actor`      looks at bundles and owners, unloads and splits, through the admin REST interface
"""
