"""What policies would do: the closed loop of decision and layout, on demand over the key space, in virtual time.

- `demand`    demand per slice of the key space, which can be added up under any layout
- `shapes`    demand that is made up: flat, day, step, burst, drift
- `recorded`  demand that is on record, in a file
- `from_lake` the same out of the lake
- `loop`      one policy on one demand: the job's own engine, and segments that split and merge as it decides
- `score`     what came of it, by topic and in all
- `page`      the same as HTML
"""
