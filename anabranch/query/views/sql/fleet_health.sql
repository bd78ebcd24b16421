-- How the fleet and the system stand now: one row, with the columns of `fleet_health_at`.
-- version: 1
-- like: fleet_health_at
SELECT * FROM fleet_health_at($now)
