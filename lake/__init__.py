"""Delta without a JVM: tables made and opened, followed by version, compacted and checked.

- `tables`       make and open tables, and keep one open
- `tail`         follow a table by version
- `lease`        a table of which one process writes some rows
- `register`     a small table that several processes replace as a whole
- `job_lease`    a lake that one job writes
- `rows`         whole tables in memory
- `maintenance`  compact, and delete unused files
- `retention`    forget whole days of a table
- `integrity`    whether what must always hold did
"""
