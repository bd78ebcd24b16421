"""The command line: one module per command in `commands`, and what several commands share."""
