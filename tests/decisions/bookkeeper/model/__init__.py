"""A switch between BookKeeper clusters, explored in every order of its steps.

The decisions are the real ones (`decisions.bookkeeper`); how steps are carried out follows
`anabranch.bookkeeper.steps`, one request after the other, so that anything can happen in between. See `__main__` for
the page that it makes.

- `state`     the small world, and the snapshot of it that decisions see
- `moves`     what can happen next
- `explore`   every order, breadth first, and what must hold
"""
