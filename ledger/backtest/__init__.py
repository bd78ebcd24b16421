"""What policies would have done on recorded history, and which policy to have.

- `reading`     the lake, part by part
- `record`      of the lake what is not of single topics: batches, ticks, policies
- `spilling`    its rows, each table once through into a file of all parts
- `loads`       loads on the way there and back
- `lives`       which segment carried which hashes, and what was split and merged
- `demand`      what was wanted of slices of the key space, out of what segments carried
- `source`      the same as the simulation takes it
- `guesses`     what of it had to be guessed
- `comparison`  the policy that ran against what is on record
- `running`     policies on all of it
- `by_spark`    the same on the workers of Spark
- `policies`    policies as people write them, and as a diff
- `suggesting`  a search among policies
- `report`      all of it as tables, JSON and HTML
"""
