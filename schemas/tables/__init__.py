"""Delta tables: one row model per table, and its Arrow schema."""
