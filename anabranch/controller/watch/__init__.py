"""Layouts pushed to clients (PIP-468 "DAG Watch Sessions").

`layout_watcher` reads layouts again when they change, `hub` distributes them to sessions, `transport` carries them.
"""
