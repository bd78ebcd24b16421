"""SQL over the lake without a JVM: views, topics by name, effective policies."""
