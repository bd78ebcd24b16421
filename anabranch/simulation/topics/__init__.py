"""Simulation of policies: the closed loop of decision and layout, on demand over the key space.

- `timeline`  the contract: demand of each topic, as steps over time and over the key space
- `shapes`    synthetic demand: flat, day, step, burst, drift
- `recorded`  recorded demand, in a file
- `from_lake` the same from the lake
- `run`       entry point: policies on a demand, chunks of topics on one process or several
- `kernel`    many topics under many policies in columns, each row on to the next step that matters for it
- `rows`      their state; `applying`, `sampling` and `evaluating`: the parts of a step
- `window`    a window of timelines in columns; `lineages`, the origins of segments
- `tally`     counts by row, and `outcome`, the results of a policy
- `page`      the results as HTML

Comparisons of profiles: `table` on the shapes of `demands`, `weeks` on the series of `traces`. `asking` puts a row of
the kernel to `decide`.
"""
