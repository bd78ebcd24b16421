"""Placement of a bundle: `select` runs the filters in order, then a strategy of `strategies`."""
