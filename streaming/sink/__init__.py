"""The sink on the driver: every table committed idempotently, and the tables' upkeep by Spark."""
