-- Bundles that came back within an hour: moved away from a broker, and moved to it again.
-- version: 1
-- cluster string: The cluster.
-- bundle string: The bundle.
-- broker string: The broker that it was moved away from, and that got it back.
-- by string: The broker that had it meanwhile, and gave it back.
-- moved_at timestamp: When the first move was applied.
-- back_at timestamp: When the one back was applied.
-- seconds_between double: From one to the other, at most 3,600.
-- decision_id string: The first decision.
-- undone_by string: The one that brought it back.
WITH moved AS (
  SELECT cluster, bundle, source, destination, ended_at, decision_id
  FROM bundle_moves
  WHERE action = 'unload' AND status = 'applied'
)
SELECT a.cluster, a.bundle, a.source AS broker, b.source AS by, a.ended_at AS moved_at, b.ended_at AS back_at,
       ($micros(b.ended_at) - $micros(a.ended_at)) / 1e6 AS seconds_between, a.decision_id, b.decision_id AS undone_by
FROM moved a
JOIN moved b ON b.cluster = a.cluster AND b.bundle = a.bundle AND b.destination = a.source
WHERE b.ended_at > a.ended_at AND $micros(b.ended_at) - $micros(a.ended_at) <= 3600000000
