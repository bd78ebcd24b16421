"""Delta without a JVM: create, open, follow, compact and check tables.

- `tables`       create and open tables, and keep one open
- `tail`         follow a table by version
- `lease`        exclusive right of one process to write some rows of a table
- `register`     a small table that several processes replace as a whole
- `job_lease`    exclusive right of one job to write a lake
- `rows`         whole tables in memory
- `maintenance`  compact, and delete unused files
- `retention`    remove old rows of a table
- `integrity`    check the invariants over all rows
"""
