"""Where a bundle goes: `select` runs the filters in their order, then the strategy; a module a strategy."""
