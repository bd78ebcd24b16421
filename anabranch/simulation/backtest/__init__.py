"""Backtest of policies on recorded history, and the search for a better policy.

- `reading`     the lake, part by part
- `record`      facts about the whole job: batches, ticks, policies
- `spilling`    rows of the lake, each table in one pass into a file of all parts
- `loads`       loads, to the file and back
- `incarnations`       hashes of each segment over time, and the splits and merges
- `demand`      demand of slices of the key space, estimated from the loads of segments
- `source`      the same as the simulation takes it
- `assumptions`     periods that rest on assumptions
- `comparison`  the policy that ran against the record
- `running`     policies on the whole history
- `by_spark`    the same on the workers of Spark
- `policies`    policies as people write them, and as a diff
- `trying`      policies on drawn topics, a sample of them, or unseen time
- `suggesting`  a search among policies
- `report`      the results as tables, JSON and HTML
"""
