-- What brokers of clusters with bundles reported: how full each resource was, with either load manager.
-- version: 2
-- cluster string: The cluster.
-- broker string: The broker.
-- accepted_at timestamp: Time of the batch that took the report in.
-- usage double: Of its fullest resource but memory, as a fraction of the limit.
-- cpu double: Of its CPU.
-- memory double: Of its heap.
-- bandwidth_in double: Of its network card, inwards.
-- bandwidth_out double: Outwards.
-- bundles bigint: Its bundles: those that it named with their loads, or with the extensible manager as it counts them.
-- day date: UTC date of `accepted_at`.
WITH said AS (
  SELECT subject, type, accepted_at, day, body, $first(body, '"broker": ?"([^"]+)"') AS broker,
         CAST($first(body, '"cpu": ?\{[^}]*"usage": ?([-+0-9.eE]+)') AS DOUBLE)
           / nullif(CAST($first(body, '"cpu": ?\{[^}]*"limit": ?([-+0-9.eE]+)') AS DOUBLE), 0) AS cpu,
         CAST($first(body, '"memory": ?\{[^}]*"usage": ?([-+0-9.eE]+)') AS DOUBLE)
           / nullif(CAST($first(body, '"memory": ?\{[^}]*"limit": ?([-+0-9.eE]+)') AS DOUBLE), 0) AS memory,
         CAST($first(body, '"bandwidthIn": ?\{[^}]*"usage": ?([-+0-9.eE]+)') AS DOUBLE)
           / nullif(CAST($first(body, '"bandwidthIn": ?\{[^}]*"limit": ?([-+0-9.eE]+)') AS DOUBLE), 0) AS bandwidth_in,
         CAST($first(body, '"bandwidthOut": ?\{[^}]*"usage": ?([-+0-9.eE]+)') AS DOUBLE)
           / nullif(CAST($first(body, '"bandwidthOut": ?\{[^}]*"limit": ?([-+0-9.eE]+)') AS DOUBLE), 0)
           AS bandwidth_out
  FROM events
  WHERE type IN ('local-broker-data', 'broker-load-data')
)
SELECT subject AS cluster, broker, accepted_at,
       greatest(coalesce(cpu, 0.0), coalesce(bandwidth_in, 0.0), coalesce(bandwidth_out, 0.0)) AS usage,
       cpu, memory, bandwidth_in, bandwidth_out,
       CASE WHEN type = 'local-broker-data' THEN CAST($count(body, '/0x[0-9a-fA-F]+_0x[0-9a-fA-F]+": ?\{') AS BIGINT)
            ELSE CAST($first(body, '"bundleCount": ?([0-9]+)') AS BIGINT) END AS bundles, day
FROM said
