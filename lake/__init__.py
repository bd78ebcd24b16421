"""Delta without a JVM: tables made and opened, followed by version, compacted and checked."""
