"""Placement of a bundle: `select` runs the filters in order, then a strategy of `strategies`.

`decisions.bundles.configuration` lists the names that the setting may have, `select` the strategy of each name.
"""
