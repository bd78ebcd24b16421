"""Delta without a JVM: tables made and opened, followed by version, compacted and checked.

- `tables`       make and open tables, and keep one open
- `tail`         follow a table by version
- `lease`        a table that one process writes
- `job_lease`    a lake that one job writes
- `rows`         whole tables in memory
- `maintenance`  compact, and delete unused files
- `integrity`    whether what must always hold did
"""
