"""Layouts pushed to clients (PIP-468 "DAG Watch Sessions").

`layout_watcher` reads layouts again when they change, `hub` gives them to the sessions, `transport` carries them.
"""
