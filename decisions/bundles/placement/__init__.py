"""Placement of a bundle: `select` runs the filters in order, then the strategy; a module per strategy."""
