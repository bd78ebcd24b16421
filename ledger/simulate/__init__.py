"""What policies would do: the closed loop of decision and layout, on demand over the key space, in virtual time.

- `timeline`  the contract: what clients want of each topic, as steps over time and over the key space
- `shapes`    demand that is made up: flat, day, step, burst, drift
- `recorded`  demand that is on record, in a file
- `from_lake` the same out of the lake
- `run`       the way in: policies on a demand, chunks of topics on one process or several
- `kernel`    many topics under many policies in columns, each row on to the next step that matters for it
- `window`    a window of timelines in columns; `waits`, what topics wait for; `lineages`, where segments come from
- `tally`     what comes of each row, and `outcome`, what came of a policy
- `page`      the same as HTML
"""
