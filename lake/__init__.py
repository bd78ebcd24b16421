"""Delta without a JVM: create, open, follow, compact and check tables.

- `tables`       create and open tables, and keep one open
- `tail`         follow a table by version
- `lease`        exclusive right of one process to write some rows of a table
- `register`     a small table that several processes replace as a whole
- `job_lease`    exclusive right of one job to write a lake
- `rows`         whole tables in memory
- `files`        Parquet files of a table, with `statistics` for its log
- `upkeep`       compaction while a writer runs, by `compaction`
- `maintenance`  on demand: compact, and delete unused files
- `retention`    remove old rows of a table, by `retention_plan` and `retention_filter`; `forgotten`, the marks of that
- `state_snapshots`   states at the start of a day, from which rebuilds begin
- `brakes`, `batches`   the tables of these names
- `integrity`    check the invariants over all rows
"""
